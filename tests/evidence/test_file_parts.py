"""Reading a log within bounds: its beginning and its end, holes, compressed bombs, pipes; shares of what all files may take."""

from __future__ import annotations

import errno
import io
import itertools
import os
import select
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.files import bounded_read
from rankfall.evidence.files.bounded_read import (
    Allowance,
    Limits,
    Share,
    chunks_of_input,
    chunks_of_pipe,
    parts_of_file,
    parts_of_stream,
)


def clock_of(*seconds: float):
    """A clock that says these seconds, the last one for ever."""
    turns = itertools.chain(seconds, itertools.repeat(seconds[-1]))
    return lambda: next(turns)


def share(size: int, *, head_until: float = 10.0, until: float = 10.0, clock=lambda: 0.0) -> Share:
    return Share(size=size, head_until=head_until, until=until, clock=clock)


def whole(path: Path, given_share: Share) -> list[tuple[int, bytes]]:
    with path.open("rb") as file:
        return [(part.start, part.data) for part in parts_of_file(file.fileno(), path.stat().st_size, given_share)]


@given(
    size=st.integers(0, 300),
    most=st.integers(4, 400),
    chunk=st.integers(1, 50),
    tail=st.integers(1, 60),
    seconds=st.lists(st.floats(0, 20), min_size=1, max_size=20).map(sorted),
)
def test_i18_every_byte_is_read_once_or_counted_and_never_more_than_allowed(
    tmp_path_factory, *, size, most, chunk, tail, seconds
):
    path = tmp_path_factory.mktemp("parts") / "a.log"
    data = bytes(n % 251 for n in range(size))
    path.write_bytes(data)
    given_share = share(most, head_until=6.0, until=12.0, clock=clock_of(*seconds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_read, "CHUNK", chunk)
        patch.setattr(bounded_read, "TAIL", tail)
        parts = whole(path, given_share)
    assert all(data[start : start + len(read)] == read for start, read in parts)
    ends = [0, *(start + len(read) for start, read in parts)]
    assert all(start >= end for (start, _), end in zip(parts, ends, strict=False))
    assert given_share.taken == sum(len(read) for _, read in parts) <= most
    assert given_share.taken + given_share.unread == size


@given(
    sizes=st.lists(st.integers(0, 40), max_size=30),
    head=st.integers(1, 300),
    tail=st.integers(1, 60),
    most=st.integers(1, 600),
)
def test_i18_of_a_stream_the_beginning_and_the_end_are_given(sizes, head, tail, most):
    chunks = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    data = b"".join(chunks)
    given_share = share(most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_read, "TAIL", tail)
        parts = list(parts_of_stream(chunks, given_share, head=head))
    assert all(data[part.start : part.start + len(part.data)] == part.data for part in parts)
    assert sum(len(part.data) for part in parts) + given_share.unread == given_share.taken
    if not given_share.endless:
        assert given_share.taken == len(data)
        if parts:
            assert parts[-1].start + len(parts[-1].data) == len(data)


def test_i18_the_end_of_a_slow_log_is_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_read, "CHUNK", 10)
    monkeypatch.setattr(bounded_read, "TAIL", 20)
    (tmp_path / "a").write_bytes(b"x" * 80 + b"the end of this log!")
    given_share = share(1000, head_until=2.0, until=100.0, clock=clock_of(0, 1, 3))
    parts = whole(tmp_path / "a", given_share)
    assert b"".join(data for _, data in parts).endswith(b"the end of this log!")
    assert given_share.unread
    assert "longer than the limit of one explanation" in given_share.why


def test_i18_holes_are_passed_over(tmp_path):
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    parts = whole(path, share(1 << 50))
    assert b"".join(data for _, data in parts).strip(b"\0").startswith(b"begin")
    assert parts[-1][1].endswith(b"end")
    assert sum(len(data) for _, data in parts) < 1 << 22


def test_a_file_system_that_knows_no_holes_is_read_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"")
    os.truncate(path, 5000)

    def refuse(*_: int) -> int:
        raise OSError(errno.EINVAL, "no holes here")

    monkeypatch.setattr(os, "lseek", refuse)
    assert sum(len(data) for _, data in whole(path, share(1 << 20))) == 5000


def test_a_log_that_is_cut_off_meanwhile_ends_there(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    with path.open("rb") as file:
        given_share = share(1000)
        assert [part.data for part in parts_of_file(file.fileno(), 5000, given_share)] == [b"x" * 100]


def test_what_a_damaged_stream_held_before_counts():
    def chunks():
        yield b"first"
        raise OSError(errno.EIO, "is damaged")

    given = []
    with pytest.raises(OSError, match="is damaged"):
        given.extend(part.data for part in parts_of_stream(chunks(), share(1000), head=2))
    assert given == [b"first"]


def test_i18_shares_are_equal_and_what_is_left_goes_on():
    allowance = Allowance(Limits(size=100 << 20, seconds=100), clock=lambda: 0.0)
    first = allowance.share(10)
    assert (first.size, first.until) == (10 << 20, 10.0)
    first.taken = 1 << 20
    allowance.settle(first)
    assert allowance.share(9).size == 11 << 20
    assert allowance.spent is None
    rest = allowance.share(1)
    rest.taken = 99 << 20
    allowance.settle(rest)
    assert allowance.spent == f"{100 << 20:,} bytes"


def test_i18_a_small_file_may_take_a_second_however_many_there_are():
    now = 0.0
    allowance = Allowance(Limits(seconds=60), clock=lambda: now)
    assert allowance.share(20_000).until == 1.0
    now = 59.5
    assert allowance.share(20_000).until == 60.0
    now = 61.0
    assert allowance.spent == "60 seconds"


def test_a_pipe_is_waited_for_as_long_as_somebody_writes(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    fd = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert list(chunks_of_pipe(fd)) == []
    writing = os.open(tmp_path / "pipe", os.O_WRONLY)

    class Waiter:
        def register(self, *_: int) -> None:
            pass

        def poll(self) -> None:
            os.write(writing, b"later")

    monkeypatch.setattr(select, "poll", Waiter)
    os.write(writing, b"now")
    chunks = chunks_of_pipe(fd)
    assert [next(chunks), next(chunks)] == [b"now", b"later"]
    os.close(writing)
    assert list(chunks) == []
    os.close(fd)


def test_input_that_does_not_wait_is_waited_for(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setattr(select, "select", lambda *_: os.write(writing, b"later"))
    with os.fdopen(reading, "rb") as file:
        chunks = chunks_of_input(file)
        assert next(chunks) == b"later"
        os.close(writing)
        assert list(chunks) == []
    assert list(chunks_of_input(io.BytesIO(b"x"))) == [b"x"]
