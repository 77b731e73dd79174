"""Derives evidence from Events of pods and of objects that create them. Pure.

A controller's conclusion about a failure is context, never a cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rankfall.evidence.cluster.node_evidence import silent_since
from rankfall.evidence.cluster.reasons import Reason, row_of
from rankfall.model import Evidence, SlotFacts, numbers
from rankfall.model.evidence import digest
from rankfall.model.patterns import anchored, bounded
from rankfall.rundir.cluster.clock_bounds import by_server
from rankfall.rundir.cluster.context_facts import EventFact, WorkFact
from rankfall.rundir.cluster.marks import Stop
from rankfall.rundir.cluster.pod_facts import SIGKILL, STOP_SIGNALS, ContainerFact, PodFact, stamp_ns
from rankfall.verdict.diagnose.cause_tables import DELETED_POD, exit_slug, signal_slug

_LINE: Final = 1000
_NS: Final = 1_000_000_000
# Reasons why a pod does not start, until other Events contradict.
_WAITS: Final = frozenset({"unschedulable", "volume_mount", "container_config", "image_pull", "command_not_found"})
_STARTING: Final = frozenset({None, "ContainerCreating", "PodInitializing"})
_MOUNTS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"})
# The kubelet ends the container whose hook failed.
_HOOK: Final = "FailedPostStartHook"
# The node controller's Event about a pod of a silent node, and its specificity if the pod never came back.
_SILENT_NODE: Final = "NodeNotReady"
_LEFT: Final = 81
# Seconds between the Event and the end of a container, in either order.
_ENDS_WITHIN_S: Final = 90.0
# Fatal probe failures, and the kubelet's message when it stops a container without a restart.
_FATAL_PROBE: Final = anchored(r"(?:Liveness|Startup) probe (?:failed|errored)", limit=4_096)
_STOPPING: Final = anchored(r"Stopping container ", limit=4_096)
_PROBE: Final = Reason(where="event", reason="Unhealthy", slug="probe_killed", specificity=80)
# The kubelet's message about a volume of a pod that was deleted before it started.
_UNREGISTERED: Final = bounded(r'object "[^"]{1,253}"/"[^"]{1,253}" not registered', limit=4_096)
# The training operator's message about a removed pod's exit.
_EXITED: Final = bounded(r"Pod: \S+?\.(\S{1,253}) exited with code (\d{1,3})\b", limit=4_096)
_SIGNALS: Final = range(129, 193)
# A controller's message about a pod that it deleted.
_DELETED: Final = bounded(r"Deleted pod: (\S{1,253})", limit=2_048)
# Conditions of a failed job, whose controller then deletes its other pods.
_FAILED: Final = frozenset({"Failed", "FailureTarget"})
# Maximum slots of one Event.
_MOST_SLOTS: Final = 256


def pod_events(
    events: Iterable[EventFact], pods: Mapping[str, PodFact], *, before: Mapping[str, PodFact], attempt: int
) -> list[Evidence]:
    """Evidence of the Events of pods.

    ``before``: last snapshot of each pod before its deletion request.
    """
    mine: dict[str, list[EventFact]] = {}
    for event in events:
        if event.kind == "Pod" and event.about in pods:
            mine.setdefault(event.about, []).append(event)
    found: list[Evidence] = []
    for uid, events_of_pod in mine.items():
        newest: dict[tuple[str, str], Evidence] = {}
        for event in sorted(events_of_pod, key=_time):
            row = row_of("event", event.reason, event.message)
            if row is not None and _stands(event, row, pods[uid], events_of_pod, before=before.get(uid, pods[uid])):
                piece = _of_pod(event, row, pods[uid], attempt=attempt)
                if event.reason == _SILENT_NODE and _left_with_node(event, pods[uid], events_of_pod):
                    at, uncertainty = silent_since(piece.at or event.seen_ns)
                    piece = msgspec.structs.replace(
                        piece, role="primary", specificity=_LEFT, at=at, uncertainty=uncertainty
                    )
                newest[piece.slug, piece.role] = piece
        killed = _killed_by_probe(events_of_pod, pods[uid])
        if killed is not None:
            piece = _of_pod(killed, _PROBE, pods[uid], attempt=attempt)
            newest.pop((piece.slug, "context"), None)
            newest[piece.slug, piece.role] = piece
        found += newest.values()
    return found


def made_events(
    events: Iterable[EventFact], slots: Mapping[int, SlotFacts], pods: Mapping[str, PodFact], *, attempt: int
) -> list[Evidence]:
    """Evidence of the Events of objects that create pods.

    These report uncreated pods and ends of deleted ones.
    """
    with_pod = {pod.slot for pod in pods.values()}
    without = [slot for slot in sorted(slots) if slot not in with_pod and slots[slot].state == "expected"]
    names = {pod.name: pod for pod in pods.values()}
    found: dict[str, Evidence] = {}
    for event in sorted((one for one in events if one.kind not in {"Pod", "Node"}), key=_time):
        row = row_of("made", event.reason, event.message)
        ended = _EXITED.search(event.message)
        if row is not None and row.slug != "controller_verdict":
            for slot in without[:_MOST_SLOTS]:
                piece = _plain(event, row.slug, attempt=attempt, specificity=row.specificity)
                piece = msgspec.structs.replace(
                    piece,
                    id=digest("made", attempt, slot, row.slug),
                    role=row.role,
                    slot=slot,
                    retry=row.retry or None,
                )
                found[piece.id] = piece
        elif ended is not None:
            pod = names.get(ended[1])
            piece = _exited(event, numbers.matched(ended[2]), pod, slots, attempt=attempt)
            found[piece.id] = piece
        elif event.warning:
            piece = _plain(event, "controller_verdict", attempt=attempt, specificity=5)
            found[piece.id] = piece
    return list(found.values())


def work_evidence(works: Iterable[WorkFact], *, attempt: int, ours: bool) -> list[Evidence]:
    """Evidence of objects that create pods: failed, suspended or being deleted.

    ``ours``: Rankfall had begun to stop the attempt.
    """
    found = []
    for work in works:
        where = f"{work.kind.lower()}/{work.name}"
        for one in work.conditions:
            if one.type not in _FAILED:
                continue
            row = row_of("work", one.reason or "", one.message)
            slug = row.slug if row is not None else "controller_verdict"
            found.append(
                Evidence(
                    id=digest("work", attempt, work.uid, one.type, one.reason),
                    source="event",
                    slug=slug,
                    role=row.role if row is not None else "context",
                    trust="platform",
                    at=stamp_ns(one.at),
                    uncertainty=1.0,
                    stamped="server",
                    where=where,
                    line=f"{one.reason or one.type}: {one.message or ''}"[:_LINE],
                    specificity=row.specificity if row is not None else 5,
                    fingerprint=f"{slug}:{one.reason}",
                    attempt=attempt,
                )
            )
        request, row = (f"{work.kind} {work.name} is being deleted by a request" if work.deleting else None), None
        at = stamp_ns(work.deleting)
        if request is None and work.suspend:
            by = f", last by {work.held_by}" if work.held_by else ""
            request = f"{work.kind} {work.name} is suspended{by}"
            row = row_of("suspended", work.held_by or "", None)
            at = next((stamp_ns(one.at) for one in work.conditions if one.type == "Suspended"), None)
        if request is not None and not ours:
            found.append(
                Evidence(
                    id=digest("wish", attempt, work.uid, bool(work.deleting)),
                    source="event",
                    slug=row.slug if row is not None else "cancelled",
                    role=row.role if row is not None else "context",
                    trust="platform",
                    at=at,
                    uncertainty=1.0,
                    stamped="server",
                    where=where,
                    line=request,
                    specificity=row.specificity if row is not None else 50,
                    fingerprint=f"{row.slug if row is not None else 'cancelled'}:object",
                    attempt=attempt,
                )
            )
    return found


def deletions(
    pods: Iterable[PodFact], events: Iterable[EventFact], works: Iterable[WorkFact], *, attempt: int, stop: Stop | None
) -> list[Evidence]:
    """Evidence of pods that were deleted while they ran; none if their job is deleted too.

    A pod that its job's controller deleted is a consequence. After a ``stop`` only such pods count, and those whose
    deletion made Kubernetes stop the others. Of pods deleted by others only those without a recorded end count: the
    rest have better evidence.
    """
    works = list(works)
    if any(work.deleting or work.gone for work in works):
        return []
    events = list(events)
    by_maker = {
        match[1]: stamp_ns(_time(one))
        for one in events
        if (match := _DELETED.search(one.message)) and one.kind != "Pod"
    }
    failed = [at for work in works for one in work.conditions if one.type in _FAILED and (at := stamp_ns(one.at))]
    stopped = {one.about: stamp_ns(one.last or one.first) for one in events if _is_stop(one)}
    pods = list(pods)
    # Of two deletions in one second that of the pod that no longer exists was the earlier one.
    order = {pod.uid: (at, not pod.gone) for pod in pods if (at := _asked_ns(pod) or stopped.get(pod.uid))}
    # Without its own stamp, its kubelet's Event may be late or missing. Others deleted it, so the job failed after that.
    latest = (min(failed), False) if failed else None
    for pod in pods:
        known = _asked_ns(pod) is not None or pod.name in by_maker
        if latest is not None and pod.gone and pod.began and _end(pod) is None and not known:
            order[pod.uid] = min(order.get(pod.uid, latest), latest)
    first = min(order.values(), default=None)
    found = []
    for pod in pods:
        end = _end(pod)
        asked = _asked_ns(pod) or by_maker.get(pod.name)
        if asked is None and failed and pod.finally_deleted:
            # A failed job's controller deletes all its pods; one that ran longer than the next second is among them.
            asked = min(failed) + _NS
        # Stamps are whole seconds: an equal one may be of a deletion that made the job fail, but not after another one.
        after_another = order.get(pod.uid, first) != first
        controller = pod.name in by_maker or (
            asked is not None and any(at < asked or (at == asked and after_another) for at in failed)
        )
        counts = pod.gone and pod.began if end is None else controller and _was_stopped(end, asked, pod)
        at = stamp_ns(pod.deleting) if end is None else asked
        if at is None:
            at = stopped.get(pod.uid)
        of_stop = stop is not None and not controller and not _caused(stop, asked or at)
        if not counts or pod.reason or pod.condition("DisruptionTarget") or of_stop:
            continue
        by = ", by its job's controller" if controller else ""
        unseen = "; its end was not recorded" if end is None else ""
        found.append(
            Evidence(
                id=digest("unseen", attempt, pod.uid),
                source="pod",
                slug="peer_teardown" if controller else "external_signal",
                role="secondary",
                trust="platform",
                slot=pod.slot,
                node=pod.node,
                at=at,
                uncertainty=None if at is None else 1.0,
                stamped="server",
                where=f"pod/{pod.name}",
                line=f"pod {pod.name} was deleted while it ran{by}{unseen}",
                specificity=20,
                fingerprint=DELETED_POD,
                attempt=attempt,
            )
        )
    return found


def _caused(stop: Stop, at: int | None) -> bool:
    """True if a pod's deletion at ``at``, in nanoseconds, came before the end by which Kubernetes stopped the others.

    That end may be of a pod that the controller killed, if the end of the deleted one was not recorded.
    """
    return bool(stop.after) and at is not None and at + _NS <= stop.at_ns


def _was_stopped(end: ContainerFact, asked: int | None, pod: PodFact) -> bool:
    """True if a request to delete the pod, ``asked`` in nanoseconds, ended its container.

    SIGKILL comes after a grace period, so one in the same second may be an earlier end.
    """
    signal, at = end.ended_by, stamp_ns(end.finished)
    if signal not in STOP_SIGNALS or at is None or asked is None:
        return False
    return by_server(pod, at) >= asked + (_NS if signal == SIGKILL else 0)


def _left_with_node(event: EventFact, pod: PodFact, events: Iterable[EventFact]) -> bool:
    """True if a pod was deleted without an end or a stop by its kubelet, after its node had stopped reporting."""
    ended = pod.reason or _end(pod) is not None
    stopped = any(one.reason == "Killing" and _time(one) <= _time(event) for one in events)
    return pod.gone and pod.began and not ended and not stopped


def _killed_by_probe(events: Iterable[EventFact], pod: PodFact) -> EventFact | None:
    """Failed probe after which the kubelet stopped a container without a restart, or None.

    Its message gives no reason, as for a deleted pod.
    """
    events = list(events)
    failed = [one for one in events if one.reason == "Unhealthy" and _FATAL_PROBE.match(one.message)]
    stops = [stamp_ns(one.first or one.last) for one in events if _is_stop(one)]
    asked = _asked_ns(pod)
    taken = (pod.condition("DisruptionTarget"), pod.condition("TerminationTarget"))
    if any(one is not None and one.status == "True" for one in taken):
        return None
    for probe in failed:
        at = stamp_ns(probe.last or probe.first)
        for stop in stops:
            soon = at is not None and stop is not None and 0 <= stop - at <= _ENDS_WITHIN_S * _NS
            if soon and stop is not None and (asked is None or by_server(pod, stop) < asked):
                return probe
    return None


def _stands(event: EventFact, row: Reason, pod: PodFact, events: Iterable[EventFact], *, before: PodFact) -> bool:
    if row.slug in _WAITS and event.reason != _HOOK:
        if before.phase != "Pending":
            return False
        if row.slug == "unschedulable":
            return before.node is None
        if event.reason in _MOUNTS and _of_deletion(event, pod):
            return False
        begun = any(other.reason == "Pulling" and _time(other) > _time(event) for other in events)
        waits = before.main is None or (before.main.state == "waiting" and before.main.reason in _STARTING)
        return not begun and waits if event.reason in _MOUNTS else True
    if row.role != "primary":
        return True
    # It ended the instance whose end is near the Event.
    ends = [stamp_ns(one.finished) for one in (pod.main, pod.last) if one is not None and one.state == "terminated"]
    at = stamp_ns(event.last) or stamp_ns(event.first)
    near = [end for end in ends if end is not None and at is not None and abs(end - at) <= _ENDS_WITHIN_S * _NS]
    return bool(near) or pod.gone or pod.phase == "Failed"


def _of_deletion(event: EventFact, pod: PodFact) -> bool:
    """True if the kubelet no longer mounts for a pod because it is being deleted."""
    asked, at = _asked_ns(pod), stamp_ns(event.first or event.last)
    return _UNREGISTERED.search(event.message) is not None or (asked is not None and at is not None and at > asked)


def _is_stop(event: EventFact) -> bool:
    """True for a kubelet's Event that it stops a container, whose message gives no reason."""
    return event.reason == "Killing" and _STOPPING.match(event.message) is not None


def _end(pod: PodFact) -> ContainerFact | None:
    """Recorded end of the main container, or None."""
    return pod.main if pod.main is not None and pod.main.state == "terminated" else None


def _asked_ns(pod: PodFact) -> int | None:
    """Time of the request to delete a pod; None without one, or if the kubelet's last deletion replaced it."""
    end = None if pod.finally_deleted else stamp_ns(pod.deleting)
    return None if end is None else end - (pod.grace_s or 0) * _NS


def _of_pod(event: EventFact, row: Reason, pod: PodFact, *, attempt: int) -> Evidence:
    piece = _plain(event, row.slug, attempt=attempt, specificity=row.specificity)
    return msgspec.structs.replace(
        piece,
        id=digest("event", attempt, pod.uid, row.slug, event.reason),
        role=row.role,
        slot=pod.slot,
        node=pod.node,
        retry=row.retry or None,
    )


def _exited(
    event: EventFact, code: int, pod: PodFact | None, slots: Mapping[int, SlotFacts], *, attempt: int
) -> Evidence:
    """Evidence of a removed pod's exit code, as its Event reports it; counts only without other evidence."""
    slot = pod.slot if pod is not None else None
    facts = slots.get(slot) if slot is not None else None
    known = facts is not None and (facts.exit_code is not None or facts.signal is not None)
    signal = code - 128 if code in _SIGNALS else None
    slug = signal_slug(signal) if signal is not None else exit_slug(code)
    piece = _plain(event, slug, attempt=attempt, specificity=10)
    return msgspec.structs.replace(
        piece,
        role="context" if known or code == 0 else "secondary" if slug == "external_signal" else "primary",
        slot=slot,
        node=pod.node if pod is not None else None,
        exit_code=None if signal is not None else code,
        signal=signal,
        fingerprint=f"{slug}:{signal}:{code if signal is None else None}",
    )


def _plain(event: EventFact, slug: str, *, attempt: int, specificity: int) -> Evidence:
    often = f" ({event.count} times)" if event.count > 1 else ""
    at = stamp_ns(event.last) or stamp_ns(event.first)
    return Evidence(
        id=digest("event", attempt, event.uid),
        source="event",
        slug=slug,
        role="context",
        trust="platform",
        at=at,
        uncertainty=1.0 if at is not None else None,
        stamped="node" if event.by == "kubelet" else "server",
        where=f"event of {event.kind.lower()}/{event.name}",
        line=f"{event.reason}: {event.message}{often}"[:_LINE],
        specificity=specificity,
        fingerprint=f"{slug}:event:{event.reason}",
        detail=f"reason={event.reason}",
        attempt=attempt,
    )


def _time(event: EventFact) -> str:
    return event.last or event.first or ""
