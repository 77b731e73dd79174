"""Watches one attempt from its first slot to its diagnosis. Everything it needs to go on after a kill stands in the run directory.

Refuses nothing and decides nothing: it waits as long as the job lives, stops the rest when one part fell, and says what happened.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.diagnose import stopped_by_wish
from rankfall.model import Case, Diagnosis, Evidence, InfrastructureError, JobSpec, RankFacts, SlotFacts
from rankfall.model.sizes import sized
from rankfall.observe.attempt import AttemptObserver, Delta
from rankfall.observe.cluster.open import Feed
from rankfall.observe.cluster.stops import mark_stop, read_stop
from rankfall.observe.gang import present_case
from rankfall.observe.strategies import diagnose_by
from rankfall.store import FallRow, RunDir
from rankfall.store.resizes import ResizeRequest
from rankfall.supervise.control import Control, read_cancel
from rankfall.supervise.deadlines import DeadlineWatch, Passed, deadline_diagnosis, deadline_evidence
from rankfall.supervise.events import EventLog
from rankfall.supervise.hang import HangWatch
from rankfall.supervise.keeping import Keeper
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.members import Members
from rankfall.supervise.news import BadEnd, News, bad_ends
from rankfall.supervise.outside import OutsideHold
from rankfall.supervise.replicas import Decide, Replicas
from rankfall.supervise.resizing import resized_diagnosis, unmet
from rankfall.supervise.set_stop import stop_by_set
from rankfall.supervise.settle import SettleWindow
from rankfall.supervise.sheets import Sheets
from rankfall.supervise.starting import FULL_BYTES, free_bytes, start_failure
from rankfall.supervise.stopping import Stopping
from rankfall.supervise.success import SuccessWatch
from rankfall.supervise.survival import Survival
from rankfall.supervise.suspension import before_the_end, read_suspension

# Between two looks: while something falls or stops, while ranks start, while the job just runs.
_FAST_S: Final = 0.02
_START_S: Final = 0.05
_SLOW_S: Final = 0.15
# Looking takes a tenth of this process's time at most, but is done about once a second.
_SPARING: Final = 9.0
_SELDOM_S: Final = 1.0
_STACKS_S: Final = 5.0
# How long slots may take to stop before the verdict is told without waiting for their last words.
_PATIENCE_S: Final = 0.7
# How long the kubelet may take to say how a container ended.
_LAST_STATE_S: Final = 10.0
_WAIT_FIRST_NS: Final = 5_000_000_000
_WAIT_LOOK_NS: Final = 2_000_000_000
_WAIT_AGAIN_NS: Final = 60_000_000_000
_MAX_TROUBLES: Final = 100
_MAX_LAST_LOOKS: Final = 100_000


class AttemptWatch:
    """One attempt of one run.

    Args:
        run_dir: the run.
        plan: of this attempt, submitted or about to be.
        backend: that planned it.
        ledger: of the run's lease.
        events: for viewers.
        control: wishes of this process.
        started: when the attempt began, nanoseconds since the epoch.
        total_at: when the run's total deadline is over, likewise; None = never.
        falls: what was decided about slots that fell alone, in any attempt; those of this one are added to it.
        decide: what to do about a slot that fell alone; called for slots that are started again alone only.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        plan: Plan,
        backend: Backend,
        ledger: Ledger,
        events: EventLog,
        control: Control,
        started: int,
        total_at: int | None = None,
        falls: list[FallRow],
        decide: Decide,
    ) -> None:
        self._run_dir = run_dir
        self._spec: JobSpec = sized(run_dir.spec, plan.sizes)
        self._plan = plan
        self._backend = backend
        self._ledger = ledger
        self._events = events
        self._control = control
        self._started = started
        self._observer = AttemptObserver(
            run_dir,
            spec=self._spec,
            attempt=plan.attempt,
            # In a pod it may only be found out which one can be used; its wrapper's records tell.
            launcher=plan.launcher if plan.cluster is None else None,
            spare_listing=plan.cluster is None,
        )
        self._troubles: deque[str] = deque(maxlen=_MAX_TROUBLES)
        self._feed = Feed(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
            trouble=self._troubles.append,
        )
        self._sheets = Sheets(plan, backend=backend, observer=self._observer, ledger=ledger)
        self._keeper = Keeper(ledger, attempt=plan.attempt, observer=self._observer, sheets=self._sheets)
        self._replicas = Replicas(
            plan,
            alone=self._spec.alone,
            falls=falls,
            backend=backend,
            observer=self._observer,
            sheets=self._sheets,
            keeper=self._keeper,
            ledger=ledger,
            events=events,
            decide=decide,
            grace=self._spec.policies.grace_s,
        )
        self._plan = self._replicas.plan
        self._members = Members(self._spec, plan=plan, backend=backend, ledger=ledger, events=events, started=started)
        self._survival = Survival(least=self._spec.nnodes, strategy=plan.strategy)
        self._success = SuccessWatch(self._spec.success, launcher=plan.launcher, head=self._spec.head_slot)
        self._deadlines = DeadlineWatch(self._spec.deadlines, started=started, total_at=total_at)
        self._news = News(events, attempt=plan.attempt, launcher=plan.launcher)
        self._window = SettleWindow(self._spec.policies)
        self._hang = HangWatch(self._spec.policies.hang_timeout_s, start=time.time_ns())
        self._stopping: Stopping | None = None
        self._own_evidence: list[Evidence] = []
        self._running = False
        self._waits: str | None = None
        self._outside = OutsideHold(run_dir, plan=plan, backend=backend)
        self._queued = False
        # The first pods of any job wait for a moment; that is no news.
        self._waits_due = started + _WAIT_FIRST_NS
        self._waits_again = 0
        self._said_early = False
        self._verdict: Diagnosis | None = None
        self._cancelled: str | None = None
        self._suspended: str | None = None
        self._resized: ResizeRequest | None = None
        self._draining = False

    @property
    def plan(self) -> Plan:
        """The attempt's plan as it is now: slots may have joined or left."""
        return self._plan

    def run(self, *, settled: Diagnosis | None = None) -> Diagnosis | None:
        """Watch to the end.

        Args:
            settled: a verdict that an earlier supervisor of this attempt had stored; it stands, the slots are only brought to their end.

        Returns:
            The diagnosis, with state succeeded, failed, cancelled, suspended or (for another size) restarting; None when this process let go of the run.
        """
        self._verdict = settled
        self._feed.start()
        try:
            began = time.monotonic()
            while not self._look():
                if self._control.wish is not None:
                    self._keeper.store(force=True)
                    return None
                self._control.wait(self._pause(time.monotonic() - began))
                began = time.monotonic()
            found = self._conclude()
            self._see_pods_off()
            return found
        finally:
            self._feed.stop()

    def _see_pods_off(self) -> None:
        """Wait for the last state of pods: it comes a moment after the wrappers' own last words, and goes with the pods."""
        deadline = time.monotonic() + _LAST_STATE_S
        while self._plan.cluster is not None and time.monotonic() < deadline:
            slots = [slot.slot for slot in self._plan.slots if not self._replicas.waits(slot.slot)]
            if not any(self._backend.alive(self._plan, slot) for slot in slots):
                return
            self._control.wait(_START_S)

    def refused(self, evidence: Evidence) -> None:
        """Take in that a slot could not be started: the attempt ends with this as its cause."""
        self._witness(evidence)
        self.without_the_rest()
        self._stop("a slot could not be started")

    def without_the_rest(self) -> None:
        """Slots that were not started until now will not be any more: they count as lost."""
        self._sheets.without_the_rest()

    def _tell_waits(self, now: int) -> None:
        """Why the attempt does not begin, with how long it has waited: the first time, when the reason changes, and every minute."""
        if self._running or self._stopping is not None or now < self._waits_due:
            return
        text = self._observer.waits()
        if text is None:
            text = self._outside.waits()
            self._queued = text is not None
        age = (now - self._started) / 1e9
        if text is not None and (text != self._waits or now >= self._waits_again):
            self._waits, self._waits_again = text, now + _WAIT_AGAIN_NS
            self._events.say("waiting", f"{text} (for {age:.0f} s)", at=now, attempt=self._plan.attempt)
            self._ledger.set_run("queued" if self._queued else "starting", reason=text, at=now)
        self._waits_due = now + _WAIT_LOOK_NS

    def _tell_troubles(self) -> None:
        """What the feeds had to say; they run in threads of their own."""
        while self._troubles:
            self._events.say("gap", self._troubles.popleft(), at=time.time_ns(), attempt=self._plan.attempt)

    # -- one look

    def _look(self) -> bool:
        """One look at everything; True when all slots have ended."""
        now, clock = time.time_ns(), time.monotonic()
        self._tell_troubles()
        delta = self._observer.poll(now)
        self._tell_waits(now)
        self._step_members(clock)
        slots, ranks = self._sheets.slots(), self._members.ranks(self._observer.ranks())
        self._mark_sets_stop(slots)
        judged = self._stopping is None and self._window.opened is None and self._verdict is None
        if judged:
            # Who fell alone and may be started again has not ended.
            slots, told = self._replicas.masked(slots), slots
        else:
            told = slots
        standing = self._success.see(slots, ranks, now=now) if judged or self._success.reached else "open"
        if (
            judged
            and standing == "open"
            and self._spec.elastic
            and self._is_done_without_late_ones(slots, ranks, now=now)
        ):
            standing = "reached"
            told = slots = self._sheets.slots()
        self._news.calm = standing == "reached"
        self._take(delta, told, ranks, now=now)
        self._keeper.store()
        bad = frozenset[BadEnd]()
        if standing == "open":
            bad = self._members.bad(slots, ranks)
        self._watch_wishes()
        self._watch_hold(slots, ranks, bad)
        left = {s.slot for s in slots if s.state not in {"ended", "lost"}}
        fallen = bad if told is slots else bad_ends(told, ranks, launcher=self._plan.launcher)
        if fallen or not left:
            self._watch_outside(told, ranks, fallen, last=not left)
        if judged and self._stopping is None and standing != "reached":
            self._restart_alone(told, ranks, bad, news=delta.changed, clock=clock)
        left -= {slot for slot in left if self._stopping is not None and self._replicas.waits(slot)}
        leaving = self._members.leaving
        if not left:
            if not leaving:
                return True
            self._stop("the gang has ended")
        if self._stopping is not None:
            self._stopping.step(left | leaving, now=clock)
            self._say_early(clock)
            return False
        if self._verdict is not None:
            self._stop("its verdict was reached before")
            return False
        if standing == "reached":
            self._drain(now)
            return False
        self._judge(delta, slots, ranks, bad, now=now, clock=clock)
        return False

    def _judge(
        self,
        delta: Delta,
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        bad: frozenset[BadEnd],
        *,
        now: int,
        clock: float,
    ) -> None:
        """Whether a fall, a deadline or a standstill ends the attempt."""
        if self._spec.elastic and not bad:
            # What looked like a fall was torchrun's own stop for a new round.
            self._window.close()
        self._window.see(clock, failed=bool(bad), news=delta.changed)
        if self._window.over(clock):
            self._watch_outside(slots, ranks, bad, last=True)
            if self._stopping is None:
                self._close_window(slots, ranks, bad)
        elif (passed := self._deadlines.passed(now, absent=self._absent(ranks))) is not None:
            self._late(passed, ranks)
        elif self._window.opened is None:
            self._watch_hang(delta, slots, ranks, now=now)

    def _restart_alone(
        self,
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        bad: frozenset[BadEnd],
        *,
        news: bool,
        clock: float,
    ) -> None:
        """Start again alone what fell alone; a fall that nothing follows is the attempt's, unless it needs that slot no more."""

        def halted() -> bool:
            fallen = bad_ends(slots, ranks, launcher=self._plan.launcher)
            self._watch_outside(slots, ranks, fallen, last=True)
            return self._stopping is not None

        try:
            self._replicas.look(slots, news=news, clock=clock, halted=halted)
        except InfrastructureError as error:
            self.refused(start_failure(error.message, attempt=self._plan.attempt))
            return
        if not self._spec.elastic:
            self._plan = self._replicas.plan
        final = self._replicas.final
        if final is not None and any(kind == "slot" and slot in self._replicas.down for kind, slot, _ in bad):
            self._settle(final, reason="a part of the job that cannot be started again fell")

    def _mark_sets_stop(self, slots: tuple[SlotFacts, ...]) -> None:
        stop = stop_by_set(self._plan, slots) if self._stopping is None else None
        if stop is not None and read_stop(self._run_dir.path, self._plan.attempt) is None:
            mark_stop(self._run_dir.path, self._plan.attempt, stop)

    def _take(self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        self._keeper.saw(delta)
        self._news.tell(delta, slots, ranks, now=now)
        # What a command of the user's own starts need not be ranks.
        begun = ranks or (self._plan.launcher == "exec" and all(s.state == "running" for s in slots))
        if not self._running and begun and self._stopping is None:
            self._running = True
            self._ledger.set_run("running", reason=None, at=now)

    def _watch_wishes(self) -> None:
        for number in self._control.take_signals():
            self._events.say("signal", f"signal {number}", at=time.time_ns(), signal=number)
        if self._cancelled is not None:
            return
        request = read_cancel(self._run_dir.path)
        if request is not None:
            self._cancelled = request.text
        elif self._control.cancelled is not None:
            self._cancelled = f"cancelled: {self._control.cancelled}".rstrip(": ")
        if self._cancelled is not None:
            self._stop(self._cancelled)

    def _watch_hold(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]) -> None:
        """Stop for a suspension or another size, unless how the attempt ends was decided before it was asked for."""
        if self._stopping is not None or self._window.opened is not None or self._verdict is not None:
            return
        if self._success.reached:
            return
        hold = read_suspension(self._run_dir.path, initially=self._spec.suspend)
        if hold.stops(self._started, slots, ranks, bad=bad):
            self._suspended = hold.text
            self._stop(self._suspended)
            return
        wish = unmet(self._run_dir, self._members.sizes)
        if wish is None or not before_the_end(wish.at, slots, ranks, bad=bad):
            return
        if self._members.takes(wish):
            self._members.begin(wish, now=time.time_ns())
            self._follow_members()
        else:
            self._resized = wish
            self._events.say("resize", wish.text, at=time.time_ns(), attempt=self._plan.attempt, nodes=wish.nodes)
            self._stop(f"another size: {wish.text}")

    def _watch_outside(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd], *, last: bool
    ) -> None:
        """Slots end: whether that is because somebody in the cluster suspended the job."""
        if self._stopping is not None or self._verdict is not None or self._success.reached:
            return
        found = self._outside.began(slots, ranks, bad=bad, last=last)
        if found is not None:
            self._suspended = found.text
            self._window.close()
            self._stop(self._suspended)

    def _close_window(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]) -> None:
        if self._spec.elastic:
            changing = self._members.changing(slots, ranks, bad)
            answer = self._survival.weigh(self._case, slots, ranks, bad=bad, changing=changing, clock=time.monotonic())
            if answer == "waits":
                return
            if answer == "goes_on":
                self._members.outlive(bad, now=time.time_ns())
                self._follow_members()
                self._window.close()
                return
        self._stop("another part of the job failed")

    # -- who belongs to the gang

    def _step_members(self, clock: float) -> None:
        if self._spec.elastic:
            self._members.step(clock)
            self._follow_members()

    def _follow_members(self) -> None:
        self._plan = self._members.plan
        self._sheets.replan(self._plan)

    def _is_done_without_late_ones(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> bool:
        late = self._success.see_surplus(slots, ranks, least=self._spec.nnodes, now=now)
        if late:
            self._members.surplus(late, now=now)
            self._follow_members()
        return bool(late)

    def _fell_at(self, slots: tuple[SlotFacts, ...]) -> int | None:
        """When the fall came that is being looked at, nanoseconds since the epoch; None where there is none, or nobody knows."""
        ranks = self._members.ranks(self._observer.ranks())
        bad = self._members.bad(slots, ranks)
        ends = [one.ended_at for one in ranks if ("rank", one.rank, one.pid) in bad and one.ended_at is not None]
        return min(ends, default=None)

    def _drain(self, now: int) -> None:
        """The job is done; the others may finish what they do, for a while."""
        if not self._draining:
            self._draining = True
            wait = self._success.drain_s
            text = f"done: {self._success.because}; the others have {wait:g} s to finish"
            self._events.say("success", text, at=now, attempt=self._plan.attempt)
        if self._success.drained(now):
            self._stop(f"the job is done: {self._success.because}")

    # -- time is up, or nothing moves

    def _late(self, passed: Passed, ranks: tuple[RankFacts, ...]) -> None:
        """A deadline is over. A failure that was being looked at stands; else the time itself is the verdict, and blames nobody."""
        self._events.say("deadline", passed.text, at=passed.at, attempt=self._plan.attempt, deadline=passed.field)
        if self._window.opened is not None:
            self._stop(passed.text)
            return
        missing: tuple[str, ...] = ()
        if passed.which == "startup":
            self._take_stacks(ranks)
            case = self._case(hung=True)
            found = diagnose_by(self._plan.strategy, case)
            if found.verdict.cause.confidence == "proven":
                # What keeps the ranks away is known: an image that cannot be pulled is no matter of time.
                self._settle(found, reason=passed.text)
                return
            missing = (*case.missing, *found.verdict.missing)
        own = deadline_evidence(passed, attempt=self._plan.attempt)
        self._witness(own)
        verdict = deadline_diagnosis(
            passed,
            run=self._run_dir.id,
            attempt=self._plan.attempt,
            role=self._spec.one_role,
            missing=tuple(dict.fromkeys(missing)),
        )
        self._settle(verdict, reason=passed.text)

    def _settle(self, found: Diagnosis, *, reason: str) -> None:
        """Store a verdict before the stop: what a supervisor that takes over would never see again is the standing still itself."""
        self._verdict = found
        self._keeper.store(force=True)
        self._ledger.add_verdict(self._plan.attempt, found)
        self._stop(reason)

    def _watch_hang(
        self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> None:
        if self._waits_for_slots(slots):
            self._hang.hold(now)
            return
        self._hang.see(
            now, fresh=bool(delta.bytes or delta.records), ranks=ranks, activity=self._observer.last_activity
        )
        if self._hang.hung(now):
            self._stuck(f"no progress for {self._hang.quiet_for(now):.0f} s", ranks)

    def _waits_for_slots(self, slots: tuple[SlotFacts, ...]) -> bool:
        """Whether fewer slots than the gang needs have begun; what has no record yet is asked of the backend."""
        late = [s.slot for s in slots if s.state == "expected"]
        spare = len(slots) - self._spec.nnodes if self._spec.elastic else 0
        if len(late) <= spare:
            return False
        return sum(self._backend.life(self._plan, slot) in {"absent", "starting"} for slot in late) > spare

    def _absent(self, ranks: tuple[RankFacts, ...]) -> int:
        wanted = 1
        if self._plan.launcher != "exec":
            each = {part.name: part.spec.nproc_per_node for part in self._spec.parts if part.in_world}
            slots = [slot.role for slot in self._plan.slots if slot.role in each]
            wanted = sum(each[role] for role in (slots[: self._spec.nnodes] if self._spec.elastic else slots))
        return max(0, wanted - len({r.rank for r in ranks}))

    def _stuck(self, why: str, ranks: tuple[RankFacts, ...]) -> None:
        """Take the stacks of all ranks while they stand, diagnose, and only then stop them."""
        self._events.say("hang", why, at=time.time_ns(), attempt=self._plan.attempt)
        self._take_stacks(ranks)
        case = self._case(hung=True)
        case = msgspec.structs.replace(case, missing=(*case.missing, f"an end of the ranks: {why}"))
        self._settle(diagnose_by(self._plan.strategy, case), reason=why)

    def _take_stacks(self, ranks: tuple[RankFacts, ...]) -> None:
        asked = sum(1 for r in ranks if r.state == "running")
        self._observer.read_records()
        self._backend.ask_stacks(self._plan, [s.slot for s in self._plan.slots])
        deadline = time.monotonic() + _STACKS_S
        came = 0
        while asked and came < asked and time.monotonic() < deadline:
            self._control.wait(_FAST_S)
            delta = self._observer.poll(time.time_ns())
            came += sum(1 for record in delta.records if record.kind == "stacks")
            self._take(delta, self._sheets.slots(), self._members.ranks(self._observer.ranks()), now=time.time_ns())

    # -- the end

    def _stop(self, reason: str) -> None:
        if self._stopping is not None:
            return
        if self._spec.elastic:
            self._members.give_up_joining()
            self._follow_members()
        self._events.say("stopping", f"stopping: {reason}", at=time.time_ns(), attempt=self._plan.attempt)
        grace = self._spec.policies.grace_s
        self._stopping = Stopping(self._backend, self._plan, grace=grace, reason=reason, now=time.monotonic())

    def _say_early(self, clock: float) -> None:
        """The verdict is not kept waiting by slots that take their time to stop; what they still say makes a new version."""
        if self._said_early or self._cancelled or self._verdict or self._window.opened is None:
            return
        if self._stopping is not None and clock - self._stopping.began >= _PATIENCE_S:
            self._said_early = True
            self._keeper.store(force=True)
            case = msgspec.structs.replace(self._case(), ended=True)
            self._ledger.add_verdict(self._plan.attempt, diagnose_by(self._plan.strategy, case))

    def _conclude(self) -> Diagnosis:
        self._blame_the_disk()
        lost = [s.slot for s in self._sheets.slots() if s.state == "lost"]
        if lost and self._backend.end(self._plan, lost, grace=self._spec.policies.grace_s):
            slots = ", ".join(map(str, lost))
            self._events.say("gap", f"ended what slot {slots} left behind", at=time.time_ns(), slots=lost)
        for _ in range(_MAX_LAST_LOOKS):
            delta = self._observer.poll(time.time_ns())
            self._take(delta, self._sheets.slots(), self._members.ranks(self._observer.ranks()), now=time.time_ns())
            if not delta.bytes and not delta.changed:
                break
        case = msgspec.structs.replace(self._case(), ended=True)
        if self._suspended is not None:
            found = stopped_by_wish(
                self._suspended,
                how="suspended",
                run=self._run_dir.id,
                attempt=self._plan.attempt,
                role=self._spec.one_role,
            )
        elif self._resized is not None:
            found = resized_diagnosis(self._resized, run=self._run_dir.id, attempt=self._plan.attempt)
        else:
            found = self._verdict or diagnose_by(self._plan.strategy, case)
            if found.verdict.state == "failed" and found.verdict.cause.confidence != "proven":
                # Pods that a person deleted fall like others. Asked only where no cause of their own is proven.
                taken = self._backend.withdrawn(self._plan)
                if taken is not None:
                    found = diagnose_by(self._plan.strategy, msgspec.structs.replace(case, cancelled=taken))
        self._keeper.store(force=True)
        return found

    def _blame_the_disk(self) -> None:
        """A wrapper that could not come up where nothing can be written has a reason."""
        if not self._sheets.never_came() or self._own_evidence or free_bytes(self._run_dir.path) > FULL_BYTES:
            return
        piece = start_failure(
            "No space left on device: no slot can be started in the run directory", attempt=self._plan.attempt
        )
        self._witness(piece)

    def _case(self, *, hung: bool = False) -> Case:
        # What is done is done: a cancel that came after the success only cut the others' time to finish.
        done = self._success.reached
        case = self._observer.case(cancelled=None if done else self._cancelled, hung=hung)
        slots = self._sheets.slots()
        if self._spec.elastic:
            case = present_case(case, left=self._plan.gone, fell_at=self._fell_at(slots))
        succeeded = done or (bool(slots) and all(s.state == "ended" and s.exit_code == 0 for s in slots))
        return msgspec.structs.replace(
            case, slots=slots, evidence=(*case.evidence, *self._own_evidence), succeeded=succeeded and not hung
        )

    def _witness(self, piece: Evidence) -> None:
        """Keep a piece of evidence that only the supervisor itself can give."""
        self._own_evidence.append(piece)
        self._keeper.add(piece)

    def _pause(self, took: float) -> float:
        """Seconds until the next look, which may take as long as this one ``took``: of thousands of slots, a tenth of a second."""
        if self._stopping is not None or self._window.opened is not None:
            return max(_FAST_S, min(took, _SLOW_S))
        if self._replicas.busy:
            return _START_S
        return max(_SLOW_S if self._running else _START_S, min(_SPARING * took, _SELDOM_S))
