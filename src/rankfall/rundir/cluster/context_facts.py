"""Reduces Events, Nodes and workload objects to stored facts. Pure.

These objects vanish before the run ends: an Event lives an hour. A node's newest snapshot therefore contains earlier
boots and unhealthy periods.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rankfall.kube.object_fields import condition, mapping, mappings, number, word
from rankfall.model import EvidenceLost
from rankfall.model.node_health.nodes_document import holder
from rankfall.model.node_health.records import ANNOTATION, decode_health
from rankfall.rundir.cluster.pod_facts import Condition

MESSAGE: Final = 1024
_MAX_CONDITIONS: Final = 16
# Per node: problem periods, and boots.
_MAX_SPELLS: Final = 16
_MAX_BOOTS: Final = 8
_MAX_CAUSES: Final = 16
# Conditions that NVSentinel sets to True for a fault, and their possible cause.
NVSENTINEL: Final = MappingProxyType(
    {
        "GpuXidError": "gpu_app_xid",
        "GpuMemWatch": "gpu_ecc",
        "GpuSmWatch": "gpu_ecc",
        "GpuPcieWatch": "gpu_fallen_off_bus",
        "GpuNvlinkWatch": "gpu_nvlink",
        "GpuDriverWatch": "gpu_gsp_timeout",
        "GpuThermalWatch": "gpu_slow",
        "GpuPowerWatch": "gpu_slow",
        "SysLogsXIDError": "gpu_app_xid",
        "SysLogsSXIDError": "gpu_nvlink",
        "SysLogsGPUFallenOff": "gpu_fallen_off_bus",
        "NVSwitchFatalError": "gpu_nvlink",
        "NVSwitchDown": "gpu_nvlink",
    }
)
# Type of the period in which another controller holds a node; ``reason`` is its name.
HOLDER: Final = "holder"
# Node conditions and their bad status. Ready is ``Unknown`` when the kubelet is silent.
TROUBLE: Final = MappingProxyType(
    {
        "Ready": ("False", "Unknown"),
        "MemoryPressure": ("True",),
        "DiskPressure": ("True",),
        "PIDPressure": ("True",),
        "NetworkUnavailable": ("True",),
        "KernelDeadlock": ("True",),
        "ReadonlyFilesystem": ("True",),
        # The platform will take the node (reasons.csv).
        "PreemptionScheduled": ("True",),
        "PreemptScheduled": ("True",),
        "TerminateScheduled": ("True",),
        "RedeployScheduled": ("True",),
        "VMEventScheduled": ("True",),
        "InstanceExpired": ("True",),
        **dict.fromkeys(NVSENTINEL, ("True",)),
    }
)


class EventFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="event"):
    """One Event, with its repetition count.

    Attributes:
        seen_ns: Nanoseconds since the epoch by this machine.
        kind, name, about: Its object; ``about`` is the UID.
        container: Container, if any.
        first, last: RFC 3339 by the writer's clock.
        by: Component that wrote it.
    """

    seen_ns: int
    uid: str
    kind: str
    name: str
    about: str
    reason: str
    message: str = ""
    warning: bool = False
    count: int = 1
    container: str | None = None
    first: str | None = None
    last: str | None = None
    by: str | None = None


class Spell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A period in which a node had a problem.

    Attributes:
        type, status, reason, message: Condition; or ``taint``, status, key, effect; or ``holder``, state, name.
        since: Start in RFC 3339, by the API server.
        seen_ns, over_ns: First sight, and sight of its end.
    """

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    since: str | None = None
    seen_ns: int = 0
    over_ns: int | None = None


class Boot(msgspec.Struct, frozen=True, array_like=True):
    """ID of one boot of a node, and the time when Rankfall first saw it."""

    id: str
    seen_ns: int


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause in a node's health record (``rankfall.dev/node-health``).

    Attributes:
        code: Node fault, as ``xid/79``.
        device: Device, as ``gpu 0000:4e:00``.
        times: Nanoseconds since the epoch by the node's clock.
        text: Newest line.
    """

    code: str
    device: str | None = None
    times: tuple[int, ...] = ()
    text: str = ""


class NodeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="node"):
    """One snapshot of a node, with its history.

    Attributes:
        uid: ``node/NAME``, also when created again.
        object: UID of the object.
        boots: Oldest first; the last is current.
        spells: Problem periods, oldest first.
        health: State in the health record, or None.
        gone: The object was deleted.
    """

    seen_ns: int
    uid: str
    name: str
    object: str | None = None
    boots: tuple[Boot, ...] = ()
    spells: tuple[Spell, ...] = ()
    unschedulable: bool = False
    health: str | None = None
    faults: tuple[Fault, ...] = ()
    gone: bool = False


class WorkFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="work"):
    """One snapshot of an object that creates pods.

    Attributes:
        suspend: The spec requests no pods; ``held_by`` wrote it last.
        deleting: Time of its deletion request.
        conditions: True ones.
    """

    seen_ns: int
    uid: str
    kind: str
    name: str
    suspend: bool = False
    held_by: str | None = None
    deleting: str | None = None
    conditions: tuple[Condition, ...] = ()
    gone: bool = False


class Unseen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="unseen"):
    """An unreadable object, with reason and remedy; ``over`` is True once readable."""

    seen_ns: int
    uid: str
    text: str
    over: bool = False


ContextFact = EventFact | NodeFact | WorkFact | Unseen


def event_fact(item: Mapping[str, Any], *, seen_ns: int) -> EventFact:
    """Facts of an Event of the core API."""
    meta, about = mapping(item, "metadata"), mapping(item, "involvedObject")
    series = mapping(item, "series")
    path = word(about.get("fieldPath")) or ""
    at = word(item.get("eventTime"))
    return EventFact(
        seen_ns=seen_ns,
        uid=word(meta.get("uid")) or "",
        kind=word(about.get("kind")) or "",
        name=word(about.get("name")) or "",
        about=word(about.get("uid")) or "",
        reason=word(item.get("reason")) or "",
        message=word(item.get("message"), MESSAGE) or "",
        warning=item.get("type") == "Warning",
        count=number(series.get("count")) or number(item.get("count")) or 1,
        container=path.rpartition("{")[2].rstrip("}") if path.endswith("}") else None,
        first=word(item.get("firstTimestamp")) or at or word(meta.get("creationTimestamp")),
        last=word(series.get("lastObservedTime")) or word(item.get("lastTimestamp")) or at,
        by=word(mapping(item, "source").get("component")) or word(item.get("reportingComponent")),
    )


def node_fact(item: Mapping[str, Any], *, seen_ns: int, gone: bool = False) -> NodeFact:
    """Node's facts without history; :func:`later_node` adds it."""
    meta, spec, status = mapping(item, "metadata"), mapping(item, "spec"), mapping(item, "status")
    boot = word(mapping(status, "nodeInfo").get("bootID"))
    health, faults = _health(mapping(meta, "annotations").get(ANNOTATION))
    name = word(meta.get("name")) or ""
    return NodeFact(
        seen_ns=seen_ns,
        uid=f"node/{name}",
        name=name,
        object=word(meta.get("uid")),
        boots=(Boot(boot, seen_ns),) if boot else (),
        spells=(*_bad_conditions(item, seen_ns), *_taints(spec, seen_ns), *_holders(item, seen_ns)),
        unschedulable=spec.get("unschedulable") is True,
        health=health,
        faults=faults,
        gone=gone,
    )


def later_node(held: NodeFact, fact: NodeFact) -> NodeFact:
    """Stored facts ``held`` of a node after one more snapshot."""
    if fact.gone:
        return msgspec.structs.replace(held, seen_ns=fact.seen_ns, gone=True)
    boots = held.boots
    if fact.boots and (not boots or boots[-1].id != fact.boots[-1].id):
        boots = (*boots, fact.boots[-1])[-_MAX_BOOTS:]
    now = {_what(spell): spell for spell in fact.spells}
    spells = []
    for spell in held.spells:
        new = now.pop(_what(spell), None) if spell.over_ns is None else None
        if spell.over_ns is not None:
            spells.append(spell)
        elif new is None:
            spells.append(msgspec.structs.replace(spell, over_ns=fact.seen_ns))
        else:
            spells.append(msgspec.structs.replace(new, seen_ns=spell.seen_ns))
    return msgspec.structs.replace(fact, boots=boots, spells=(*spells, *now.values())[-_MAX_SPELLS:])


def work_fact(item: Mapping[str, Any], *, kind: str, seen_ns: int, gone: bool = False) -> WorkFact:
    """Facts of a Job, JobSet, TrainJob, or a job of the training operator."""
    meta, spec = mapping(item, "metadata"), mapping(item, "spec")
    suspend = (spec if "suspend" in spec else mapping(spec, "runPolicy")).get("suspend") is True
    true = [one for one in mappings(mapping(item, "status"), "conditions") if one.get("status") == "True"]
    return WorkFact(
        seen_ns=seen_ns,
        uid=word(meta.get("uid")) or "",
        kind=kind,
        name=word(meta.get("name")) or "",
        suspend=suspend,
        held_by=_writer_of_suspend(meta) if suspend else None,
        deleting=word(meta.get("deletionTimestamp")),
        conditions=tuple(
            Condition(
                type=word(one.get("type")) or "",
                status="True",
                reason=word(one.get("reason")),
                message=word(one.get("message"), MESSAGE),
                at=word(one.get("lastTransitionTime")),
            )
            for one in true[:_MAX_CONDITIONS]
        ),
        gone=gone,
    )


def _bad_conditions(item: Mapping[str, Any], seen_ns: int) -> list[Spell]:
    found = []
    for kind, bad in TROUBLE.items():
        one = condition(item, kind)
        if one.get("status") in bad:
            found.append(
                Spell(
                    type=kind,
                    status=str(one["status"]),
                    reason=word(one.get("reason")),
                    message=word(one.get("message"), MESSAGE),
                    since=word(one.get("lastTransitionTime")),
                    seen_ns=seen_ns,
                )
            )
    return found


def _taints(spec: Mapping[str, Any], seen_ns: int) -> list[Spell]:
    return [
        Spell(
            type="taint",
            status="True",
            reason=word(one.get("key")),
            message=word(one.get("effect")),
            since=word(one.get("timeAdded")),
            seen_ns=seen_ns,
        )
        for one in mappings(spec, "taints")[:_MAX_CONDITIONS]
    ]


def _holders(item: Mapping[str, Any], seen_ns: int) -> list[Spell]:
    held = holder(item)
    return [Spell(type=HOLDER, status=held[1], reason=held[0], seen_ns=seen_ns)] if held is not None else []


def _what(spell: Spell) -> tuple[str, str, str | None]:
    # Only Ready False comes from the kubelet itself.
    return spell.type, spell.status, spell.reason if spell.type == "taint" else None


def _health(text: Any) -> tuple[str | None, tuple[Fault, ...]]:
    """State and the causes of a node's health record; (None, ()) if the record is invalid."""
    if not isinstance(text, str):
        return None, ()
    try:
        held = decode_health(text)
    except EvidenceLost:
        return None, ()
    faults = []
    for cause in held.causes[:_MAX_CAUSES]:
        times = {one.at for one in cause.seen} | {cause.first_at, cause.last_at}
        faults.append(
            Fault(
                code=cause.code,
                device=cause.device,
                times=tuple(sorted(at for at in times if at is not None)),
                text=cause.text,
            )
        )
    return held.state, tuple(faults)


def _writer_of_suspend(meta: Mapping[str, Any]) -> str | None:
    """Last writer of ``suspend`` by ``managedFields``; None if unknown."""
    found: list[tuple[str, str]] = []
    for one in mappings(meta, "managedFields"):
        spec = mapping(mapping(one, "fieldsV1"), "f:spec")
        if "f:suspend" in spec or "f:suspend" in mapping(spec, "f:runPolicy"):
            found.append((word(one.get("time")) or "", word(one.get("manager")) or "somebody"))
    return max(found)[1] if found else None
