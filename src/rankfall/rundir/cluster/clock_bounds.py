"""Bounds node clocks against this machine's: proofs from object timestamps, and their files.

A line cannot arrive before it was written, so its delay bounds the clock of its node. The API server
stamps the binding of a pod before its kubelet stamps anything of it, and every stamp is older than its
arrival here. Whole-second stamps are truncated, not rounded: the moment is up to a second later.
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
    """A log whose lines came so late, at the least; None = not known yet."""

    @property
    def delay_ns(self) -> int | None:
        """Nanoseconds."""


# Between the binding of a pod and its kubelet's taking it, with what cut stamps add.
_TAKEN_WITHIN_S: Final = 10


def of_pod(fact: PodFact, *, server: Bound) -> Bound:
    """How far the clock of a pod's node is ahead of this machine's, by the pod's stamps.

    Args:
        fact: the newest look.
        server: how far the API server's clock is ahead of this machine's.
    """
    stamps = _stamps(fact)
    if not stamps:
        return Bound()
    most = _most_after_binding(fact)
    return Bound(max(stamps) - fact.seen_ns, None).meet(Bound(None, most).plus(server))


def _stamps(fact: PodFact) -> list[int]:
    """All that the kubelet stamped on a pod."""
    times = [fact.accepted]
    for one in (fact.last, fact.main):
        if one is not None and one.state in {"running", "terminated"}:
            times += [one.started, one.finished]
    # Kubernetes writes 1970 where it does not know.
    return [at for text in times if (at := stamp_ns(text))]


def _most_after_binding(fact: PodFact) -> int | None:
    """How far the node's clock is ahead of the server's at most: what the kubelet stamped first came after the server had bound the pod."""
    stamps, binding = _stamps(fact), fact.condition("PodScheduled")
    after = stamp_ns(binding.at) if binding is not None and binding.status == "True" else None
    return None if after is None or not stamps else min(stamps) + _NS - after


def by_server(fact: PodFact, at: int) -> int:
    """A stamp of a pod's node by the API server's clock, at the earliest; as it is where the pod's own stamps tell nothing of the two clocks.

    Args:
        fact: the pod.
        at: nanoseconds since the epoch by the node's clock.
    """
    hi = _most_after_binding(fact)
    # A pod is taken a moment after it is bound, which is worth no doubt about clocks that agree.
    return at if hi is None or 0 <= hi <= _TAKEN_WITHIN_S * _NS else at - hi


class LeaseSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at the Lease that a kubelet renews.

    Attributes:
        node: whose.
        seen_ns: nanoseconds since the epoch by this machine's clock.
        renewed: by the kubelet's clock, with microseconds.
        written: when the server took that, by its clock, in whole seconds.
    """

    node: str
    seen_ns: int
    renewed: int
    written: int | None = None


def lease_snapshot(item: Mapping[str, Any], *, seen_ns: int) -> LeaseSnapshot | None:
    """A look at a Lease of ``kube-node-lease``; None where it bears no stamp."""
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
    """How far a node's clock is ahead of this machine's, by one look at its Lease and one before.

    A kubelet renews with what the server answered to the renewal before, so each renewal is after the server's stamp of any earlier one.

    Args:
        look: the newer one.
        before: an earlier one; None = there is none.
        server: how far the API server's clock is ahead of this machine's.
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
        self._logs: dict[int, DelayedLog] = {}

    def watch(self, slot: int, log: DelayedLog) -> None:
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
