"""Container's stdout: whole lines of all streams as ``[rank N] text``, and the log channel's records.

A slow reader slows the reading of pipes. The masked token makes channel lines genuine.
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

# Above, only the sum: the record must fit into a line.
MOST = 64
# For the termination message.
MOST_IN_MESSAGE = 12
SUM = "all"
# Anchored to avoid quadratic time.
_RETURNS = re.compile(rb"(?<!\r)\r+(?=\n)")
_RANK = b"[rank "


class Printed:
    """Counts lines and bytes by stream: ``r<rank>``, or ``slot`` without rank."""

    def __init__(self) -> None:
        self._counts: dict[bytes, list[int]] = {}

    def add(self, prefix: bytes, data: bytes) -> None:
        """Counts printed lines."""
        size = len(data) + 1
        if b"\r" in data:
            size -= sum(len(found) for found in _RETURNS.findall(data + b"\n"))
        count = self._counts.setdefault(prefix, [0, 0])
        count[0] += data.count(b"\n") + 1
        count[1] += size

    def counts(self) -> dict[str, list[int]]:
        """Returns [lines, bytes] by stream for the end record."""
        found: dict[str, list[int]] = {}
        for prefix, (lines, size) in self._counts.items():
            rank = prefix[len(_RANK) : -2]
            count = found.setdefault(f"r{number}" if (number := untrusted.whole(rank)) is not None else "slot", [0, 0])
            count[0] += lines
            count[1] += size
        return few(found, MOST)


def few(counts: Mapping[str, list[int]], most: int) -> dict[str, list[int]]:
    """Returns ``counts``, or their sum if more than ``most``."""
    if len(counts) <= most:
        return dict(counts)
    return {SUM: [sum(count[0] for count in counts.values()), sum(count[1] for count in counts.values())]}


MAX_LINE = 1 << 20
CUT_MARK = b" [rankfall: line cut]\n"
# Marks slot lines that imitate Rankfall's.
UNKNOWN = b"[rank ?] "
# Pipe reading stops above, resumes below.
HIGH_WATER, LOW_WATER = 1 << 20, 1 << 18
# A pipe reported writable accepts one page (pipe_poll, pipe_write in Linux's fs/pipe.c).
_STEP = 4096
# Bounds objects for single-byte writes.
_MAX_PARTS = 1024
_OURS = re.compile(rb"^(?=\[rank |\x1e)", re.MULTILINE)


class _Partial:
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
    """Assembles lines per stream and writes them to ``fd``, which stays blocking, as other processes may share it.

    ``secret`` is masked in job text.
    """

    def __init__(self, fd: int, loop: Loop, *, secret: bytes = b"") -> None:
        self._fd = fd
        self._loop = loop
        self._secret = secret
        self.printed = Printed()
        self._partial: dict[str, _Partial] = {}
        self._queue: deque[memoryview] = deque()
        self.waiting = 0
        self.full = False
        # The queue's first item is partly written.
        self._begun = False
        self._watched = False
        # Plain files are always writable.
        self._poll: select.poll | None = None if _is_file(fd) else select.poll()
        if self._poll is not None:
            self._poll.register(fd, select.POLLOUT)
        self.on_room: Callable[[], None] | None = None

    @property
    def empty(self) -> bool:
        """True if all lines are written, or the reader closed."""
        return not self._queue

    def tee(self, stream: str, prefix: Callable[[], bytes]) -> Callable[[bytes], None]:
        """Returns a sink for ``stream``; evaluates ``prefix`` per chunk, because ranks become known late."""

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
        """Ends the stream; completes its last line."""
        partial = self._partial.pop(stream, None)
        if partial is not None and partial.size:
            self._push(self._lines(prefix, partial.take() + b"\n"))

    def _lines(self, prefix: bytes, data: bytes) -> bytes:
        body = data[:-1]
        if len(body) > MAX_LINE:
            body = b"\n".join([_cut(line) for line in body.split(b"\n")])
        return self._marked(prefix, body) + b"\n"

    def _marked(self, prefix: bytes, data: bytes) -> bytes:
        if self._secret and self._secret in data:
            data = data.replace(self._secret, b"***")
        self.printed.add(prefix, data)
        if prefix:
            return prefix + data.replace(b"\n", b"\n" + prefix)
        if b"[rank " in data or b"\x1e" in data:
            return _OURS.sub(UNKNOWN, data)
        return data

    def line(self, data: bytes, *, first: bool = False) -> None:
        """Writes one line of Rankfall; ``first`` = before the queue, never within a line."""
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
        """Writes as much as possible; the event loop calls it again for the remaining bytes."""
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
            return

    def _give_up(self) -> None:
        """Drops the queue after the reader closed."""
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
# Further records are only counted.
_MAX_WAITING = 16 << 20


class Channel:
    """Writes records as lines; the token "" disables it."""

    def __init__(self, console: Console | None, token: str) -> None:
        self._console = console if token else None
        self._token = token
        # Records without room.
        self.lost = 0

    @property
    def active(self) -> bool:
        """True if records are written."""
        return self._console is not None

    def send(self, record: dict[str, Any], *, first: bool = False) -> bool:
        """Writes ``record`` as a line of at most 8 KiB, ``first`` before queued lines; False without channel or room."""
        if self._console is None:
            return False
        if self._console.waiting > _MAX_WAITING:
            self.lost += 1
            return False
        self._console.line(records.line(_without(record, self._token), self._token), first=first)
        return True


def _without(value: Any, token: str) -> Any:
    if isinstance(value, str):
        return value.replace(token, _MASK) if token in value else value
    if isinstance(value, dict):
        return {name: _without(item, token) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(item, token) for item in value]
    return value


def take_token() -> str:
    """Removes the token from the environment and returns it; "" without one.

    Overwrites its bytes, which ``/proc/PID/environ`` shows.
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
            pass  # other libc: only the variable is removed
    os.environ.pop("RANKFALL_TOKEN", None)
    # Channel lines are split at spaces.
    return token if token.isascii() and token.isprintable() and " " not in token else ""
