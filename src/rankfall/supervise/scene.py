"""What is known of one attempt while it is watched: its plan as it is now, its slots and ranks, what they said, and the case that all this makes.

Takes in what comes, tells it and stores it. Judges nothing: how the attempt ends is decided by others, from what stands here.
"""

from __future__ import annotations

import time

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.model import FINAL_STATES, Case, Evidence, JobSpec, RankFacts, SlotFacts
from rankfall.model.sizes import sized
from rankfall.observe.attempt import AttemptObserver, Delta
from rankfall.observe.cluster.open import Feed
from rankfall.observe.gang import present_case
from rankfall.store import RunDir
from rankfall.supervise.beginning import Beginning
from rankfall.supervise.events import EventLog
from rankfall.supervise.keeping import Keeper
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.members import Members
from rankfall.supervise.news import News
from rankfall.supervise.outside import OutsideHold
from rankfall.supervise.sheets import Sheets
from rankfall.supervise.starting import StorageWatch


class Scene:
    """One attempt as it is seen.

    Args:
        run_dir: the run.
        plan: of the attempt.
        backend: that planned it.
        ledger: of the run's lease.
        events: for viewers.
        outside: tells whether a queue holds the job back.
        started: when the attempt began, nanoseconds since the epoch.
        unseen: this process shows the lines to nobody.

    Attributes:
        spec: of the job, as this attempt runs it.
        plan: as it is now: slots may have joined, left or been started again.
        observer: of its ranks and streams.
        sheets: of its slots.
        keeper: stores what is seen.
        members: who belongs to the gang.
        news: tells what is seen.
        beginning: what is told until it runs.
        own_evidence: what only the supervisor itself could give.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        plan: Plan,
        backend: Backend,
        ledger: Ledger,
        events: EventLog,
        outside: OutsideHold,
        started: int,
        unseen: bool,
    ) -> None:
        self.spec: JobSpec = sized(run_dir.spec, plan.sizes)
        self.plan = plan
        self._events = events
        self._ledger = ledger
        self._storage = StorageWatch(run_dir.path)
        self.observer = AttemptObserver(
            run_dir,
            spec=self.spec,
            attempt=plan.attempt,
            # In a pod it may only be found out which one can be used; its wrapper's records tell.
            launcher=plan.launcher if plan.cluster is None else None,
            spare_listing=plan.cluster is None,
        )
        self._feed = Feed(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
            unseen=unseen,
        )
        self.sheets = Sheets(plan, backend=backend, observer=self.observer, ledger=ledger)
        self.keeper = Keeper(ledger, attempt=plan.attempt, observer=self.observer, sheets=self.sheets)
        self.members = Members(self.spec, plan=plan, backend=backend, ledger=ledger, events=events, started=started)
        self.news = News(events, attempt=plan.attempt, launcher=plan.launcher)
        self.beginning = Beginning(
            plan, waits=self.observer.waits, outside=outside, ledger=ledger, events=events, started=started
        )
        self.own_evidence: list[Evidence] = []
        self._waits: str | None = None

    def start(self) -> None:
        """Begin to follow pods and logs of a cluster."""
        self._feed.start()

    def stop(self) -> None:
        """End that."""
        self._feed.stop()

    @property
    def followed(self) -> bool:
        """Whether the log of each container that runs is open, or was tried in vain."""
        return self._feed.following

    @property
    def blind(self) -> bool:
        """Whether the pods of a cluster cannot be watched at present."""
        return self._feed.blind

    # -- the gang

    def replan(self, plan: Plan) -> None:
        """Look at the slots of this plan from now on."""
        self.plan = plan
        self.sheets.replan(plan)

    def follow_members(self) -> None:
        """Look at the gang as it is by now."""
        self.replan(self.members.plan)

    def slots(self) -> tuple[SlotFacts, ...]:
        """The slots that belong to the gang, as they stand now."""
        return self.sheets.slots()

    def ranks(self) -> tuple[RankFacts, ...]:
        """Their ranks."""
        return self.members.ranks(self.observer.ranks())

    # -- what comes

    def poll(self, now: int) -> Delta:
        """What came since the last look, nanoseconds since the epoch; :meth:`take` takes it in."""
        return self.observer.poll(now)

    def take(self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        """Tell what one look brought, and keep it for the store."""
        self.keeper.saw(delta)
        self.news.tell(delta, slots, ranks, now=now)
        self.beginning.see(slots, ranks, now=now)

    def look(self) -> Delta:
        """Poll and take in at once, where nothing is judged in between."""
        delta = self.poll(time.time_ns())
        self.take(delta, self.slots(), self.ranks(), now=time.time_ns())
        return delta

    def witness(self, piece: Evidence) -> None:
        """Keep a piece of evidence that only the supervisor itself can give."""
        self.own_evidence.append(piece)
        self.keeper.add(piece)

    def wait(self, what: str, text: str, *, now: int) -> None:
        """Report what the end of the attempt waits for: an event, and the reason of the run's state.

        Args:
            what: the kind: ``evidence``, ``logs``, ``ends``, ``last_states``, ``pods``.
            text: for people; the same again is not reported twice.
            now: nanoseconds since the epoch.
        """
        if text == self._waits:
            return
        self._waits = text
        self._events.say("waiting", text, at=now, attempt=self.plan.attempt, waits_for=what)
        self._reason(text, now=now)

    def waited(self, *, now: int) -> None:
        """Nothing is waited for any more, and the attempt goes on."""
        if self._waits is not None:
            self._waits = None
            self._reason(None, now=now)

    def _reason(self, text: str | None, *, now: int) -> None:
        state = self._ledger.writer.run().state
        if state not in FINAL_STATES:
            self._ledger.set_run(state, reason=text, at=now)

    def tell_troubles(self) -> None:
        """What the feeds had to say, which run in threads of their own, and what readers failed on."""
        for text in self.observer.take_new_problems():
            self._ledger.note(f"attempt {self.plan.attempt}: {text}")
        full = self._storage.news() if self.plan.cluster is None else None
        for text in (*self._feed.troubles(), *((full,) if full else ())):
            self._events.say("gap", text, at=time.time_ns(), attempt=self.plan.attempt)

    # -- what it makes

    def case(self, *, cancelled: str | None, done: bool, hung: bool) -> Case:
        """Everything that is known, for a diagnosis.

        Args:
            cancelled: who ended it, in words; None = nobody.
            done: whether the job counts as done, whatever became of the rest.
            hung: whether it stands still.
        """
        # What is done is done: a cancel that came after the success only cut the others' time to finish.
        case = self.observer.case(cancelled=None if done else cancelled, hung=hung)
        slots = self.slots()
        if self.spec.elastic:
            case = present_case(case, left=self.plan.gone, fell_at=self._fell_at(slots))
        ended_well = bool(slots) and all(s.state == "ended" and s.exit_code == 0 for s in slots)
        succeeded = done or (ended_well and not case.denied)
        return msgspec.structs.replace(
            case, slots=slots, evidence=(*case.evidence, *self.own_evidence), succeeded=succeeded and not hung
        )

    def _fell_at(self, slots: tuple[SlotFacts, ...]) -> int | None:
        """When the fall came that is being looked at, nanoseconds since the epoch; None where there is none, or nobody knows."""
        ranks = self.ranks()
        bad = self.members.bad(slots, ranks)
        ends = [one.ended_at for one in ranks if ("rank", one.rank, one.pid) in bad and one.ended_at is not None]
        return min(ends, default=None)
