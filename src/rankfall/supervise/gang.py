"""Records one start of a gang that Kubernetes starts, restarts and ends by itself. It decides nothing and changes nothing in the cluster.

A start is over when its workload says so by its terminal condition, when the workload has begun another one, stands suspended, or is gone. It is
concluded when the logs of all pods that can still be had are stored. Everything it needs to go on after a kill stands in the run directory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankfall.backends.cluster.workload import Workload
from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.kube.errors import KubeError
from rankfall.model import Case, RankFacts, RunState, SlotFacts, StoreError, decoding
from rankfall.model.exit_codes import CAUSE_CODES
from rankfall.observe.attempt import AttemptObserver, Delta
from rankfall.observe.cluster.journal import JournalReader, journal_path
from rankfall.observe.cluster.native_state import NativeState, dated, same_start
from rankfall.observe.cluster.open import Feed
from rankfall.observe.cluster.places import pods_folder
from rankfall.observe.cluster.stops import Stop, mark_stop, read_stop
from rankfall.store import RunDir
from rankfall.store.home import replace_file
from rankfall.supervise.control import Control
from rankfall.supervise.events import EventLog
from rankfall.supervise.followed import mark_followed
from rankfall.supervise.keeping import Keeper
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.native_end import without_pods
from rankfall.supervise.native_falls import NativeFalls
from rankfall.supervise.news import News, bad_ends
from rankfall.supervise.sheets import Sheets
from rankfall.supervise.suspension import read_suspension

# Between two looks at the run directory, at the workload, and at it while nobody answers, seconds.
_STEP_S: Final = 0.1
# While it goes on: nothing is decided here, and what is shown is read from the record by the viewer itself. Each look costs as much as some hundred lines.
_CALM_S: Final = 0.5
# When for so long there was nothing but lines, and not so many of them (bytes) that looking might fall behind, looks are seldom.
_QUIET_S: Final = 10.0
_MANY: Final = 4 << 20
# A look at a thousand slots takes longer: looking takes a sixtieth of the process's time, but is done every two seconds at least.
_SELDOM_S: Final = 2.0
_PAUSES: Final = 60
LOOK_S: Final = 2.0
_AGAIN_S: Final = 5.0
# How long after a start's end the logs of its pods may take, beside their grace time, once the API answers.
_STORE_S: Final = 60.0
_MAX_LAST_LOOKS: Final = 100_000
# Our stop comes after the first end that caused it, and before the ends that it causes.
_AFTER_NS: Final = 1_000_000

_STOPPER: Final = "Kubernetes"
# The wrapper's own code after a SIGTERM from outside (rankfall_inside.causes).
_STOPPED: Final = CAUSE_CODES["control"]

How = Literal["over", "again", "held", "gone"]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Which start of the workload an attempt is, as ``NativeState.start`` says it: written when it is first seen."""

    start: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a start ended.

    Attributes:
        how: ``over``: with its workload; ``again``: another start goes on; ``held``: suspended; ``gone``: the workload is not there any more.
        state: the workload's words; None when it is gone.
        case: what is known of the start.
        unseen: why its lines are not there; None when somebody recorded it.
    """

    how: How
    state: NativeState | None
    case: Case
    unseen: str | None


class GangWatch:
    """One start of one run's gang.

    Args:
        run_dir: the run.
        plan: of this start.
        backend: that planned it.
        workload: that starts it.
        ledger: of the run's lease.
        events: for viewers.
        control: wishes of this process.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        plan: Plan,
        backend: Backend,
        workload: Workload,
        ledger: Ledger,
        events: EventLog,
        control: Control,
    ) -> None:
        spec = run_dir.spec
        starts = ledger.writer.starts(plan.attempt)
        for slot, number in starts.items():
            plan = plan.with_start(slot, number)
        self._run_dir = run_dir
        self._spec = spec
        self._plan = plan
        self._restarts = plan.cluster.restart if plan.cluster else 0
        self._workload = workload
        foreign = run_dir.foreign
        # Kubernetes ends the others of a gang of ours when one has failed; those of others do as their manifests say.
        self._together = foreign is None or foreign.ends_together
        self._ledger = ledger
        self._events = events
        self._control = control
        self._observer = AttemptObserver(run_dir, spec=spec, attempt=plan.attempt, starts=starts)
        self._sheets = Sheets(plan, backend=backend, observer=self._observer, ledger=ledger)
        self._keeper = Keeper(ledger, attempt=plan.attempt, observer=self._observer, sheets=self._sheets)
        self._falls = NativeFalls(
            plan,
            alone=spec.alone,
            observer=self._observer,
            sheets=self._sheets,
            keeper=self._keeper,
            ledger=ledger,
            events=events,
        )
        self._news = News(events, attempt=plan.attempt, launcher=plan.launcher, stopper=_STOPPER)
        self._feed = Feed(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
            unseen=control.unseen,
            stir=control.stir,
        )
        self._journal = JournalReader(journal_path(run_dir.path, plan.attempt))
        self._apart = {
            uid
            for number in (plan.cluster.apart if plan.cluster else ())
            for uid in JournalReader.read(journal_path(run_dir.path, number))
        }
        self._file = pods_folder(run_dir.path, plan.attempt) / "start.json"
        self._started = _read(self._file)
        self._feeding: Literal["no", "once", "yes"] = "no"
        self._followed = False
        # When the workload, and after the end its pods, are asked for next, by the monotonic clock.
        self._due = 0.0
        self._listed = 0.0
        # When a look found more than lines, by the same clock; in the beginning there is much to find.
        self._moved = time.monotonic()
        self._seen: NativeState | None = None
        self._how: How | None = None
        self._there: set[str] | None = None
        self._until: float | None = None
        self._shown: tuple[RunState, str | None] | None = None
        self._unanswered = ""

    def run(self, *, stay: bool, lines: bool = False) -> Ended | None:
        """Record the start to its end.

        Args:
            stay: until then; false = only what has come to pass by now: a start that goes on is left to itself.
            lines: with ``stay`` false, of a start that goes on take pods and lines as they are now.

        Returns:
            How it ended; None when it goes on without us.
        """
        try:
            if stay:
                self._follow()
            while True:
                if self._how is None and time.monotonic() >= self._due:
                    self._ask()
                if lines and self._how is None:
                    self._follow(once=True)
                began = time.thread_time()
                delta = self._look()
                took = time.thread_time() - began
                if self._how is not None and self._stored():
                    return self._conclude(self._how)
                over = not stay and self._how is None and self._feed.done
                if over and lines:
                    # What came between the last look and the feed's end.
                    self._read_up()
                if self._control.wish is not None or over:
                    self._keeper.store(force=True)
                    return None
                if self._tell_followed() and stay and self._how is None:
                    # What stirs is seen soon: a view shows the lines of a stream only once a look has found it.
                    self._control.wait(self._calm(delta, took=took), unstirred=max(_STEP_S, _PAUSES * took))
                else:
                    self._control.wait(_STEP_S)
        finally:
            self._feed.stop()

    def _calm(self, delta: Delta, *, took: float) -> float:
        """How long not to look, seconds, after a look that took so many of CPU."""
        clock = time.monotonic()
        if delta.changed or delta.new_streams or delta.bytes >= _MANY:
            self._moved = clock
        least = _SELDOM_S if clock - self._moved >= _QUIET_S else _CALM_S
        return min(_SELDOM_S, max(least, _PAUSES * took))

    # -- the workload

    def _ask(self) -> None:
        """Look at the workload. That it cannot be seen is no state of it."""
        self._due = time.monotonic() + LOOK_S
        try:
            found = self._workload.look()
            begun = found is None or found.over or bool(self._mine())
        except KubeError as error:
            self._due = time.monotonic() + _AGAIN_S
            if error.message != self._unanswered:
                self._unanswered = error.message
                self._say(f"{self._workload.shown} cannot be seen: {error.message}; it is asked again")
            return
        self._unanswered = ""
        self._how = self._judge(found, begun=begun)
        self._seen = found
        if self._how is not None:
            self._follow()

    def _judge(self, found: NativeState | None, *, begun: bool) -> How | None:
        """Whether this start is over, and how."""
        if found is None or (found.deleting and not found.over):
            return "gone"
        if found.restarts != self._restarts:
            return "again"
        if found.phase == "going" and found.start:
            if self._started is not None and begun and self._is_another(self._started.start, found.start):
                # Under the same number it was suspended and released meanwhile.
                return "held"
            if self._started is None or (self._started.start != found.start and dated(found.start)):
                self._mark(Started(start=found.start))
        if found.over:
            return "over"
        # Its pods may be gone already; that it had begun is then known from whoever looked before.
        return "held" if found.phase == "suspended" and (begun or self._started is not None) else None

    def _is_another(self, known: str, found: str) -> bool:
        """Whether the workload has begun another start. One that gets its date late is the same as long as its pods are there."""
        if not same_start(known, found):
            return True
        pods = self._journal.pods.values()
        return dated(found) and not dated(known) and bool(pods) and all(fact.gone for fact in pods)

    def _mine(self) -> dict[str, str]:
        """Pods of this start that are there now, by UID, and those that were."""
        self._journal.poll()
        place = self._plan.cluster
        if place is None or self._journal.pods:
            return {uid: fact.phase for uid, fact in self._journal.pods.items()}
        found = self._workload.pods(place.selector)
        return {uid: phase for uid, phase in found.items() if uid not in self._apart}

    # -- what is seen of the gang

    def _read_up(self) -> None:
        """Take in all that is stored."""
        for _ in range(_MAX_LAST_LOOKS):
            delta = self._look()
            if not delta.bytes and not delta.changed:
                return

    def _look(self) -> Delta:
        now = time.time_ns()
        for text in self._feed.troubles():
            self._say(text)
        delta = self._observer.poll(now)
        slots, ranks = self._sheets.slots(), self._observer.ranks()
        self._keeper.saw(delta)
        self._mark_their_stop(slots, ranks)
        self._news.calm = self._seen is not None and self._seen.phase == "succeeded"
        self._news.tell(delta, slots, ranks, now=now)
        self._keeper.store()
        self._journal.poll()
        self._falls.look(slots, self._journal.pods.values())
        for number in self._control.take_signals():
            self._events.say("signal", f"signal {number}", at=now, signal=number)
        if self._how is None and self._seen is not None:
            self._show(self._seen, slots, ranks, now=now)
        return delta

    def _mark_their_stop(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...]) -> None:
        """When one slot fell, Kubernetes ends the others: what they die of from then on is that stop, and no cause."""
        if self._spec.alone or not self._together or read_stop(self._run_dir.path, self._plan.attempt) is not None:
            return
        fell = {number for kind, number, _ in bad_ends(slots, ranks, launcher=self._plan.launcher) if kind == "slot"}
        ends = [facts.ended_at for facts in slots if facts.slot in fell and facts.ended_at is not None]
        if ends:
            stop = Stop(at_ns=min(ends) + _AFTER_NS, reason="Kubernetes ends the others when one has failed")
            mark_stop(self._run_dir.path, self._plan.attempt, stop)

    def _show(
        self, state: NativeState, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> None:
        """The run's state, as it is while nothing terminal was said."""
        shown = self._state(state, slots, ranks)
        if shown != self._shown:
            self._shown = shown
            self._ledger.set_run(shown[0], reason=shown[1], at=now)

    def _state(
        self, state: NativeState, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...]
    ) -> tuple[RunState, str | None]:
        if state.phase == "suspended":
            queue = self._spec.kubernetes.queue
            if queue is not None and self._started is None:
                return "queued", f"waits for queue {queue}"
            hold = read_suspension(self._run_dir.path, initially=self._spec.suspend)
            return "suspended", hold.text if hold.suspended else None
        most = self._spec.policies.max_restarts
        restarted = f"attempt {state.restarts + 1} of {most + 1}" if state.restarts else None
        if ranks or any(facts.state in {"running", "ended"} for facts in slots):
            return "running", restarted
        if self._feeding == "no" and any(phase in {"Running", "Succeeded"} for phase in self._pods_now().values()):
            return "running", restarted
        return ("restarting" if restarted else "starting"), restarted or self._observer.waits()

    def _pods_now(self) -> dict[str, str]:
        try:
            return self._mine()
        except KubeError:
            return {}

    # -- the end

    def _stored(self) -> bool:
        """Whether the logs of all its pods that can still be had are stored, or have had their time."""
        clock = time.monotonic()
        if clock >= self._listed:
            self._listed = clock + LOOK_S
            place = self._plan.cluster
            try:
                self._there = self._workload.pods(place.selector).keys() - self._apart if place is not None else set()
            except KubeError:
                # Nothing is lost by waiting for an API that does not answer.
                self._there, self._until = None, None
            else:
                self._until = self._until or clock + self._spec.policies.grace_s + _STORE_S
        self._journal.poll()
        if self._there is None or self._until is None:
            return False
        left = sorted(fact.name for fact in self._journal.pods.values() if not fact.over or fact.log == "open")
        unseen = self._there - self._journal.pods.keys()
        if not left and not unseen:
            return True
        if clock < self._until:
            return False
        words = ", ".join([*left[:8], *([f"{len(unseen)} that nobody saw"] if unseen else [])])
        self._ledger.note(f"attempt {self._plan.attempt}: the logs of some pods could not be had to their end: {words}")
        return True

    def _conclude(self, how: How) -> Ended:
        for _ in range(_MAX_LAST_LOOKS):
            delta = self._observer.poll(time.time_ns())
            self._keeper.saw(delta)
            slots, ranks = self._sheets.slots(), self._observer.ranks()
            self._mark_their_stop(slots, ranks)
            self._news.tell(delta, slots, ranks, now=time.time_ns())
            moved = self._falls.look(slots, self._journal.pods.values())
            if not delta.bytes and not delta.changed and not moved:
                break
        self._keeper.store(force=True)
        # Of a slot whose pod was gone before anybody looked nothing is known: neither that it was lost nor that it never came.
        slots = tuple(
            msgspec.structs.replace(facts, state="unknown") if facts.state == "expected" else self._ours(facts)
            for facts in self._sheets.slots()
        )
        case = msgspec.structs.replace(self._observer.case(), slots=slots, ended=True, stopper=_STOPPER)
        return Ended(how=how, state=self._seen, case=case, unseen=self._unseen())

    def _ours(self, facts: SlotFacts) -> SlotFacts:
        """A slot of whose end only the wrapper's code for a signal from outside is known: that of the stop, once there was one."""
        if (
            self._run_dir.foreign is not None
            or facts.exit_code != _STOPPED
            or read_stop(self._run_dir.path, self._plan.attempt) is None
        ):
            return facts
        return msgspec.structs.replace(facts, killed_by=facts.killed_by or "wrapper")

    def _unseen(self) -> str | None:
        """Why nothing is known of pods that nobody followed while they were there."""
        run, foreign = self._run_dir.id, self._run_dir.foreign
        if self._journal.pods:
            seen = {fact.slot for fact in self._journal.pods.values()}
            slots = [facts.slot for facts in self._sheets.slots() if facts.slot not in seen]
            return without_pods(slots, shown=foreign.target.shown) if foreign is not None else None
        how = (
            f"rankfall attach {run} (or rankfall wait) running, or leave unattended out"
            if foreign is None
            else f"rankfall logs -f {foreign.target.shown} running while the job runs"
        )
        return f"lines and records of attempt {self._plan.attempt}: nobody was attached when it fell, and its pods are gone; next time leave {how}"

    # -- small things

    def _tell_followed(self) -> bool:
        """Whether the logs of all its pods are open, which is told once to whoever waits to stop the run."""
        if not self._followed and self._feeding == "yes" and self._feed.following:
            self._followed = True
            mark_followed(self._run_dir, self._plan.attempt)
        return self._followed

    def _follow(self, *, once: bool = False) -> None:
        if self._feeding == "yes" or (once and self._feeding == "once"):
            return
        self._feed.stop()
        self._feeding = "once" if once else "yes"
        self._feed.start(once=once)

    def _mark(self, started: Started) -> None:
        self._started = started
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, msgspec.json.encode(started))
        except (OSError, StoreError) as error:
            self._ledger.note(f"which start attempt {self._plan.attempt} is could not be written: {error}"[:500])

    def _say(self, text: str) -> None:
        self._events.say("gap", text, at=time.time_ns(), attempt=self._plan.attempt)


def _read(path: Path) -> Started | None:
    try:
        return decoding.decode(path.read_bytes(), kind=Started)
    except (OSError, msgspec.DecodeError):
        return None
