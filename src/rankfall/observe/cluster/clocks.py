"""How far the clocks of nodes are off from this machine's, as their logs and their objects show it: kept in two small files, read by observers.

A line cannot arrive before it was written: the least difference between its arrival here and its stamp bounds the node's clock. Less than
nothing proves that the clock is ahead. More than nothing says that it is behind by at most so much. What the API server's answers and the
kubelets' Leases prove lies in a file of its own (``clock_proofs`` says how it is proved).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankfall.model import decoding
from rankfall.model.clocks import Bound
from rankfall.observe.cluster.places import pods_folder
from rankfall.store.fs import make_folder
from rankfall.store.home import replace_file

if TYPE_CHECKING:
    # It brings the client along, which readers of this file do not need.
    from rankfall.observe.cluster.instance import InstanceLog

_STEP: Final = 10_000_000


def clock_path(run: Path, attempt: int) -> Path:
    """Where an attempt's file lies."""
    return pods_folder(run, attempt) / "clocks.json"


def read_clocks(run: Path, attempt: int) -> dict[int, int]:
    """Least delay of each slot's lines in nanoseconds; the slot's clock is ahead by its negative. Empty where nothing is known."""
    try:
        return decoding.decode(clock_path(run, attempt).read_bytes(), kind=dict[int, int])
    except (OSError, msgspec.DecodeError):
        return {}


def proofs_path(run: Path, attempt: int) -> Path:
    """Where what is proved by objects lies."""
    return pods_folder(run, attempt) / "clock-proofs.json"


class Proofs(msgspec.Struct, frozen=True, kw_only=True):
    """What objects prove.

    Attributes:
        server: how far the API server's clock is ahead of this machine's.
        nodes: the same of a node's, by name.
    """

    server: Bound = Bound()
    nodes: dict[str, Bound] = {}


class _Changed:
    """Whether a file has changed since it was asked last."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._seen: tuple[int, int] | None = None

    def __call__(self) -> bool:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - asked at each look
        except OSError:
            return False
        seen = (status.st_ino, status.st_mtime_ns)
        changed, self._seen = seen != self._seen, seen
        return changed


class ClockView:
    """Reads the file again when it has changed.

    Args:
        run: the run's directory.
        attempt: counted from 1.
    """

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._run = run
        self._attempt = attempt
        self._changed = _Changed(clock_path(run, attempt))

    def poll(self) -> dict[int, int]:
        """As ``read_clocks``; empty too when nothing changed since the last time."""
        return read_clocks(self._run, self._attempt) if self._changed() else {}


class ProofView:
    """Reads what objects prove, again when it has changed.

    Args:
        run: the run's directory.
        attempt: counted from 1.

    Attributes:
        proofs: as they stood at the last look; nothing at all where there is no such file.
    """

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._path = proofs_path(run, attempt)
        self._changed = _Changed(self._path)
        self.proofs = Proofs()

    def poll(self) -> bool:
        """Whether there was anything new."""
        if not self._changed():
            return False
        try:
            self.proofs = decoding.decode(self._path.read_bytes(), kind=Proofs)
        except (OSError, msgspec.DecodeError):
            return False
        return True


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
        self._proofs_path = proofs_path(run, attempt)
        held = ProofView(run, attempt=attempt)
        held.poll()
        self._proofs = self._proofs_written = held.proofs
        self._logs: dict[int, InstanceLog] = {}

    def watch(self, slot: int, log: InstanceLog) -> None:
        """Take the delays of this log for the slot from now on."""
        self._keep(slot)
        self._logs[slot] = log

    def server(self, ahead: Bound) -> None:
        """Take how far the API server's clock is ahead, to the hundredth of a second: it is not written for less."""
        lo = None if ahead.lo is None else ahead.lo // _STEP * _STEP
        hi = None if ahead.hi is None else -(-ahead.hi // _STEP) * _STEP
        self._proofs = msgspec.structs.replace(self._proofs, server=Bound(lo, hi))

    def node(self, name: str, ahead: Bound) -> None:
        """Take how far a node's clock is ahead, beside what was known of it."""
        held = self._proofs.nodes.get(name, Bound())
        self._proofs = msgspec.structs.replace(self._proofs, nodes={**self._proofs.nodes, name: held.meet(ahead)})

    def write(self) -> None:
        """Write what changed.

        Raises:
            OSError: it cannot be written.
        """
        for slot in self._logs:
            self._keep(slot)
        if self._rows != self._written:
            make_folder(self._path.parent)
            replace_file(self._path, msgspec.json.encode(self._rows))
            self._written = dict(self._rows)
        if self._proofs != self._proofs_written:
            make_folder(self._proofs_path.parent)
            replace_file(self._proofs_path, msgspec.json.encode(self._proofs))
            self._proofs_written = self._proofs

    def _keep(self, slot: int) -> None:
        log = self._logs.get(slot)
        if log is None or log.delay_ns is None:
            return
        held = self._rows.get(slot)
        self._rows[slot] = log.delay_ns if held is None else min(held, log.delay_ns)
