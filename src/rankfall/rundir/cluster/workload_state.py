"""Reads the state of a workload that Kubernetes itself restarts, from its conditions. Pure.

Failure counters are above zero during every restart. Missing fields mean unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rankfall.kube.object_fields import JOBSET_RESTART, MAX_TEXT, condition, mapping, number, text, word
from rankfall.rundir.cluster.journal import SnapshotReader
from rankfall.rundir.layout import pods_folder

Phase = Literal["suspended", "going", "succeeded", "failed"]

_GOOD: Final = {"Job": "Complete", "JobSet": "Completed", "TrainJob": "Complete"}


class NativeState(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot of a workload.

    Attributes:
        phase: ``succeeded`` and ``failed`` only by terminal condition.
        start: Gang's current start, empty if unknown; see :func:`same_start`.
        restarts, execution: Of the whole gang by its JobSet; ``execution`` also counts suspensions.
        gang: UID of a TrainJob's JobSet; empty without.
        reason, message: Of the terminal condition.
        at: Time of the terminal condition, or of the suspension, RFC 3339.
        deleting: Deletion was requested and is unfinished.
    """

    phase: Phase
    start: str = ""
    restarts: int = 0
    execution: int | None = None
    gang: str = ""
    reason: str | None = None
    message: str | None = None
    at: str | None = None
    deleting: bool = False

    @property
    def over(self) -> bool:
        """True if the workload has ended for good."""
        return self.phase in {"succeeded", "failed"}


def native_state(workload: Mapping[str, Any], *, inner: Mapping[str, Any] | None = None) -> NativeState:
    """State of a workload by its own conditions.

    ``inner`` is a TrainJob's JobSet with more detail, or None.
    """
    kind = str(workload.get("kind"))
    deleting = bool(mapping(workload, "metadata").get("deletionTimestamp"))
    gang = inner if kind == "TrainJob" else workload
    restarts = (number(mapping(gang, "status").get("restarts")) or 0) if gang is not None else 0
    execution = number(mapping(gang, "status").get("executionAttempts")) if gang is not None else None
    uid = (word(mapping(inner, "metadata").get("uid")) or "") if inner is not None else ""
    common: dict[str, Any] = {"restarts": restarts, "execution": execution, "gang": uid, "deleting": deleting}
    # Kubernetes gives a failure precedence.
    for name, phase in (("Failed", "failed"), (_GOOD.get(kind, "Complete"), "succeeded")):
        end = condition(workload, name)
        if end.get("status") == "True":
            return NativeState(
                phase="failed" if phase == "failed" else "succeeded",
                start=_start(gang, restarts, execution),
                reason=word(end.get("reason")),
                message=text(end.get("message")),
                at=word(end.get("lastTransitionTime")),
                **common,
            )
    # The condition lags: right after a release it still reports a suspended workload.
    held = any(mapping(one, "spec").get("suspend") is True for one in (workload, gang) if one is not None)
    if held or gang is None:
        since = condition(workload, "Suspended")
        at = word(since.get("lastTransitionTime")) if held and since.get("status") == "True" else None
        return NativeState(phase="suspended" if held else "going", at=at, **common)
    return NativeState(phase="going", start=_start(gang, restarts, execution), **common)


def dated(start: str) -> bool:
    """True if the controller has reported the time or number of this start."""
    return ":" in start or not start.endswith("/")


def same_start(one: str, other: str) -> bool:
    """True if two snapshots may show one start, by number, else by time; no time matches any."""
    numbers, _, since = one.partition("/")
    numbers_too, _, since_too = other.partition("/")
    restart, _, execution = numbers.partition(":")
    restart_too, _, execution_too = numbers_too.partition(":")
    if restart == restart_too and execution and execution_too:
        return execution == execution_too
    return restart == restart_too and (not since or not since_too or since == since_too)


def with_job_of_set(state: NativeState, jobs: Iterable[Mapping[str, Any]]) -> NativeState:
    """Adds the reason and message of the failed job to the end of its JobSet.

    Only the job has the cause (a deadline, a rule, which pod).
    """
    ends = (condition(job, "Failed") for job in jobs if _restart_of(job) == state.restarts)
    end = next((one for one in ends if one.get("status") == "True"), None)
    if end is None:
        return state
    messages = [one for one in (state.message, text(end.get("message"))) if one]
    return msgspec.structs.replace(
        state, reason=word(end.get("reason")) or state.reason, message="; ".join(messages)[:MAX_TEXT]
    )


def of_restart(selector: str, restart: int | None) -> str:
    """Selector of pods with this JobSet restart number; None = all."""
    kept = [part for part in selector.split(",") if not part.startswith(f"{JOBSET_RESTART}=")]
    return ",".join([*kept, *([] if restart is None else [f"{JOBSET_RESTART}={restart}"])])


def _restart_of(job: Mapping[str, Any]) -> int:
    count = number(mapping(mapping(job, "metadata"), "labels").get(JOBSET_RESTART))
    return -1 if count is None else count


def _start(gang: Mapping[str, Any] | None, restarts: int, execution: int | None) -> str:
    """Identifies a start by the restart count, the execution and the end time of the last suspension."""
    if gang is None:
        return ""
    resumed = condition(gang, "Suspended")
    since = resumed.get("lastTransitionTime") if resumed.get("status") == "False" else None
    numbers = f"{restarts}" if execution is None else f"{restarts}:{execution}"
    return f"{numbers}/{word(since) or ''}"


_TRAINJOB: Final = "TrainJob"
_JOBSET: Final = "JobSet"


def workload_path(run: Path, attempt: int) -> Path:
    """Path of the journal of an attempt's workload states."""
    return pods_folder(run, attempt) / "workload.jsonl"


class WorkloadFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Newest state of one workload.

    Attributes:
        seen_ns: Nanoseconds since the epoch by this machine.
        kind: ``Job``, ``JobSet`` or ``TrainJob``.
        state: State by its conditions.
        created: By the API server's clock.
        gone: It was deleted.
        vanished: Deleted; ``state`` may be outdated.
    """

    seen_ns: int
    uid: str
    kind: str
    state: NativeState
    created: str | None = None
    gone: bool = False
    vanished: bool = False


def workload_facts(run: Path, attempt: int) -> dict[str, WorkloadFact]:
    """Newest facts of an attempt's workloads by UID, in order of first appearance."""
    reader: SnapshotReader[WorkloadFact] = SnapshotReader(workload_path(run, attempt), WorkloadFact)
    reader.poll()
    return reader.newest


def first_gang(facts: Mapping[str, WorkloadFact]) -> str:
    """UID of the first JobSet that Rankfall saw of a TrainJob; empty if none."""
    if not any(fact.kind == _TRAINJOB for fact in facts.values()):
        return ""
    return next((uid for uid, fact in facts.items() if fact.kind == _JOBSET), "")


def end_of(facts: Mapping[str, WorkloadFact], uid: str) -> NativeState | None:
    """Workload's observed end, or None."""
    fact = facts.get(uid)
    if fact is None or not fact.state.over:
        return None
    gang = facts.get(first_gang(facts))
    if gang is None:
        return fact.state
    return msgspec.structs.replace(fact.state, start=gang.state.start, restarts=gang.state.restarts, gang=gang.uid)
