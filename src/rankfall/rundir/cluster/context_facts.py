"""Reduces Events, Nodes and workload objects around an attempt's pods to the facts that are kept.

Pure; every text is bounded and nothing is concluded. Kept because they vanish first: an Event lives an
hour, a recovered node shows no trace. The newest snapshot of a node holds its earlier boots and unhealthy
periods, because only the newest one is certain to stay in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rankfall.kube.object_fields import condition, mapping, mappings, number, word
from rankfall.model import EvidenceLost
from rankfall.model.node_health.records import ANNOTATION, decode_health
from rankfall.rundir.cluster.pod_facts import Condition

MESSAGE: Final = 1024
_MAX_CONDITIONS: Final = 16
# Of one node: times in which something was wrong with it, and boots.
_MAX_SPELLS: Final = 16
_MAX_BOOTS: Final = 8
_MAX_CAUSES: Final = 16
# Conditions of a node that tell of trouble, and with which status. ``Unknown`` of Ready: its kubelet says nothing any more.
TROUBLE: Final = MappingProxyType(
    {
        "Ready": ("False", "Unknown"),
        "MemoryPressure": ("True",),
        "DiskPressure": ("True",),
        "PIDPressure": ("True",),
        "NetworkUnavailable": ("True",),
        "KernelDeadlock": ("True",),
        "ReadonlyFilesystem": ("True",),
    }
)


class EventFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="event"):
    """One Event, with its repeats.

    Attributes:
        seen_ns: when it was seen, nanoseconds since the epoch by this machine's clock.
        kind, name, about: the object that it speaks of; ``about`` is its UID.
        container: of a pod, where it speaks of one.
        first, last: RFC 3339, as the clock of whoever wrote it had it.
        by: the component that wrote it.
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
    """A time in which something was wrong with a node.

    Attributes:
        type, status, reason, message: of the condition; of a taint the type is ``taint``, the reason its key and the message its effect.
        since: RFC 3339, as the API gave it.
        seen_ns, over_ns: when it was seen first, and when it was seen to be over; None = it was not.
    """

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    since: str | None = None
    seen_ns: int = 0
    over_ns: int | None = None


class Boot(msgspec.Struct, frozen=True, array_like=True):
    """A boot of a node, and when it was seen first."""

    id: str
    seen_ns: int


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause of a node's health record (``rankfall.dev/node-health``).

    Attributes:
        code: in the catalogue of node faults, ``xid/79``.
        device: as ``gpu 0000:4e:00``.
        times: of its observations, nanoseconds since the epoch by the node's clock.
        text: the newest line.
    """

    code: str
    device: str | None = None
    times: tuple[int, ...] = ()
    text: str = ""


class NodeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="node"):
    """One look at one node, and what was seen of it before.

    Attributes:
        uid: ``node/NAME``; a node that was made anew under its name is the same place.
        object: UID of the object.
        boots: oldest first; the last one is the present one.
        spells: oldest first.
        health: state of the health record; None = there is none that can be read.
        gone: the object was deleted.
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
    """One look at an object that makes pods.

    Attributes:
        suspend: it was told to have no pods; ``held_by`` is who said so last, as the API names its writers.
        deleting: since when it is on its way out.
        conditions: those that are true.
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
    """Something that cannot be looked at, why, and how to have it; ``over``: it can by now."""

    seen_ns: int
    uid: str
    text: str
    over: bool = False


ContextFact = EventFact | NodeFact | WorkFact | Unseen


def event_fact(item: Mapping[str, Any], *, seen_ns: int) -> EventFact:
    """The facts of an Event of the core API."""
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
    """The facts of a Node by this look alone; :func:`later_node` adds it to those before."""
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
        spells=(*_bad_conditions(item, seen_ns), *_taints(spec, seen_ns)),
        unschedulable=spec.get("unschedulable") is True,
        health=health,
        faults=faults,
        gone=gone,
    )


def later_node(held: NodeFact, fact: NodeFact) -> NodeFact:
    """What is known of a node after one more look at it."""
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
    """The facts of a Job, JobSet, TrainJob, or a job of the training operator."""
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


def _what(spell: Spell) -> tuple[str, str, str | None]:
    # Ready False and Ready Unknown are two things: only the first is the kubelet's own word.
    return spell.type, spell.status, spell.reason if spell.type == "taint" else None


def _health(text: Any) -> tuple[str | None, tuple[Fault, ...]]:
    """State and causes of a node's health record. One that cannot be believed tells nothing."""
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
    """The last writer of ``suspend``, by the API's own book of who wrote which field."""
    found: list[tuple[str, str]] = []
    for one in mappings(meta, "managedFields"):
        spec = mapping(mapping(one, "fieldsV1"), "f:spec")
        if "f:suspend" in spec or "f:suspend" in mapping(spec, "f:runPolicy"):
            found.append((word(one.get("time")) or "", word(one.get("manager")) or "somebody"))
    return max(found)[1] if found else None
