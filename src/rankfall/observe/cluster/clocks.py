"""How far the clocks of nodes are off from this machine's, as their logs show it: kept in a small file, read by observers.

A line cannot arrive before it was written: the least difference between its arrival here and its stamp bounds the node's clock. Less than
nothing proves that the clock is ahead. More than nothing says that it is behind by at most so much.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rankfall.observe.cluster.places import pods_folder
from rankfall.store.home import replace_file

if TYPE_CHECKING:
    # It brings the client along, which readers of this file do not need.
    from rankfall.observe.cluster.instance import InstanceLog


def clock_path(run: Path, attempt: int) -> Path:
    """Where an attempt's file lies."""
    return pods_folder(run, attempt) / "clocks.json"


def read_clocks(run: Path, attempt: int) -> dict[int, int]:
    """Least delay of each slot's lines in nanoseconds; the slot's clock is ahead by its negative. Empty where nothing is known."""
    try:
        return msgspec.json.decode(clock_path(run, attempt).read_bytes(), type=dict[int, int])
    except (OSError, msgspec.DecodeError):
        return {}


class ClockView:
    """Reads the file again when it has changed.

    Args:
        run: the run's directory.
        attempt: counted from 1.
    """

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._run = run
        self._attempt = attempt
        self._seen: tuple[int, int] | None = None

    def poll(self) -> dict[int, int]:
        """As ``read_clocks``; empty too when nothing changed since the last time."""
        try:
            status = clock_path(self._run, self._attempt).stat()
        except OSError:
            return {}
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return {}
        self._seen = seen
        return read_clocks(self._run, self._attempt)


class ClockFile:
    """Writer of the file.

    Args:
        run: the run's directory.
        attempt: counted from 1.
    """

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._path = clock_path(run, attempt)
        self._rows = read_clocks(run, attempt)
        self._written = dict(self._rows)
        self._logs: dict[int, InstanceLog] = {}

    def watch(self, slot: int, log: InstanceLog) -> None:
        """Take the delays of this log for the slot from now on."""
        self._keep(slot)
        self._logs[slot] = log

    def write(self) -> None:
        """Write what changed.

        Raises:
            OSError: it cannot be written.
        """
        for slot in self._logs:
            self._keep(slot)
        if self._rows != self._written:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(self._rows))
            self._written = dict(self._rows)

    def _keep(self, slot: int) -> None:
        log = self._logs.get(slot)
        if log is None or log.delay_ns is None:
            return
        held = self._rows.get(slot)
        self._rows[slot] = log.delay_ns if held is None else min(held, log.delay_ns)
