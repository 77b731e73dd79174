"""Bounds node clocks against this machine's, by timestamps of API objects.

A line arrives after it was written. Whole-second timestamps are truncated: the true time is up to a second
later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from rankfall.kube.object_fields import mapping, mappings, word
from rankfall.model import decoding
from rankfall.model.timestamps import Bound, nanoseconds
from rankfall.rundir.cluster.pod_facts import PodFact, stamp_ns
from rankfall.rundir.layout import pods_folder, replace_file
from rankfall.rundir.lease import make_folder

_NS: Final = 1_000_000_000


class DelayedLog(Protocol):
    """A log whose lines arrived with a known least delay."""

    @property
    def delay_ns(self) -> int | None:
        """Least delay in nanoseconds; None if unknown."""


# Seconds until a kubelet accepts a bound pod, with truncation.
_TAKEN_WITHIN_S: Final = 10


def of_pod(fact: PodFact, *, server: Bound) -> Bound:
    """Bounds of a node's clock offset, from its pod's timestamps.

    ``server`` is the API server's offset.
    """
    stamps = _stamps(fact)
    if not stamps:
        return Bound()
    most = _most_after_binding(fact)
    return Bound(max(stamps) - fact.seen_ns, None).meet(Bound(None, most).plus(server))


def _stamps(fact: PodFact) -> list[int]:
    times = [fact.accepted]
    for one in (fact.last, fact.main):
        if one is not None and one.state in {"running", "terminated"}:
            times += [one.started, one.finished]
    # Kubernetes writes 1970 for an unknown time.
    return [at for text in times if (at := stamp_ns(text))]


def _most_after_binding(fact: PodFact) -> int | None:
    """Upper bound of a node's offset, as the kubelet acts after the server's binding; None if unknown."""
    stamps, binding = _stamps(fact), fact.condition("PodScheduled")
    after = stamp_ns(binding.at) if binding is not None and binding.status == "True" else None
    return None if after is None or not stamps else min(stamps) + _NS - after


def by_server(fact: PodFact, at: int) -> int:
    """Converts a timestamp of a pod's node to the earliest time by the API server's clock.

    Unchanged if the pod proves no difference.
    """
    hi = _most_after_binding(fact)
    # So small a difference proves nothing.
    return at if hi is None or 0 <= hi <= _TAKEN_WITHIN_S * _NS else at - hi


class LeaseSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One snapshot of the Lease that a kubelet renews.

    Attributes:
        node: Name of the node.
        seen_ns: Nanoseconds since the epoch by this machine.
        renewed: By the kubelet's clock, microseconds.
        written: By the server's clock, whole seconds.
    """

    node: str
    seen_ns: int
    renewed: int
    written: int | None = None


def lease_snapshot(item: Mapping[str, Any], *, seen_ns: int) -> LeaseSnapshot | None:
    """Snapshot of a kubelet's Lease; None without renewal time."""
    meta, spec = mapping(item, "metadata"), mapping(item, "spec")
    renewed = nanoseconds(word(spec.get("renewTime")) or "")
    if renewed is None:
        return None
    writers = [
        at
        for one in mappings(meta, "managedFields")
        if "f:renewTime" in mapping(mapping(one, "fieldsV1"), "f:spec") and (at := stamp_ns(word(one.get("time"))))
    ]
    return LeaseSnapshot(
        node=word(meta.get("name")) or "", seen_ns=seen_ns, renewed=renewed, written=max(writers, default=None)
    )


def of_lease(look: LeaseSnapshot, before: LeaseSnapshot | None, *, server: Bound) -> Bound:
    """Bounds of how far a node's clock is ahead of this machine's, by two snapshots of its Lease.

    A renewal uses the server's earlier answer, so it follows that timestamp.
    """
    ahead = Bound(look.renewed - look.seen_ns, None)
    if look.written is not None:
        ahead = ahead.meet(Bound(look.renewed - look.written - _NS, None).plus(_below(server)))
    if before is not None and before.written is not None and before.renewed != look.renewed:
        ahead = ahead.meet(Bound(None, look.renewed - before.written).plus(server))
    return ahead


def _below(server: Bound) -> Bound:
    return Bound(server.lo, None)


_STEP: Final = 10_000_000


def clock_path(run: Path, attempt: int) -> Path:
    """Path of an attempt's file of clocks."""
    return pods_folder(run, attempt) / "clocks.json"


def read_clocks(run: Path, attempt: int) -> dict[int, int]:
    """Least delay of each slot's lines in nanoseconds: minus the clock's lead."""
    try:
        return decoding.decode(clock_path(run, attempt).read_bytes(), kind=dict[int, int])
    except (OSError, msgspec.DecodeError):
        return {}


def proofs_path(run: Path, attempt: int) -> Path:
    """Path of the file of bounds that API objects prove."""
    return pods_folder(run, attempt) / "clock-proofs.json"


class Proofs(msgspec.Struct, frozen=True, kw_only=True):
    """Clock bounds that API objects prove.

    Attributes:
        server: Offset of the API server's clock.
        nodes: Offset of each node's clock, by name.
    """

    server: Bound = Bound()
    nodes: dict[str, Bound] = {}


class _Changed:
    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._seen: tuple[int, int] | None = None

    def __call__(self) -> bool:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - called at each poll
        except OSError:
            return False
        seen = (status.st_ino, status.st_mtime_ns)
        changed, self._seen = seen != self._seen, seen
        return changed


class ClockView:
    """Reads the file of clocks again after each change."""

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._run = run
        self._attempt = attempt
        self._changed = _Changed(clock_path(run, attempt))

    def poll(self) -> dict[int, int]:
        """Returns ``read_clocks``; an empty dict if the file is unchanged."""
        return read_clocks(self._run, self._attempt) if self._changed() else {}


class ProofView:
    """Reads the file of proved bounds again after each change."""

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._path = proofs_path(run, attempt)
        self._changed = _Changed(self._path)
        self.proofs = Proofs()

    def poll(self) -> bool:
        """True if the file has new content."""
        if not self._changed():
            return False
        try:
            self.proofs = decoding.decode(self._path.read_bytes(), kind=Proofs)
        except (OSError, msgspec.DecodeError):
            return False
        return True


class ClockFile:
    """Writer of the files of clocks and of proved bounds."""

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._path = clock_path(run, attempt)
        self._rows = read_clocks(run, attempt)
        self._written = dict(self._rows)
        self._proofs_path = proofs_path(run, attempt)
        held = ProofView(run, attempt=attempt)
        held.poll()
        self._proofs = self._proofs_written = held.proofs
        self._logs: dict[int, DelayedLog] = {}

    def watch(self, slot: int, log: DelayedLog) -> None:
        """Uses the delays of this log for the slot from now on."""
        self._keep(slot)
        self._logs[slot] = log

    def server(self, ahead: Bound) -> None:
        """Sets how far the API server's clock is ahead, rounded outward to 10 ms; smaller changes cause no write."""
        lo = None if ahead.lo is None else ahead.lo // _STEP * _STEP
        hi = None if ahead.hi is None else -(-ahead.hi // _STEP) * _STEP
        self._proofs = msgspec.structs.replace(self._proofs, server=Bound(lo, hi))

    def node(self, name: str, ahead: Bound) -> None:
        """Narrows the stored bound of how far a node's clock is ahead."""
        held = self._proofs.nodes.get(name, Bound())
        self._proofs = msgspec.structs.replace(self._proofs, nodes={**self._proofs.nodes, name: held.meet(ahead)})

    def write(self) -> None:
        """Writes the files whose content changed.

        Raises:
            OSError: A file cannot be written.
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
