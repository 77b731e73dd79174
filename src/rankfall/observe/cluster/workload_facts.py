"""What was seen of the workload of an attempt, and of a TrainJob its JobSet: how each of them ended, and which JobSet came first.

One line of JSON a change, in ``workload.jsonl`` of the attempt, written by its watch and read by anybody at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.observe.cluster.looks import LookReader
from rankfall.observe.cluster.native_state import NativeState
from rankfall.observe.cluster.places import pods_folder

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
    reader: LookReader[WorkloadFact] = LookReader(workload_path(run, attempt), WorkloadFact)
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
