"""Reduces a pod object to stored facts that outlive it. Pure.

Texts are bounded: messages come from untrusted jobs. The completion index alone proves no rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from rankfall.kube.object_fields import COMPLETION_INDEX, MAX_TEXT, execution_of, mapping, mappings, number, text, word
from rankfall.rundir.cluster.manifest_ranks import Launch, launch_of
from rankfall.rundir.cluster.pod_source import PodSource

ROLE_LABEL: Final = "rankfall.dev/role"
_MAX_CONDITIONS: Final = 16
_KEPT_CONDITIONS: Final = frozenset(
    {"PodScheduled", "DisruptionTarget", "TerminationTarget", "PodReadyToStartContainers", "Ready"}
)
_OVER: Final = frozenset({"Succeeded", "Failed"})
# Exit codes above this are 128 + signal of process 1.
_SIGNAL_BASE: Final = 128
_HIGHEST_SIGNAL: Final = 64
# Signals of the kubelet when a pod is deleted.
SIGKILL: Final = 9
STOP_SIGNALS: Final = frozenset({SIGKILL, 15})
_STARTING: Final = frozenset({None, "PodInitializing", "ContainerCreating"})

LogState = Literal["open", "complete", "lost", "none"]
ContainerState = Literal["waiting", "running", "terminated", "unknown"]


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One condition of a pod; ``at`` is its last transition."""

    type: str
    status: str = "Unknown"
    reason: str | None = None
    message: str | None = None
    at: str | None = None


class ContainerFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of one container instance.

    Attributes:
        id: From the runtime; with ``restarts`` names the instance.
        reason, message: Of its state; or the termination message.
        started, finished: RFC 3339, by the node's clock.
    """

    state: ContainerState
    restarts: int = 0
    id: str | None = None
    ready: bool = False
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    started: str | None = None
    finished: str | None = None

    @property
    def ended_by(self) -> int | None:
        """Signal that ended it, also by its exit code; None for another end."""
        code = self.exit_code
        if self.signal is None and code is not None and _SIGNAL_BASE < code <= _SIGNAL_BASE + _HIGHEST_SIGNAL:
            return code - _SIGNAL_BASE
        return self.signal


class OtherEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Failed end of a container beside the training container.

    Attributes:
        init: It runs before the training container, which waits for its success.
        end: Newest failed instance.
    """

    name: str
    init: bool = False
    end: ContainerFact


class PodFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One snapshot of one pod.

    Attributes:
        seen_ns: Nanoseconds since the epoch by this machine.
        slot: Slot by completion index and role, or None.
        gone: True if deleted; other fields are then older.
        created: By the API server's clock; ``accepted``: by the node's.
        deleting: Deadline after a deletion request, or of ``finally_deleted``.
        grace_s: Grace period in seconds.
        overdue: True if its end is due and unreported: a dead or disconnected node.
        container: Name of the training container.
        ranks: Local rank -> rank, by a foreign manifest.
        prefixes: Roles in torchrun's prefixes; empty without prefix.
        role: By another tool's labels, or None.
        execution: Of its JobSet, or None.
        main, last: Training container, and its previous instance.
        log: ``open``, ``complete``, ``lost`` (incomplete), ``none`` (never existed).
        others: Containers that block the pod, as ``name: reason: message``.
        failed_others: Failed ends of containers beside the training container.
    """

    seen_ns: int
    name: str
    uid: str
    slot: int | None = None
    attempt: int | None = None
    node: str | None = None
    phase: str = "Unknown"
    reason: str | None = None
    message: str | None = None
    gone: bool = False
    created: str | None = None
    accepted: str | None = None
    deleting: str | None = None
    grace_s: int | None = None
    overdue: bool = False
    container: str = ""
    role: str | None = None
    execution: int | None = None
    ranks: dict[int, int] = {}
    prefixes: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] = ()
    main: ContainerFact | None = None
    last: ContainerFact | None = None
    log: LogState = "open"
    others: tuple[str, ...] = ()
    failed_others: tuple[OtherEnd, ...] = ()

    @property
    def began(self) -> bool:
        """True if an instance of the training container has run."""
        return any(one is not None and one.state in {"running", "terminated"} for one in (self.main, self.last))

    @property
    def over(self) -> bool:
        """True if, by this snapshot, no instance of the training container runs or will run again."""
        ended = self.main is not None and self.main.state == "terminated"
        return self.gone or ended or self.phase in _OVER

    @property
    def finally_deleted(self) -> bool:
        """True if its kubelet deleted it after its end: ``deleting`` is then not the time of the request."""
        end = stamp_ns(self.main.finished) if self.main is not None and self.main.state == "terminated" else None
        at = stamp_ns(self.deleting)
        return self.grace_s == 0 and end is not None and at is not None and end <= at

    @property
    def unheard(self) -> bool:
        """True if the control plane withdrew the pod's Ready condition because the node's kubelet is silent.

        A kubelet gives a reason with Ready False; the controller gives none.
        """
        ready, main = self.condition("Ready"), self.main
        running = main is not None and main.state == "running" and main.ready and self.phase not in _OVER
        return running and ready is not None and ready.status == "False" and not ready.reason

    def condition(self, kind: str) -> Condition | None:
        """Condition of this type; None if absent."""
        return next((one for one in self.conditions if one.type == kind), None)


def pod_fact(pod: Mapping[str, Any], *, source: PodSource, seen_ns: int, gone: bool = False) -> PodFact:
    """Pod object's facts; missing or mistyped parts are unknown.

    ``seen_ns`` in nanoseconds since the epoch; ``gone``: deleted.
    """
    meta, spec, status = mapping(pod, "metadata"), mapping(pod, "spec"), mapping(pod, "status")
    labels, annotations = mapping(meta, "labels"), mapping(meta, "annotations")
    if source.marks is not None:
        role, index = source.marks.place(labels, annotations)
    else:
        role, index = (
            word(labels.get(ROLE_LABEL)),
            number(labels.get(COMPLETION_INDEX) or annotations.get(COMPLETION_INDEX)),
        )
    first = next((word(one.get("name")) for one in mappings(spec, "containers")), None)
    container = source.container_of(role, first or "")
    own = _status(status, container)
    launch = launch_of(pod, container) if source.marks is not None else Launch()
    return PodFact(
        seen_ns=seen_ns,
        name=word(meta.get("name")) or "",
        uid=word(meta.get("uid")) or "",
        slot=source.slot_of(role, index),
        attempt=number(labels.get("rankfall.dev/attempt")),
        node=word(spec.get("nodeName")),
        phase=word(status.get("phase")) or "Unknown",
        reason=word(status.get("reason")),
        message=text(status.get("message")),
        gone=gone,
        created=word(meta.get("creationTimestamp")),
        accepted=word(status.get("startTime")),
        deleting=word(meta.get("deletionTimestamp")),
        grace_s=number(meta.get("deletionGracePeriodSeconds")),
        container=container,
        role=role if source.marks is not None else None,
        execution=execution_of(pod),
        ranks=launch.ranks,
        prefixes=launch.roles,
        # First the conditions that a verdict may need.
        conditions=tuple(sorted(_conditions(status), key=lambda one: one.type not in _KEPT_CONDITIONS))[
            :_MAX_CONDITIONS
        ],
        main=_container(own, "state"),
        last=_container(own, "lastState"),
        others=tuple(_others(status, container))[:_MAX_CONDITIONS],
        failed_others=tuple(_failed_others(spec, status, container))[:_MAX_CONDITIONS],
    )


def later(held: PodFact, fact: PodFact) -> PodFact:
    """Facts of a pod after one more snapshot; facts that the new snapshot lacks stay.

    Snapshots may overtake each other; a deleted pod's last event may be only a name.
    """
    main, last = fact.main or held.main, fact.last or held.last
    if _goes_back(held.main, main):
        main, last = held.main, held.last
    deleting, grace_s = (fact.deleting, fact.grace_s) if fact.deleting else (held.deleting, held.grace_s)
    if held.deleting and msgspec.structs.replace(fact, main=main).finally_deleted:
        deleting, grace_s = held.deleting, held.grace_s
    if fact.gone:
        return msgspec.structs.replace(
            held, seen_ns=fact.seen_ns, gone=True, main=main, last=last, deleting=deleting, grace_s=grace_s
        )
    slot = fact.slot if fact.slot is not None else held.slot
    overdue = held.overdue and not fact.over
    return msgspec.structs.replace(
        fact,
        main=main,
        last=last,
        deleting=deleting,
        grace_s=grace_s,
        node=fact.node or held.node,
        slot=slot,
        overdue=overdue,
        container=fact.container or held.container,
        role=fact.role or held.role,
        ranks=fact.ranks or held.ranks,
        prefixes=held.prefixes if fact.prefixes is None else fact.prefixes,
    )


def _goes_back(held: ContainerFact | None, main: ContainerFact | None) -> bool:
    """True if the new snapshot ``main`` shows an earlier state of the container than ``held``."""
    if held is None or main is None or main.restarts != held.restarts:
        return held is not None and main is not None and main.restarts < held.restarts
    return held.state == "terminated" and main.state == "running"


def stamp_ns(text: str | None) -> int | None:
    """Converts RFC 3339 to nanoseconds since the epoch; None if absent or invalid. The API gives whole seconds."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else int(moment.timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return None


def _conditions(status: Mapping[str, Any]) -> list[Condition]:
    found = []
    for one in mappings(status, "conditions"):
        kind = word(one.get("type"))
        if kind in _KEPT_CONDITIONS or (
            kind and one.get("status") == "True" and kind not in {"Initialized", "ContainersReady"}
        ):
            found.append(
                Condition(
                    type=kind or "",
                    status=word(one.get("status")) or "Unknown",
                    reason=word(one.get("reason")),
                    message=text(one.get("message")),
                    at=word(one.get("lastTransitionTime")),
                )
            )
    return found


def _status(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    for one in mappings(status, "containerStatuses"):
        if one.get("name") == container:
            return one
    return {}


def _container(status: Mapping[str, Any], field: str) -> ContainerFact | None:
    states = mapping(status, field)
    restarts = number(status.get("restartCount")) or 0
    if field == "lastState" and not _waits_again(status):
        restarts = max(0, restarts - 1)
    if not states:
        return None
    common: dict[str, Any] = {"restarts": restarts, "id": word(status.get("containerID"))}
    if "terminated" in states:
        end = mapping(states, "terminated")
        return ContainerFact(
            state="terminated",
            exit_code=number(end.get("exitCode")),
            signal=number(end.get("signal")) or None,
            reason=word(end.get("reason")),
            message=text(end.get("message")),
            started=word(end.get("startedAt")),
            finished=word(end.get("finishedAt")),
            **(common | {"id": word(end.get("containerID")) or common["id"]}),
        )
    if "running" in states:
        return ContainerFact(
            state="running",
            ready=status.get("ready") is True,
            started=word(mapping(states, "running").get("startedAt")),
            **common,
        )
    waiting = mapping(states, "waiting")
    return ContainerFact(
        state="waiting", reason=word(waiting.get("reason")), message=text(waiting.get("message")), **common
    )


def _waits_again(status: Mapping[str, Any]) -> bool:
    """True if the newest instance has ended and the kubelet will start another (CrashLoopBackOff)."""
    ended = word(mapping(mapping(status, "lastState"), "terminated").get("containerID"))
    return "waiting" in mapping(status, "state") and ended is not None and ended == word(status.get("containerID"))


def _others(status: Mapping[str, Any], container: str) -> list[str]:
    found = []
    for one in [*mappings(status, "initContainerStatuses"), *mappings(status, "containerStatuses")]:
        name, state = word(one.get("name")), mapping(one, "state")
        if name == container:
            continue
        waiting, end = mapping(state, "waiting"), mapping(state, "terminated")
        reason = word(waiting.get("reason"))
        if reason not in _STARTING:
            found.append(f"{name}: {reason}: {text(waiting.get('message')) or ''}"[:MAX_TEXT])
        elif code := number(end.get("exitCode")):
            found.append(f"{name}: {word(end.get('reason')) or 'ended'}: exit code {code}")
    return found


def _failed_others(spec: Mapping[str, Any], status: Mapping[str, Any], container: str) -> Iterator[OtherEnd]:
    # An init container that restarts always is a sidecar.
    first = {one.get("name") for one in mappings(spec, "initContainers") if one.get("restartPolicy") != "Always"}
    for one in [*mappings(status, "initContainerStatuses"), *mappings(status, "containerStatuses")]:
        name = word(one.get("name"))
        ends = (_container(one, "state"), _container(one, "lastState"))
        end = next((end for end in ends if end is not None and end.state == "terminated"), None)
        if name and name != container and end is not None and end.exit_code:
            yield OtherEnd(name=name, init=name in first, end=end)
