"""Stops an attempt whose deadline is over or that makes no progress (hang).

Progress is output, a record or a step. A hang is the longer of ``hang_timeout_s`` and five step times without progress.
Importing ranks get at most 1 h. Stacks are collected before the stop.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from rankfall.backends.protocol import Backend
from rankfall.evidence.attempt.observer import Delta
from rankfall.model import RankFacts, SlotFacts
from rankfall.model.verdict import HANG
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attempt.completion import SettleWindow
from rankfall.supervisor.attempt.end import AttemptEnd
from rankfall.supervisor.attempt.view import AttemptScope
from rankfall.supervisor.deadlines import DeadlineWatch, Passed, deadline_diagnosis, deadline_evidence
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import EventLog

# Seconds after which imports count as a hang.
IMPORT_LIMIT_S: Final = 3600.0
_NS: Final = 1_000_000_000
# A hang lasts longer than so many step times: slow steps and checkpoints are none.
STEP_TIMES: Final = 5
# Newest step times whose median counts.
_STEPS_KEPT: Final = 32


class StepTime:
    """Measures the time between two advances of a gang's newest step.

    One report may cover several steps; then its interval counts, because nothing is visible between two reports.
    """

    def __init__(self) -> None:
        self._front: int | None = None
        self._at: int | None = None
        self._gaps: deque[int] = deque(maxlen=_STEPS_KEPT)

    def see(self, now: int, steps: Iterable[int | None]) -> None:
        """Records the steps of one poll; ``now`` in nanoseconds. Steps that go back begin a new count."""
        front = max((step for step in steps if step is not None), default=None)
        if front is None or front == self._front:
            return
        if self._at is not None and self._front is not None and front > self._front:
            self._gaps.append(now - self._at)
        self._front, self._at = front, now

    def pause(self) -> None:
        """Excludes the time until the next step, in which the gang is incomplete."""
        self._at = None

    @property
    def median(self) -> int | None:
        """Median of the newest intervals in nanoseconds; None before the second step."""
        return round(statistics.median(self._gaps)) if self._gaps else None


class HangWatch:
    """Tracks the last progress of one attempt; ``timeout_s`` None disables the check.

    The step time is that of reported steps, else that of steps printed by the streams.
    """

    def __init__(self, timeout_s: float | None, *, start: int) -> None:
        self._timeout = None if timeout_s is None else round(timeout_s * _NS)
        self._reported, self._printed = StepTime(), StepTime()
        self._progress = start
        self._busy = start
        self._steps: dict[tuple[int, int | None], int] = {}
        # Imports at the last check, begin of checks, and growth factor of the interval.
        self._imports: dict[Any, str] = {}
        self._importing_since: int | None = None
        self._seldom = 1

    def see(
        self, now: int, *, fresh: bool, ranks: Collection[RankFacts], activity: int, printed: int | None = None
    ) -> None:
        """Records one poll.

        ``fresh``: output or records arrived. ``activity``: time of the newest activity, CPU work of all ranks included.
        ``printed``: newest step in the streams' lines. Times in nanoseconds since the epoch.
        """
        if fresh:
            self._progress, self._seldom = now, 1
        self._reported.see(now, (facts.step for facts in ranks if facts.state == "running"))
        self._printed.see(now, (printed,))
        for facts in ranks:
            key = (facts.rank, facts.pid)
            if facts.step is not None and facts.step > self._steps.get(key, -1):
                self._steps[key] = facts.step
                self._progress, self._seldom = now, 1
        self._busy = max(self._busy, min(activity, now))

    def hold(self, now: int) -> None:
        """Restarts the timer for an incomplete gang."""
        self._progress = max(self._progress, now)
        self._reported.pause()
        self._printed.pause()

    def goes_on(self, now: int, imports: Mapping[Any, str]) -> bool:
        """Returns True, and extends the time, if the apparent hang is an import that advances."""
        if self._steps or not imports:
            return False
        since = self._importing_since = now if self._importing_since is None else self._importing_since
        moved = any(self._imports.get(process) != where for process, where in imports.items())
        if not moved or now - since >= IMPORT_LIMIT_S * _NS:
            return False
        self._seldom *= 2 if self._imports else 1
        self._imports = dict(imports)
        self._progress = now
        return True

    def quiet_for(self, now: int) -> float:
        """Returns the seconds since the last sign of progress."""
        last = self._progress if self._steps else max(self._progress, self._busy)
        return max(0, now - last) / _NS

    @property
    def step_ns(self) -> int | None:
        """Step time of the job in nanoseconds; None if unknown."""
        return self._reported.median or self._printed.median

    @property
    def limit_ns(self) -> int | None:
        """Nanoseconds without progress that are a hang; None = never."""
        if self._timeout is None:
            return None
        return max(self._timeout * self._seldom, STEP_TIMES * (self.step_ns or 0))

    @property
    def limit_text(self) -> str:
        """Limit and its reason for users."""
        floor, step, limit = self._timeout or 0, self.step_ns or 0, self.limit_ns or 0
        if STEP_TIMES * step > floor * self._seldom:
            return f"{limit / _NS:.0f} s, {STEP_TIMES} times the job's step time of {step / _NS:.1f} s"
        times = f", {self._seldom} times" if self._seldom > 1 else ","
        return f"{limit / _NS:.0f} s{times} hang_timeout_s"

    def hung(self, now: int) -> bool:
        """True if the time without progress is over."""
        limit = self.limit_ns
        return limit is not None and self.quiet_for(now) * _NS >= limit

    def late(self, now: int) -> bool:
        """True if only the job's step time prevents a hang."""
        floor = self._timeout
        return floor is not None and floor * self._seldom <= self.quiet_for(now) * _NS and not self.hung(now)


# Seconds for ranks to write stacks; an exec in a busy pod takes seconds. Seconds between checks.
_STACKS_S: Final = 15.0
_STEP_S: Final = 0.02
# Seconds until a recovered pod watch counts as complete.
_SIGHT_S: Final = 5.0


class TimeoutWatch:
    """Checks deadlines and hangs of one attempt; ``total_at``: total deadline, nanoseconds since the epoch, or None."""

    def __init__(
        self,
        scope: AttemptScope,
        *,
        attempt_end: AttemptEnd,
        run: str,
        backend: Backend,
        control: Control,
        events: EventLog,
        window: SettleWindow,
        started: int,
        total_at: int | None,
    ) -> None:
        self._scope = scope
        self._attempt_end = attempt_end
        self._run = run
        self._backend = backend
        self._control = control
        self._events = events
        self._window = window
        self._deadlines = DeadlineWatch(scope.spec.deadlines, started=started, total_at=total_at)
        self._blind = False
        # Last time without pod watch, monotonic.
        self._blind_at: float | None = None
        # True while the run's state names a slow step.
        self._waits = False
        self._hang = HangWatch(scope.spec.policies.hang_timeout_s, start=time.time_ns())

    def look(self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        """Checks deadlines and hangs once; an open settle window excludes a hang."""
        if self._is_blind(now):
            # Without the pod watch nothing missing is certain.
            self._hang.hold(now)
        passed = self._deadlines.passed(now, absent=0 if self._blind else self._absent(ranks))
        if passed is not None:
            self._late(passed, ranks)
        elif self._window.opened is None:
            self._watch_hang(delta, slots, ranks, now=now)

    def _is_blind(self, now: int) -> bool:
        """True if the pods cannot be watched, or could not until a moment ago; reports that wait."""
        clock = time.monotonic()
        if self._scope.blind:
            self._blind_at = clock
        blind = self._blind_at is not None and clock - self._blind_at < _SIGHT_S
        if blind and self._deadlines.passed(now, absent=self._absent(self._scope.ranks())) is not None:
            text = "the startup deadline has passed; it takes effect when the pods can be watched again"
            self._scope.wait("pods", text, now=now)
        elif self._blind and not blind:
            self._scope.waited(now=now)
        self._blind = blind
        return blind

    def _watch_hang(
        self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> None:
        if self._waits_for_slots(slots):
            self._hang.hold(now)
            return
        fresh = bool(delta.bytes or delta.records)
        self._hang.see(
            now, fresh=fresh, ranks=ranks, activity=self._scope.observer.last_activity, printed=delta.printed_step
        )
        if self._hang.hung(now):
            self._end_wait(now)
            self._stuck(f"no progress for {self._hang.quiet_for(now):.0f} s", ranks)
        elif self._hang.late(now):
            if not self._waits:
                self._waits = True
                quiet = f"no progress for {self._hang.quiet_for(now):.0f} s"
                self._scope.wait("steps", f"{quiet}; a hang is {self._hang.limit_text}", now=now)
        else:
            self._end_wait(now)

    def _end_wait(self, now: int) -> None:
        if self._waits:
            self._waits = False
            self._scope.waited(now=now)

    def _waits_for_slots(self, slots: tuple[SlotFacts, ...]) -> bool:
        """True if slots are missing; the backend answers for slots without a record."""
        plan, spec = self._scope.plan, self._scope.spec
        late = [s.slot for s in slots if s.state == "expected"]
        spare = len(slots) - spec.nnodes if spec.elastic else 0
        if len(late) <= spare:
            return False
        return sum(self._backend.life(plan, slot) in {"absent", "starting"} for slot in late) > spare

    def _absent(self, ranks: tuple[RankFacts, ...]) -> int:
        """Number of ranks that have never appeared."""
        plan, spec = self._scope.plan, self._scope.spec
        wanted = 1
        if plan.launcher != "exec":
            each = {part.name: part.spec.nproc_per_node for part in spec.parts if part.in_world}
            slots = [slot.role for slot in plan.slots if slot.role in each]
            wanted = sum(each[role] for role in (slots[: spec.nnodes] if spec.elastic else slots))
        return max(0, wanted - len({r.rank for r in ranks}))

    def _late(self, passed: Passed, ranks: tuple[RankFacts, ...]) -> None:
        """Handles an expired deadline; a failure in its settle window takes precedence."""
        plan = self._scope.plan
        self._events.say("deadline", passed.text, at=passed.at, attempt=plan.attempt, deadline=passed.field)
        if self._window.opened is not None:
            self._attempt_end.stop(passed.text)
            return
        missing: tuple[str, ...] = ()
        if passed.which == "startup":
            self._take_stacks(ranks)
            case = self._attempt_end.case(hung=True)
            found = diagnose_by(plan.strategy, case)
            if found.verdict.cause.confidence == "proven":
                # An image that cannot be pulled is no matter of time.
                self._attempt_end.settle(found, reason=passed.text)
                return
            missing = (*case.missing, *found.verdict.missing)
        self._scope.add_own_evidence(deadline_evidence(passed, attempt=plan.attempt))
        verdict = deadline_diagnosis(
            passed,
            run=self._run,
            attempt=plan.attempt,
            role=self._scope.spec.one_role,
            missing=tuple(dict.fromkeys(missing)),
        )
        self._attempt_end.settle(verdict, reason=passed.text)

    def _stuck(self, why: str, ranks: tuple[RankFacts, ...]) -> None:
        """Collects stacks, diagnoses, then stops; not if ranks moved or import."""
        plan = self._scope.plan
        quiet = self._hang.quiet_for(time.time_ns())
        if plan.launcher == "torchrun" and (absent := self._absent(ranks)):
            # A launcher may still import torch or wait in the rendezvous; ``startup_s`` limits it.
            now = time.time_ns()
            text = f"{why}: {absent} ranks have not started yet; only torchrun's limit and deadlines.startup_s end this wait"
            self._events.say("waiting", text, at=now, attempt=plan.attempt)
            self._hang.hold(now)
            return
        moved = self._take_stacks(ranks)
        now, imports = time.time_ns(), self._scope.observer.importing()
        if moved:
            self._hang.see(now, fresh=True, ranks=self._scope.ranks(), activity=now)
            self._scope.observer.forget_stacks()
            return
        if self._hang.goes_on(now, imports):
            text = f"{why}, and {len(imports)} of {len(ranks)} ranks are still importing: they are checked again"
            self._events.say("waiting", text, at=now, attempt=plan.attempt)
            self._scope.observer.forget_stacks()
            return
        step, limit = self._hang.step_ns, self._hang.limit_ns
        self._events.say(
            "hang",
            f"{why} (limit: {self._hang.limit_text})",
            at=now,
            attempt=plan.attempt,
            quiet_s=round(quiet, 3),
            limit_s=None if limit is None else limit / _NS,
            step_s=None if step is None else round(step / _NS, 3),
        )
        case = self._attempt_end.case(hung=True)
        if self._control.asked:
            # The next poll ends the run.
            return
        case = msgspec.structs.replace(case, missing=(*case.missing, f"{HANG}{why}"))
        self._attempt_end.settle(diagnose_by(plan.strategy, case), reason=why)

    def _take_stacks(self, ranks: tuple[RankFacts, ...]) -> bool:
        """Collects stacks; returns True if a rank printed, advanced or ended meanwhile."""
        awaited = {(r.slot, r.pid): r.step for r in ranks if r.state == "running"}
        self._scope.observer.read_records()
        plan = self._scope.plan
        self._backend.request_stacks(plan, [s.slot for s in plan.slots])
        deadline = time.monotonic() + _STACKS_S
        moved = False
        while awaited and time.monotonic() < deadline:
            self._control.wait(_STEP_S)
            if self._control.asked:
                # The request for stacks is obsolete.
                return True
            delta = self._scope.look()
            now = {(r.slot, r.pid): r for r in self._scope.ranks()}
            over = {key for key in awaited if key not in now or now[key].state != "running"}
            moved = moved or bool(delta.bytes or over)
            moved = moved or any(key in now and now[key].step != step for key, step in awaited.items())
            answered = {(record.slot, record.pid) for record in delta.records if record.kind == "stacks"}
            awaited = {key: step for key, step in awaited.items() if key not in over | answered}
        return moved
