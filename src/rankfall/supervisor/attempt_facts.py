"""Slot states, failure events and stored facts of one attempt.

Evidence is written immediately, facts every 0.5 s (3 s after output only). A late slot is checked twice before it
counts as lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends.plan import Launcher, Plan, slot_plan
from rankfall.backends.protocol import Backend, StepBackend
from rankfall.evidence.attempt.observer import AttemptObserver, Delta
from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.rundir.incomplete import disk_trouble, is_deleted
from rankfall.rundir.layout import WRAPPER_LOG
from rankfall.rundir.records import read_untrusted_file
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.run_events import EventLog

# Seconds between disk checks, and between messages while it is full.
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 15.0
_MAX_WRAPPER_LOG: Final = 1 << 16
# A frame of the wrapper's own code.
_OF_WRAPPER: Final = "/rankfall_inside/wrapper/"
_UNRECORDED: Final = "exit status of the wrapper"


# These causes block slots but end nothing.
WAITS: Final = frozenset({"unschedulable", "image_pull", "container_config"})


class StorageWatch:
    """Reports repeatedly that the run's disk is full and output of slots is lost."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._looked = 0.0
        # Times of the first problem and the last message.
        self._since: tuple[float, float] | None = None

    def problem(self) -> str | None:
        """Returns the message if one is due, else None; checks the disk at most once a second."""
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        trouble = None if is_deleted(self._folder) else disk_trouble(self._folder)
        if trouble is None:
            full, self._since = self._since, None
            if full is None:
                return None
            return f"storing continues after {now - full[0]:.0f} s; the output of that time is lost"
        if self._since is not None and now - self._since[1] < _AGAIN_S:
            return None
        began = now if self._since is None else self._since[0]
        self._since = (began, now)
        lasts = f" for {now - began:.0f} s now" if now > began else ""
        return f"{trouble}{lasts}: output of ranks is lost until there is free space"


def start_failure(text: str, *, attempt: int) -> Evidence:
    """Returns the supervisor's evidence that a slot could not be started."""
    slug = "disk_full" if "No space left" in text else "container_config"
    return Evidence(
        id=f"start:{attempt}",
        source="recorder",
        slug=slug,
        role="primary",
        trust="supervisor",
        at=time.time_ns(),
        uncertainty=0.0,
        where=f"attempt {attempt}",
        line=text[:2000],
        specificity=50,
        attempt=attempt,
        fingerprint=f"start:{slug}",
    )


BadEnd = tuple[str, int, int | None]


def bad_ends(slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, launcher: Launcher) -> frozenset[BadEnd]:
    """Returns the processes that ended badly; of an ``exec`` slot only its own end."""
    found: set[BadEnd] = {
        ("slot", s.slot, None) for s in slots if s.state == "lost" or s.signal is not None or s.exit_code
    }
    if launcher != "exec":
        found |= {
            ("rank", r.rank, r.pid) for r in ranks if r.state == "ended" and (r.signal is not None or r.exit_code)
        }
    return frozenset(found)


class AttemptEvents:
    """Reports each fact of an attempt once.

    ``quiet``: the job is complete, so later ends are no failures.
    """

    def __init__(self, events: EventLog, *, attempt: int, launcher: Launcher, stopper: str = "Rankfall") -> None:
        self._events = events
        self._stopper = stopper
        self._attempt = attempt
        self._launcher: Launcher = launcher
        self.quiet = False
        self._ranks: set[tuple[int, int | None]] = set()
        self._ends: frozenset[BadEnd] = frozenset()

    def tell(self, delta: Delta, slots: Iterable[SlotFacts], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        """Reports the events of one poll."""
        slots = tuple(slots)
        for facts in ranks:
            key = (facts.rank, facts.pid)
            if key not in self._ranks:
                self._ranks.add(key)
                self._events.say(
                    "rank",
                    f"rank {facts.rank} started on {facts.node} (slot {facts.slot}, pid {facts.pid})",
                    at=facts.started_at or now,
                    attempt=self._attempt,
                    rank=facts.rank,
                    slot=facts.slot,
                    node=facts.node,
                    pid=facts.pid,
                    hook=facts.hook,
                )
        for record in delta.records:
            if record.kind == "error" and record.error is not None and record.error.types:
                kind = record.error.types[0].rpartition(".")[2]
                # The message follows once, in the verdict.
                self._events.say(
                    "stopped" if self.quiet else "failure",
                    f"rank {record.rank} raised {kind}",
                    at=record.at_ns or now,
                    attempt=self._attempt,
                    rank=record.rank,
                    slot=record.slot,
                )
        ends = bad_ends(slots, ranks, launcher=self._launcher)
        if ends != self._ends:
            self._announce_ends(ends - self._ends, slots, ranks, now=now)
            self._ends = ends

    def _announce_ends(
        self, ends: frozenset[BadEnd], slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> None:
        facts_of: dict[BadEnd, RankFacts | SlotFacts] = {("slot", s.slot, None): s for s in slots}
        facts_of |= {("rank", r.rank, r.pid): r for r in ranks}
        for key in sorted(ends, key=lambda end: (end[0], end[1], end[2] or 0)):
            facts = facts_of[key]
            own = f", by {self._stopper}" if facts.killed_by == "wrapper" else ""
            self._events.say(
                "stopped" if own or self.quiet else "failure",
                f"{key[0]} {key[1]}{f' on {facts.node}' if facts.node else ''} {_how(facts)}{own}",
                at=facts.ended_at or now,
                attempt=self._attempt,
                slot=facts.slot,
                rank=facts.rank if isinstance(facts, RankFacts) else None,
                exit_code=facts.exit_code,
                signal=facts.signal,
            )


def _how(facts: RankFacts | SlotFacts) -> str:
    if isinstance(facts, SlotFacts) and facts.state == "lost":
        return f"is lost: {facts.loss}" if facts.started_at else "never started"
    if facts.signal is not None:
        try:
            return f"ended by {signal.Signals(facts.signal).name}"
        except ValueError:
            return f"ended by signal {facts.signal}"
    return f"ended with code {facts.exit_code}"


class SlotStates:
    """States of the slots of one attempt."""

    def __init__(self, plan: Plan, *, backend: Backend, observer: AttemptObserver, run_store: BestEffortStore) -> None:
        self._plan = plan
        self._backend = backend
        # A check of a protocol takes microseconds, and there may be thousands of slots.
        self._of_steps = isinstance(backend, StepBackend)
        self._observer = observer
        self._run_store = run_store
        # Number of the observer's polls at which a slot was found dead.
        self._dead: dict[int, int] = {}
        self._unwritten: set[int] = set()

    def slots(self) -> tuple[SlotFacts, ...]:
        """Returns the current states of the gang's slots."""
        gone = self._plan.gone
        return tuple(facts for facts in self.everyone() if facts.slot not in gone)

    def replan(self, plan: Plan) -> None:
        """Uses the slots of this plan after some joined or left."""
        self._plan = plan

    def everyone(self) -> tuple[SlotFacts, ...]:
        """Returns all slots of the plan, also those that left."""
        known = {facts.slot: facts for facts in self._observer.slots()}
        found = []
        for one in self._plan.slots:
            facts = known.get(one.slot) or SlotFacts(slot=one.slot, node=one.node, role=one.role, state="expected")
            if self._of_steps and facts.state == "running":
                dead = self._backend.life(self._plan, one.slot) == "dead"
                facts = self._lost(facts) if dead else facts
            if facts.state in {"expected", "lost"}:
                facts = self._unrecorded(facts)
            launcher, node = facts.launcher or self._plan.launcher, facts.node or one.node or None
            if (launcher, node) != (facts.launcher, facts.node):
                facts = msgspec.structs.replace(facts, launcher=launcher, node=node)
            found.append(facts)
        return tuple(found)

    def start_again(self, plan: Plan, slot: int) -> None:
        """Switches to the slot's instance in this plan and forgets the previous one."""
        self._plan = plan
        self._dead.pop(slot, None)
        self._unwritten.discard(slot)

    def give_up_unstarted(self) -> None:
        """Counts slots that have not started as lost."""
        self._dead |= {s.slot: -1 for s in self._plan.slots if self._backend.life(self._plan, s.slot) == "absent"}

    def never_came(self) -> list[int]:
        """Returns lost slots whose wrapper left no sign of a start."""
        return [s.slot for s in self.slots() if s.state == "lost" and s.slot in self._dead]

    def _lost(self, facts: SlotFacts) -> SlotFacts:
        folder = Path(slot_plan(self._plan, facts.slot).slot_dir).name
        where = f"slots/attempt-{self._plan.attempt}/{folder}/{WRAPPER_LOG}"
        return msgspec.structs.replace(facts, state="lost", where=where)

    def _unrecorded(self, facts: SlotFacts) -> SlotFacts:
        """Returns a slot's state without end record: killed, never started, or full disk."""
        slot = facts.slot
        if facts.state == "expected":
            if slot not in self._dead:
                if self._backend.life(self._plan, slot) in {"dead", "ended"}:
                    self._dead[slot] = self._observer.polls
                return facts
            if self._observer.polls == self._dead[slot]:
                # The next poll may find a late record.
                return facts
            facts = self._lost(facts)
            came_up = False
        else:
            came_up = True
        code = self._backend.exit_code(self._plan, slot)
        # Only 0 surely comes from the command.
        if code is None or (code and not came_up):
            return facts
        if slot not in self._unwritten:
            self._unwritten.add(slot)
            self._run_store.note(
                f"slot {slot} of attempt {self._plan.attempt} ended with code {code} and could not record it"
            )
        return msgspec.structs.replace(facts, state="ended", exit_code=code, where=_UNRECORDED)

    def wrapper_error(self) -> str | None:
        """Returns the error of the first wrapper that ended by its own exception without an end record; else None."""
        for facts in self.slots():
            if facts.where != _UNRECORDED or not facts.exit_code:
                continue
            path = Path(slot_plan(self._plan, facts.slot).slot_dir) / WRAPPER_LOG
            try:
                data, _ = read_untrusted_file(path, limit=_MAX_WRAPPER_LOG)
            except OSError:
                continue
            lines = data.decode(errors="replace").rstrip().split("\n")
            if "Traceback (most recent call last):" in lines and any(_OF_WRAPPER in line for line in lines):
                return f"slot {facts.slot} could not be started: its wrapper ended with {lines[-1]} ({path.name})"
        return None


# Seconds between writes: after a change, after output only.
_STORE_S: Final = 0.5
_STORE_QUIET_S: Final = 3.0


class AttemptWriter:
    """Writes the findings of one attempt's observer."""

    def __init__(
        self, run_store: BestEffortStore, *, attempt: int, observer: AttemptObserver, slot_states: SlotStates
    ) -> None:
        self._run_store = run_store
        self._attempt = attempt
        self._observer = observer
        self._slot_states = slot_states
        self._unstored: dict[str, Evidence] = {}
        self._stored_at = 0.0
        self._changed = True
        self._printed = False
        self._owners = False

    def saw(self, delta: Delta) -> None:
        """Records the result of one poll."""
        for piece in delta.evidence:
            self._unstored[piece.id] = piece
        self._changed = self._changed or delta.changed
        # A viewer needs a stream's rank: written without delay.
        self._owners = self._owners or bool(delta.new_streams) or any(r.kind == "start" for r in delta.records)
        self._printed = self._printed or bool(delta.bytes)

    def add(self, piece: Evidence) -> None:
        """Adds evidence from the supervisor itself."""
        self._unstored[piece.id] = piece

    def store(self, *, force: bool = False) -> None:
        """Writes data that is due; ``force`` writes everything."""
        if self._unstored:
            self._run_store.add_evidence(self._attempt, self._unstored.values())
            self._unstored.clear()
        clock = time.monotonic()
        age = clock - self._stored_at
        if force or self._owners or (self._changed and age >= _STORE_S) or (self._printed and age >= _STORE_QUIET_S):
            self._stored_at, self._changed, self._printed, self._owners = clock, False, False, False
            self._run_store.put_facts(
                self._attempt,
                slots=self._slot_states.everyone(),
                ranks=self._observer.ranks(),
                streams=self._observer.streams(),
            )
