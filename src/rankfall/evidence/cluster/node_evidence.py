"""Derives evidence from facts of nodes, for the slots and ranks on them. Pure.

A GPU fault names a rank only if exactly one rank of the node failed because of its GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from rankfall.evidence.cluster.reasons import Reason, row_of
from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.model.evidence import digest
from rankfall.model.patterns import anchored
from rankfall.rundir.cluster.context_facts import HOLDER, NVSENTINEL, Boot, EventFact, Fault, NodeFact, Spell
from rankfall.rundir.cluster.pod_facts import PodFact, stamp_ns
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import best

_LINE: Final = 1000
_NS: Final = 1_000_000_000
# Seconds between a node fault and a failure, either way (reading the kernel log lags).
BEFORE_S: Final = 120.0
AFTER_S: Final = 30.0
# Maximum seconds until the control plane reports a silent node: 40, since Kubernetes 1.32 50, plus the report interval.
NOTICED_S: Final = 60.0
# Nanoseconds by which rounded timestamps may differ.
_APART_NS: Final = 2 * _NS
# Seconds between a kill for memory and the kernel's line.
_KILL_S: Final = 15.0
_SIGKILL: Final = 9
# Conditions of a node, and their possible cause.
_SLUGS: Final = MappingProxyType(
    {
        "Ready": "node_lost",
        "MemoryPressure": "node_oom",
        "DiskPressure": "disk_full",
        "PIDPressure": "node_stuck",
        "NetworkUnavailable": "nic_down",
        "KernelDeadlock": "node_stuck",
        "ReadonlyFilesystem": "disk_fault",
        HOLDER: "preempted",
        **NVSENTINEL,
    }
)
# Taints of an unreachable node.
_AWAY: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready", "node.kubernetes.io/out-of-service")
# Reasons of pods whose node vanished.
_BY_CONTROLLER: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
# Reasons of a container whose node returned without it: its end is invented.
_MADE_UP: Final = frozenset({"Unknown", "ContainerStatusUnknown"})
# As "System OOM encountered, victim process: python, pid: 4711".
_SYSTEM_OOM: Final = anchored(r"^System OOM encountered", limit=1_024)
_OOM: Final = frozenset({"host_oom", "node_oom"})


class SlotFailure:
    """A slot's failure on a node; ``failed``: some part of the job failed."""

    def __init__(self, slot: SlotFacts, pod: PodFact, ranks: Iterable[RankFacts], *, failed: bool = False) -> None:
        self.slot = slot
        self.pod = pod
        self._failed = failed
        self.ranks = [r for r in ranks if r.slot == slot.slot]
        ends = [r.ended_at for r in self.ranks if _fell(r) and r.ended_at is not None]
        own = slot.ended_at if slot.state == "ended" and (slot.exit_code or slot.signal) else None
        #: True if Rankfall stopped it before any failure.
        self.stopped = not ends and slot.killed_by == "wrapper"
        self.at = min([*ends, *([own] if own is not None else [])], default=None)

    @property
    def silent(self) -> bool:
        """True if neither wrapper nor kubelet reported the slot's end."""
        main = self.pod.main
        made_up = main is not None and main.state == "terminated" and main.reason in _MADE_UP
        return self.slot.state == "lost" or (made_up and not self.slot.recorder)

    @property
    def unreported(self) -> bool:
        """True if the container still counts as running although the slot is lost or the job failed."""
        main = self.pod.main
        running = main is not None and main.state == "running" and self.slot.state in {"running", "lost"}
        return running and (self.slot.state == "lost" or self._failed)

    def began_after(self, fault: int) -> bool:
        """True if a fault of the node is older than the pod, whose failure has its own cause."""
        main = self.pod.main
        # The start has the stamp of the node's clock, as the fault; the creation has the server's.
        started = stamp_ns(main.started) if main is not None and not main.restarts else None
        made = stamp_ns(self.pod.created)
        return made is not None and started is not None and fault + _APART_NS < min(made, started)

    def rank(self, *, killed: bool = False) -> int | None:
        """Only rank of the slot that failed by itself (``killed``: by a SIGKILL); None otherwise."""
        failed = [r for r in self.ranks if _fell(r) and (not killed or r.signal == _SIGKILL)]
        return failed[0].rank if len(failed) == 1 else None


def node_evidence(
    nodes: Iterable[NodeFact],
    events: Iterable[EventFact],
    falls: Mapping[str, list[SlotFailure]],
    *,
    catalogue: Catalogue,
    attempt: int,
) -> list[Evidence]:
    """Evidence of all nodes; ``falls`` maps a node to its slots' failures."""
    by_node: dict[str, list[EventFact]] = {}
    for event in events:
        by_node.setdefault(event.name, []).append(event)
    found: list[Evidence] = []
    for node in nodes:
        for fall in falls.get(node.name, ()):
            own = [piece for spell in node.spells if (piece := _of_spell(spell, node, fall, attempt=attempt))]
            own += _of_boots(node, fall, attempt=attempt)
            notice = _notice(node, fall)
            found += [_reclaimed(piece, notice) for piece in own] if notice is not None else own
            found += [
                piece
                for fault in node.faults
                if (piece := _of_fault(fault, node, fall, catalogue=catalogue, attempt=attempt))
            ]
            found += [
                piece
                for event in by_node.get(node.name, ())
                if (piece := _of_event(event, node, fall, catalogue=catalogue, attempt=attempt))
            ]
    return found


def unheard_evidence(fall: SlotFailure, *, attempt: int) -> Evidence | None:
    """Evidence, by the pod's conditions, that its node stopped reporting, or None.

    This requires no permission to read nodes.
    """
    ready = fall.pod.condition("Ready")
    if not fall.unreported or not fall.pod.unheard or ready is None:
        return None
    since = stamp_ns(ready.at)
    begun = since if since is not None else fall.pod.seen_ns
    at, uncertainty = silent_since(begun)
    return Evidence(
        id=digest("unheard", attempt, fall.pod.uid, ready.at),
        source="pod",
        slug="node_lost",
        role="primary",
        trust="platform",
        slot=fall.slot.slot,
        node=fall.pod.node,
        at=at,
        uncertainty=uncertainty,
        stamped="here" if since is None else "server",
        where=f"pod/{fall.pod.name}",
        line=f"Ready is False since {ready.at}, set by the node controller: node {fall.pod.node} stopped reporting"[
            :_LINE
        ],
        specificity=81,
        fingerprint="node_lost:unheard",
        detail="condition=Ready reason=NodeNotReady",
        attempt=attempt,
    )


def silent_since(noticed: int) -> tuple[int, float]:
    """Returns time and uncertainty in seconds of a node's last report, from the time when the silence was noticed."""
    return noticed - round(NOTICED_S / 2 * _NS), NOTICED_S / 2 + 1.0


def _of_spell(spell: Spell, node: NodeFact, fall: SlotFailure, *, attempt: int) -> Evidence | None:
    since, begun = stamp_ns(spell.since), _begun(spell)
    made = stamp_ns(fall.pod.created)
    # A period before the pod existed, or after its deletion request or failure, is unrelated.
    if spell.over_ns is not None and made is not None and spell.over_ns < made:
        return None
    role = "context"
    drained = False
    row = _row(spell)
    disruption = fall.pod.condition("DisruptionTarget")
    by = disruption.reason if disruption is not None and disruption.status == "True" else None
    if spell.type == "taint":
        if row is None and spell.message != "NoExecute":
            return None
        slug = "node_lost"
        if spell.reason not in _AWAY:
            # A user drains the node: the taint manager's reason alone would mean a lost node.
            drained = by == "DeletionByTaintManager" and spell.message == "NoExecute"
            slug = row.slug if row is not None else "preempted"
    elif row is not None or spell.type in _SLUGS:
        slug = row.slug if row is not None else _SLUGS[spell.type]
    else:
        return None
    text = _words(spell, node)
    if row is not None and not drained:
        notice = _notice(node, fall)
        drained = by in _BY_CONTROLLER and notice is not None and notice[0] is spell
    left = stamp_ns(fall.pod.deleting) or fall.pod.seen_ns
    still = spell.over_ns is None or spell.over_ns + _NS >= left
    at, uncertainty = begun, 1.0 if since is not None else 5.0
    # A silent node explains an unreported end, even after an earlier deletion request.
    unknown = spell.type == "Ready" and spell.status == "Unknown"
    unreported = unknown and fall.unreported and spell.over_ns is None
    if drained or unreported or (spell.type == "Ready" and fall.silent and begun <= left and still):
        role = "primary"
        if unknown:
            at, uncertainty = silent_since(begun)
    return Evidence(
        id=digest("spell", attempt, fall.slot.slot, node.name, spell.type, spell.status, spell.reason, spell.since),
        source="node",
        slug=slug,
        role="primary" if role == "primary" else "context",
        trust="platform",
        slot=fall.slot.slot,
        node=node.name,
        at=at,
        uncertainty=uncertainty,
        # Only the kubelet reports bad conditions; silence and taints are the control plane's.
        stamped="here" if since is None else "server" if spell.type == "taint" or spell.status == "Unknown" else "node",
        where=f"node/{node.name}",
        line=text[:_LINE],
        specificity=86 if drained else 82,
        fingerprint=f"{slug}:{spell.type}:{spell.reason}",
        detail=f"condition={spell.type} reason={spell.reason}{' by=NVSentinel' if spell.type in NVSENTINEL else ''}",
        attempt=attempt,
    )


def _words(spell: Spell, node: NodeFact) -> str:
    if spell.type == "taint":
        return f"node {node.name} has the taint {spell.reason}:{spell.message}"
    if spell.type == HOLDER:
        return f"{spell.reason} holds node {node.name}: {spell.status}"
    by = " (of NVSentinel)" if spell.type in NVSENTINEL else ""
    return f"node {node.name}: {spell.type}{by} is {spell.status}: {spell.reason or ''} {spell.message or ''}".rstrip()


def _row(spell: Spell) -> Reason | None:
    """Table's row of a platform's notice that it will take the node; None for other spells."""
    if spell.type == "taint":
        return row_of("taint", spell.reason or "", None)
    return row_of("node", spell.type, f"{spell.reason} {spell.message}")


def _notice(node: NodeFact, fall: SlotFailure) -> tuple[Spell, str] | None:
    """First notice, with its text, before the node was silent; a later one may follow from the loss."""
    made = stamp_ns(fall.pod.created) or 0
    left = stamp_ns(fall.pod.deleting) or fall.pod.seen_ns
    there = [spell for spell in node.spells if spell.over_ns is None or spell.over_ns >= made]
    lost = [_begun(spell) for spell in there if spell.type == "Ready" and _row(spell) is None]
    until = max(lost, default=max(left, fall.pod.seen_ns))
    found = [
        spell
        for spell in there
        if _row(spell) is not None and _begun(spell) <= until and (spell.over_ns is None or spell.over_ns + _NS >= left)
    ]
    first = min(found, key=_begun, default=None)
    return (first, _words(first, node)) if first is not None else None


def _begun(spell: Spell) -> int:
    since = stamp_ns(spell.since)
    return since if since is not None else spell.seen_ns


def _reclaimed(piece: Evidence, notice: tuple[Spell, str]) -> Evidence:
    """Lost node's evidence as that of a node taken by its platform; other evidence as is."""
    row = _row(notice[0])
    if piece.slug != "node_lost" or piece.role != "primary" or row is None:
        return piece
    return msgspec.structs.replace(
        piece,
        slug=row.slug,
        line=f"{notice[1]}; then {piece.line}"[:_LINE],
        specificity=row.specificity,
        fingerprint=f"{row.slug}:notice",
    )


def _of_boots(node: NodeFact, fall: SlotFailure, *, attempt: int) -> list[Evidence]:
    """Evidence of a reboot while the pod was on the node."""
    made = stamp_ns(fall.pod.created)
    pairs: list[tuple[Boot, Boot]] = list(zip(node.boots, node.boots[1:], strict=False))
    return [
        Evidence(
            id=digest("boot", attempt, fall.slot.slot, node.name, new.id),
            source="node",
            slug="node_lost",
            role="primary" if fall.silent else "context",
            trust="platform",
            slot=fall.slot.slot,
            node=node.name,
            # The reboot was complete when first seen.
            at=new.seen_ns,
            stamped="here",
            uncertainty=max(60.0, (new.seen_ns - old.seen_ns) / _NS if fall.at is None else 60.0),
            where=f"node/{node.name}",
            line=f"node {node.name} rebooted: boot id {old.id} became {new.id}",
            specificity=84,
            fingerprint="node_lost:boot",
            detail="reason=Rebooted",
            attempt=attempt,
        )
        for old, new in pairs
        if made is None or new.seen_ns >= made
    ]


def _of_fault(
    fault: Fault, node: NodeFact, fall: SlotFailure, *, catalogue: Catalogue, attempt: int
) -> Evidence | None:
    """Evidence of a fault that the health agent recorded on the node near the failure; else None."""
    near = _near(fault.times, fall.at)
    hit = best(catalogue.match_line(fault.text.encode(), where="kernel"))
    if near is None or fall.at is None or hit is None:
        return None
    signature = hit.signature
    rank = fall.rank(killed=signature.slug in _OOM)
    who = f"rank {rank}" if rank is not None else f"slot {fall.slot.slot}"
    gap = (fall.at - near) / _NS
    end = "was stopped by Rankfall" if fall.stopped else "failed"
    when = f"{abs(gap):.1f} s {'before' if gap >= 0 else 'after'} {who} {end}"
    device = f" on {fault.device}" if fault.device else ""
    return Evidence(
        id=digest("fault", attempt, fall.slot.slot, node.name, fault.code, fault.device),
        source="node",
        slug=signature.slug,
        role="context" if fall.began_after(near) else signature.role,
        trust="platform",
        rank=rank,
        slot=fall.slot.slot,
        node=node.name,
        at=near,
        uncertainty=1.0,
        where=f"node/{node.name} (rankfall.dev/node-health)",
        line=f"{fault.code}{device}, {when}: {fault.text}"[:_LINE],
        signature=signature.id,
        specificity=max(signature.specificity, 80),
        fingerprint=f"{signature.slug}:{signature.id}",
        gpu=_gpu(fault.device) or hit.groups.get("gpu"),
        attempt=attempt,
    )


def _of_event(
    event: EventFact, node: NodeFact, fall: SlotFailure, *, catalogue: Catalogue, attempt: int
) -> Evidence | None:
    """Evidence of a node's Event near the failure, or None."""
    at = stamp_ns(event.last) or stamp_ns(event.first)
    near = _near(() if at is None else (at,), fall.at)
    if near is None or fall.at is None:
        return None
    hit = best(catalogue.match_line(event.message.encode(), where="kernel"))
    slug = "node_oom" if _SYSTEM_OOM.match(event.message) else hit.signature.slug if hit else None
    if slug is None:
        return None
    rank = fall.rank(killed=slug in _OOM)
    role = hit.signature.role if hit else "primary"
    if fall.began_after(near) or (slug in _OOM and (rank is None or abs(fall.at - near) > _KILL_S * _NS)):
        role = "context"
    return Evidence(
        id=digest("node event", attempt, fall.slot.slot, event.uid),
        source="event",
        slug=slug,
        role=role,
        trust="platform",
        rank=rank,
        slot=fall.slot.slot,
        node=node.name,
        at=near,
        uncertainty=1.0,
        where=f"event of node/{node.name}",
        line=f"{event.reason}: {event.message}"[:_LINE],
        signature=hit.signature.id if hit else None,
        specificity=80,
        fingerprint=f"{slug}:event:{event.reason}",
        gpu=hit.groups.get("gpu") if hit else None,
        attempt=attempt,
    )


def _near(times: Iterable[int], fall: int | None) -> int | None:
    """Time nearest to the failure; None if none is within the window."""
    if fall is None:
        return None
    inside = [at for at in times if fall - BEFORE_S * _NS <= at <= fall + AFTER_S * _NS]
    return min(inside, key=lambda at: (abs(fall - at), at), default=None)


def _fell(facts: RankFacts) -> bool:
    ours = facts.killed_by in {"wrapper", "agent"}
    return facts.state == "ended" and not ours and (facts.signal is not None or facts.exit_code not in {0, None})


def _gpu(device: str | None) -> str | None:
    kind, _, address = (device or "").partition(" ")
    return address or None if kind == "gpu" else None
