"""Whether all that was injected was acted on exactly once or is held by the budget, and nothing else was touched. Pure: Nodes and Events in, complaints out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.health.soak_faults import POOL_LABEL, SECOND, SMALL_BUDGET, Fault
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION
from rankfall.model.node_health.records import ANNOTATION, CONDITION, NodeHealth, decode_health

Node = Mapping[str, Any]
#: The cluster's own taints come and go with the heartbeats of a busy machine.
_CLUSTERS: Final = "node.kubernetes.io/"
#: The node controller writes here how long kubelets may keep Secrets; it follows the size of the cluster, so a fleet that was just made gets it late.
_TTL: Final = "node.alpha.kubernetes.io/ttl"


@dataclass
class Judgement:
    """What was found.

    Attributes:
        wrong: complaints, each with its node.
        tainted, held, noted: nodes, by what became of them.
        untouched: nodes that are as they were.
        events: Events on Nodes by reason.
        untold: nodes with our taint and no Event of it: a kill came between both.
        ttl: on how many nodes the cluster itself changed how long kubelets may keep Secrets.
        waits_s: from a fault's moment to the record that quarantined its node, for nodes with one fault.
    """

    wrong: list[str] = field(default_factory=list)
    tainted: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    noted: set[str] = field(default_factory=set)
    untouched: set[str] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)
    untold: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    ttl: int = 0


def judge(
    before: Mapping[str, Node],
    after: Mapping[str, Node],
    events: Iterable[Mapping[str, Any]],
    given: Sequence[tuple[Fault, int]],
    *,
    key: str,
) -> Judgement:
    """Compare.

    Args:
        before: all Nodes by name, before the first fault.
        after: the same at the end.
        events: on these Nodes, of this soak.
        given: every fault with the moment at which it was there to be seen, nanoseconds since the epoch.
        key: of our taint.
    """
    found = Judgement()
    struck: dict[str, list[tuple[Fault, int]]] = {}
    for fault, at in given:
        struck.setdefault(fault.node, []).append((fault, at))
    told: Counter[tuple[str, str]] = Counter()
    for event in events:
        told[event["involvedObject"]["name"], event["reason"]] += int(event.get("count") or 1)
    for (_, reason), count in told.items():
        found.events[reason] += count
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            found.wrong.append(f"{name}: is gone")
            continue
        found.ttl += _annotations(was).get(_TTL) != _annotations(now).get(_TTL)
        was_foreign, now_foreign = _foreign(was, key), _foreign(now, key)
        changed = [
            _change(part, value, now_foreign[part]) for part, value in was_foreign.items() if now_foreign[part] != value
        ]
        if changed:
            found.wrong.append(f"{name}: something that is not ours was changed: {', '.join(changed)}")
        _node(found, now, struck.get(name, []), told, key=key)
    for reason in ("BreakerOpen", "TaintRemovedByOthers", "Returned", "Cleared"):
        if found.events[reason]:
            found.wrong.append(f"{found.events[reason]} Events {reason}, and nobody caused one")
    _budget(found, after)
    return found


def settled(after: Mapping[str, Node], given: Sequence[tuple[Fault, int]]) -> bool:
    """Whether every fault that must be written down is."""
    records = {name: _record(node) for name, node in after.items()}
    return all(
        any((cause.code, cause.device) == fault.cause for cause in _causes(records.get(fault.node)))
        for fault, _ in given
        if fault.due != "nothing"
    )


def _node(
    found: Judgement,
    now: Node,
    struck: Sequence[tuple[Fault, int]],
    told: Mapping[tuple[str, str], int],
    *,
    key: str,
) -> None:
    name = str(now["metadata"]["name"])
    health = _record(now)
    ours = [each for each in _taints(now) if each["key"] == key]
    wanted = {fault.cause for fault, _ in struck if fault.due != "nothing"}
    grave = [each for each in struck if each[0].due == "quarantine"]
    counted = {(cause.code, cause.device): cause.count for cause in _causes(health)}
    if set(counted) != wanted:
        missing, more = sorted(wanted - set(counted)), sorted(map(str, set(counted) - wanted))
        found.wrong.append(f"{name}: not written down {missing}, written down without a fault {more}")
    found.wrong += [f"{name}: {cause} was counted {count} times" for cause, count in counted.items() if count != 1]
    if len(ours) > 1:
        found.wrong.append(f"{name}: our taint stands {len(ours)} times")
    if told.get((name, "Quarantined"), 0) > 1:
        found.wrong.append(f"{name}: {told[name, 'Quarantined']} Events of one quarantine")
    reason = _reason(now)
    if not grave:
        if ours or reason not in {None, "Healthy"}:
            found.wrong.append(f"{name}: no grave fault, and yet {reason}, {len(ours)} taints")
        elif wanted:
            found.noted.add(name)
        elif health is None and reason is None:
            found.untouched.add(name)
        else:
            found.wrong.append(f"{name}: nothing was to be done, and it has a record")
    elif ours and reason == "Quarantined" and health is not None and len(health.quarantines) == 1:
        found.tainted.add(name)
        if not told.get((name, "Quarantined"), 0):
            found.untold.add(name)
        if len(grave) == 1:
            found.waits_s.append((health.quarantines[0] - grave[0][1]) / SECOND)
    elif not ours and reason == "HeldBudget":
        found.held.add(name)
    else:
        found.wrong.append(f"{name}: a grave fault, and yet {reason}, {len(ours)} taints")


def _budget(found: Judgement, after: Mapping[str, Node]) -> None:
    """Nodes are held in the small pool alone, and only once its budget is spent."""
    small = {name for name, node in after.items() if (node["metadata"].get("labels") or {}).get(POOL_LABEL) == "small"}
    if found.held - small:
        found.wrong.append(f"held outside of the small pool: {sorted(found.held - small)[:5]}")
    used = len(found.tainted & small)
    if used > SMALL_BUDGET or (found.held and used != SMALL_BUDGET):
        found.wrong.append(f"the small pool has {used} tainted nodes and a budget of {SMALL_BUDGET}")


def _foreign(node: Node, key: str) -> dict[str, Any]:
    """All of a Node that neither we, the soak nor heartbeats write."""
    meta, spec, status = node["metadata"], node["spec"], node["status"]
    notes = _annotations(node)
    return {
        "labels": meta.get("labels"),
        "annotations": {
            name: text for name, text in notes.items() if name not in {ANNOTATION, REPORT_ANNOTATION, _TTL}
        },
        "uid": meta.get("uid"),
        "spec": {name: value for name, value in spec.items() if name != "taints"},
        "taints": [each for each in _taints(node) if each["key"] != key and not str(each["key"]).startswith(_CLUSTERS)],
        "status": {name: value for name, value in status.items() if name != "conditions"},
        "conditions": sorted(each["type"] for each in status.get("conditions", ()) if each["type"] != CONDITION),
    }


def _change(part: str, was: Any, now: Any) -> str:
    """The part, and of a mapping what differs in it."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return f"{part} {was!r} -> {now!r}"
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return part + " " + ", ".join(f"{name} {was.get(name)!r} -> {now.get(name)!r}" for name in names)


def _annotations(node: Node) -> Mapping[str, Any]:
    return node["metadata"].get("annotations") or {}


def _taints(node: Node) -> list[Mapping[str, Any]]:
    return list(node["spec"].get("taints") or ())


def _record(node: Node) -> NodeHealth | None:
    text = (node["metadata"].get("annotations") or {}).get(ANNOTATION)
    return None if text is None else decode_health(text)


def _causes(health: NodeHealth | None) -> tuple[Any, ...]:
    return () if health is None else health.causes


def _reason(node: Node) -> str | None:
    conditions = node["status"].get("conditions", ())
    return next((str(each["reason"]) for each in conditions if each["type"] == CONDITION), None)
