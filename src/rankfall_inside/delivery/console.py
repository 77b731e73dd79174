"""The container's stdout: whole lines of all streams as ``[rank N] text``, and the log channel's records.

A line is written when it is whole, so ranks never mix; one longer than 1 MiB is cut with a marker. Text of a
job never passes as a rank's line or as a record: such lines get ``[rank ?] `` in front. Lines and bytes are
counted by stream, without prefix and carriage returns, so that a reader can tell whether anything is missing.
A slow reader slows the reading of pipes and loses nothing.

The log channel repeats each record of the slot as a line, for a supervisor that shares no files. It is active
where ``RANKFALL_TOKEN`` is set; the token is removed from the command's environment and masked in whatever
the job prints, so a line that carries it was written here.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import stat
from collections import deque

from rankfall_inside import records, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from rankfall_inside.event_loop import Loop

# Of more streams only the sum is told: the record must fit into a line of the log channel.
MOST = 64
# The same for the termination message, which holds the first error too.
MOST_IN_MESSAGE = 12
SUM = "all"
# Only from where a run of them begins: from each of a long one it would take time by its square.
_RETURNS = re.compile(rb"(?<!\r)\r+(?=\n)")
_RANK = b"[rank "


class Printed:
    """Lines and bytes by stream: ``r<rank>``, or ``slot`` for lines of no rank."""

    def __init__(self) -> None:
        self._counts: dict[bytes, list[int]] = {}

    def add(self, prefix: bytes, data: bytes) -> None:
        """Count lines that leave.

        Args:
            prefix: that they get, ``[rank N] `` or another one.
            data: the lines without it, the last one without its newline.
        """
        size = len(data) + 1
        if b"\r" in data:
            size -= sum(len(found) for found in _RETURNS.findall(data + b"\n"))
        count = self._counts.setdefault(prefix, [0, 0])
        count[0] += data.count(b"\n") + 1
        count[1] += size

    def counts(self) -> dict[str, list[int]]:
        """For the record of the slot's end: [lines, bytes] by stream."""
        found: dict[str, list[int]] = {}
        for prefix, (lines, size) in self._counts.items():
            rank = prefix[len(_RANK) : -2]
            count = found.setdefault(f"r{number}" if (number := untrusted.whole(rank)) is not None else "slot", [0, 0])
            count[0] += lines
            count[1] += size
        return few(found, MOST)


def few(counts: Mapping[str, list[int]], most: int) -> dict[str, list[int]]:
    """``counts`` as they are, or their sum where there are more than ``most``."""
    if len(counts) <= most:
        return dict(counts)
    return {SUM: [sum(count[0] for count in counts.values()), sum(count[1] for count in counts.values())]}


MAX_LINE = 1 << 20
CUT_MARK = b" [rankfall: line cut]\n"
# In front of a line of no rank that begins like one of ours.
UNKNOWN = b"[rank ?] "
# When this much waits to be written nothing more is read from the pipes, until it is less than the second.
HIGH_WATER, LOW_WATER = 1 << 20, 1 << 18
# A pipe that poll calls writable takes this much without blocking: one page is free (pipe_poll and pipe_write in Linux's fs/pipe.c).
_STEP = 4096
# Whoever writes byte by byte shall not make as many objects.
_MAX_PARTS = 1024
_OURS = re.compile(rb"^(?=\[rank |\x1e)", re.MULTILINE)


class _Partial:
    """The beginning of a line that is not whole yet."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        if not data:
            return
        self.size += len(data)
        self.parts.append(data)
        if len(self.parts) > _MAX_PARTS:
            self.parts = [b"".join(self.parts)]

    def take(self) -> bytes:
        data = b"".join(self.parts)
        self.parts = []
        self.size = 0
        return data


class Console:
    """Assembles lines per stream and writes them to ``fd``.

    Args:
        fd: stays open; never made non-blocking, because others may share it.
        loop: called back when ``fd`` takes more.
        secret: bytes that no text of the job may carry out (the channel's token); they are masked.

    Attributes:
        printed: what was given to it of each stream.
    """

    def __init__(self, fd: int, loop: Loop, *, secret: bytes = b"") -> None:
        self._fd = fd
        self._loop = loop
        self._secret = secret
        self.printed = Printed()
        self._partial: dict[str, _Partial] = {}
        self._queue: deque[memoryview] = deque()
        # Bytes that are not written yet.
        self.waiting = 0
        # Whether so much waits that nothing more should be read.
        self.full = False
        # Whether the first of the queue is written in part: nothing may come before its rest.
        self._begun = False
        self._watched = False
        # A plain file always takes everything.
        self._poll: select.poll | None = None if _is_file(fd) else select.poll()
        if self._poll is not None:
            self._poll.register(fd, select.POLLOUT)
        self.on_room: Callable[[], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether all that was given is written, or nobody is there to write to."""
        return not self._queue

    # -- streams

    def tee(self, stream: str, prefix: Callable[[], bytes]) -> Callable[[bytes], None]:
        """A function that takes the bytes of ``stream``; ``prefix`` is asked for each chunk, because a rank is known late."""

        def take(data: bytes) -> None:
            self._take(stream, prefix(), data)

        return take

    def _take(self, stream: str, prefix: bytes, data: bytes) -> None:
        if self._fd < 0:
            return
        partial = self._partial.setdefault(stream, _Partial())
        end = data.rfind(b"\n") + 1
        out = b""
        if end:
            out = self._lines(prefix, partial.take() + data[:end])
            data = data[end:]
        partial.add(data)
        if partial.size > MAX_LINE:
            rest = partial.take()
            while len(rest) > MAX_LINE:
                out += self._marked(prefix, rest[:MAX_LINE] + CUT_MARK[:-1]) + b"\n"
                rest = rest[MAX_LINE:]
            partial.add(rest)
        self._push(out)

    def finish(self, stream: str, prefix: bytes) -> None:
        """The stream is at its end: a last line without newline gets one."""
        partial = self._partial.pop(stream, None)
        if partial is not None and partial.size:
            self._push(self._lines(prefix, partial.take() + b"\n"))

    def _lines(self, prefix: bytes, data: bytes) -> bytes:
        """Whole lines, each with its prefix; ``data`` ends with a newline."""
        body = data[:-1]
        if len(body) > MAX_LINE:
            body = b"\n".join([_cut(line) for line in body.split(b"\n")])
        return self._marked(prefix, body) + b"\n"

    def _marked(self, prefix: bytes, data: bytes) -> bytes:
        """Lines with their prefix, counted; the last one has no newline yet."""
        if self._secret and self._secret in data:
            data = data.replace(self._secret, b"***")
        self.printed.add(prefix, data)
        if prefix:
            return prefix + data.replace(b"\n", b"\n" + prefix)
        if b"[rank " in data or b"\x1e" in data:
            return _OURS.sub(UNKNOWN, data)
        return data

    # -- output

    def line(self, data: bytes, *, first: bool = False) -> None:
        """Write one line of our own, with its newline.

        Args:
            data: the line.
            first: before all that waits, but never within a line.
        """
        if not first:
            self._push(data)
        elif self._fd >= 0:
            self.waiting += len(data)
            self._queue.insert(1 if self._begun else 0, memoryview(data))
            self.flush()

    def _push(self, data: bytes) -> None:
        if not data or self._fd < 0:
            return
        self.waiting += len(data)
        self._queue.append(memoryview(data))
        self.flush()

    def flush(self) -> None:
        """Write what the output takes now; the loop calls again when it takes more."""
        try:
            while self._queue and self._writable():
                view = self._queue[0]
                done = os.write(self._fd, view[:_STEP] if self._poll is not None else view)
                self.waiting -= done
                self._begun = done < len(view)
                if self._begun:
                    self._queue[0] = view[done:]
                else:
                    self._queue.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._give_up()
        self._attend(bool(self._queue))
        if self.waiting >= HIGH_WATER:
            self.full = True
        elif self.full and self.waiting < LOW_WATER:
            self.full = False
            if self.on_room is not None:
                self.on_room()

    def _writable(self) -> bool:
        return self._poll is None or bool(self._poll.poll(0))

    def _attend(self, wanted: bool) -> None:  # noqa: FBT001 - one answer
        if wanted == self._watched:
            return
        if not wanted:
            self._watched = False
            self._loop.unwatch_write(self._fd)
            return
        try:
            self._loop.watch_write(self._fd, self.flush)
            self._watched = True
        except OSError:
            # No event tells when it takes more: at the next flush.
            return

    def _give_up(self) -> None:
        """Nobody reads any more: drop what waits."""
        if self._watched:
            self._watched = False
            self._loop.unwatch_write(self._fd)
        self._fd = -1
        self._queue.clear()
        self._partial.clear()
        self.waiting = 0
        self._begun = False


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _cut(line: bytes) -> bytes:
    parts = [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)]
    return CUT_MARK.join(parts)


_MASK = "***"
# Of an output that takes nothing any more: what comes after this is only counted.
_MAX_WAITING = 16 << 20


class Channel:
    """Writes records as lines. Without a token it writes none.

    Args:
        console: where lines go; it keeps them whole.
        token: of this attempt; "" switches the channel off.
    """

    def __init__(self, console: Console | None, token: str) -> None:
        self._console = console if token else None
        self._token = token
        # Records that found no room.
        self.lost = 0

    @property
    def active(self) -> bool:
        """Whether records are written at all."""
        return self._console is not None

    def send(self, record: dict[str, Any], *, first: bool = False) -> bool:
        """Write ``record``; False where there is no channel, or no room on it.

        Args:
            record: stays as it is; the line is shortened to 8 KiB.
            first: before all that waits to be written.
        """
        if self._console is None:
            return False
        if self._console.waiting > _MAX_WAITING:
            self.lost += 1
            return False
        self._console.line(records.line(_without(record, self._token), self._token), first=first)
        return True


def _without(value: Any, token: str) -> Any:
    """A copy of ``value`` in which no text holds the token."""
    if isinstance(value, str):
        return value.replace(token, _MASK) if token in value else value
    if isinstance(value, dict):
        return {name: _without(item, token) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(item, token) for item in value]
    return value


def take_token() -> str:
    """The token from the environment, which no longer has it afterwards; "" without one.

    ``/proc/PID/environ`` shows the environment a process began with for as long as it lives, to whoever has the same user: the bytes
    there are overwritten too.
    """
    token = os.environ.get("RANKFALL_TOKEN", "")
    if token:
        try:
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_void_p
            libc.getenv.argtypes = [ctypes.c_char_p]
            address = libc.getenv(b"RANKFALL_TOKEN")
            if address:
                ctypes.memset(address, ord("*"), len(os.fsencode(token)))
        except Exception:
            pass  # a libc without it: the variable is removed all the same
    os.environ.pop("RANKFALL_TOKEN", None)
    # A line of the channel is made of words.
    return token if token.isascii() and token.isprintable() and " " not in token else ""
