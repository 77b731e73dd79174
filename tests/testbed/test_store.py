"""The cache: whole folders or none, one builder at a time, whatever happens to the builder."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.helpers import wait_until
from support.patience import scaled
from testbed import store

ROOT = Path(__file__).parents[2]
# Fills slowly: writes a mark, then waits until a file says go on.
BUILDER = """
import sys, time
from pathlib import Path
from testbed import store

folder, go_on = Path(sys.argv[1]), Path(sys.argv[2])

def fill(scratch):
    (scratch / "half").write_text("half")
    print("filling", flush=True)
    while not go_on.exists():
        time.sleep(0.01)
    (scratch / "whole").write_text("whole")

store.make(folder, fill, what="thing", say=lambda line: print(line, flush=True))
print("made", flush=True)
"""


def builder(folder: Path, go_on: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), str(go_on)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def lines(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=scaled(30))
    assert process.returncode == 0
    return out.splitlines()


def test_what_is_there_is_not_made_again(tmp_path):
    calls = []
    for _ in range(2):
        made = store.make(tmp_path / "a" / "x-1", calls.append, what="x", say=pytest.fail)
    assert made == tmp_path / "a" / "x-1"
    assert made.is_dir()
    assert len(calls) == 1


def test_a_failed_filling_leaves_nothing_and_may_be_tried_again(tmp_path):
    def fail(scratch):
        (scratch / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.make(tmp_path / "x", fail, what="x", say=pytest.fail)
    assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]
    store.make(tmp_path / "x", lambda scratch: (scratch / "f").write_text("1"), what="x", say=pytest.fail)
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["f"]


def test_of_two_builders_one_builds_and_the_other_says_that_it_waits(tmp_path):
    folder, go_on = tmp_path / "x", tmp_path / "go"
    first = builder(folder, go_on)
    assert first.stdout is not None
    assert first.stdout.readline() == "filling\n"
    second = builder(folder, go_on)
    assert second.stdout is not None
    assert "another program makes it already" in second.stdout.readline()
    assert not folder.exists()
    go_on.touch()
    assert lines(first) == ["made"]
    assert lines(second) == ["made"]
    assert sorted(path.name for path in folder.iterdir()) == ["half", "whole"]


def test_what_a_killed_builder_left_is_not_used(tmp_path):
    folder, go_on = tmp_path / "x", tmp_path / "go"
    first = builder(folder, go_on)
    assert first.stdout is not None
    assert first.stdout.readline() == "filling\n"
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=scaled(30))
    assert (tmp_path / ".x.new" / "half").exists()
    store.make(folder, lambda scratch: (scratch / "own").write_text("1"), what="x", say=pytest.fail)
    assert [path.name for path in folder.iterdir()] == ["own"]
    assert not (tmp_path / ".x.new").exists()


def test_prune_removes_old_versions_and_remains_but_nothing_in_use(tmp_path):
    for name in ("a-1", "a-2", ".a-0.new", ".b-1.new"):
        (tmp_path / name).mkdir()
    with (tmp_path / ".b-1.lock").open("a") as lock:
        # Another builder is at work on b-1.
        fcntl.flock(lock, fcntl.LOCK_EX)
        removed = store.prune(tmp_path, {"a-2"})
    assert sorted(path.name for path in removed) == [".a-0.new", "a-1"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [".b-1.new", "a-2"]
    assert store.prune(tmp_path / "none", set()) == []


def test_threads_of_one_program_wait_for_each_other_too(tmp_path):
    inside, let_go, said = threading.Event(), threading.Event(), []

    def fill(scratch):
        inside.set()
        assert let_go.wait(scaled(20))

    first = threading.Thread(target=store.make, args=(tmp_path / "x", fill), kwargs={"what": "x", "say": said.append})
    first.start()
    assert inside.wait(scaled(20))
    second = threading.Thread(
        target=store.make,
        args=(tmp_path / "x", lambda _: said.append("filled twice")),
        kwargs={"what": "x", "say": said.append},
    )
    second.start()
    wait_until(lambda: said, timeout=20, what="the second to say that it waits")
    let_go.set()
    first.join(scaled(20))
    second.join(scaled(20))
    assert said == ["x: another program makes it already; waiting for that one"]
