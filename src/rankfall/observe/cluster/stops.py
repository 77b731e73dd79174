"""When Rankfall itself began to stop the slots of an attempt.

Kept before the request is sent, so that no reader takes our own signals for somebody else's.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from rankfall.model import decoding
from rankfall.observe.cluster.places import pods_folder
from rankfall.store.fs import make_folder
from rankfall.store.home import replace_file, write_new


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The first request to stop.

    Attributes:
        at_ns: when, nanoseconds since the epoch by this machine's clock.
        reason: why.
        after: slots whose ends it followed, where that is known: stamps of whole seconds alone cannot tell them from those that it ended.
    """

    at_ns: int
    reason: str
    after: tuple[int, ...] = ()


def stop_path(run: Path, attempt: int) -> Path:
    """Where an attempt's mark lies."""
    return pods_folder(run, attempt) / "stop.json"


def read_stop(run: Path, attempt: int) -> Stop | None:
    """The mark; None where nothing was stopped."""
    return _read(stop_path(run, attempt))


def mark_stop(run: Path, attempt: int, stop: Stop) -> None:
    """Set the mark; the first one stands.

    Raises:
        OSError: it cannot be written.
    """
    path = stop_path(run, attempt)
    make_folder(path.parent)
    write_new(path, msgspec.json.encode(stop))


def abandon(run: Path, attempt: int, slots: Collection[int]) -> None:
    """Write down that these slots are not waited for any more.

    Raises:
        OSError: it cannot be written.
    """
    held = abandoned(run, attempt)
    if not held >= set(slots):
        replace_file(_abandoned_path(run, attempt), msgspec.json.encode(sorted({*held, *slots})))


def abandoned(run: Path, attempt: int) -> frozenset[int]:
    """Slots that are not waited for any more."""
    try:
        return frozenset(decoding.decode(_abandoned_path(run, attempt).read_bytes(), kind=list[int]))
    except (OSError, msgspec.DecodeError):
        return frozenset()


def _abandoned_path(run: Path, attempt: int) -> Path:
    return pods_folder(run, attempt) / "abandoned.json"


class StopMark:
    """Reads the mark as often as asked, and no more once it is there: it never changes."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path = stop_path(run, attempt)
        self._text = str(self._path)
        self._found: Stop | None = None

    def read(self) -> Stop | None:
        """The mark; None while nothing was stopped."""
        if self._found is None and os.path.exists(self._text):  # noqa: PTH110 - asked at each look
            self._found = _read(self._path)
        return self._found


def _read(path: Path) -> Stop | None:
    try:
        return decoding.decode(path.read_bytes(), kind=Stop)
    except (OSError, msgspec.DecodeError):
        return None
