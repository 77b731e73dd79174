"""When Rankfall itself began to stop the slots of an attempt.

Kept before the request is sent, so that no reader takes our own signals for somebody else's.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection
from pathlib import Path

import msgspec


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The first request to stop: when, nanoseconds since the epoch by this machine's clock, and why."""

    at_ns: int
    reason: str


def stop_path(run: Path, attempt: int) -> Path:
    """Where an attempt's mark lies."""
    return run / "kube" / f"attempt-{attempt}" / "stop.json"


def read_stop(run: Path, attempt: int) -> Stop | None:
    """The mark; None where nothing was stopped."""
    try:
        return msgspec.json.decode(stop_path(run, attempt).read_bytes(), type=Stop)
    except (OSError, msgspec.DecodeError):
        return None


def mark_stop(run: Path, attempt: int, stop: Stop) -> None:
    """Set the mark; the first one stands.

    Raises:
        OSError: it cannot be written.
    """
    path = stop_path(run, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of its own name: two who mark at once must not write into each other's file.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        temporary.write_bytes(msgspec.json.encode(stop))
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)


def abandon(run: Path, attempt: int, slots: Collection[int]) -> None:
    """Write down that these slots are not waited for any more.

    Raises:
        OSError: it cannot be written.
    """
    path = _abandoned_path(run, attempt)
    held = abandoned(run, attempt)
    if held >= set(slots):
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    temporary.write_bytes(msgspec.json.encode(sorted({*held, *slots})))
    temporary.rename(path)


def abandoned(run: Path, attempt: int) -> frozenset[int]:
    """Slots that are not waited for any more."""
    try:
        return frozenset(msgspec.json.decode(_abandoned_path(run, attempt).read_bytes(), type=list[int]))
    except (OSError, msgspec.DecodeError):
        return frozenset()


def _abandoned_path(run: Path, attempt: int) -> Path:
    return stop_path(run, attempt).with_name("abandoned.json")


class StopMark:
    """Reads the mark as often as asked, and no more once it is there: it never changes."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._run = run
        self._attempt = attempt
        self._found: Stop | None = None

    def read(self) -> Stop | None:
        """The mark; None while nothing was stopped."""
        if self._found is None:
            self._found = read_stop(self._run, self._attempt)
        return self._found
