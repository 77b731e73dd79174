"""Reads records of log collectors and loggers, objects of JSON with the text, the rank, the pod and the traceback in keys, and objects that kubectl prints.

A record is one line, or one of a document's, as a cloud exports it, perhaps with the newest one first. Cost: each is
decoded once; longer ones are not read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Final, NamedTuple

import msgspec

from rankfall.evidence.readers import text as texts
from rankfall.evidence.readers.frames import FILE, HEAD
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.model import Evidence, numbers
from rankfall.model.decoding import decode
from rankfall.model.patterns import anchored, linear
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
# Objects of a record that hold the text or its labels.
_INNER_KEYS: Final = ("jsonPayload", "_source", "attributes", "resource", "labels", "kubernetes", "pod", "stream")
_POD_KEYS: Final = ("pod_name", "pod", "podName", "k8s.pod.name", "PodName")
_CONTAINER_KEYS: Final = ("container_name", "container", "containerName", "k8s.container.name", "ContainerName")
_TIME_KEYS: Final = ("timestamp", "@timestamp", "time", "ts", "TimeGenerated", "ingestionTime")
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


# Bytes and records of a document, bytes that show its form, and how deep its lists may lie.
MAX_DOCUMENT: Final = 16 << 20
_SAMPLE: Final = 64 << 10
_MAX_RECORDS: Final = 1 << 18
_DEPTH: Final = 5
_BEGIN: Final = anchored(rb'\s*(?:\[\s*(?:[{\[]|\Z)|\{\s*(?:"|\Z))', limit=256)
_NAME: Final = anchored(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z", limit=254)


class _Entry(NamedTuple):
    """Text of a document's record, the prefix of its lines, its time and the number of its line."""

    text: str
    before: str
    time: str | float | None
    line: int


def may_be_document(data: bytes) -> bool:
    """True if the first bytes of a text begin a document of JSON, and not one record a line."""
    if not _BEGIN.match(data):
        return False
    first, end, rest = data[:_SAMPLE].partition(b"\n")
    try:
        return not end or not rest.strip() or not isinstance(decode(first), dict)
    except msgspec.DecodeError:
        return True


def lines_of_document(data: bytes) -> tuple[bytes, array[int]] | None:
    """Text of a document's records, the oldest first, and the number of each one's line; None for another document."""
    try:
        entries = list(islice(_entries(_Piece(data, 1), {}, 0), _MAX_RECORDS))
    except msgspec.DecodeError:
        return None
    times = [entry.time for entry in entries if entry.time is not None]
    if len(times) > 1 and _is_later(times[0], times[-1]):
        entries.reverse()
    lines, places = list[str](), array("L")
    for entry in entries:
        several = [entry.before + line.rstrip("\r") for line in entry.text.rstrip("\r\n").split("\n")]
        lines += several
        places.extend([entry.line] * len(several))
    return ("\n".join((*lines, "")).encode("utf-8", "surrogatepass"), places) if lines else None


def nearby_lines(data: bytes, number: int, text: str, *, most: int) -> list[tuple[int, str]] | None:
    """Numbers and texts of at most ``most`` lines on each side of one of a document's records; None for another document.

    ``number``, ``text``: of that line; a record may hold several.
    """
    found = lines_of_document(data)
    if found is None:
        return None
    rows = found[0].decode("utf-8", "backslashreplace").split("\n")
    places = [at for at, place in enumerate(found[1]) if place == number]
    own = max(places, key=lambda at: (rows[at] == text, at), default=0)
    first = max(0, own - most)
    return [(number + at - own, row) for at, row in enumerate(rows[first : own + most], first)]


def _is_later(one: str | float, other: str | float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one > other
    return one > other


class _Piece(NamedTuple):
    """A part of a document, and the number of its line there."""

    data: bytes
    line: int

    def parts(self, raws: Iterator[msgspec.Raw]) -> Iterator[_Piece]:
        """Yields parts in their order with their places."""
        at, line = 0, self.line
        for raw in raws:
            part = bytes(raw)
            begin = self.data.index(part, at)
            line += self.data.count(b"\n", at, begin)
            yield _Piece(part, line)
            at, line = begin + len(part), line + part.count(b"\n")


def _entries(piece: _Piece, labels: Mapping[str, str], depth: int) -> Iterator[_Entry]:
    """Yields the records in a list or object; ``labels``: pod and container of the objects around it."""
    first = piece.data.lstrip()[:1]
    if depth > _DEPTH or first not in {b"[", b"{"}:
        return
    if first == b"[":
        items = decode(piece.data, kind=list[msgspec.Raw])
        for part in piece.parts(iter(items)):
            yield from _entries(part, labels, depth + 1) if part.data[:1] == b"{" else _pair(part, labels)
        return
    fields = decode(piece.data)
    if "apiVersion" in fields:
        return
    inner = [fields, *_inner(fields)]
    labels = {**labels, **_labels(inner)}
    if depth and (text := _text_in(inner)) is not None:
        times = (value for each in inner for key in _TIME_KEYS if isinstance(value := each.get(key), str | int | float))
        time = next(times, None)
        trace = _trace_of(fields, text)
        before = _before(_rank_in(inner), labels)
        key = next((at for key in _TEXT_KEYS if (at := piece.data.find(b'"%s"' % key.encode())) >= 0), 0)
        line = piece.line + piece.data.count(b"\n", 0, key)
        yield _Entry("\n".join((text, *trace)), before, time, line)
        return
    parts = decode(piece.data, kind=dict[str, msgspec.Raw])
    for part in piece.parts(iter(parts.values())):
        yield from _entries(part, labels, depth + 1)


def _pair(piece: _Piece, labels: Mapping[str, str]) -> Iterator[_Entry]:
    """Yields the record of a time and a line in a list, as of Loki."""
    if piece.data[:1] != b"[":
        return
    match decode(piece.data):
        case [str() as time, str() as text, *_]:
            yield _Entry(text, _before(None, labels), time, piece.line)
        case _:
            return


def _inner(fields: dict[str, object]) -> Iterator[dict[str, object]]:
    for key in _INNER_KEYS:
        if isinstance(each := fields.get(key), dict):
            yield each
            yield from (deeper for name in _INNER_KEYS if isinstance(deeper := each.get(name), dict))


def _labels(inner: list[dict[str, object]]) -> dict[str, str]:
    """Pod and container that the objects of a record name."""
    found = {}
    for name, keys in (("pod", _POD_KEYS), ("container", _CONTAINER_KEYS)):
        values = (value for each in inner for key in keys if isinstance(value := each.get(key), str))
        if (value := next((value for value in values if _NAME.match(value)), None)) is not None:
            found[name] = value
    return found


def _before(rank: int | None, labels: Mapping[str, str]) -> str:
    """Prefix of a record's lines."""
    pod = f"[pod/{labels['pod']}/{labels.get('container', 'main')}] " if "pod" in labels else ""
    return pod if rank is None else f"{pod}[rank{rank}]: "


def _text_in(inner: list[dict[str, object]], keys: tuple[str, ...] = _TEXT_KEYS) -> str | None:
    return next((text for each in inner for key in keys if isinstance(text := each.get(key), str)), None)


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
    inner = [fields, *_inner(fields)]
    text = _text_in(inner, keys)
    if text is None or "\n" in (text := text.rstrip("\r\n")):
        return None
    rank = _rank_in(inner)
    before = _before(rank, _labels(inner[1:]))
    lines = _trace_of(fields, text)
    if lines:
        if rank is None and (own := parse_prefix(text.encode("utf-8", "replace")).rank) is not None:
            # The message itself has the speaker's tag.
            text, before = "\n".join((text, *(f"[rank{own}]: {line}" for line in lines))), ""
        else:
            text = f"\n{before}".join((text, *lines))
    return (before + text).encode("utf-8", "surrogatepass")


def _rank_in(inner: list[dict[str, object]]) -> int | None:
    return next((rank for each in inner if (rank := _rank_of(each)) is not None), None)


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


# Heads of objects as kubectl describes and prints them; a node's has no namespace. Then the node and the name in one.
_OBJECT: Final = linear(
    rb"(?m)^(?:Name: +(\S{1,253})\n(?:Namespace: |(Roles|Labels|Annotations|CreationTimestamp|Taints|Conditions):)|(?:- )?apiVersion: )"
)
_ITS_NODE: Final = linear(rb"(?m)^(?:Node: +([^\s/]{1,253})/| {2,12}nodeName: ([^\s\"']{1,253})$)")
_ITS_NAME: Final = linear(rb"\n {2,12}name: ([^\s\"']{1,253})\n {2,12}namespace: ")
_OF_OBJECT: Final = anchored(rb"[ \t]|- |\r?\Z|[A-Za-z][\w ./-]{0,60}:(?:\s|\Z)", limit=128)
_MAX_OBJECTS: Final = 1024


def places_in_objects(
    text: bytes, *, first: int, pieces: Iterable[Evidence]
) -> dict[str, tuple[str | None, str | None]]:
    """Node and pod of findings in objects that kubectl describes or prints as YAML, by ID; ``first``: byte of the text in its file."""
    heads = [*islice(_OBJECT.finditer(text), _MAX_OBJECTS)]
    objects: dict[int, tuple[str | None, str | None]] = {0: (None, None)}
    for head, end in zip(heads, [*(each.start() for each in heads[1:]), len(text)], strict=False):
        lines = takewhile(_OF_OBJECT.match, text[head.start() : end].split(b"\n"))
        body = b"\n".join(lines)
        node, name = _ITS_NODE.search(body), _ITS_NAME.search(body)
        host = head[1] if head[2] else next(filter(None, node.groups())) if node is not None else None
        pod = None if head[2] else head[1] or (name[1] if name is not None else None)
        objects[head.start()] = (
            None if host is None else texts.decode(host),
            None if pod is None else texts.decode(pod),
        )
        # Other text may follow.
        objects[head.start() + len(body)] = (None, None)
    starts = [*objects]
    found = {}
    for piece in pieces:
        place = objects[starts[bisect_right(starts, max(0, (piece.order or 0) - first)) - 1]]
        if any(place):
            found[piece.id] = place
    return found
