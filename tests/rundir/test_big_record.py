"""S47: answers from a record of 5 GB, raw and compressed, by what is read and kept of it instead of by the clock."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfall.rundir import RunDir, Writer
from rankfall.rundir.lines import LineQuery, read_lines
from rankfall.rundir.streams import content as packed_module
from rankfall.rundir.streams.content import FRAME, pack
from rankfall.rundir.streams.files import position
from support.stream_files import MAGIC, ROW, FakeStream, row, stream

SIZE = 5 << 30
LINE = b"step 000000 loss 2.000 " + b"." * 40 + b"\n"
LAST = b"".join(b"step %06d\n" % number for number in range(100))
# One chunk a mebibyte, one a second.
CHUNK, SECOND = 1 << 20, 1_000_000_000


@pytest.fixture(params=["raw", "compressed"])
def big(request: pytest.FixtureRequest, run_dir: RunDir, writer: Writer) -> FakeStream:
    """Rank 0 with 5 GB of lines, all alike but the last hundred; rank 1 with a few."""
    found, small = stream(run_dir, 0), stream(run_dir, 1)
    writer.begin_attempt(1, at=1, plan={})
    writer.put_streams([row(run_dir, found, 0), row(run_dir, small, 1)])
    small.write(b"other\n" * 10, at=10)
    rows = (ROW.pack(at, at // len(LINE), at // CHUNK * SECOND, 0, 1) for at in range(0, SIZE, CHUNK))
    found.index.write_bytes(MAGIC + b"".join(rows) + ROW.pack(SIZE, SIZE // len(LINE), SIZE, 0, 1))
    if request.param == "raw":
        # A hole is as large for the reader as written bytes are, and costs no disk.
        os.truncate(found.path, SIZE - CHUNK)
        with found.path.open("ab") as file:
            file.write(LINE * (CHUNK // len(LINE)) + LAST)
    else:
        compressed(found.path)
    return found


def compressed(path: Path) -> None:
    """The form that a large stream gets, made from one frame: compressing 5 GB would take the test's time."""
    one, packed = path.with_name("one"), path.with_name("one.zst")
    one.write_bytes(LINE * (FRAME // len(LINE)) + LAST)
    source, target = os.open(one, os.O_RDONLY), os.open(packed, os.O_RDWR | os.O_CREAT)
    pack(source, target, frame=len(LINE) * (FRAME // len(LINE)))
    os.close(source)
    os.close(target)
    data = packed.read_bytes()
    count, _, magic = packed_module._FOOTER.unpack(data[-packed_module._FOOTER.size :])
    assert count == 2
    table = data[-packed_module._FOOTER.size - 2 * packed_module._ENTRY.size : -packed_module._FOOTER.size]
    entries = list(packed_module._ENTRY.iter_unpack(table))
    frame, last = data[: entries[0][0]], data[entries[0][0] : entries[0][0] + entries[1][0]]
    many = SIZE // entries[0][1]
    whole = packed_module._ENTRY.pack(*entries[0]) * many + packed_module._ENTRY.pack(*entries[1])
    whole += packed_module._FOOTER.pack(many + 1, 0, magic)
    path.unlink()
    with path.with_name(path.name + ".zst").open("wb") as file:
        file.write(frame * many + last)
        file.write(packed_module._SKIPPABLE.pack(packed_module._SKIP_MAGIC, len(whole)) + whole)


class Spent:
    """Bytes that were read from files, and the most memory that was held meanwhile."""

    def __init__(self) -> None:
        self.read = 0
        self.peak = 0


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spent]:
    found = Spent()
    real = os.pread

    def counted(fd: int, length: int, at: int) -> bytes:
        data = real(fd, length, at)
        found.read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    return found


def lines(run_dir: RunDir, query: LineQuery, spent: Spent) -> list[bytes]:
    spent.read = 0
    tracemalloc.start()
    found = [line.data for line in read_lines(run_dir, query)]
    spent.peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def test_logs_s47_the_last_100_lines_of_one_rank_of_5_gb(run_dir: RunDir, big: FakeStream, spent: Spent) -> None:
    found = lines(run_dir, LineQuery(tail=100, ranks=frozenset({0})), spent)
    assert found == LAST.splitlines()
    assert spent.read < 1 << 20
    assert spent.peak < 8 << 20


def test_logs_s47_the_lines_since_a_time_in_5_gb(run_dir: RunDir, big: FakeStream, spent: Spent) -> None:
    since = (SIZE // CHUNK - 1) * SECOND
    found = lines(run_dir, LineQuery(since=since, ranks=frozenset({0})), spent)
    assert found[-100:] == LAST.splitlines()
    assert spent.read < 4 << 20
    assert spent.peak < 64 << 20


def test_logs_s47_a_place_in_the_middle_of_5_gb(big: FakeStream, spent: Spent) -> None:
    if not big.path.exists():
        byte = 3 << 30
        # Of the numbers that the index gives, at most one chunk is counted.
        assert abs(position(big.path, byte) - byte // len(LINE)) < 3
        assert spent.read < 4 << 20
