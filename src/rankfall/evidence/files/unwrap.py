r"""Removes from a text what its way to a person put around every line: colors, quotation marks, numbers, an indent, a collector's JSON.

The first bytes of a text show what is around all of its lines; a later line without it stays as it is. One line stays one line, so numbers of lines
are those of the file.

Cost: one pass over a text that is wrapped, a search for escapes in others. Memory: the unfinished line, at most ``MAX_HELD`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import msgspec

from rankfall.evidence.readers.prefixes import fold, learn
from rankfall.evidence.readers.tracebacks import HEAD
from rankfall.model import numbers
from rankfall.model.decoding import decode
from rankfall.model.patterns import Anchored, anchored, bounded

# Bytes that show how a text is wrapped; fewer lines show nothing.
_SAMPLE: Final = 64 << 10
_LEAST_LINES: Final = 3
# A longer line is passed on unfinished.
MAX_HELD: Final = 1 << 20
_MAX_LAYERS: Final = 3
_LONGEST_NAME: Final = 256
_LONGEST: Final = 64 << 10

# What follows the escape character of a terminal; and colors that have lost theirs in a page.
_ESCAPED: Final = anchored(rb"\[[0-9;?]{0,64}[A-Za-z]|\][^\x07\n]{0,512}(?:\x07|\Z)|\\|\([A-Z0-9]", limit=600)
_BARE: Final = bounded(rb"\[\d{1,3}(?:;\d{1,3}){0,6}m", limit=64 << 20)
_BARE_END: Final = b"[0m"
_ESCAPE_TAIL: Final = 64
_QUOTED: Final = anchored(rb"> ?", limit=4)
_NUMBERED: Final = anchored(rb"[ \t]{0,8}(\d{1,7})(?:[:|] ?|[ ]{2}|\t)", limit=32)
# A message of syslog or the journal, but not the kernel's: its own reader knows those lines.
_SYSLOG: Final = anchored(
    rb"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}) [\w.-]{1,253} (?!kernel)[\w./@-]{1,128}\[\d{1,8}\]: ?",
    limit=512,
)
# A line of a container runtime's log file.
_RUNTIME: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,20} std(?:out|err) [FP] ?", limit=64)
_INDENT: Final = anchored(rb"[ \t]+", limit=64)
_FRAME: Final = anchored(rb'[ \t]*File "', limit=96)
# Keys of the text of an object of a log collector, and of its rank.
_TEXT_KEYS: Final = ("log", "message", "msg", "textPayload", "@message", "MESSAGE", "body", "line", "text")
_RANK_KEYS: Final = ("rank", "global_rank")

Layer = Callable[[bytes], bytes | None]


class Unwrapper:
    """Unwraps one text, part by part."""

    def __init__(self) -> None:
        self._layers: list[Layer] | None = None
        self._held = b""
        # A search of all bytes costs more than all that a plain text needs.
        self._bare = False

    def push(self, data: bytes, *, final: bool = False) -> bytes:
        """Returns the text of the next bytes without what is around it; an unfinished line of a wrapped text waits.

        Args:
            data: the next bytes.
            final: no more follow directly; what waits counts.
        """
        data = self._held + data if self._held else data
        self._held = b""
        if self._layers is None:
            cut = len(data) if final else data.rfind(b"\n", 0, _SAMPLE) + 1
            if not cut and len(data) < _SAMPLE:
                self._held = data
                return b""
            self._layers = layers_of(data[: cut or _SAMPLE])
            self._bare = _BARE_END in data[:_SAMPLE]
        if not final and (self._layers or b"\x1b" in data[-_ESCAPE_TAIL:]):
            cut = data.rfind(b"\n") + 1
            if cut or len(data) <= MAX_HELD:
                data, self._held = data[:cut], data[cut:]
        data = without_escapes(data, bare=self._bare)
        if not self._layers:
            return data
        lines = data.split(b"\n")
        for layer in self._layers:
            lines = [line if (inner := layer(line)) is None else inner for line in lines]
        return b"\n".join(lines)


def without_escapes(data: bytes, *, bare: bool = True) -> bytes:
    """A text without colors and other escapes of a terminal; ``bare``: also colors that have lost their escape."""
    if b"\x1b" in data:
        first, *rest = data.split(b"\x1b")
        data = first + b"".join([text[match.end() :] if (match := _ESCAPED.match(text)) else text for text in rest])
    return _BARE.sub(b"", data) if bare and _BARE_END in data else data


def layers_of(sample: bytes) -> list[Layer]:
    """Returns the layers around every line of a text, the outermost first.

    Args:
        sample: the text's first lines.
    """
    lines = [line.rstrip(b"\r") for line in without_escapes(sample).split(b"\n") if line.strip()]
    found: list[Layer] = []
    while len(found) < _MAX_LAYERS and len(lines) >= _LEAST_LINES:
        layer = next(
            (
                one
                for one in (*_LAYERS, *_counted(lines), *_margin(lines), *_named(lines))
                if all(one(line) is not None for line in lines)
            ),
            None,
        )
        if layer is None:
            break
        found.append(layer)
        lines = [inner for line in lines if (inner := layer(line)) and inner.strip()]
    return found


def _behind(pattern: Anchored[bytes]) -> Layer:
    def inner(line: bytes) -> bytes | None:
        match = pattern.match(line)
        return None if match is None else line[match.end() :]

    return inner


def _of_object(line: bytes) -> bytes | None:
    """Text of a collector's object with its rank; None for a text of several lines, whose places would be lost."""
    if line[:1] != b"{" or len(line) > _LONGEST:
        return None
    try:
        fields = decode(line)
    except msgspec.DecodeError:
        return None
    text = (
        next((text for key in _TEXT_KEYS if isinstance(text := fields.get(key), str)), None)
        if isinstance(fields, dict)
        else None
    )
    if text is None or "\n" in (text := text.rstrip("\r\n")):
        return None
    rank = next((value for key in _RANK_KEYS if (value := fields.get(key)) is not None), None)
    before = f"[rank{rank}]: " if isinstance(rank, int) and rank >= 0 else ""
    return (before + text).encode("utf-8", "surrogatepass")


def _counted(lines: list[bytes]) -> list[Layer]:
    """Numbers that grow with every line."""
    counts = [numbers.matched(match[1]) if (match := _NUMBERED.match(line)) else None for line in lines]
    grows = all(a is not None and b is not None and 0 < b - a < _LEAST_LINES for a, b in pairwise(counts))
    return [_behind(_NUMBERED)] if grows else []


def _margin(lines: list[bytes]) -> list[Layer]:
    """An indent of all lines; but frames alone are a traceback without its ends."""
    widths = {len(match.group()) if (match := _INDENT.match(line)) else 0 for line in lines}
    width = min(widths)
    if not width or all(_FRAME.match(line) for line in lines if not line[width : width + 1].isspace()):
        return []
    return [lambda line: line[width:] if not line[:width].strip() else None]


def _named(lines: list[bytes]) -> list[Layer]:
    """Words and a clock before every line of a text that holds a traceback, as of a pod or a logger; never a rank."""
    folded = [fold(line[:_LONGEST_NAME]) for line in lines]
    first, last = min(folded), max(folded)
    size = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
        min(len(first), len(last)),
    )
    words = lines[0][:size]
    size = max(words.rfind(b" "), words.rfind(b"\t")) + 1
    known = learn(words[:size])
    if not words[:size].strip() or known.name or not known.rank is known.local_rank is known.slot is known.pid is None:
        return []
    if not any(line.startswith(HEAD, size) or _FRAME.match(line, size) for line in lines):
        return []
    name = fold(words[:size])
    return [lambda line: line[size:] if fold(line[:size]) == name else None]


_LAYERS: Final = (_of_object, _behind(_QUOTED), _behind(_RUNTIME), _behind(_SYSLOG))
