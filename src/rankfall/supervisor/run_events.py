"""Events of a run for its viewers, and ``events.jsonl`` in the run directory.

Writing an event never fails. No decision is ever read from an event. At most 8 MiB are kept, so a run that
fails for days cannot fill the disk.
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
# A wait is told again after this at the soonest, seconds, and after so many times its age.
_SOONEST_S: Final = 15.0
_LONGER: Final = 3.0
_MAX_WAITING: Final = 256


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

    Those that find no room in the file are passed on with ``unwritten`` in their data, and written when there is room.

    Args:
        folder: the run directory.
        on_event: the viewer in this process.
    """

    def __init__(self, folder: Path, on_event: OnEvent | None) -> None:
        self._path = folder / EVENTS_NAME
        self._on_event = on_event
        self._encode = msgspec.json.Encoder().encode
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._reported: dict[int, object] = {}

    def is_new(self, attempt: int, verdict: object) -> bool:
        """Whether this is another verdict on the attempt than the one that was reported last; it then counts as reported."""
        before = self._reported.get(attempt)
        self._reported[attempt] = verdict
        return before != verdict

    def say(self, kind: EventKind, text: str, *, at: int, **data: Any) -> None:
        """Store one event, then pass it on."""
        event = Event(kind=kind, at=at, text=text[:MAX_TEXT].encode("utf-8", "replace").decode(), data=data)
        self._waiting.append(self._encode(event) + b"\n")
        written = self._write()
        if self._on_event is not None:
            self._on_event(event if written else msgspec.structs.replace(event, data={**data, "unwritten": True}))

    def _write(self) -> bool:
        """Write what waits; all of it or nothing."""
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
    """Pass on what a wait is for, which comes again every few seconds with another age: at once, and then after four times as long each time.

    Args:
        say: takes the text.
        clock: monotonic, seconds.
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
