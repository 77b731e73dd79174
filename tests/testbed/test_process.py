"""Daemons of a bed are started, found again by their mark, and ended by id, whoever asks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import layout as layouts
from testbed import process
from testbed.errors import StartError
from testbed.layout import Layout

NEVER = ("sleep", "600")


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "cache_folder", lambda: tmp_path)
    made = Layout(63)
    yield made
    process.end(list(process.marked(made)), how=signal.SIGKILL)


def test_a_daemon_is_found_again_by_name_and_by_mark(layout):
    started = process.start(layout, "sleeper", NEVER)
    assert process.find(layout, "sleeper") == started
    assert list(process.marked(layout)) == [started.pid]
    process.stop(layout, "sleeper")
    assert not started.alive()
    assert process.find(layout, "sleeper") is None
    assert list(process.marked(layout)) == []


def test_a_process_that_only_has_the_number_is_not_ours(layout):
    layout.logs.mkdir(parents=True)
    with subprocess.Popen(NEVER) as stranger:
        (layout.logs / "sleeper.pid").write_text(f"{stranger.pid}\n")
        assert process.find(layout, "sleeper") is None
        process.stop(layout, "sleeper")
        assert stranger.poll() is None
        stranger.kill()


def test_a_daemon_of_another_bed_is_not_ours(layout):
    started = process.start(layout, "sleeper", NEVER)
    assert started.pid not in list(process.marked(Layout(62)))


def test_one_that_ignores_the_signal_is_killed(layout):
    ignores = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    started = process.start(layout, "deaf", (sys.executable, "-c", ignores))
    assert process.poll(lambda: "deaf" in started.log.read_text(), 20)
    process.end([started.pid], patience_s=0.3)
    assert not started.alive()


def test_one_that_ends_while_it_starts_shows_its_last_lines(layout):
    started = process.start(layout, "broken", ("sh", "-c", "echo no such flag >&2; exit 3"))
    with pytest.raises(StartError, match="no such flag"):
        process.await_ready(started, lambda: False, limit_s=20)


def test_one_that_never_answers_is_told_from_one_that_ended(layout):
    started = process.start(layout, "silent", NEVER)
    with pytest.raises(StartError, match="did not become ready"):
        process.await_ready(started, lambda: False, limit_s=0.2)


def test_of_a_command_that_forks_the_child_is_the_component(layout):
    started = process.start(layout, "forks", ("sh", "-c", "sleep 600; true"), forks=True)
    words = Path(f"/proc/{started.pid}/cmdline")
    assert process.poll(lambda: words.read_bytes() == b"sleep\x00600\x00", 10)
    process.stop(layout, "forks", how=signal.SIGKILL)
    assert process.poll(lambda: list(process.marked(layout)) == [], 10)


def test_a_log_that_is_not_there_has_no_tail(tmp_path):
    assert process.tail(tmp_path / "none.log").strip() == "(no log)"


def test_a_process_is_gone_only_with_its_last_thread():
    # The first thread leaves and shows as a zombie; the second one still holds what the process holds.
    program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); ctypes.CDLL(None).pthread_exit(None)"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        state = Path(f"/proc/{child.pid}/stat")
        assert process.poll(lambda: state.read_bytes().rpartition(b")")[2].split()[0] == b"Z", 20)
        assert process._runs(child.pid)
        process.end([child.pid], how=signal.SIGKILL)
        assert not process._runs(child.pid)
    finally:
        child.kill()
        child.wait()
