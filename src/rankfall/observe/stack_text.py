"""Stacks as text, from faulthandler and from py-spy: where the main thread stands, and the newest dump in a long log.

py-spy's ``--json`` is read as well. A dump that a crash printed ("Fatal Python error") is no view of a standstill, and one after which a
program printed much more was followed by progress: neither is kept.

Cost: line by line, of each line at most ``_LOOK`` characters, so time is linear in bytes; a part of a log without the fixed words of a dump is
passed over. Memory: the newest dump, at most ``_MAX_DUMP`` bytes; frames of at most 2,048 short texts are kept for the next look at them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from rankfall.model import decoding
from rankfall.model.patterns import bounded

# file, line, function; the innermost first.
Frame = tuple[str, str, str]

# JSON of small containers takes thirty times its bytes.
MAX_JSON: Final = 4 << 20
# So much of a line is looked at: its path and its function.
_LOOK: Final = 4096
_THREAD: Final = bounded(
    r"\A(?:Current thread|Thread) 0x[0-9a-fA-F]+(?: \[[^\]]*\])?(?: \(most recent call first\))?:", limit=_LOOK
)
_CURRENT: Final = "Current thread"
_FRAME: Final = bounded(r'\A[ \t]+File "([^"\n]+)", line (\d+) in ([^\n]+)', limit=_LOOK)
_SPY_THREAD: Final = bounded(r'\AThread \S+ \([\w+]+\)(?:: "([^"\n]*)")?[ \t\r]*$', limit=_LOOK)
_SPY_FRAME: Final = bounded(r"\A    (\S[^\n]*?) \(([^()\n]+):(\d+)\)[ \t\r]*$", limit=_LOOK)
_MAIN: Final = "MainThread"
# Frames of shorter texts are kept.
_MAX_KNOWN: Final = 32 << 10

# What a line of a dump looks like, and which lines begin one.
_HEADER: Final = bounded(
    rb"\A(?:(?:Current thread|Thread) 0x[0-9a-fA-F]+(?![0-9a-fA-F]).*\(most recent call first\):"
    rb"|Thread \S+ \([\w+]+\)(?:: \".*\")?\s*$|Python v\d)",
    limit=_LOOK,
)
_BEGIN: Final = bounded(rb"\A(?:Timeout \(\d+:\d+:\d+(?:\.\d+)?\)!|Process \d+: |Fatal Python error)", limit=_LOOK)
_BODY: Final = bounded(rb'\A(?:\s*$|  File "|    \S|  \.\.\.)', limit=_LOOK)
_FATAL: Final = b"Fatal Python error"
# A chunk of a log in which none of these stands holds no dump.
_HINTS: Final = (b"most recent call first", b"Python v", b"Process ", b"Timeout (", _FATAL)
_MAX_DUMP: Final = 256 << 10
_MAX_LINE: Final = 4096
# Whoever printed so much after its stack was not standing still.
_WENT_ON: Final = 64 << 10


def main_frames(text: str) -> list[Frame]:
    """The frames of the main thread, the innermost first; empty where there is no stack in the text."""
    return list(_known_frames(text)) if len(text) <= _MAX_KNOWN else _Stacks(text).main()


@lru_cache(maxsize=2048)
def _known_frames(text: str) -> tuple[Frame, ...]:
    """Stacks that came are asked for again with each poll."""
    return tuple(_Stacks(text).main())


class _Stacks:
    """The stacks of one text, line by line."""

    def __init__(self, text: str) -> None:
        # faulthandler: the frames after the last thread's head, and those right under the first head of the current thread.
        self._last: list[Frame] = []
        self._threads = 0
        self._current: list[Frame] = []
        self._in_current = False
        # py-spy: name and frames of each thread.
        self._spied: list[tuple[str | None, list[Frame]]] = []
        self._spy_frames = False
        for line in text.split("\n"):
            if line.startswith(("Thread ", _CURRENT)):
                self._head(line)
            elif line[:1] in {" ", "\t"}:
                self._body(line)
            else:
                self._in_current = False

    def main(self) -> list[Frame]:
        """Frames of the main thread."""
        if self._spy_frames and self._spied:
            # Without names the main thread is the one whose number is the process's: py-spy prints it first.
            return next((frames for name, frames in self._spied if name == _MAIN), self._spied[0][1])
        return self._current or self._last

    def _head(self, line: str) -> None:
        if _THREAD.match(line):
            self._threads += 1
            self._last = []
        if (spied := _SPY_THREAD.match(line)) is not None:
            self._spied.append((spied[1], []))
        self._in_current = not self._current and line.startswith(_CURRENT)

    def _body(self, line: str) -> None:
        frame = _FRAME.match(line)
        if frame is not None:
            found = frame[1], frame[2], frame[3].strip()
            if self._threads:
                self._last.append(found)
            if self._in_current:
                self._current.append(found)
            return
        self._in_current = self._in_current and line.lstrip().startswith("File ")
        if (spied := _SPY_FRAME.match(line)) is not None:
            self._spy_frames = True
            if self._spied:
                self._spied[-1][1].append((spied[2], spied[3], spied[1]))


def text_of_json(data: bytes) -> str | None:
    """py-spy's JSON as the text that it prints without; None for any other JSON."""
    try:
        threads: Any = decoding.decode(data)
        lines: list[str] = []
        for thread in threads:
            frames = thread["frames"]
            lines.append(f'Thread {thread["thread_id"]} (idle): "{thread.get("thread_name") or ""}"')
            lines += [f"    {one['name']} ({one['filename']}:{_line_of(one)})" for one in frames]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return "\n".join(lines) or None


def _line_of(frame: dict[str, Any]) -> int:
    line = frame.get("line")
    return line if type(line) is int else 0


class NewestDump:
    """Watches a log go by and keeps its newest dump."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] | None = None
        self._size = 0
        self._fatal = False
        self._after = 0
        self._kept = b""

    def feed(self, data: bytes) -> None:
        """Take the next part of the log."""
        text = self._rest + data
        if self._lines is None and not any(hint in text for hint in _HINTS):
            self._after += len(data)
            self._rest = text.rpartition(b"\n")[2][-_MAX_LINE:]
            return
        lines = text.split(b"\n")
        self._rest = lines.pop()[-_MAX_DUMP:]
        for line in lines:
            self._line(line)

    def text(self) -> str | None:
        """The newest dump, where nothing much came after it; call it once, at the end."""
        self._line(self._rest)
        self._close()
        return self._kept.decode("utf-8", "replace") if self._kept and self._after <= _WENT_ON else None

    def _line(self, line: bytes) -> None:
        begins = _BEGIN.match(line)
        if begins or (self._lines is None and _HEADER.match(line)):
            self._close()
            self._lines, self._size, self._fatal = [], 0, line.startswith(_FATAL)
        if self._lines is None:
            self._after += len(line) + 1
        elif len(line) <= _MAX_LINE and (begins or _HEADER.match(line) or _BODY.match(line)):
            self._size += len(line) + 1
            if self._size <= _MAX_DUMP:
                self._lines.append(line)
        else:
            self._close()
            self._after += len(line) + 1

    def _close(self) -> None:
        text = b"\n".join(self._lines or ())
        if self._lines is not None and not self._fatal and main_frames(text.decode("utf-8", "replace")):
            self._kept, self._after = text, 0
        elif self._lines is not None:
            self._after += self._size
        self._lines = None
