"""Reads one record of a log collector or a logger: an object of JSON with the text, the rank and the traceback in keys.

Cost: a record is decoded once; longer ones are not read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.evidence.readers.frames import FILE, HEAD
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.model import numbers
from rankfall.model.decoding import decode
from rankfall.verdict.diagnose.survived_lines import is_low

# Bytes of a record.
_LONGEST: Final = 1 << 20
# Lines from the beginning and from the end of a long traceback, as of an endless recursion.
_HALF: Final = 500
# Keys of the text of an object of a log collector, and of its rank.
_TEXT_KEYS: Final = ("log", "message", "msg", "textPayload", "@message", "MESSAGE", "body", "line", "text")
# A recorder of events calls it data, beside the pipe.
_PIPE_KEYS: Final = (*_TEXT_KEYS, "data")
_RANK_KEYS: Final = ("rank", "global_rank")
_MAX_RANK: Final = 999_999
# Keys of a traceback, flat or in an object of one of the parents; and of the level.
_TRACE_PARENTS: Final = ("error", "exception", "exc_info", "attributes")
_TRACE_KEYS: Final = (
    "exc_info", "exception", "stack_trace", "exc_text", "traceback", "stacktrace", "stack",
    "error.stack_trace", "error.stack", "exception.stacktrace",
)  # fmt: skip
_LEVEL_KEYS: Final = ("level", "levelname", "severity", "log.level", "lvl")
_LOW_LEVELS: Final = ("trace", "debug", "info", "notice", "warn")
# Of syslog from a warning on, and of Python up to it.
_LOW_NUMBERS: Final = range(4, 31)


def text_of_record(line: bytes) -> bytes | None:
    """Text of a collector's object with its rank, and the lines of its traceback; None for a text of several lines."""
    if line[:1] != b"{" or len(line) > _LONGEST:
        return None
    try:
        fields = decode(line)
    except msgspec.DecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    keys = _PIPE_KEYS if "pipe" in fields else _TEXT_KEYS
    text = next((text for key in keys if isinstance(text := fields.get(key), str)), None)
    if text is None or "\n" in (text := text.rstrip("\r\n")):
        return None
    rank = _rank_of(fields)
    before = "" if rank is None else f"[rank{rank}]: "
    lines = _trace_of(fields, text)
    if lines:
        if rank is None and (own := parse_prefix(text.encode("utf-8", "replace")).rank) is not None:
            # The message itself has the speaker's tag.
            text, before = "\n".join((text, *(f"[rank{own}]: {line}" for line in lines))), ""
        else:
            text = f"\n{before}".join((text, *lines))
    return (before + text).encode("utf-8", "surrogatepass")


def _rank_of(fields: dict[str, object]) -> int | None:
    """Rank that an object's key gives; a longer number is none."""
    value = next((value for key in _RANK_KEYS if (value := fields.get(key)) is not None), None)
    if isinstance(value, str):
        return numbers.clamped(value, least=0, most=_MAX_RANK)
    return value if type(value) is int and 0 <= value <= _MAX_RANK else None


def _trace_of(fields: dict[str, object], text: str) -> list[str]:
    """Lines of the traceback in another key of an object than its text's.

    None of a record whose level, or without one its words, call it no error: its program continued.
    """
    head = HEAD.decode()
    inner = [each for parent in _TRACE_PARENTS if isinstance(each := fields.get(parent), dict)]
    for each in (fields, *inner):
        for key in _TRACE_KEYS:
            value = each.get(key)
            if isinstance(value, list) and all(isinstance(line, str) for line in value):
                value = "\n".join(line.rstrip("\r\n") for line in value)
            if not isinstance(value, str) or not (value := value.strip("\r\n")):
                continue
            if head not in value:
                value = _headed(fields, each, value)
            if value is None or head in text or _is_low_record(fields, text):
                continue
            lines = [line.rstrip("\r") for line in value.split("\n")]
            return lines if len(lines) <= 2 * _HALF else lines[:_HALF] + lines[-_HALF:]
    return []


def _headed(fields: dict[str, object], error: dict[str, object], frames: str) -> str | None:
    """Traceback of frames alone, whose exception is in keys beside them, as in the common schema of Elastic."""
    if not FILE.match(frames.encode("utf-8", "replace")):
        return None
    kind = error.get("type") or fields.get("error.type")
    message = error.get("message") if error is not fields else fields.get("error.message")
    if not isinstance(kind, str) or "\n" in kind:
        return None
    last = f"{kind}: {message}" if isinstance(message, str) and message else kind
    return f"{HEAD.decode()}\n{frames}\n{last}"


def _is_low_record(fields: dict[str, object], text: str) -> bool:
    level = next((value for key in _LEVEL_KEYS if isinstance(value := fields.get(key), str | int)), None)
    if isinstance(level, str):
        return level.lower().startswith(_LOW_LEVELS)
    return is_low(text.encode("utf-8", "replace")) if level is None else level in _LOW_NUMBERS
