"""Python tracebacks in text, kept whole: several lines, several chained exceptions, interleaved with the lines of other ranks.

A traceback's own lines are never scanned as ordinary lines: its source echoes are code, not messages. Lines of one speaker are told from
those of others by their prefix; without prefixes a garbled traceback ends at the first line that cannot belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from rankfall.observe.prefixes import Prefix, parse_prefix

HEAD: Final = b"Traceback (most recent call last):"
MAX_LINES: Final = 2000
MAX_MESSAGE: Final = 4096

_FILE = re.compile(rb'\s*(?:\|\s*)*File "([^"\n]{1,1024})", line (\d+)(?:, in (.{1,256}))?')
_FINAL = re.compile(rb"(?:\+ )?([A-Za-z_][\w]*(?:\.[A-Za-z_<][\w>]*)*)(?:: (.*))?$")
_CHAIN = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_IGNORED = re.compile(rb"Exception ignored (?:in|while)|--- Logging error ---")
_CONTINUATIONS: Final = (
    b"Exception raised from",
    b"Last error:",
    b"Missing key",
    b"Parameter",
    b"Socket ",
    b"Unexpected key",
    b"frame #",
    b"nccl",
    b"size mismatch",
)
_LIBRARY = re.compile(rb"(?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|<frozen ")


class TracebackText(msgspec.Struct, frozen=True, kw_only=True):
    """One traceback with its chain.

    Attributes:
        start, end: bytes in the scanned data, from the first line to the end of the last one (without its newline).
        spans: begin and end of each of its lines: other speakers' lines between them do not belong to it.
        chain: ``(type, message)`` of each exception, the raised one (printed last) first.
        frame: ``file:function`` of the innermost frame of user code of the raised exception, or of any frame.
        final_start, final_end: bytes of the raised exception's own line.
        ignored: Python printed it and went on ("Exception ignored in ..."): noise, never a cause.
    """

    start: int
    end: int
    spans: tuple[tuple[int, int], ...]
    prefix: Prefix
    chain: tuple[tuple[str, str], ...]
    frame: str
    frames: int
    final_start: int
    final_end: int
    ignored: bool = False


class Incomplete(msgspec.Struct, frozen=True):
    """A traceback that the data breaks off; scanning goes on from ``start`` when there is more."""

    start: int


def find_tracebacks(data: bytes, *, final: bool = True) -> Iterator[TracebackText | Incomplete]:
    """All tracebacks of a chunk of whole lines, in order of their beginning.

    Args:
        data: whole lines.
        final: nothing follows this data, so that a broken-off traceback is taken as it is.
    """
    done: dict[bytes, int] = {}
    at = data.find(HEAD)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        prefix = parse_prefix(data[start : start + 1024])
        if start >= done.get(prefix.raw, 0) and at - start <= prefix.length + 16:
            found = _read(data, start, prefix, final=final)
            if isinstance(found, Incomplete):
                yield found
                return
            if found is not None:
                done[prefix.raw] = found.end
                yield found
        at = data.find(HEAD, at + len(HEAD))


class _State(msgspec.Struct):
    chain: list[tuple[str, str]] = msgspec.field(default_factory=list)
    message: list[bytes] = msgspec.field(default_factory=list)
    type: bytes | None = None
    frame: bytes = b""
    user_frame: bytes = b""
    frames: int = 0
    final: tuple[int, int] = (0, 0)
    end: int = 0
    expect: bool = True  # inside a stack: frames or the final line come next


def _read(data: bytes, start: int, prefix: Prefix, *, final: bool) -> TracebackText | Incomplete | None:
    state = _State(end=start)
    spans: list[tuple[int, int]] = []
    at, size, lines = start, len(data), 0
    ended = False
    while at < size and lines < MAX_LINES:
        stop = data.find(b"\n", at)
        stop = size if stop < 0 else stop
        line = data[at:stop]
        own = parse_prefix(line)
        body = line
        if prefix.raw:
            if own.raw != prefix.raw:
                at, lines = stop + 1, lines + 1
                continue
            body = line[own.length :]
        elif own.rank is not None or own.local_rank is not None or own.slot is not None:
            if not state.expect:
                ended = True
                break
            at, lines = stop + 1, lines + 1
            continue
        if not _take(state, body.rstrip(b"\r"), at, stop, first=not spans):
            ended = True
            break
        spans.append((at, stop))
        at, lines = stop + 1, lines + 1
    if not ended and not final and lines < MAX_LINES:
        return Incomplete(start)
    _close(state)
    if not state.chain:
        return None
    chain = tuple(reversed(state.chain))
    kept = tuple(span for span in spans if span[1] <= state.end)
    before = data[data.rfind(b"\n", 0, max(0, start - 1)) + 1 : start]
    return TracebackText(
        ignored=_IGNORED.search(before) is not None,
        start=start,
        end=state.end,
        spans=kept,
        prefix=prefix,
        chain=chain,
        frame=(state.user_frame or state.frame).decode("utf-8", "replace"),
        frames=state.frames,
        final_start=state.final[0],
        final_end=state.final[1],
    )


def _take(state: _State, body: bytes, at: int, stop: int, *, first: bool) -> bool:
    """Take one line of the speaker; False when it no longer belongs to the traceback."""
    text = body.strip()
    if first:
        state.end = stop
        return True
    if text in _CHAIN or text.startswith(HEAD):
        _close(state)
        state.expect, state.frame, state.user_frame = True, b"", b""
        state.end = stop
        return True
    if state.expect:
        match = _FILE.match(body)
        if match:
            place = match.group(1).rpartition(b"/")[2] + b":" + (match.group(3) or b"").strip()
            state.frame = place
            if not _LIBRARY.search(match.group(1)):
                state.user_frame = place
            state.frames += 1
            state.end = stop
            return True
        if body[:1] in {b" ", b"\t"} or not text or text.startswith((b"|", b"+-")):
            state.end = stop
            return True
        match = _FINAL.match(text)
        if match is None:
            return False
        state.type, state.message = match.group(1), [match.group(2) or b""]
        state.final, state.end, state.expect = (at, stop), stop, False
        return True
    if not text:
        return True  # a blank line stands before a chained exception, or ends the traceback
    if state.type is not None and sum(map(len, state.message)) < MAX_MESSAGE and _continues(text):
        state.message.append(text)
        state.end = stop
        return True
    return False


def _continues(text: bytes) -> bool:
    """Whether a line after the final one still belongs to a message of several lines.

    torch's own messages go on with a C++ stack; argument errors with details. A log line or another program's words do not.
    """
    return text.startswith(_CONTINUATIONS)


def _close(state: _State) -> None:
    if state.type is not None:
        message = b"\n".join(state.message)[:MAX_MESSAGE]
        state.chain.append((state.type.decode("utf-8", "replace"), message.decode("utf-8", "replace")))
        state.type = None
