"""Reads the bytes of logs within bounds: of one that is too long, or takes too long, its beginning and its end.

The end of a log says most of why a job ended, so it is read whatever the beginning took. Compressed bytes are unpacked as they are read, in
memory that does not depend on what they unpack to; holes of sparse files are passed over, since they hold nothing.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

import msgspec

CHUNK: Final = 1 << 20
# Bytes of the end that are read of a log which is too long.
TAIL: Final = 16 << 20
# A compressed log unpacks to this many times its size at most before only its end is read: logs of text give 5 to 50.
RATIO: Final = 200
# ... and to so much whatever its size.
LEAST_UNPACKED: Final = 4 << 20
# Of a file that has no size, as those of /proc.
MAX_UNSIZED: Final = 16 << 20
# Part of its time that the beginning of a log may take.
_HEAD_SHARE: Final = 0.75
# A single file may always take so long, seconds: ordinary text of 100 MB does.
_LEAST_S: Final = 1.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one explanation of files may read.

    Attributes:
        files: as many as 10,000 ranks with two streams each have.
        size: bytes, after unpacking: more than is read in ``seconds``.
        seconds: whoever asks waits for the answer; ordinary text of 10 GB takes less on one core.
    """

    files: int = 20_000
    size: int = 16 << 30
    seconds: float = 60.0


class Part(NamedTuple):
    """Bytes of a log, and where they begin in it; what lies between two parts was left out."""

    start: int
    data: bytes


class Share(msgspec.Struct, kw_only=True):
    """What may be read of one log; its reader writes down what came of it.

    Attributes:
        size: bytes.
        head_until, until: when its beginning, and all of it, has to be done, by ``clock``.
        taken: bytes that were read or unpacked.
        unread: bytes that were not read, because of ``why``.
        endless: nobody knows how many more were not read.
    """

    size: int
    head_until: float
    until: float
    clock: Callable[[], float]
    taken: int = 0
    unread: int = 0
    endless: bool = False
    why: str = "it is larger than what one explanation reads of it"

    def late(self, *, head: bool = False) -> bool:
        """Whether its time is over."""
        over = self.clock() >= (self.head_until if head else self.until)
        if over:
            self.why = "reading it takes longer than one explanation may"
        return over


class Allowance:
    """Divides what one explanation may read among its files: who needs less than an equal part leaves the rest to those that come later.

    Args:
        limits: all of it.
        clock: seconds; CPU time where waiting for a writer must not count.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._until = clock() + limits.seconds
        self._size = limits.size

    @property
    def spent(self) -> str | None:
        """The limit that was reached, for people; None while there is something left."""
        if self._clock() >= self._until:
            return f"{self.limits.seconds:g} seconds"
        return f"{self.limits.size:,} bytes" if self._size <= 0 else None

    def share(self, files: int) -> Share:
        """The part of the next of so many files."""
        now = self._clock()
        left = max(0.0, self._until - now)
        seconds = min(left, max(_LEAST_S, left / files))
        return Share(
            size=max(CHUNK, self._size // files),
            head_until=now + seconds * _HEAD_SHARE,
            until=now + seconds,
            clock=self._clock,
        )

    def settle(self, share: Share) -> None:
        """Take what was read of a share from the rest."""
        self._size -= share.taken


def parts_of_file(fd: int, size: int, share: Share) -> Iterator[Part]:
    """The parts of a regular file as long as it is now; what is written meanwhile is not waited for.

    Raises:
        OSError: it cannot be read.
    """
    sparse = os.fstat(fd).st_blocks * 512 < size
    head = size if size <= share.size else max(share.size - TAIL, share.size // 2)
    at = 0
    for begin, end, first in ((0, head, True), (size - min(TAIL, share.size // 2), size, False)):
        share.unread += max(0, begin - at)
        at = max(at, begin)
        while at < end and not share.late(head=first):
            at = _next_data(fd, at, end) if sparse else at
            data = os.pread(fd, min(CHUNK, end - at), at) if at < end else b""
            if not data:
                break
            share.taken += len(data)
            yield Part(at, data)
            at += len(data)
        if at >= size or (at < end and not share.late(head=first)):
            return  # all of it, or it was cut off meanwhile
    share.unread += size - at


def _next_data(fd: int, at: int, end: int) -> int:
    """Where the next bytes begin that are no hole."""
    try:
        return min(end, os.lseek(fd, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        return at  # this file system knows no holes


def parts_of_stream(chunks: Iterable[bytes], share: Share, *, head: int) -> Iterator[Part]:
    """The parts of what can be read only once, from its beginning: all between the head and the tail is read, kept for a moment and dropped.

    Args:
        chunks: its bytes; a chunk may be empty.
        share: what may be read of it.
        head: bytes of its beginning; of its end no more are read.

    Raises:
        OSError: as ``chunks`` raises it; what came before has been given.
    """
    tail: deque[bytes] = deque()
    at = held = 0
    most = min(TAIL, head)
    broken: OSError | None = None
    source = iter(chunks)
    while True:
        try:
            data = next(source, None)
        except OSError as error:
            broken = error
            break
        if data is None:
            break
        share.taken += len(data)
        if not tail and at < head and not share.late(head=True):
            if data:
                yield Part(at, data)
            at += len(data)
            continue
        tail.append(data)
        held += len(data)
        while held - len(tail[0]) >= most:
            dropped = len(tail.popleft())
            held -= dropped
            share.unread += dropped
            at += dropped
        if share.late() or share.taken >= share.size:
            share.endless = True
            break
    for data in tail:
        yield Part(at, data)
        at += len(data)
    if broken is not None:
        raise broken


def chunks_of_pipe(fd: int) -> Iterator[bytes]:
    """What comes out of a pipe that was opened without waiting; none where nobody writes into it."""
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    while True:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            waiter.poll()
            continue
        if not data:
            return
        yield data


def chunks_of_input(file: BinaryIO) -> Iterator[bytes]:
    """What comes out of standard input, or of any other open file."""
    while True:
        data: bytes | None = file.read(CHUNK)
        if data is None:  # whoever started us left it in a state in which reading does not wait
            select.select([file], [], [])
            continue
        if not data:
            return
        yield data
