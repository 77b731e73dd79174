"""Diagnoses starts that Kubernetes ended and single pods that it replaced.

API conditions never name the first rank, so recorded evidence precedes them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.model import Case, Diagnosis, Evidence, SlotFacts, numbers
from rankfall.model.evidence import digest
from rankfall.model.exit_codes import CAUSE_CODES, SIGNALLED
from rankfall.model.foreign import FOREIGN
from rankfall.model.patterns import bounded
from rankfall.model.timestamps import rfc3339
from rankfall.rundir import RunDir, SlotFailure, SlotFailureRow
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact, stamp_ns
from rankfall.rundir.cluster.workload_state import NativeState
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attempt_facts import AttemptWriter, SlotStates
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.deadlines import Passed, deadline_diagnosis
from rankfall.supervisor.run_events import EventLog

_DEADLINE: Final = "DeadlineExceeded"
_LINE: Final = 1000
_MAX_LISTED: Final = 8
# As "Container main for pod here/train-0-x7k2p failed with exit code 203 matching FailJob rule at index 0".
_CODE: Final = bounded(r"failed with exit code (\d{1,3})\b", limit=4_096)
# Form of a container's end in ``PodFact.others``.
_OTHER_END: Final = ": exit code "
_AFTER_STOP: Final = frozenset({SIGNALLED + 15, SIGNALLED + 9})
# The wrapper's certain codes (``rankfall_inside.exit_codes``), with their likeliest cause.
_CAUSE_OF_CODE: Final = MappingProxyType(
    {
        CAUSE_CODES["user"]: "user_code_exception",
        CAUSE_CODES["import_error"]: "import_error",
        CAUSE_CODES["user_retryable"]: "retryable_exception",
        CAUSE_CODES["memory"]: "host_oom",
        CAUSE_CODES["gpu_oom"]: "gpu_oom",
        CAUSE_CODES["disk_full"]: "disk_full",
        CAUSE_CODES["native_crash"]: "native_abort",
        CAUSE_CODES["killed"]: "killed_unknown",
        CAUSE_CODES["startup"]: "command_not_found",
    }
)
# The wrapper's code after an external SIGTERM.
_STOPPED: Final = CAUSE_CODES["control"]
_NAMES: Final[dict[int | None, str]] = {code: name for name, code in CAUSE_CODES.items()}


def fallen(case: Case, *, state: NativeState | None, label: str, strategy: str, unseen: str | None) -> Diagnosis:
    """Returns the diagnosis of a failed start.

    ``state`` is None if another start follows; ``unseen`` explains missing lines, or is None.
    """
    pieces = [piece for facts in case.slots if (piece := _of_code(facts, case)) is not None]
    codes = [facts.exit_code for facts in case.slots]
    if state is not None:
        pieces.append(_of_condition(state, label=label, attempt=case.attempt))
        codes.append(pieces[-1].exit_code)
    notes = []
    if unseen is not None:
        known = sorted({code for code in codes if code is not None and code in _NAMES and case.backend != FOREIGN})
        notes = [
            unseen,
            *(f"more than exit code {code} for the group of causes {_NAMES[code]}" for code in known),
        ]
    whole = msgspec.structs.replace(
        case, ended=True, succeeded=False, evidence=(*case.evidence, *pieces), missing=(*notes, *case.missing)
    )
    found = diagnose_by(strategy, whole)
    if state is None or state.reason != _DEADLINE or found.verdict.cause.confidence == "proven":
        return found
    at = stamp_ns(state.at) or 0
    passed = Passed(
        which="attempt", at=at, text=f"{label}: {state.reason}: {state.message or 'the deadline has passed'}"[:_LINE]
    )
    return deadline_diagnosis(
        passed, run=case.run or "", attempt=case.attempt or 1, role=case.role or "", missing=whole.missing
    )


def why_unrecorded(
    run_dir: RunDir, slots: Iterable[SlotFacts], pods: Collection[PodFact], *, attempt: int
) -> str | None:
    """Explains missing data of pods that no process followed; None if there are none."""
    run, foreign = run_dir.id, run_dir.foreign
    if pods:
        seen = {fact.slot for fact in pods}
        unseen = [facts.slot for facts in slots if facts.slot not in seen]
        return _without_pods(unseen, label=foreign.target.label) if foreign is not None else None
    how = (
        f"keep rankfall attach {run} (or rankfall wait) running, or leave unattended out"
        if foreign is None
        else f"keep rankfall logs -f {foreign.target.label} running while the job runs"
    )
    return f"lines and records of attempt {attempt}: no process recorded it when it failed, and its pods no longer exist; next time {how}"


def ended_before_deletion(run: Path, *, attempt: int, slot: int | None) -> bool:
    """True if a snapshot shows that a slot's container failed by itself before a request to delete its pod."""
    facts = JournalReader(journal_path(run, attempt)).poll() if slot is not None else ()
    return any(
        fact.slot == slot
        and fact.deleting is None
        and not fact.gone
        and fact.main is not None
        and fact.main.state == "terminated"
        and fact.main.exit_code not in {None, 0, *_AFTER_STOP}
        for fact in facts
    )


def of_other_containers(
    slots: Collection[SlotFacts], pods: Collection[PodFact], *, attempt: int
) -> tuple[Evidence, ...]:
    """Returns evidence that another container failed a pod whose training container ended well.

    A cause if no slot failed, else context.
    """
    good = {facts.slot for facts in slots if facts.state == "ended" and facts.exit_code == 0 and facts.signal is None}
    found = []
    for fact in pods:
        ends = [(code, text) for text in fact.others if (code := _code_at_end(text)) is not None]
        if fact.phase != "Failed" or fact.slot not in good or not ends:
            continue
        # Sidecars stop after the others.
        own = [end for end in ends if end[0] not in _AFTER_STOP] or ends
        found += [
            Evidence(
                id=digest("container", attempt, fact.uid, text),
                source="pod",
                slug="user_exit",
                role="primary" if len(good) == len(slots) else "context",
                trust="platform",
                slot=fact.slot,
                node=fact.node,
                where=f"pod/{fact.name}",
                line=f"container {text}; the ranks of this pod ended with 0"[:_LINE],
                specificity=30,
                fingerprint="user_exit:container",
                exit_code=code,
                attempt=attempt,
            )
            for code, text in own
        ]
    return tuple(found)


def _code_at_end(text: str) -> int | None:
    _, found, code = text.rpartition(_OTHER_END)
    return numbers.whole(code, digits=3) if found else None


def stopped_slot(facts: SlotFacts, *, ours: bool) -> SlotFacts:
    """Returns a slot's facts after the end of its start: ``unknown`` if its pod vanished unobserved.

    ``ours``: Rankfall stopped the run, so a wrapper's exit code for a requested stop is no failure.
    """
    if facts.state == "expected":
        return msgspec.structs.replace(facts, state="unknown")
    if not ours or facts.exit_code != _STOPPED:
        return facts
    return msgspec.structs.replace(facts, killed_by=facts.killed_by or "wrapper")


def _without_pods(slots: Sequence[int], *, label: str) -> str | None:
    """Describes missing data of a foreign job's slots without pods; None if there are none."""
    if not slots:
        return None
    named = ", ".join(map(str, slots[:_MAX_LISTED])) + (
        f" and {len(slots) - _MAX_LISTED} more" if len(slots) > _MAX_LISTED else ""
    )
    return (
        f"lines and states of slot{'s' if len(slots) > 1 else ''} {named}: they had no pod when Rankfall listed the pods; "
        f"next time keep rankfall logs -f {label} running while the job runs"
    )


def _of_code(facts: SlotFacts, case: Case) -> Evidence | None:
    """Returns a cause from the wrapper's exit code if its records did not arrive, else None."""
    # Without a wrapper the codes have no meaning.
    slug = _CAUSE_OF_CODE.get(facts.exit_code or 0) if case.backend != FOREIGN else None
    known = any(piece.slot == facts.slot and piece.source != "exit" for piece in case.evidence)
    if slug is None or known or facts.signal is not None:
        return None
    return Evidence(
        id=digest("native_code", case.attempt, facts.slot),
        source="pod",
        slug=slug,
        role="primary",
        # Any program may use such a code.
        trust="job",
        slot=facts.slot,
        node=facts.node,
        at=facts.ended_at,
        uncertainty=1.0,
        where=facts.where,
        line=f"exit code {facts.exit_code}: a cause of group {_NAMES[facts.exit_code]}",
        specificity=20,
        fingerprint=f"{slug}:code",
        exit_code=facts.exit_code,
        attempt=case.attempt,
    )


def _of_condition(state: NativeState, *, label: str, attempt: int | None) -> Evidence:
    """End condition as evidence; it never shows which rank failed first."""
    match = _CODE.search(state.message or "")
    return Evidence(
        id=digest("native_end", attempt, state.reason, state.message),
        source="event",
        slug="controller_verdict",
        role="secondary",
        trust="platform",
        at=stamp_ns(state.at),
        uncertainty=1.0,
        stamped="server",
        where=label,
        line=f"{state.reason}: {state.message or ''}"[:_LINE],
        specificity=10,
        fingerprint=f"controller_verdict:{state.reason}",
        exit_code=numbers.matched(match[1]) if match else None,
        attempt=attempt,
    )


RULE: Final = "native"


class ReplacedPods:
    """The replaced slots of one attempt; does nothing if ``alone`` is empty."""

    def __init__(
        self,
        plan: Plan,
        *,
        alone: Collection[int],
        observer: AttemptObserver,
        slot_states: SlotStates,
        writer: AttemptWriter,
        run_store: BestEffortStore,
        events: EventLog,
    ) -> None:
        self._plan = plan
        self._alone = frozenset(alone)
        self._observer = observer
        self._slot_states = slot_states
        self._writer = writer
        self._run_store = run_store
        self._events = events

    def look(self, slots: Iterable[SlotFacts], pods: Iterable[PodFact]) -> bool:
        """Switches each failed slot to its next pod; True if any was switched."""
        made: dict[int, int] = {}
        for pod in pods if self._alone else ():
            if pod.slot is not None:
                made[pod.slot] = made.get(pod.slot, 0) + 1
        moved = [facts for facts in slots if _fell(facts) and made.get(facts.slot, 0) > facts.instance + 1]
        for facts in moved:
            self._go_over(facts)
        return bool(moved)

    def _go_over(self, facts: SlotFacts) -> None:
        now, slot = time.time_ns(), facts.slot
        case = msgspec.structs.replace(self._observer.case(only=slot), slots=(facts,), ended=True, succeeded=False)
        found = diagnose_by(self._plan.strategy, case)
        fall = SlotFailure(
            action="retry",
            rule=RULE,
            because="Kubernetes replaced its pod by itself",
            at=rfc3339(now),
            slot=slot,
            instance=facts.instance,
            diagnosis=found,
            evidence=self._observer.evidence_of(slot),
            due=now,
        )
        self._writer.store(force=True)
        number = self._run_store.add_decision(self._plan.attempt, fall)
        self._run_store.decision_done(SlotFailureRow(id=number or 0, attempt=self._plan.attempt, fall=fall), at=now)
        cause = found.verdict.cause
        self._events.say(
            "fall",
            f"slot {slot} failed: {cause.slug} ({cause.confidence}); retry: {fall.because}, the others continue",
            at=now,
            attempt=self._plan.attempt,
            slot=slot,
            instance=facts.instance,
            slug=cause.slug,
            rule=RULE,
        )
        self._observer.select_start(slot, facts.instance + 1)
        self._plan = self._plan.with_start(slot, facts.instance + 1)
        self._slot_states.start_again(self._plan, slot)


def _fell(facts: SlotFacts) -> bool:
    return facts.state == "lost" or (facts.state == "ended" and bool(facts.signal or facts.exit_code))
