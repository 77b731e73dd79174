"""Reads the state of a workload that Kubernetes itself restarts and ends, from its conditions.

Pure. Counters are not used: a failure counter is above zero during every restart that will succeed.
Missing or mistyped fields mean unknown, never ended.
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
    """One look at a workload.

    Attributes:
        phase: ``succeeded`` and ``failed`` by its terminal condition alone.
        start: names the start of the gang that goes on: another one when Kubernetes started it again, by a restart or after a suspension.
            Empty while none is known. Compared by :func:`same_start`, never by order.
        restarts: how often its set started the whole gang again.
        gang: UID of the JobSet of a TrainJob: another one when somebody deleted it and Trainer made it anew. Empty = there is none, or no set below it.
        reason, message: of the terminal condition.
        at: when that was set, RFC 3339 of the API.
        deleting: somebody had it deleted, and it is on its way out.
    """

    phase: Phase
    start: str = ""
    restarts: int = 0
    gang: str = ""
    reason: str | None = None
    message: str | None = None
    at: str | None = None
    deleting: bool = False

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in {"succeeded", "failed"}


def native_state(workload: Mapping[str, Any], *, inner: Mapping[str, Any] | None = None) -> NativeState:
    """What a workload's own words say.

    Args:
        workload: a Job, a JobSet or a TrainJob, as the API gave it.
        inner: the JobSet of a TrainJob, which says less than its set; None = there is none yet, or no more.
    """
    kind = str(workload.get("kind"))
    deleting = bool(mapping(workload, "metadata").get("deletionTimestamp"))
    gang = inner if kind == "TrainJob" else workload
    restarts = (number(mapping(gang, "status").get("restarts")) or 0) if gang is not None else 0
    uid = (word(mapping(inner, "metadata").get("uid")) or "") if inner is not None else ""
    # Failure first, as Kubernetes itself weighs them.
    for name, phase in (("Failed", "failed"), (_GOOD.get(kind, "Complete"), "succeeded")):
        end = condition(workload, name)
        if end.get("status") == "True":
            return NativeState(
                phase="failed" if phase == "failed" else "succeeded",
                start=_start(gang, restarts),
                restarts=restarts,
                gang=uid,
                reason=word(end.get("reason")),
                message=text(end.get("message")),
                at=word(end.get("lastTransitionTime")),
                deleting=deleting,
            )
    # Its condition is behind: right after a release it still says, or says for the first time, that the workload is suspended.
    held = any(mapping(one, "spec").get("suspend") is True for one in (workload, gang) if one is not None)
    if held or gang is None:
        return NativeState(phase="suspended" if held else "going", restarts=restarts, gang=uid, deleting=deleting)
    return NativeState(phase="going", start=_start(gang, restarts), restarts=restarts, gang=uid, deleting=deleting)


def dated(start: str) -> bool:
    """Whether its controller has said since when this start goes on."""
    return not start.endswith("/")


def same_start(one: str, other: str) -> bool:
    """Whether two looks may have seen one start of a gang: one that its controller has not dated yet is taken for the dated one."""
    restart, _, since = one.partition("/")
    restart_too, _, since_too = other.partition("/")
    return restart == restart_too and (not since or not since_too or since == since_too)


def with_job_of_set(state: NativeState, jobs: Iterable[Mapping[str, Any]]) -> NativeState:
    """The same end in the words of the job that failed: a set only names it, and the job knows why (a deadline, a rule, which pod)."""
    ends = (condition(job, "Failed") for job in jobs if _restart_of(job) == state.restarts)
    end = next((one for one in ends if one.get("status") == "True"), None)
    if end is None:
        return state
    said = [one for one in (state.message, text(end.get("message"))) if one]
    return msgspec.structs.replace(
        state, reason=word(end.get("reason")) or state.reason, message="; ".join(said)[:MAX_TEXT]
    )


def of_restart(selector: str, restart: int | None) -> str:
    """A selector of the pods that bear this number of their set's restarts; None = of all of them."""
    kept = [part for part in selector.split(",") if not part.startswith(f"{JOBSET_RESTART}=")]
    return ",".join([*kept, *([] if restart is None else [f"{JOBSET_RESTART}={restart}"])])


def _restart_of(job: Mapping[str, Any]) -> int:
    said = number(mapping(mapping(job, "metadata"), "labels").get(JOBSET_RESTART))
    return -1 if said is None else said


def _start(gang: Mapping[str, Any] | None, restarts: int) -> str:
    """A restart counts up, and the end of a suspension has a time of its own: two of both are two starts."""
    if gang is None:
        return ""
    resumed = condition(gang, "Suspended")
    since = resumed.get("lastTransitionTime") if resumed.get("status") == "False" else None
    return f"{restarts}/{word(since) or ''}"


_TRAINJOB: Final = "TrainJob"
_JOBSET: Final = "JobSet"


def workload_path(run: Path, attempt: int) -> Path:
    """Where the states of an attempt's workload lie in its run directory."""
    return pods_folder(run, attempt) / "workload.jsonl"


class WorkloadFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest state of one workload.

    Attributes:
        seen_ns: when it was seen, nanoseconds since the epoch by this machine's clock.
        kind: ``Job``, ``JobSet`` or ``TrainJob``.
        state: by its own conditions.
        created: by the API server's clock.
        gone: it is no longer there.
        vanished: it is gone, and ``state`` is older than that: nobody saw its last one.
    """

    seen_ns: int
    uid: str
    kind: str
    state: NativeState
    created: str | None = None
    gone: bool = False
    vanished: bool = False


def workload_facts(run: Path, attempt: int) -> dict[str, WorkloadFact]:
    """What was seen of the workloads of an attempt, by UID, in the order in which they were first seen."""
    reader: SnapshotReader[WorkloadFact] = SnapshotReader(workload_path(run, attempt), WorkloadFact)
    reader.poll()
    return reader.newest


def first_gang(facts: Mapping[str, WorkloadFact]) -> str:
    """UID of the JobSet that a TrainJob's pods were first seen of; empty while none was."""
    if not any(fact.kind == _TRAINJOB for fact in facts.values()):
        return ""
    return next((uid for uid, fact in facts.items() if fact.kind == _JOBSET), "")


def end_of(facts: Mapping[str, WorkloadFact], uid: str) -> NativeState | None:
    """How a workload ended by its own conditions, where that was seen before it was gone."""
    fact = facts.get(uid)
    if fact is None or not fact.state.over:
        return None
    gang = facts.get(first_gang(facts))
    if gang is None:
        return fact.state
    return msgspec.structs.replace(fact.state, start=gang.state.start, restarts=gang.state.restarts, gang=gang.uid)
