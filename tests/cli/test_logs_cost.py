"""What `rankfall logs` costs, by what it asks of the kernel: writes, opened files, listed folders. Counted, never timed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.cli.run_output import LineWriter, spent_text
from rankfall.model import JobSpec
from rankfall.model.foreign import Foreign
from rankfall.render.escape import clean_line, is_plain
from rankfall.rundir import RunDir
from rankfall.rundir.layout import FOREIGN_FILE
from rankfall.rundir.lines import LineQuery, LineTail, block_of, read_blocks, read_lines
from rankfall.rundir.streams import files as standing
from rankfall.supervisor import outcome
from rankfall.supervisor.best_effort_store import BestEffortStore
from support.stream_files import FakeStream, row, stream

S = 1_000_000_000
# What one packet of such a pipe holds at most.
PACKET = 4096
LINES = st.lists(
    st.binary(max_size=6) | st.sampled_from([b"\x1b[31m", b"\r", "é\u202e".encode(), b"\t", b"plain text"])
)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def ended_run(home: Path, *, slots: int, lines: int) -> RunDir:
    run_dir = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=slots, nproc_per_node=1), home=home)
    with run_dir.lease() as writer:
        writer.set_run("running", at=1)
        writer.begin_attempt(1, at=1, plan={})
        found = [stream(run_dir, 0, slot=rank) for rank in range(slots)]
        for rank, one in enumerate(found):
            # Chunks as a recorder stores them.
            for first in range(0, lines, 500):
                text = b"".join(b"rank %d line %d\n" % (rank, n) for n in range(first, min(lines, first + 500)))
                one.write(text, at=first + rank + 1)
        writer.put_streams(row(run_dir, one, rank) for rank, one in enumerate(found))
        writer.set_run("succeeded", at=9)
    return run_dir


@pytest.mark.parametrize("words", [[], ["-f"], ["--grep", "line"], ["-o", "json"]])
def test_i19_p14_many_lines_are_handed_over_in_few_writes(tmp_path: Path, words: list[str]) -> None:
    run_dir = ended_run(tmp_path, slots=4, lines=5000)
    # In this mode of a pipe each write is a packet of its own, and a longer one several full ones.
    read, write = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    argv = [sys.executable, "-m", "rankfall", "logs", run_dir.id, *words]
    env = os.environ | {"RANKFALL_HOME": str(tmp_path)}
    packets: list[bytes] = []

    def collect() -> None:
        while packet := os.read(read, PACKET):
            packets.append(packet)

    reader = threading.Thread(target=collect)
    with subprocess.Popen(argv, env=env, stdout=write, stderr=subprocess.DEVNULL) as process:
        os.close(write)
        reader.start()
        assert process.wait() == 0
    reader.join()
    os.close(read)
    text = b"".join(packets)
    assert text.count(b"\n") == 20_000
    # All but the last packet of each write are full.
    assert len(packets) <= len(text) // PACKET + 40


def test_i19_p14_a_follower_of_silent_streams_opens_no_file_and_lists_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "_SETTLED_S", 0.0)
    run_dir = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=50, nproc_per_node=1), home=tmp_path)
    now = 1000 * S
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        found = [stream(run_dir, "slot", slot=slot) for slot in range(50)]
        for one in found:
            one.write(b"begins\nhalf a line", at=now - S)
        follower = LineTail(run_dir, LineQuery(), clock=lambda: now)
        asked: list[str] = []
        opened, listed = os.open, os.listdir
        assert sum(block.data.count(b"\n") for block in follower.blocks()) == 50
        now += 10 * S
        # What is not whole is looked at once, and folders and tables until they have stood for a while.
        for _ in range(3):
            assert list(follower.blocks()) == []
            now += 10 * S
        monkeypatch.setattr(
            os, "open", lambda path, *words, **more: asked.append(str(path)) or opened(path, *words, **more)
        )
        monkeypatch.setattr(os, "listdir", lambda path: asked.append(str(path)) or listed(path))
        for _ in range(10):
            assert list(follower.blocks()) == []
            now += S
        assert asked == []
        found[7].write(b" is whole\n", at=now - S)
        (block,) = follower.blocks()
        assert (block.data, block.first.slot) == (b"half a line is whole\n", 7)
        assert set(asked) == {str(found[7].path), str(found[7].index)}
        # Another start of a slot is found at once.
        again = FakeStream(run_dir.stream_dir(1, "worker", 3, 1) / "slot.out.log")
        again.write(b"again\n", at=now - S)
        assert [block.data for block in follower.blocks()] == [b"again\n"]


def test_i19_p14_a_follower_that_counts_no_write_asks_the_kernel_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=3, nproc_per_node=1), home=tmp_path)
    now, writes = 1000 * S, 0
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        found = [stream(run_dir, "slot", slot=slot) for slot in range(3)]
        follower = LineTail(run_dir, LineQuery(), clock=lambda: now, writes=lambda: writes)
        for one in found:
            one.write(b"begins\n", at=now)
        writes += 1
        # Their hold is not over: they are waited for although nothing more is stored.
        assert list(follower.blocks()) == []
        now += S
        assert [block.data for block in follower.blocks()] == [b"begins\n"] * 3
        asked: list[str] = []
        looked = os.stat
        monkeypatch.setattr(os, "stat", lambda path, **more: asked.append(str(path)) or looked(path, **more))
        for _ in range(5):
            now += S
            assert list(follower.blocks()) == []
        assert asked == []
        found[1].write(b"goes on\n", at=now - S)
        writes += 1
        assert [block.data for block in follower.blocks()] == [b"goes on\n"]
        assert asked
        # What another process writes is not counted: after a while all are looked at.
        found[2].write(b"from elsewhere\n", at=now - S)
        for seconds in (0, 1, 8):
            now += seconds * S
            assert list(follower.blocks()) == []
        now += S
        assert [block.data for block in follower.blocks()] == [b"from elsewhere\n"]
        found[0].write(b"at last\n", at=now)
        assert [block.data for block in follower.blocks(final=True)] == [b"at last\n"]


def test_i19_p14_of_a_foreign_job_no_line_is_written_twice(tmp_path: Path) -> None:
    def files(run_dir: RunDir) -> set[str]:
        with run_dir.lease() as writer:
            run_store = BestEffortStore(writer, on_gap=lambda _: None)
            outcome.write_files(run_dir, run_store)
        return {path.name for path in run_dir.path.iterdir() if path.name.startswith(("log", "rank"))}

    own, other = ended_run(tmp_path / "own", slots=1, lines=3), ended_run(tmp_path / "other", slots=1, lines=3)
    assert files(own) == {"logs", "log-allranks_0.out", "rank-00000.log"}
    assert "log-allranks_0.out" in spent_text(own)
    found = Foreign(kind="job", name="plain", namespace="default", uid="u", context="")
    (other.path / FOREIGN_FILE).write_bytes(msgspec.json.encode(found))
    assert files(other) == {"logs"}
    assert "log-allranks_0.out" not in spent_text(other)


@given(lines=LINES)
def test_i19_p14_plain_lines_are_those_that_a_terminal_gets_as_they_are(lines: list[bytes]) -> None:
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    shown = "".join(clean_line(line, max_line=8) + "\n" for line in data.split(b"\n")[:-1])
    if is_plain(data, max_line=8):
        assert shown == data.decode()
    elif all(32 <= byte < 127 or byte == 10 for byte in data):
        # Nothing but a line that is too long makes such text unfit.
        assert max(map(len, data.split(b"\n"))) > 8


def printed(write: object, *, terminal: bool, **how: object) -> bytes:
    raw, before = io.BytesIO(), sys.stdout
    sys.stdout = (Terminal if terminal else io.TextIOWrapper)(raw, encoding="utf-8", errors="backslashreplace")
    try:
        writer = LineWriter(**how)  # type: ignore[arg-type]
        write(writer)  # type: ignore[operator]
        sys.stdout.flush()
        return raw.getvalue() + (b"spent" if writer.spent else b"")
    finally:
        sys.stdout.detach()
        sys.stdout = before


@given(
    chunks=st.lists(st.tuples(st.integers(0, 2), LINES), max_size=6),
    bounds=st.lists(st.integers(0, 60), max_size=3),
    terminal=st.booleans(),
    prefix=st.booleans(),
    timestamps=st.booleans(),
    as_json=st.booleans(),
    limit=st.none() | st.integers(0, 200),
)
@settings(max_examples=30)
def test_i19_p14_lines_together_are_shown_as_one_by_one(
    *, chunks: list[tuple[int, list[bytes]]], bounds: list[int], terminal: bool, limit: int | None, **how: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.create(
            JobSpec(name="job", command=("train.py",), nnodes=3, nproc_per_node=1), home=Path(folder)
        )
        found = [stream(run_dir, 0, slot=slot) for slot in range(3)]
        for at, (slot, lines) in enumerate(chunks):
            found[slot].write(b"".join(line + b"\n" for line in lines), at=at + 1)
        ranges = list(zip([0, *sorted(set(bounds) - {0})], [*sorted(set(bounds) - {0}), None], strict=True))
        with run_dir.lease() as writer:
            # The ranks of one stream change at some bytes, also in the middle of a line.
            rows = [row(run_dir, found[0], rank, first=first, end=end) for rank, (first, end) in enumerate(ranges)]
            writer.put_streams([*rows, row(run_dir, found[1], 9)])
        query = LineQuery(attempt=1)
        blocks = list(read_blocks(run_dir, query))
        lines = list(read_lines(run_dir, query))
        assert [line for block in blocks for line in block.lines()] == lines
        how |= {"limit": limit}  # type: ignore[dict-item]
        together = printed(lambda writer: writer.write(iter(blocks)), terminal=terminal, **how)
        one_by_one = printed(
            lambda writer: [writer.write([block_of(line)]) for line in lines], terminal=terminal, **how
        )
        assert together == one_by_one
        if how["as_json"] and limit is None:
            assert [json.loads(line)["offset"] for line in together.splitlines()] == [line.offset for line in lines]
