"""What one look at a pod says: place, phase, and state of the training container. A pure reduction of the API's object.

It keeps what a verdict may need after the pod is gone and bounds every text, because messages of containers and conditions come from the job
or from strangers. It draws no conclusion: a reason is kept as the API gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
MAX_TEXT: Final = 4096
_MAX_CONDITIONS: Final = 16
_KEPT_CONDITIONS: Final = frozenset({"PodScheduled", "DisruptionTarget", "PodReadyToStartContainers", "Ready"})

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
        slot: the completion index; None for a pod that has none.
        gone: the pod is no longer there; the other fields are those of the last look at it.
        deleting: when the API was asked to delete it.
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
    conditions: tuple[Condition, ...] = ()
    main: ContainerFact | None = None
    last: ContainerFact | None = None
    log: LogState = "open"
    others: tuple[str, ...] = ()

    @property
    def instance(self) -> int:
        """Number of starts of the training container before the present one."""
        return self.main.restarts if self.main else 0

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((one for one in self.conditions if one.type == kind), None)


def pod_fact(pod: Mapping[str, Any], *, container: str, seen_ns: int, gone: bool = False) -> PodFact:
    """The facts of a pod object.

    Args:
        pod: as the API gave it; parts that are missing or of a wrong type are unknown, never an error.
        container: name of the training container.
        seen_ns: when it was seen.
        gone: the API said that it was deleted.
    """
    meta, spec, status = _map(pod, "metadata"), _map(pod, "spec"), _map(pod, "status")
    labels = _map(meta, "labels")
    own = _status(status, container)
    return PodFact(
        seen_ns=seen_ns,
        name=_text(meta.get("name")) or "",
        uid=_text(meta.get("uid")) or "",
        slot=_number(labels.get(INDEX_LABEL) or _map(meta, "annotations").get(INDEX_LABEL)),
        attempt=_number(labels.get("rankfall.dev/attempt")),
        node=_text(spec.get("nodeName")),
        phase=_text(status.get("phase")) or "Unknown",
        reason=_text(status.get("reason")),
        message=_text(status.get("message")),
        gone=gone,
        created=_text(meta.get("creationTimestamp")),
        deleting=_text(meta.get("deletionTimestamp")),
        conditions=tuple(_conditions(status))[:_MAX_CONDITIONS],
        main=_container(own, "state"),
        last=_container(own, "lastState"),
        others=tuple(_others(status, container))[:_MAX_CONDITIONS],
    )


def stamp_ns(text: str | None) -> int | None:
    """RFC 3339 as nanoseconds since the epoch; None where it is absent or no time. The API gives whole seconds."""
    if not text:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp()) * 1_000_000_000
    except ValueError:
        return None


def _conditions(status: Mapping[str, Any]) -> list[Condition]:
    found = []
    for one in _list(status, "conditions"):
        kind = _text(one.get("type"))
        if kind in _KEPT_CONDITIONS or (
            kind and one.get("status") == "True" and kind not in {"Initialized", "ContainersReady"}
        ):
            found.append(
                Condition(
                    type=kind or "",
                    status=_text(one.get("status")) or "Unknown",
                    reason=_text(one.get("reason")),
                    message=_text(one.get("message")),
                    at=_text(one.get("lastTransitionTime")),
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
    if field == "lastState":
        restarts = max(0, restarts - 1)
    if not states:
        return None
    common: dict[str, Any] = {"restarts": restarts, "id": _text(status.get("containerID"))}
    if "terminated" in states:
        end = _map(states, "terminated")
        return ContainerFact(
            state="terminated",
            exit_code=_number(end.get("exitCode")),
            signal=_number(end.get("signal")) or None,
            reason=_text(end.get("reason")),
            message=_text(end.get("message")),
            started=_text(end.get("startedAt")),
            finished=_text(end.get("finishedAt")),
            **(common | {"id": _text(end.get("containerID")) or common["id"]}),
        )
    if "running" in states:
        return ContainerFact(
            state="running",
            ready=status.get("ready") is True,
            started=_text(_map(states, "running").get("startedAt")),
            **common,
        )
    waiting = _map(states, "waiting")
    return ContainerFact(
        state="waiting", reason=_text(waiting.get("reason")), message=_text(waiting.get("message")), **common
    )


def _others(status: Mapping[str, Any], container: str) -> list[str]:
    found = []
    for one in [*_list(status, "initContainerStatuses"), *_list(status, "containerStatuses")]:
        name, state = _text(one.get("name")), _map(one, "state")
        if name == container:
            continue
        waiting, end = _map(state, "waiting"), _map(state, "terminated")
        if waiting and waiting.get("reason") not in {None, "PodInitializing", "ContainerCreating"}:
            found.append(f"{name}: {_text(waiting.get('reason'))}: {_text(waiting.get('message')) or ''}"[:MAX_TEXT])
        elif end and end.get("exitCode"):
            found.append(f"{name}: {_text(end.get('reason'))}: exit code {_number(end.get('exitCode'))}"[:MAX_TEXT])
    return found


def _map(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = data.get(field)
    return value if isinstance(value, Mapping) else {}


def _list(data: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = data.get(field)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10 else None  # noqa: PLR2004 - no index or code is longer
