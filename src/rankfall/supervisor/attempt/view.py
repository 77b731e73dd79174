"""The current view of one attempt: plan, slots, ranks, evidence, and the case.

Polls, announces and stores observations. Waiting for nodes has no limit here. Makes no decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.collect.pods.lazy_collector import LazyCollector
from rankfall.collect.stores.record_store import record_store_of
from rankfall.evidence.attempt.case import present_case
from rankfall.evidence.attempt.observer import AttemptObserver, Delta
from rankfall.model import FINAL_STATES, Case, Evidence, JobSpec, RankFacts, SlotFacts
from rankfall.model.jobspec.sizes import sized
from rankfall.rundir import RunDir
from rankfall.supervisor.attempt.membership import Membership
from rankfall.supervisor.attempt_facts import AttemptEvents, AttemptWriter, SlotStates, StorageWatch
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.external_suspension import ExternalSuspension
from rankfall.supervisor.run_events import EventLog

_WAIT_FIRST_NS: Final = 5_000_000_000
_WAIT_POLL_NS: Final = 2_000_000_000
_WAIT_AGAIN_NS: Final = 60_000_000_000


class AttemptStartup:
    """The start-up phase of one attempt.

    ``waits`` returns the pods' reason for not starting, or None. ``over`` returns True if the attempt will not begin.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        waits: Callable[[], str | None],
        outside: ExternalSuspension,
        run_store: BestEffortStore,
        events: EventLog,
        started: int,
    ) -> None:
        self.running = False
        self.over = False
        self._attempt = plan.attempt
        self._launcher = plan.launcher
        self._waits = waits
        self._outside = outside
        self._run_store = run_store
        self._events = events
        self._started = started
        self._queued = False
        self._said: str | None = None
        # Any job's first pods wait for a moment.
        self._due = started + _WAIT_FIRST_NS
        self._again = 0

    def tell(self, now: int) -> None:
        """Reports why the attempt does not begin: first, on a new reason, every minute."""
        if self.running or self.over or now < self._due:
            return
        text = self._waits()
        if text is None:
            text = self._outside.waits()
            self._queued = text is not None
        age = (now - self._started) / 1e9
        if text is not None and (text != self._said or now >= self._again):
            self._said, self._again = text, now + _WAIT_AGAIN_NS
            self._events.say("waiting", f"{text} (for {age:.0f} s)", at=now, attempt=self._attempt)
            self._run_store.set_run("queued" if self._queued else "starting", reason=text, at=now)
        self._due = now + _WAIT_POLL_NS

    def see(self, slots: Collection[SlotFacts], ranks: Collection[RankFacts], *, now: int) -> None:
        """Checks whether the attempt runs now. ``now`` is in nanoseconds since the epoch."""
        # An ``exec`` command need not start ranks.
        begun = ranks or (self._launcher == "exec" and all(s.state == "running" for s in slots))
        if not self.running and begun and not self.over:
            self.running = True
            self._run_store.set_run("running", reason=None, at=now)


class AttemptScope:
    """The observed state of one attempt.

    ``unseen``: this process has no viewer. ``own_evidence`` is evidence that only the supervisor can give.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        plan: Plan,
        backend: Backend,
        run_store: BestEffortStore,
        events: EventLog,
        outside: ExternalSuspension,
        started: int,
        unseen: bool,
    ) -> None:
        self.spec: JobSpec = sized(run_dir.spec, plan.sizes)
        self.plan = plan
        self._events = events
        self._run_store = run_store
        self._storage = StorageWatch(run_dir.path)
        self.observer = AttemptObserver(
            run_dir,
            spec=self.spec,
            attempt=plan.attempt,
            # A pod may choose its launcher at run time; records name it.
            launcher=plan.launcher if plan.cluster is None else None,
            spare_listing=plan.cluster is None,
            record_store=record_store_of(run_dir, self.spec, attempt=plan.attempt),
        )
        self._collector = LazyCollector(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
            unseen=unseen,
        )
        self.slot_states = SlotStates(plan, backend=backend, observer=self.observer, run_store=run_store)
        self.writer = AttemptWriter(
            run_store, attempt=plan.attempt, observer=self.observer, slot_states=self.slot_states
        )
        self.members = Membership(
            self.spec, plan=plan, backend=backend, run_store=run_store, events=events, started=started
        )
        self.attempt_events = AttemptEvents(events, attempt=plan.attempt, launcher=plan.launcher)
        self.startup = AttemptStartup(
            plan, waits=self.observer.waits, outside=outside, run_store=run_store, events=events, started=started
        )
        self.own_evidence: list[Evidence] = []
        self._waits: str | None = None

    def start(self) -> None:
        """Starts following pods and logs of a cluster."""
        self._collector.start()

    def stop(self, *, over: bool = False) -> None:
        """Stops following pods and logs; ``over``: for good."""
        self._collector.stop(over=over)

    @property
    def followed(self) -> bool:
        """True if the log of each running container is open or could not be opened."""
        return self._collector.following

    @property
    def blind(self) -> bool:
        """True if the pods of a cluster cannot be watched at present."""
        return self._collector.blind

    # -- the gang

    def replan(self, plan: Plan) -> None:
        """Uses the slots of this plan from now on."""
        self.plan = plan
        self.slot_states.replan(plan)

    def apply_membership(self) -> None:
        """Uses the current membership of the gang."""
        self.replan(self.members.plan)

    def slots(self) -> tuple[SlotFacts, ...]:
        """Returns the current states of the gang's slots."""
        return self.slot_states.slots()

    def ranks(self) -> tuple[RankFacts, ...]:
        """Returns the ranks of the gang's slots."""
        return self.members.ranks(self.observer.ranks())

    # -- new data

    def poll(self, now: int) -> Delta:
        """Returns new data since the last poll, for :meth:`take`."""
        return self.observer.poll(now)

    def take(self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        """Reports the result of one poll and queues it for the store."""
        self.writer.saw(delta)
        self.attempt_events.tell(delta, slots, ranks, now=now)
        self.startup.see(slots, ranks, now=now)

    def look(self) -> Delta:
        """Polls and processes immediately, for callers that judge nothing in between."""
        delta = self.poll(time.time_ns())
        self.take(delta, self.slots(), self.ranks(), now=time.time_ns())
        return delta

    def add_own_evidence(self, piece: Evidence) -> None:
        """Adds evidence that only the supervisor itself can give."""
        self.own_evidence.append(piece)
        self.writer.add(piece)

    def wait(self, what: str, text: str, *, now: int) -> None:
        """Reports a wait as an event and in the run's state.

        ``what``: ``evidence``, ``logs``, ``ends``, ``last_states``, ``pods`` or ``steps``. Repeated texts are dropped.
        """
        if text == self._waits:
            return
        self._waits = text
        self._events.say("waiting", text, at=now, attempt=self.plan.attempt, waits_for=what)
        self._reason(text, now=now)

    def waited(self, *, now: int) -> None:
        """Clears the wait, because the attempt continues."""
        if self._waits is not None:
            self._waits = None
            self._reason(None, now=now)

    def _reason(self, text: str | None, *, now: int) -> None:
        state = self._run_store.writer.run().state
        if state not in FINAL_STATES:
            self._run_store.set_run(state, reason=text, at=now)

    def announce_problems(self) -> None:
        """Reports the problems of collectors, which run in separate threads, and of readers."""
        for text in self.observer.take_new_problems():
            self._run_store.note(f"attempt {self.plan.attempt}: {text}")
        full = self._storage.problem() if self.plan.cluster is None else None
        for text in (*self._collector.troubles(), *((full,) if full else ())):
            self._events.say("gap", text, at=time.time_ns(), attempt=self.plan.attempt)

    # -- results

    def case(self, *, cancelled: str | None, done: bool, hung: bool) -> Case:
        """Returns the complete case; ``done``: regardless of the remaining slots."""
        # A cancel after success only shortened the others' time.
        case = self.observer.case(cancelled=None if done else cancelled, hung=hung)
        slots = self.slots()
        if self.spec.elastic:
            case = present_case(case, left=self.plan.gone, fell_at=self._first_failure_at(slots))
        ended_well = bool(slots) and all(s.state == "ended" and s.exit_code == 0 for s in slots)
        succeeded = done or (ended_well and not case.denied)
        return msgspec.structs.replace(
            case, slots=slots, evidence=(*case.evidence, *self.own_evidence), succeeded=succeeded and not hung
        )

    def _first_failure_at(self, slots: tuple[SlotFacts, ...]) -> int | None:
        """Time of the failure under examination in nanoseconds since the epoch; None if unknown or none."""
        ranks = self.ranks()
        bad = self.members.bad(slots, ranks)
        ends = [one.ended_at for one in ranks if ("rank", one.rank, one.pid) in bad and one.ended_at is not None]
        return min(ends, default=None)
