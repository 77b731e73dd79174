"""Events of a run for viewers, and ``events.jsonl``.

Writing never fails, and no decision depends on an event. The file takes at most 8 MiB.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rankfall.model import decoding
from rankfall.rundir.lease import append_to

EventKind = Literal[
    "resumed",
    "attempt",
    "launcher",
    "waiting",
    "rank",
    "failure",
    "fall",
    "slot",
    "hang",
    "deadline",
    "success",
    "suspended",
    "resize",
    "stopping",
    "stopped",
    "gap",
    "blamed",
    "notify",
    "verdict",
    "decision",
    "signal",
    "ended",
    "released",
    "raw",
]

EVENTS_NAME: Final = "events.jsonl"
MAX_EVENTS_BYTES: Final = 8 << 20
MAX_TEXT: Final = 2000
# Least seconds between wait reports; multiple of its age.
_SOONEST_S: Final = 15.0
_LONGER: Final = 3.0
_MAX_WAITING: Final = 256


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event.

    Attributes:
        at: Time in nanoseconds since the epoch.
        text: One line for users; escape before display.
        data: Values for programs: attempt, rank, slot, slug.
    """

    kind: EventKind
    at: int
    text: str
    data: dict[str, Any] = {}


OnEvent = Callable[[Event], None]


class EventLog:
    """Appends events to ``events.jsonl`` and passes them on; never fails.

    Unwritten events are passed on as ``unwritten`` and written later.
    """

    def __init__(self, folder: Path, on_event: OnEvent | None) -> None:
        self._path = folder / EVENTS_NAME
        self._on_event = on_event
        self._encode = msgspec.json.Encoder().encode
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._reported: dict[int, object] = {}

    def is_new(self, attempt: int, verdict: object) -> bool:
        """True if this verdict was not reported yet; then it counts as reported."""
        before = self._reported.get(attempt)
        self._reported[attempt] = verdict
        return before != verdict

    def say(self, kind: EventKind, text: str, *, at: int, **data: Any) -> None:
        """Stores one event, then passes it on."""
        event = Event(kind=kind, at=at, text=text[:MAX_TEXT].encode("utf-8", "replace").decode(), data=data)
        self._waiting.append(self._encode(event) + b"\n")
        written = self._write()
        if self._on_event is not None:
            self._on_event(event if written else msgspec.structs.replace(event, data={**data, "unwritten": True}))

    def _write(self) -> bool:
        """Writes all waiting events and returns True, or none and returns False."""
        try:
            with append_to(self._path) as file:
                size = file.tell()
                if size >= MAX_EVENTS_BYTES:
                    self._waiting.clear()
                    return True
                try:
                    file.writelines(self._waiting)
                    file.flush()
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
        except OSError:
            return False
        self._waiting.clear()
        return True


def sparing(say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """Returns a filter for repeated wait messages.

    The filter passes the first message, then one whenever the wait is four times as long (from 15 s).
    """
    next_at: dict[str, tuple[float, float]] = {}

    def tell(text: str) -> None:
        now, subject = clock(), text.partition(", for ")[0]
        began, due = next_at.get(subject, (now, now))
        if now >= due:
            next_at.clear()
            next_at[subject] = (began, now + max(_SOONEST_S, _LONGER * (now - began)))
            say(text)

    return tell


def read_events(folder: Path, *, offset: int = 0) -> tuple[list[Event], int]:
    """Reads events from a byte offset; returns them and the next offset."""
    try:
        with (folder / EVENTS_NAME).open("rb") as file:
            file.seek(offset)
            data = file.read(MAX_EVENTS_BYTES)
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    events = []
    for line in whole.split(b"\n"):
        with contextlib.suppress(msgspec.MsgspecError):
            events.append(decoding.decode(line, kind=Event))
    return events, offset + len(whole)
