"""Stacks as text, from faulthandler and from py-spy: where the main thread stands, and the newest dump in a long log.

py-spy's ``--json`` is read as well. A dump that a crash printed ("Fatal Python error") is no view of a standstill, and one after which a
program printed much more was followed by progress: neither is kept.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from rankfall.model import decoding

# file, line, function; the innermost first.
Frame = tuple[str, str, str]

MAX_JSON: Final = 16 << 20
_THREAD: Final = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-fA-F]+(?: \[[^\]]*\])?(?: \(most recent call first\))?:", re.MULTILINE
)
_CURRENT: Final = re.compile(r"^Current thread[^\n]*\n((?:[ \t]+File [^\n]*\n?)+)", re.MULTILINE)
_FRAME: Final = re.compile(r'^[ \t]+File "([^"\n]+)", line (\d+) in ([^\n]+)$', re.MULTILINE)
_SPY_THREAD: Final = re.compile(r'^Thread \S+ \([\w+]+\)(?:: "([^"\n]*)")?[ \t\r]*$', re.MULTILINE)
_SPY_FRAME: Final = re.compile(r"^    (\S[^\n]*?) \(([^()\n]+):(\d+)\)[ \t\r]*$", re.MULTILINE)
_MAIN: Final = "MainThread"

# What a line of a dump looks like, and which lines begin one.
_HEADER: Final = re.compile(
    rb"(?:Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\):|Thread \S+ \([\w+]+\)(?:: \".*\")?\s*$|Python v\d"
)
_BEGIN: Final = re.compile(rb"Timeout \(\d+:\d+:\d+(?:\.\d+)?\)!|Process \d+: |Fatal Python error")
_BODY: Final = re.compile(rb'\s*$|  File "|    \S|  \.\.\.')
_FATAL: Final = b"Fatal Python error"
# A chunk of a log in which none of these stands holds no dump.
_HINTS: Final = (b"most recent call first", b"Python v", b"Process ", b"Timeout (", _FATAL)
_MAX_DUMP: Final = 256 << 10
_MAX_LINE: Final = 4096
# Whoever printed so much after its stack was not standing still.
_WENT_ON: Final = 64 << 10


def main_frames(text: str) -> list[Frame]:
    """The frames of the main thread, the innermost first; empty where there is no stack in the text."""
    if _SPY_FRAME.search(text) and _SPY_THREAD.search(text):
        return _spy_frames(text)
    blocks = _THREAD.split(text)
    main = blocks[-1] if len(blocks) > 1 else ""
    current = _CURRENT.search(text)
    frames = _FRAME.findall(current.group(1) if current else main)
    return [(file, line, function.strip()) for file, line, function in frames]


def text_of_json(data: bytes) -> str | None:
    """py-spy's JSON as the text that it prints without; None for any other JSON."""
    try:
        threads: Any = decoding.decode(data)
        lines: list[str] = []
        for thread in threads:
            frames = thread["frames"]
            lines.append(f'Thread {thread["thread_id"]} (idle): "{thread.get("thread_name") or ""}"')
            lines += [f"    {one['name']} ({one['filename']}:{int(one.get('line') or 0)})" for one in frames]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return "\n".join(lines) or None


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


def _spy_frames(text: str) -> list[Frame]:
    threads = list(_SPY_THREAD.finditer(text))
    named = [found for found in threads if found.group(1) == _MAIN]
    # Without names the main thread is the one whose number is the process's: py-spy prints it first.
    main = named[0] if named else threads[0]
    end = next((found.start() for found in threads if found.start() > main.start()), len(text))
    return [(file, line, function) for function, file, line in _SPY_FRAME.findall(text[main.end() : end])]
