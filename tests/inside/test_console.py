"""The console alone: whole lines, prefixes that no text of a job can forge, a reader that is slow, gone, or reads nothing for a while."""

from __future__ import annotations

import itertools
import os
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall_inside.delivery import console
from rankfall_inside.delivery.console import CUT_MARK, HIGH_WATER, MAX_LINE, Console
from rankfall_inside.event_loop import Loop

PIECES = st.lists(
    st.sampled_from([b"\n", b"[rank 3] x", b"\x1erankfall/1 t x", b"word", b"\r", b"[rank ", b"SECRET"]), max_size=40
)


class Output:
    """A console on a pipe; ``read`` gives what has been written so far."""

    def __init__(self, secret: bytes = b"") -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.loop = Loop()
        self.console = Console(self.write_fd, self.loop, secret=secret)

    def read(self, most: int = 1 << 20) -> bytes:
        try:
            return os.read(self.read_fd, most)
        except BlockingIOError:
            return b""

    def rest(self) -> bytes:
        found = b""
        while not self.console.empty:
            found += self.read()
            self.loop.run_once(0)
        return found + self.read()


@pytest.fixture
def out():
    one = Output()
    yield one
    os.close(one.read_fd)
    os.close(one.write_fd)


@given(PIECES, st.lists(st.integers(0, 30), max_size=10))
def test_no_text_of_a_job_passes_as_ours(pieces: list[bytes], cuts: list[int]) -> None:
    one = Output(secret=b"SECRET")
    data = b"".join(pieces)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for stream, prefix in (("slot.out", b""), ("0.out", b"[rank 7] ")):
        take = one.console.tee(stream, lambda prefix=prefix: prefix)
        for begin, end in itertools.pairwise(edges):
            take(data[begin:end])
        one.console.finish(stream, prefix)
    written = one.rest()
    os.close(one.read_fd)
    os.close(one.write_fd)
    body = data if data.endswith(b"\n") or not data else data + b"\n"
    masked = body.replace(b"SECRET", b"***")
    lines = masked.split(b"\n")[:-1]
    slot = [b"[rank ?] " + line if re.match(rb"\[rank |\x1e", line) else line for line in lines]
    assert written.split(b"\n")[:-1] == slot + [b"[rank 7] " + line for line in lines]


def test_a_line_longer_than_the_limit_is_cut_and_each_part_has_its_prefix(out) -> None:
    line = b"[rank 0] " + b"y" * (3 * MAX_LINE)
    for stream, prefix in (("a", b"[rank 1] "), ("slot", b"")):
        # Whole lines and parts of one, in chunks of any size.
        take = out.console.tee(stream, lambda prefix=prefix: prefix)
        sizes = random.Random(1)
        at = 0
        while at < len(line):
            step = sizes.choice([1, 4096, 1 << 20])
            take(line[at : at + step])
            at += step
        take(b"\nnext\n")
        found = out.rest()
        parts = found.split(b"\n")[:-1]
        assert parts[-1] == prefix + b"next"
        assert all(len(part) <= MAX_LINE + 100 for part in parts)
        assert [part.startswith(prefix or b"[rank ?] ") for part in parts[:1]] == [True]
        first = prefix or b"[rank ?] "
        mark = CUT_MARK[:-1]
        assert (
            b"".join(part[len(first if n == 0 else prefix) :].replace(mark, b"") for n, part in enumerate(parts[:-1]))
            == line
        )


def test_a_reader_that_does_not_read_never_blocks_and_nothing_is_lost_or_reordered(out) -> None:
    take = out.console.tee("0.out", lambda: b"[rank 0] ")
    number = 0
    while not out.console.full:
        take(b"".join(b"line %d\n" % n for n in range(number, number + 1000)))
        number += 1000
    assert out.console.waiting < HIGH_WATER + 100_000
    rooms: list[int] = []
    out.console.on_room = lambda: rooms.append(out.console.waiting)
    assert out.rest() == b"".join(b"[rank 0] line %d\n" % n for n in range(number))
    assert len(rooms) == 1
    assert rooms[0] < console.LOW_WATER


def test_a_line_that_goes_first_stands_between_whole_lines(out) -> None:
    take = out.console.tee("slot.out", lambda: b"")
    for n in range(200):
        take(b"%d " % n + b"x" * 9_000 + b"\n")
    out.console.line(b"first\n", first=True)
    lines = out.rest().split(b"\n")[:-1]
    assert [int(line.split()[0]) for line in lines if line != b"first"] == list(range(200))
    assert lines.index(b"first") < 20


def test_a_reader_that_goes_away_ends_the_copy_only(out) -> None:
    take = out.console.tee("slot.out", lambda: b"")
    while not out.console.full:
        take(b"x" * 100_000 + b"\n")
    rooms: list[int] = []
    out.console.on_room = lambda: rooms.append(1)
    os.close(out.read_fd)
    out.loop.run_once(1)
    assert out.console.empty
    assert rooms == [1]
    take(b"more\n")
    assert out.console.waiting == 0
    out.read_fd = os.open(os.devnull, os.O_RDONLY)


def test_a_plain_file_takes_everything_at_once(tmp_path) -> None:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    one = Console(fd, Loop())
    one.tee("slot.out", lambda: b"")(b"x" * 100_000 + b"\n")
    assert one.empty
    assert (tmp_path / "out").stat().st_size == 100_001
    os.close(fd)
