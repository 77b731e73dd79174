"""What a supervisor tells its viewers, and the folder's own copy of it. An event is news for people; no decision is ever read from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rankfall.model import decoding

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
    "verdict",
    "decision",
    "signal",
    "ended",
    "released",
    "raw",
]

EVENTS_NAME: Final = "events.jsonl"
# A run that fails for days must not fill the disk with its story.
MAX_EVENTS_BYTES: Final = 8 << 20
MAX_TEXT: Final = 2000


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of news.

    Attributes:
        at: nanoseconds since the epoch.
        text: one line for people; may hold text of the job, so it must be escaped before it is shown.
        data: what a program would want: attempt, rank, slot, slug and the like.
    """

    kind: EventKind
    at: int
    text: str
    data: dict[str, Any] = {}


OnEvent = Callable[[Event], None]


class EventLog:
    """Appends events to the run's ``events.jsonl`` and passes them on. Never fails: news is worth less than the run.

    Args:
        folder: the run directory.
        on_event: the viewer in this process.
    """

    def __init__(self, folder: Path, on_event: OnEvent | None) -> None:
        self._path = folder / EVENTS_NAME
        self._on_event = on_event
        self._encode = msgspec.json.Encoder().encode

    def say(self, kind: EventKind, text: str, *, at: int, **data: Any) -> None:
        """Store one event, then pass it on."""
        event = Event(kind=kind, at=at, text=text[:MAX_TEXT], data=data)
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            if file.tell() < MAX_EVENTS_BYTES:
                file.write(self._encode(event) + b"\n")
        if self._on_event is not None:
            self._on_event(event)


def read_events(folder: Path, *, offset: int = 0) -> tuple[list[Event], int]:
    """Events of a run from a byte offset on, and the offset to go on from. A torn last line is left for the next call."""
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
