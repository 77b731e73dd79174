"""Records one start of a gang that Kubernetes manages; changes nothing.

A start is concluded when over and all pod logs are stored. A poll costs as much as some hundred lines.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.collect.pods.lazy_collector import LazyCollector
from rankfall.collect.stores.record_store import record_store_of
from rankfall.evidence.attempt.observer import AttemptObserver, Delta
from rankfall.model import Case, RankFacts, SlotFacts
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import Stop, mark_stop, read_stop
from rankfall.rundir.cluster.workload_state import NativeState
from rankfall.supervisor.attempt_facts import AttemptEvents, AttemptWriter, SlotStates, bad_ends
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import EventLog
from rankfall.supervisor.stopping import mark_logs_open
from rankfall.supervisor.unattended.failures import ReplacedPods, of_other_containers, stopped_slot, why_unrecorded
from rankfall.supervisor.unattended.workload_poller import How, RunStateUpdater, StartPods, WorkloadPoller

if TYPE_CHECKING:
    from rankfall.backends.kubernetes.workload import Workload

#: Seconds between polls with more than lines.
BUSY_INTERVAL_S: Final = 0.5
# Seconds with only lines before polls become rare.
QUIET_S: Final = 10.0
MANY: Final = 4 << 20
# Idle polls use a sixtieth of the time, at least every two seconds.
IDLE_INTERVAL_S: Final = 2.0
IDLE_FACTOR: Final = 60
# With endless new streams polls take a tenth of the time.
WAKE_FACTOR: Final = 10


class PollInterval:
    """Pauses between polls of one attempt."""

    def __init__(self) -> None:
        # Last poll with more than lines, monotonic.
        self._moved = time.monotonic()
        self._took = math.inf

    def pause(self, delta: Delta, *, took: float) -> float:
        """Returns the pause in seconds; ``took`` in CPU seconds."""
        clock = time.monotonic()
        if delta.changed or delta.new_streams or delta.bytes >= MANY:
            self._moved = clock
        least = IDLE_INTERVAL_S if clock - self._moved >= QUIET_S else BUSY_INTERVAL_S
        return min(IDLE_INTERVAL_S, max(least, IDLE_FACTOR * took))

    def wake_after(self, *, took: float) -> float:
        """Returns the seconds before new data may end the pause; call after each poll.

        The cheaper of two polls counts: the first line compiles the signatures.
        """
        usual, self._took = min(took, self._took), took
        return WAKE_FACTOR * usual


# Seconds between checks of the run directory.
_STEP_S: Final = 0.1
_MAX_FINAL_POLLS: Final = 100_000
# The stop mark is after the first end and before its effects.
_AFTER_NS: Final = 1_000_000

_STOPPER: Final = "Kubernetes"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a start.

    Attributes:
        how: Kind of end, a value of ``workload_poller.How``.
        state: State of the workload, or None.
        gang: UID of the TrainJob's JobSet, or empty.
        case: Case of the start.
        unseen: Reason for missing lines, or None.
    """

    how: How
    state: NativeState | None
    gang: str
    case: Case
    unseen: str | None


class GangMonitor:
    """Records one start of a gang."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        plan: Plan,
        backend: Backend,
        workload: Workload,
        run_store: BestEffortStore,
        events: EventLog,
        control: Control,
    ) -> None:
        spec = run_dir.spec
        starts = run_store.writer.starts(plan.attempt)
        for slot, number in starts.items():
            plan = plan.with_start(slot, number)
        self._run_dir = run_dir
        self._spec = spec
        self._plan = plan
        foreign = run_dir.foreign
        # Kubernetes ends all slots of Rankfall's gangs; foreign manifests may differ.
        self._ends_as_one = foreign is None or foreign.ends_as_one
        self._run_store = run_store
        self._events = events
        self._control = control
        self._observer = AttemptObserver(
            run_dir,
            spec=spec,
            attempt=plan.attempt,
            starts=starts,
            record_store=record_store_of(run_dir, spec, attempt=plan.attempt),
        )
        self._slot_states = SlotStates(plan, backend=backend, observer=self._observer, run_store=run_store)
        self._writer = AttemptWriter(
            run_store, attempt=plan.attempt, observer=self._observer, slot_states=self._slot_states
        )
        self._falls = ReplacedPods(
            plan,
            alone=spec.alone,
            observer=self._observer,
            slot_states=self._slot_states,
            writer=self._writer,
            run_store=run_store,
            events=events,
        )
        self._events_of_attempt = AttemptEvents(events, attempt=plan.attempt, launcher=plan.launcher, stopper=_STOPPER)
        self._collector = LazyCollector(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
            unseen=control.unseen,
            stir=control.stir,
        )
        self._pods = StartPods(run_dir, plan, workload=workload, run_store=run_store)
        self._workload = WorkloadPoller(
            run_dir, plan, workload=workload, pods=self._pods, run_store=run_store, say=self._say
        )
        self._state_updater = RunStateUpdater(
            run_dir, run_store=run_store, waits=self._observer.waits, phases=self._pods.now
        )
        self._interval = PollInterval()
        self._feeding: Literal["no", "once", "yes"] = "no"
        self._followed = False

    def run(self, *, stay: bool, lines: bool = False) -> Ended | None:
        """Records the start to its end, or returns None if it continues.

        Without ``stay`` only past events are recorded, with ``lines`` also current ones.
        """
        workload = self._workload
        try:
            if stay:
                self._follow()
                # Otherwise the first line would wait for it.
                self._observer.prepare()
            while True:
                workload.ask()
                if workload.how is not None:
                    self._follow()
                elif lines:
                    self._follow(once=True)
                began = time.thread_time()
                delta = self._look()
                took = time.thread_time() - began
                if workload.how is not None and self._pods.stored(listed=self._collector.following):
                    return self._conclude(workload.how)
                over = not stay and workload.how is None and self._collector.done
                if over and lines:
                    # Lines since the last poll.
                    self._read_up()
                if self._control.release_request is not None or over:
                    self._writer.store(force=True)
                    return None
                pause, wake_after = (
                    self._interval.pause(delta, took=took),
                    max(_STEP_S, self._interval.wake_after(took=took)),
                )
                if self._mark_logs_open_once() and stay and workload.how is None:
                    # A viewer shows a stream only after a poll found it.
                    self._control.wait(pause, wake_after=wake_after)
                else:
                    self._control.wait(_STEP_S)
        finally:
            self._collector.stop()

    # -- polling the gang

    def _read_up(self) -> None:
        for _ in range(_MAX_FINAL_POLLS):
            delta = self._look()
            if not delta.bytes and not delta.changed and not delta.behind:
                return

    def _look(self) -> Delta:
        now = time.time_ns()
        for text in self._collector.troubles():
            self._say(text)
        for text in self._observer.take_new_problems():
            self._run_store.note(f"attempt {self._plan.attempt}: {text}")
        delta = self._observer.poll(now)
        slots, ranks = self._slot_states.slots(), self._observer.ranks()
        self._writer.saw(delta)
        self._mark_kubernetes_stop(slots, ranks)
        seen = self._workload.seen
        self._events_of_attempt.quiet = seen is not None and seen.phase == "succeeded"
        self._events_of_attempt.tell(delta, slots, ranks, now=now)
        self._writer.store()
        self._pods.poll()
        self._falls.look(slots, self._pods.seen.values())
        for number in self._control.take_signals():
            self._events.say("signal", f"signal {number}", at=now, signal=number)
        if self._workload.how is None and seen is not None:
            self._state_updater.show(seen, slots, ranks, begun=self._workload.begun, fed=self._feeding != "no", now=now)
        return delta

    def _mark_kubernetes_stop(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...]) -> bool:
        """Records that Kubernetes stops the other slots, so that their ends are no cause; True if recorded now."""
        if self._spec.alone or not self._ends_as_one or read_stop(self._run_dir.path, self._plan.attempt) is not None:
            return False
        failed = {number for kind, number, _ in bad_ends(slots, ranks, launcher=self._plan.launcher) if kind == "slot"}
        ends = {facts.slot: facts for facts in slots if facts.slot in failed and facts.ended_at is not None}
        if ends:
            earliest = min(facts.ended_at or 0 for facts in ends.values())
            first = [slot for slot, facts in ends.items() if facts.ended_at == earliest]
            # In the same second, SIGTERM is a reaction.
            own = [slot for slot in first if ends[slot].signal != signal.SIGTERM] or first
            reason = "Kubernetes ends the other slots when a slot has failed"
            stop = Stop(at_ns=earliest + _AFTER_NS, reason=reason, after=tuple(sorted(own)))
            with contextlib.suppress(OSError):
                mark_stop(self._run_dir.path, self._plan.attempt, stop)
        return bool(ends)

    # -- the end

    def _conclude(self, how: How) -> Ended:
        self._observer.shorten_grace()
        for _ in range(_MAX_FINAL_POLLS):
            delta = self._observer.poll(time.time_ns())
            self._writer.saw(delta)
            slots, ranks = self._slot_states.slots(), self._observer.ranks()
            marked = self._mark_kubernetes_stop(slots, ranks)
            self._events_of_attempt.tell(delta, slots, ranks, now=time.time_ns())
            moved = self._falls.look(slots, self._pods.seen.values()) or marked
            if not delta.bytes and not delta.changed and not delta.behind and not moved:
                break
        self._writer.store(force=True)
        # Without the wrapper the exit code indicates no stop.
        ours = self._run_dir.foreign is None and read_stop(self._run_dir.path, self._plan.attempt) is not None
        slots = tuple(stopped_slot(facts, ours=ours) for facts in self._slot_states.slots())
        case = self._observer.case()
        beside = of_other_containers(slots, self._pods.seen.values(), attempt=self._plan.attempt)
        case = msgspec.structs.replace(
            case, slots=slots, evidence=(*case.evidence, *beside), ended=True, stopper=_STOPPER
        )
        unseen = why_unrecorded(self._run_dir, slots, self._pods.seen.values(), attempt=self._plan.attempt)
        return Ended(how=how, state=self._workload.seen, gang=self._workload.gang, case=case, unseen=unseen)

    # -- small things

    def _mark_logs_open_once(self) -> bool:
        """True if all logs are open; records that for a stopping process."""
        if not self._followed and self._feeding == "yes" and self._collector.following:
            self._followed = True
            mark_logs_open(self._run_dir, self._plan.attempt)
        return self._followed

    def _follow(self, *, once: bool = False) -> None:
        if self._feeding == "yes" or (once and self._feeding == "once"):
            return
        self._collector.stop()
        self._feeding = "once" if once else "yes"
        self._collector.start(once=once)

    def _say(self, text: str) -> None:
        self._events.say("gap", text, at=time.time_ns(), attempt=self._plan.attempt)
