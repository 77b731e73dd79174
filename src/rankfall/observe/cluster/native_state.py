"""Where a workload stands that Kubernetes itself restarts and ends: read from its conditions, never from its counters.

A counter of failures is above zero for a moment in every restart that will succeed, so only the workload's own terminal condition ends a run.
Whatever is missing or of a wrong type is unknown, never an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from rankfall.kube.fields import MAX_TEXT, condition, mapping, number, text, word
from rankfall.kube.labels import JOBSET_RESTART

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
