"""What one look at a pod says: place, phase, and state of the training container. A pure reduction of the API's object.

It keeps what a verdict may need after the pod is gone and bounds every text, because messages of containers and conditions come from the job
or from strangers. It draws no conclusion: a reason is kept as the API gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from rankfall.observe.cluster.manifest_ranks import static_ranks
from rankfall.observe.cluster.source import PodSource

INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
ROLE_LABEL: Final = "rankfall.dev/role"
MAX_TEXT: Final = 4096
MAX_WORD: Final = 256
_MAX_CONDITIONS: Final = 16
_KEPT_CONDITIONS: Final = frozenset({"PodScheduled", "DisruptionTarget", "PodReadyToStartContainers", "Ready"})
_OVER: Final = frozenset({"Succeeded", "Failed"})
_STARTING: Final = frozenset({None, "PodInitializing", "ContainerCreating"})
# Not a number of the API: it has no index, code or count that is larger.
_MOST: Final = 1 << 31

LogState = Literal["open", "complete", "lost", "none"]
ContainerState = Literal["waiting", "running", "terminated", "unknown"]


class Condition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One condition of a pod, as the API gave it; ``at`` is its last transition."""

    type: str
    status: str = "Unknown"
    reason: str | None = None
    message: str | None = None
    at: str | None = None


class ContainerFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of one container instance.

    Attributes:
        id: the runtime's id; names the instance together with ``restarts``.
        reason, message: of a waiting or terminated state; the message of a terminated one is its termination message.
        started, finished: RFC 3339, as the node's clock had it.
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


class PodFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at one pod.

    Attributes:
        seen_ns: when it was seen, nanoseconds since the epoch by this machine's clock.
        slot: of the job, by the completion index and the role; None for a pod that has none.
        gone: the pod is no longer there; the other fields are those of the last look at it.
        deleting: when it is to have ended, since the API was asked to delete it.
        grace_s: what it was given for that.
        overdue: nobody has said that it has ended, long after it was to: only its node could, and that is dead, cut off or stuck.
        container: name of the training container.
        ranks: local rank -> rank, where the manifest of a pod that Rankfall did not make proves them.
        role: of the pod, where it bears the marks of another tool; None = it does not say, or Rankfall's labels do.
        main, last: state of the training container, and of the instance before it.
        log: whether the log of the training container is stored to its end: ``open``, ``complete``, ``lost`` (part of it could not be had),
            ``none`` (it never had one).
        others: reasons of other containers (init, sidecars) that keep it from running, ``name: reason: message``.
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
    deleting: str | None = None
    grace_s: int | None = None
    overdue: bool = False
    container: str = ""
    role: str | None = None
    ranks: dict[int, int] = {}
    conditions: tuple[Condition, ...] = ()
    main: ContainerFact | None = None
    last: ContainerFact | None = None
    log: LogState = "open"
    others: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether no instance of the training container runs or will run again, by this look."""
        ended = self.main is not None and self.main.state == "terminated"
        return self.gone or ended or self.phase in _OVER

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((one for one in self.conditions if one.type == kind), None)


def pod_fact(pod: Mapping[str, Any], *, source: PodSource, seen_ns: int, gone: bool = False) -> PodFact:
    """The facts of a pod object.

    Args:
        pod: as the API gave it; parts that are missing or of a wrong type are unknown, never an error.
        source: whose pods they are.
        seen_ns: when it was seen.
        gone: the API said that it was deleted.
    """
    meta, spec, status = _map(pod, "metadata"), _map(pod, "spec"), _map(pod, "status")
    labels, annotations = _map(meta, "labels"), _map(meta, "annotations")
    if source.marks is not None:
        role, index = source.marks.place(labels, annotations)
    else:
        role, index = _word(labels.get(ROLE_LABEL)), _number(labels.get(INDEX_LABEL) or annotations.get(INDEX_LABEL))
    first = next((_word(one.get("name")) for one in _list(spec, "containers")), None)
    container = source.container_of(role, first or "")
    own = _status(status, container)
    return PodFact(
        seen_ns=seen_ns,
        name=_word(meta.get("name")) or "",
        uid=_word(meta.get("uid")) or "",
        slot=source.slot_of(role, index),
        attempt=_number(labels.get("rankfall.dev/attempt")),
        node=_word(spec.get("nodeName")),
        phase=_word(status.get("phase")) or "Unknown",
        reason=_word(status.get("reason")),
        message=_text(status.get("message")),
        gone=gone,
        created=_word(meta.get("creationTimestamp")),
        deleting=_word(meta.get("deletionTimestamp")),
        grace_s=_number(meta.get("deletionGracePeriodSeconds")),
        container=container,
        role=role if source.marks is not None else None,
        ranks=static_ranks(pod, container) if source.marks is not None else {},
        # Those that a verdict may need first: anybody may add others.
        conditions=tuple(sorted(_conditions(status), key=lambda one: one.type not in _KEPT_CONDITIONS))[
            :_MAX_CONDITIONS
        ],
        main=_container(own, "state"),
        last=_container(own, "lastState"),
        others=tuple(_others(status, container))[:_MAX_CONDITIONS],
    )


def later(held: PodFact, fact: PodFact) -> PodFact:
    """What is known of a pod after one more look at it: what was seen of its container and its place stays, where this look says less.

    Two ways of looking may overtake each other, and the last words about a pod that was deleted may be its name alone.
    """
    main, last = fact.main or held.main, fact.last or held.last
    if _goes_back(held.main, main):
        main, last = held.main, held.last
    if fact.gone:
        return msgspec.structs.replace(
            held, seen_ns=fact.seen_ns, gone=True, main=main, last=last, deleting=fact.deleting or held.deleting
        )
    slot = fact.slot if fact.slot is not None else held.slot
    overdue = held.overdue and not fact.over
    return msgspec.structs.replace(
        fact,
        main=main,
        last=last,
        node=fact.node or held.node,
        slot=slot,
        overdue=overdue,
        container=fact.container or held.container,
        role=fact.role or held.role,
        ranks=fact.ranks or held.ranks,
    )


def _goes_back(held: ContainerFact | None, main: ContainerFact | None) -> bool:
    """Whether a container is shown as it was before."""
    if held is None or main is None or main.restarts != held.restarts:
        return held is not None and main is not None and main.restarts < held.restarts
    return held.state == "terminated" and main.state == "running"


def stamp_ns(text: str | None) -> int | None:
    """RFC 3339 as nanoseconds since the epoch; None where it is absent or no time. The API gives whole seconds."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else int(moment.timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return None


def _first(one: int | None, other: int | None) -> int | None:
    return one if one is not None else other


def _conditions(status: Mapping[str, Any]) -> list[Condition]:
    found = []
    for one in _list(status, "conditions"):
        kind = _word(one.get("type"))
        if kind in _KEPT_CONDITIONS or (
            kind and one.get("status") == "True" and kind not in {"Initialized", "ContainersReady"}
        ):
            found.append(
                Condition(
                    type=kind or "",
                    status=_word(one.get("status")) or "Unknown",
                    reason=_word(one.get("reason")),
                    message=_text(one.get("message")),
                    at=_word(one.get("lastTransitionTime")),
                )
            )
    return found


def _status(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    for one in _list(status, "containerStatuses"):
        if one.get("name") == container:
            return one
    return {}


def _container(status: Mapping[str, Any], field: str) -> ContainerFact | None:
    states = _map(status, field)
    restarts = _number(status.get("restartCount")) or 0
    if field == "lastState" and not _waits_again(status):
        restarts = max(0, restarts - 1)
    if not states:
        return None
    common: dict[str, Any] = {"restarts": restarts, "id": _word(status.get("containerID"))}
    if "terminated" in states:
        end = _map(states, "terminated")
        return ContainerFact(
            state="terminated",
            exit_code=_number(end.get("exitCode")),
            signal=_number(end.get("signal")) or None,
            reason=_word(end.get("reason")),
            message=_text(end.get("message")),
            started=_word(end.get("startedAt")),
            finished=_word(end.get("finishedAt")),
            **(common | {"id": _word(end.get("containerID")) or common["id"]}),
        )
    if "running" in states:
        return ContainerFact(
            state="running",
            ready=status.get("ready") is True,
            started=_word(_map(states, "running").get("startedAt")),
            **common,
        )
    waiting = _map(states, "waiting")
    return ContainerFact(
        state="waiting", reason=_word(waiting.get("reason")), message=_text(waiting.get("message")), **common
    )


def _waits_again(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet shows the newest instance, which has ended, as the last one, because it is going to start another (CrashLoopBackOff)."""
    ended = _word(_map(_map(status, "lastState"), "terminated").get("containerID"))
    return "waiting" in _map(status, "state") and ended is not None and ended == _word(status.get("containerID"))


def _others(status: Mapping[str, Any], container: str) -> list[str]:
    found = []
    for one in [*_list(status, "initContainerStatuses"), *_list(status, "containerStatuses")]:
        name, state = _word(one.get("name")), _map(one, "state")
        if name == container:
            continue
        waiting, end = _map(state, "waiting"), _map(state, "terminated")
        reason = _word(waiting.get("reason"))
        if reason not in _STARTING:
            found.append(f"{name}: {reason}: {_text(waiting.get('message')) or ''}"[:MAX_TEXT])
        elif code := _number(end.get("exitCode")):
            found.append(f"{name}: {_word(end.get('reason')) or 'ended'}: exit code {code}")
    return found


def _map(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = data.get(field)
    return value if isinstance(value, Mapping) else {}


def _list(data: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = data.get(field)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def _word(value: Any) -> str | None:
    return value[:MAX_WORD] if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:  # noqa: PLR2004 - as digits of ``_MOST``
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None
