"""Shifts the time stamps that one node's clock made, in logs and in JSON, while they stream by.

Log lines may be split over chunks anywhere; only the start of a line is ever held back. Objects are shifted line by line in a watch and as a whole
otherwise (bounded; a larger document is refused, not passed on unshifted).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from testbed.errors import TestbedError

# A line of a watch is one object (etcd takes 1.5 MiB), a document a list of them.
_MAX_DOCUMENT = 64 * 1024 * 1024
# The longest stamp that a kubelet writes has 35 characters.
_STAMP_MAX = 40
_STAMP = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)(?= )", re.MULTILINE)
_WHOLE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$")
# Kubernetes writes 1970 where it does not know: a container that could not be started.
_UNKNOWN = "1970-01-01T00:00:00Z"
# Conditions of a pod that are not written by its node.
_OTHERS_CONDITIONS = frozenset({"PodScheduled", "DisruptionTarget"})

NodeOf = Callable[[str, str], str | None]


class Rewriter(Protocol):
    """Changes a body while it streams."""

    def push(self, data: bytes) -> bytes:
        """The next bytes in, what can be passed on out."""

    def end(self) -> bytes:
        """The rest."""


def shift_text(stamp: str, seconds: float) -> str:
    """An RFC 3339 stamp with as many digits as before; what is none, or says "unknown", stays as it is."""
    found = _WHOLE.match(stamp)
    if found is None or stamp == _UNKNOWN:
        return stamp
    return _shifted(found[1], found[2] or "", found[3], seconds)


def _shifted(whole: str, fraction: str, zone: str, seconds: float) -> str:
    digits = len(fraction) - 1 if fraction else 0
    # datetime knows microseconds and stamps have nanoseconds: whole seconds by datetime, the fraction by integers.
    nanos = round(seconds * 1_000_000_000)
    if digits:
        nanos += int(fraction[1:].ljust(9, "0")[:9])
    carried, rest = divmod(nanos, 1_000_000_000)
    moved = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC) + timedelta(seconds=carried)
    text = moved.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}"[: len(text) + 1 + digits] + zone if digits else text + zone


class LogShift:
    """Shifts the stamp at the start of each line (``timestamps=true``)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held = b""
        self._inside = False

    def push(self, data: bytes) -> bytes:
        """Shift what is complete; the start of a line waits until its stamp is."""
        data, self._held = self._held + data, b""
        front = b""
        if self._inside:
            head, newline, data = data.partition(b"\n")
            front = head + newline
            if not newline:
                return front
        start = data.rfind(b"\n") + 1
        self._inside = start < len(data)
        if self._inside and b" " not in data[start : start + _STAMP_MAX] and len(data) - start < _STAMP_MAX:
            data, self._held, self._inside = data[:start], data[start:], False
        return front + _STAMP.sub(self._one, data)

    def end(self) -> bytes:
        """A start of a line without an end."""
        return _STAMP.sub(self._one, self._held)

    def _one(self, found: re.Match[bytes]) -> bytes:
        return _shifted(found[1].decode(), (found[2] or b"").decode(), found[3].decode(), self._seconds).encode()


class WatchShift:
    """Shifts the objects of a watch, an event a line."""

    def __init__(self, shift: Callable[[Any], None]) -> None:
        self._shift = shift
        self._held: list[bytes] = []
        self._size = 0

    def push(self, data: bytes) -> bytes:
        """Events that are complete."""
        lines, newline, rest = data.rpartition(b"\n")
        done = b""
        if newline:
            done = b"".join(self._one(line) for line in b"".join([*self._held, lines]).split(b"\n"))
            self._held, self._size = [], 0
        if rest:
            self._held.append(rest)
            self._size = _bounded(self._size + len(rest))
        return done

    def end(self) -> bytes:
        """An event that was cut off: as it is, a client cannot read it either."""
        return b"".join(self._held)

    def _one(self, line: bytes) -> bytes:
        event = _decode(line)
        if not isinstance(event, dict):
            return line + b"\n"
        self._shift(event.get("object"))
        return msgspec.json.encode(event) + b"\n"


class DocumentShift:
    """Changes one JSON document when it is complete."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self._change = change
        self._held: list[bytes] = []
        self._size = 0

    def push(self, data: bytes) -> bytes:
        """Nothing yet."""
        self._held.append(data)
        self._size = _bounded(self._size + len(data))
        return b""

    def end(self) -> bytes:
        """The changed document; what is no JSON stays as it is."""
        text = b"".join(self._held)
        document = _decode(text)
        if document is None:
            return text
        self._change(document)
        return msgspec.json.encode(document) + b"\n"


def _decode(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _bounded(size: int) -> int:
    if size > _MAX_DOCUMENT:
        raise TestbedError(
            f"an answer to be shifted has more than {_MAX_DOCUMENT >> 20} MiB",
            hint="ask the server for pages (limit=500)",
        )
    return size


class ObjectShift:
    """Knows which stamps of which objects a node's clock made.

    Args:
        node: whose.
        seconds: to add.
    """

    def __init__(self, node: str, seconds: float) -> None:
        self._node, self._seconds = node, seconds

    def __call__(self, thing: Any) -> None:
        """Shift an object, a list of objects or the rows of a table in place."""
        if not isinstance(thing, dict):
            return
        kind = str(thing.get("kind", ""))
        if kind == "Table":
            for row in thing.get("rows") or ():
                self(row.get("object"))
        elif kind.endswith("List"):
            for item in thing.get("items") or ():
                self._object(str(item.get("kind") or kind.removesuffix("List")), item)
        else:
            self._object(kind, thing)

    def _object(self, kind: str, item: dict[str, Any]) -> None:
        name = (item.get("metadata") or {}).get("name")
        status, spec = item.get("status") or {}, item.get("spec") or {}
        if kind == "Pod" and spec.get("nodeName") == self._node:
            self._pod(status)
        elif kind == "Node" and name == self._node:
            for condition in status.get("conditions") or ():
                # Unknown is written by the control plane, with its own clock.
                if condition.get("status") != "Unknown":
                    self._fields(condition, "lastHeartbeatTime", "lastTransitionTime")
        elif kind == "Lease" and name == self._node:
            self._fields(spec, "renewTime", "acquireTime")
        elif kind == "Event" and self._node in {item.get("reportingInstance"), (item.get("source") or {}).get("host")}:
            self._fields(item, "firstTimestamp", "lastTimestamp", "eventTime")

    def _pod(self, status: dict[str, Any]) -> None:
        self._fields(status, "startTime")
        for condition in status.get("conditions") or ():
            if condition.get("type") not in _OTHERS_CONDITIONS:
                self._fields(condition, "lastTransitionTime")
        for field in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
            for container in status.get(field) or ():
                for state in ("state", "lastState"):
                    for part in (container.get(state) or {}).values():
                        self._fields(part, "startedAt", "finishedAt")

    def _fields(self, holder: dict[str, Any], *names: str) -> None:
        for name in names:
            if isinstance(stamp := holder.get(name), str):
                holder[name] = shift_text(stamp, self._seconds)
