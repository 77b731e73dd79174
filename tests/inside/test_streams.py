"""Bytes as they came: exact, indexed, nothing lost, and no disk stops a job."""

from __future__ import annotations

import os
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall_inside.delivery import stream_files

HARD = (
    b"plain\n\n   indented\n",
    b"nul \0 and invalid \xff\xfe utf-8 \x1b[31mred\x1b[0m \xe2\x80\xa8 \x0c\n",
    b"10%\r20%\r30%\r100%\n",
    b'{"k": "' + b"x" * (1 << 20) + b'"}\n',
    b"last line without newline",
)


def test_logs_s34_s36_s37_bytes_are_stored_exactly_as_they_came(slot) -> None:
    data = b"".join(HARD)
    (slot.base / "data").write_bytes(data)
    text = f"import sys\nd = open({str(slot.base / 'data')!r}, 'rb').read()\nsys.stdout.buffer.write(d)\nsys.stderr.buffer.write(d[::-1])"
    assert slot.rank(text).returncode == 0
    assert slot.stream("0.out") == data
    assert slot.stream("0.err") == data[::-1]
    assert slot.stream("slot.out") == slot.stream("slot.err") == b""
    check_index(slot.index("0.out"), data)


def check_index(rows: list[tuple[int, ...]], data: bytes) -> None:
    assert rows[0][:2] == (0, 0)
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    for offset, first, stamp, cursor, source in rows:
        whole = data[:offset]
        assert first == whole.count(b"\n") + (1 if whole and not whole.endswith(b"\n") else 0)
        assert (cursor, source) == (0, 1)
        assert stamp > 1_600_000_000 * 10**9


@given(
    chunks=st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"a\n", b"\n\n"]), min_size=1).map(
        lambda c: [x for x in c if x] or [b"x"]
    )
)
def test_the_index_names_the_first_line_that_begins_in_each_chunk(tmp_path_factory, chunks: list[bytes]) -> None:
    base = tmp_path_factory.mktemp("sink") / "0.out"
    sink = stream_files.Sink(str(base))
    for chunk in chunks:
        sink.write(chunk)
    sink.close()
    data = (base.parent / "0.out.log").read_bytes()
    assert data == b"".join(chunks)
    index = (base.parent / "0.out.idx").read_bytes()
    assert index.startswith(stream_files.INDEX_MAGIC)
    rows = list(stream_files.INDEX_ROW.iter_unpack(index[8:]))
    check_index(rows, data)
    assert len(rows) == len(chunks)


def test_eight_ranks_that_print_flat_out_lose_nothing(slot) -> None:
    lines = 60_000
    text = f"import os\nr = os.environ['RANK']\nfor i in range({lines}): print('rank', r, 'step', i, 'x' * 50)"
    script = slot.script(text)
    command = f"for r in 0 1 2 3 4 5 6 7; do RANK=$r LOCAL_RANK=$r {sys.executable} {script} & done; wait"
    assert slot.run("bash", "-c", command, options=("--nproc", "8")).returncode == 0
    ranks = {record.ordinal: record.rank for record in slot.records("start")}
    assert sorted(ranks.values()) == list(range(8))
    for ordinal, rank in ranks.items():
        expected = "".join(f"rank {rank} step {i} {'x' * 50}\n" for i in range(lines)).encode()
        assert slot.stream(f"{ordinal}.out") == expected
    assert not slot.records("gap")


def test_a_full_disk_neither_blocks_nor_ends_the_job_and_the_gap_is_recorded(slot) -> None:
    # Every write to /dev/full fails as a full disk does.
    slot.stream_dir.mkdir(parents=True)
    (slot.stream_dir / "0.out.log").symlink_to("/dev/full")
    assert slot.rank("print('x' * 5_000_000)\nraise SystemExit(3)").returncode == 3
    gap = slot.one("gap")
    assert gap.ordinal == 0
    assert "5000001 bytes after offset 0 not stored (ENOSPC)" in gap.notes[0]
    assert slot.one("slot_end").notes == gap.notes


def test_storing_goes_on_when_writing_works_again(tmp_path) -> None:
    sink = stream_files.Sink(str(tmp_path / "0.out"))
    sink.write(b"one\n")
    kept = os.dup(sink._log)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink._log)
    sink.write(b"lost\n")
    sink.write(b"lost too\n")
    os.dup2(kept, sink._log)
    sink.write(b"two\n")
    sink.close()
    for fd in (kept, full):
        os.close(fd)
    assert (tmp_path / "0.out.log").read_bytes() == b"one\ntwo\n"
    assert [(gap.offset, gap.lost, gap.reason) for gap in sink.gaps] == [(4, 14, "ENOSPC")]


def test_logs_s36_the_console_shows_whole_lines_with_their_rank_and_cuts_endless_ones(slot) -> None:
    text = "import os, sys\nfor i in range(200): os.write(1, b'part %d ' % i); os.write(1, b'end\\n')\nos.write(1, b'y' * (3 << 20)); os.write(1, b'\\nno newline')"
    script = slot.script(text)
    command = f"for r in 0 1; do RANK=$r LOCAL_RANK=$r {sys.executable} {script} & done; wait; echo of the slot"
    done = slot.run("bash", "-c", command, options=("--nproc", "2", "--console"))
    lines = done.stdout.split(b"\n")
    assert lines.count(b"of the slot") == 1
    for rank in (b"0", b"1"):
        own = [line for line in lines if line.startswith(b"[rank " + rank + b"] ")]
        assert own[:200] == [b"[rank %s] part %d end" % (rank, i) for i in range(200)]
        assert own[200].endswith(b"[rankfall: line cut]")
        assert own[-1] == b"[rank %s] no newline" % rank
        assert all(len(line) <= (1 << 20) + 100 for line in own)


def test_a_redirect_of_the_user_stays(slot) -> None:
    script = slot.script("import sys\nprint('to the file')\nprint('to the stream', file=sys.stderr)")
    target = slot.base / "own.txt"
    assert slot.run("sh", "-c", f"{sys.executable} {script} > {target}", RANK="0").returncode == 0
    assert target.read_text() == "to the file\n"
    assert slot.stream("0.err") == b"to the stream\n"
    start = slot.one("start")
    assert start.streams is False
    assert start.notes == ("fd 1 was redirected earlier and remains so",)


@pytest.mark.parametrize("seed", range(3))
def test_restarts_in_a_slot_get_streams_of_their_own(slot, seed: int) -> None:
    count = random.Random(seed).randint(3, 12)
    script = slot.script("import os\nprint('start', os.environ['N'])")
    command = "; ".join(f"N={n} RANK=0 {sys.executable} {script}" for n in range(count))
    assert slot.run("bash", "-c", command).returncode == 0
    assert [slot.stream(f"{n}.out") for n in range(count)] == [b"start %d\n" % n for n in range(count)]


class Flaky(stream_files.Sink):
    """A sink whose disk takes so many bytes of each write."""

    def __init__(self, base: str, room: list[int]) -> None:
        super().__init__(base)
        self.room = room

    def _store(self, data: bytes, row: bytes) -> tuple[int, str]:
        room = self.room.pop(0) if self.room else len(data)
        if room >= len(data):
            return super()._store(data, row)
        return (super()._store(data[:room], row)[0] if room else 0), "ENOSPC"


def count(data: bytes) -> int:
    """Lines as a reader counts them; a last one without its newline is one."""
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=12) | st.sampled_from([b"\n", b"ab\ncd", b"e\n"]), min_size=1),
    room=st.lists(st.sampled_from([0, 0, 1, 3, 99]), max_size=30),
)
def test_i19_p4_any_full_disk_what_is_stored_and_what_is_counted_is_all_and_no_line_is_glued(
    tmp_path_factory, chunks: list[bytes], room: list[int]
) -> None:
    base = tmp_path_factory.mktemp("flaky") / "0.out"
    sink = Flaky(str(base), list(room))
    gaps = []
    for number, chunk in enumerate(chunks):
        sink.write(chunk, 1000 + number)
        gaps += sink.take_gaps()
    sink.close()
    sink.close()
    gaps += sink.gaps
    printed = b"".join(chunks)
    path = base.parent / "0.out.log"
    stored = path.read_bytes() if path.exists() else b""
    assert count(stored) + sum(gap.lines for gap in gaps) == count(printed)
    assert all(1000 <= gap.since <= gap.until < 1000 + len(chunks) for gap in gaps)
    # Each stored line is one that was printed, or the beginning of it, in the order in which they were printed.
    rest = iter(printed.split(b"\n"))
    assert all(any(line.startswith(one) for line in rest) for one in stored.split(b"\n")[: count(stored)])
