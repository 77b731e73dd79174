"""Lines of ranks on a shared volume: all of them, in files of bounded size, and a store that is slow, full or gone never slows the job."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from inside.conftest import channel, text_lines
from rankfall_inside.delivery import log_store, log_store_backends
from rankfall_inside.delivery.log_store import LogStore, folder_name
from support.helpers import wait_until
from support.patience import scaled

ENVIRON = {"RANKFALL_RUN": "r-1", "RANKFALL_ROLE": "worker", "RANKFALL_SLOT": "2", "RANKFALL_POD_UID": "u-1"}


def stored(folder: Path, stream: str) -> bytes:
    parts = sorted(folder.glob(f"{stream}-*.log"))
    data = b""
    for path in parts:
        assert path.name == f"{stream}-{len(data):015d}.log"
        data += path.read_bytes()
    return data


@given(
    st.lists(st.tuples(st.sampled_from(["0.out", "1.out", "1.err"]), st.binary(min_size=1, max_size=40)), max_size=30)
)
def test_all_bytes_come_in_files_of_a_bounded_size_with_their_number_at_the_end(tmp_path_factory, chunks):
    given_segment = log_store_backends.SEGMENT
    log_store_backends.SEGMENT = 50
    try:
        made = LogStore(str(tmp_path_factory.mktemp("store")), "a/b/c/d")
        sinks = {name: made.sink(name) for name in ("0.out", "1.out", "1.err")}
        for name, data in chunks:
            sinks[name].write(data)
        assert made.finish(20.0) == []
    finally:
        log_store_backends.SEGMENT = given_segment
    want = {name: b"".join(data for one, data in chunks if one == name) for name in sinks}
    folder = Path(made.path)
    assert json.loads((folder / "end.json").read_bytes())["sizes"] == {n: len(d) for n, d in want.items() if d}
    assert {name: stored(folder, name) for name in sinks} == want
    assert all(path.stat().st_size < 50 + 40 for path in folder.glob("*.log"))


def test_what_a_slow_store_cannot_take_is_lost_in_whole_lines_counted_and_said(tmp_path, monkeypatch):
    """launch-logs S44, for a store: the writer's side never waits."""
    gate = threading.Event()
    write = log_store_backends.Files.write

    def slow(self, data, stamp):
        gate.wait(scaled(20))
        write(self, data, stamp)

    monkeypatch.setattr(log_store_backends.Files, "write", slow)
    monkeypatch.setattr(log_store, "MAX_WAITING", 100)
    made = LogStore(str(tmp_path), "a/b/c/d")
    sink = made.sink("0.out")
    sink.write(b"first and a half li")
    sink.write(b"x" * 90 + b"\n")
    sink.write(b"lost\n" + b"y" * 90)
    assert made.lost > 0
    gate.set()
    wait_until(lambda: made._waiting == 0, timeout=20, what="an empty queue")
    sink.write(b"the rest of y\nwhole again\n")
    sink.close()
    [(stream, gap)] = made.finish(20.0)
    data = stored(Path(made.path), "0.out")
    assert data == b"first and a half li\nwhole again\n"
    assert (stream, gap.reason) == ("0.out", "the store was too slow")
    assert made.lost == 91 + 95 + 14
    assert gap.lost == made.lost


def test_a_store_that_never_answers_is_given_up_at_the_end(tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(log_store_backends.Files, "write", lambda *_: gate.wait(scaled(20)))
    made = LogStore(str(tmp_path), "a/b/c/d")
    made.sink("0.out").write(b"x\n")
    try:
        [(_, gap)] = made.finish(0.01)
        assert "did not take them in time" in gap.reason
        assert not made.done
    finally:
        gate.set()


def test_a_store_that_cannot_be_written_costs_its_lines_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    made = LogStore(str(tmp_path / "file"), "a/b/c/d")
    made.sink("0.out").write(b"x\n")
    [(stream, gap)] = made.finish(20.0)
    assert stream == "0.out"
    assert "2 bytes after offset 0 not stored (ENOTDIR)" in gap.text(stream)


def test_two_starts_never_have_the_same_folder_and_none_leads_elsewhere():
    assert folder_name(ENVIRON) != folder_name(ENVIRON)
    assert folder_name(ENVIRON).startswith("r-1/attempt-1/worker-2/u-1-")
    hostile = folder_name({"RANKFALL_RUN": "../../etc", "RANKFALL_ROLE": "..", "RANKFALL_SLOT": "/"})
    assert ".." not in hostile.split("/")
    assert hostile.count("/") == 3


RANKS = """
import os, sys
for number in range(500):
    print("rank", os.environ["RANK"], "line", number, flush=True)
print("to stderr", file=sys.stderr)
"""


def test_only_lines_of_no_rank_and_records_are_on_stdout_and_the_rest_is_in_the_store(pod):
    root = pod.base / "volume"
    root.mkdir()
    words = ("python3", pod.script(RANKS))
    done = pod.run(*words, options=("--launcher", "plain", "--nproc", "2", "--log-store", str(root)))
    assert done.returncode == 0, done.stderr
    records = channel(done.stdout)
    (start,) = [one for one in records if one.kind == "slot_start"]
    folder = root / start.log_store
    assert text_lines(done.stdout) == []
    assert f"lines of ranks go to the log store: {folder}" in done.stderr.decode()
    ordinals = {one.ordinal: one.rank for one in records if one.kind == "start"}
    assert len(ordinals) == 2
    for ordinal, rank in ordinals.items():
        want = b"".join(b"rank %d line %d\n" % (rank, number) for number in range(500))
        assert stored(folder, f"{ordinal}.out") == want
        assert stored(folder, f"{ordinal}.err") == b"to stderr\n"
    assert (folder / "end.json").exists()


def test_what_was_written_outlives_a_wrapper_that_is_killed_and_another_start_has_its_own_folder(pod):
    root = pod.base / "volume"
    root.mkdir()
    text = "print('hello', flush=True)\nimport time\ntime.sleep(60)"
    options = ("--launcher", "plain", "--nproc", "1", "--log-store", str(root))
    process = pod.start("python3", pod.script(text), options=options)
    # Python may write the end of the line by a call of its own.
    wait_until(
        lambda: [p for p in root.rglob("0.out-*.log") if p.read_bytes()[-1:] == b"\n"], timeout=30, what="the line"
    )
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=scaled(30))
    (path,) = root.rglob("0.out-*.log")
    assert path.read_bytes() == b"hello\n"
    assert not (path.parent / "end.json").exists()
    assert pod.run("python3", pod.script("print('again')"), options=options).returncode == 0
    assert len(list(root.rglob("0.out-*.log"))) == 2


def test_a_store_that_is_not_there_is_said_and_the_job_runs(pod):
    done = pod.run(
        "python3",
        pod.script("print('hello')"),
        options=("--launcher", "plain", "--nproc", "1", "--log-store", "/proc/none"),
    )
    assert done.returncode == 0
    gaps = [one for one in channel(done.stdout) if one.kind == "gap"]
    assert any("6 bytes after offset 0 not stored" in note for one in gaps for note in one.notes)


def test_a_store_that_can_take_nothing_leaves_the_lines_on_stdout_and_the_slot_its_directory(pod):
    """Without keys no bucket takes anything."""
    script = pod.script("print('hello')")
    done = pod.run(
        "python3", script, options=("--launcher", "plain", "--nproc", "1", "--log-store", "s3://bucket/logs")
    )
    assert done.returncode == 0
    (start,) = [one for one in channel(done.stdout) if one.kind == "slot_start"]
    assert start.log_store is None
    assert any("lines of ranks remain on stdout" in note for note in start.notes)
    assert b"hello" in done.stdout
    assert (pod.dir / "end.json").exists()


def test_a_store_and_a_stream_directory_contradict_each_other(slot):
    done = slot.run("true", options=("--log-store", "/x"))
    assert (done.returncode, b"--log-store is for a slot without" in done.stderr) == (2, True)
