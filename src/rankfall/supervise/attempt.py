"""Watches one attempt from its first slot to its diagnosis. Everything it needs to go on after a kill stands in the run directory.

Refuses nothing and decides nothing: it waits as long as the job lives, stops the rest when one part fell, and says what happened.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends.protocol import Backend, Plan
from rankfall.model import Case, Diagnosis, Evidence, JobSpec, RankFacts, SlotFacts
from rankfall.observe.attempt import AttemptObserver, Delta
from rankfall.observe.strategies import diagnose_by
from rankfall.store import RunDir
from rankfall.supervise.control import Control, read_cancel
from rankfall.supervise.events import EventLog
from rankfall.supervise.hang import HangWatch
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.news import News, bad_ends
from rankfall.supervise.settle import SettleWindow, went_on
from rankfall.supervise.stopping import Stopping

# Between two looks: while something falls or stops, while ranks start, while the job just runs.
_FAST_S: Final = 0.02
_START_S: Final = 0.05
_SLOW_S: Final = 0.15
# Between two writings of facts: when something happened, and when there was only output.
_STORE_S: Final = 0.5
_STORE_QUIET_S: Final = 3.0
_STACKS_S: Final = 5.0
# How long slots may take to stop before the verdict is told without waiting for their last words.
_PATIENCE_S: Final = 0.7
_MAX_LAST_LOOKS: Final = 100_000
# Less than the few files that a slot needs before it starts its command.
FULL_BYTES: Final = 64 << 10
_NS: Final = 1_000_000_000


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
    ) -> None:
        self._run_dir = run_dir
        self._spec: JobSpec = run_dir.spec
        self._plan = plan
        self._backend = backend
        self._ledger = ledger
        self._events = events
        self._control = control
        self._started = started
        self._observer = AttemptObserver(
            run_dir, spec=self._spec, attempt=plan.attempt, launcher=plan.launcher, spare_listing=True
        )
        self._news = News(events, attempt=plan.attempt, launcher=plan.launcher)
        self._window = SettleWindow(self._spec.policies)
        self._hang = HangWatch(self._spec.policies.hang_timeout_s, start=time.time_ns())
        self._stopping: Stopping | None = None
        self._own_evidence: list[Evidence] = []
        self._dead: set[int] = set()
        self._unwritten: set[int] = set()
        self._forgiven: frozenset[tuple[str, int, int | None]] = frozenset()
        self._unstored: dict[str, Evidence] = {}
        self._stored_at = 0.0
        self._changed = True
        self._printed = False
        self._owners = False
        self._running = False
        self._said_early = False
        self._verdict: Diagnosis | None = None
        self._cancelled: str | None = None

    def run(self, *, settled: Diagnosis | None = None) -> Diagnosis | None:
        """Watch to the end.

        Args:
            settled: a verdict that an earlier supervisor of this attempt had stored; it stands, the slots are only brought to their end.

        Returns:
            The diagnosis, with state succeeded, failed or cancelled; None when this process let go of the run.
        """
        self._verdict = settled
        while not self._look():
            if self._control.wish is not None:
                self._store(force=True)
                return None
            self._control.wait(self._pause())
        return self._conclude()

    def refused(self, evidence: Evidence) -> None:
        """Take in that a slot could not be started: the attempt ends with this as its cause."""
        self._own_evidence.append(evidence)
        self._unstored[evidence.id] = evidence
        self.without_the_rest()
        self._stop("a slot could not be started")

    def without_the_rest(self) -> None:
        """Slots that were not started until now will not be any more: they count as lost."""
        self._dead |= {s.slot for s in self._plan.slots if self._backend.life(self._plan, s.slot) == "absent"}

    # -- one look

    def _look(self) -> bool:
        """One look at everything; True when all slots have ended."""
        now, clock = time.time_ns(), time.monotonic()
        delta = self._observer.poll(now)
        slots, ranks = self._slots(), self._observer.ranks()
        self._take(delta, slots, ranks, now=now)
        self._store()
        self._watch_wishes()
        if all(s.state in {"ended", "lost"} for s in slots):
            return True
        if self._stopping is not None:
            self._stopping.step({s.slot for s in slots if s.state not in {"ended", "lost"}}, now=clock)
            self._say_early(clock)
            return False
        if self._verdict is not None:
            self._stop("its verdict was reached before")
            return False
        fresh = bad_ends(slots, ranks, launcher=self._plan.launcher) - self._forgiven
        self._window.see(clock, failed=bool(fresh), news=delta.changed)
        if self._window.over(clock):
            self._close_window(slots, ranks)
        elif self._window.opened is None:
            self._watch_hang(delta, ranks, now=now)
        return False

    def _take(self, delta: Delta, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        for piece in delta.evidence:
            self._unstored[piece.id] = piece
        self._changed = self._changed or delta.changed
        # A viewer shows a stream's first lines when it is told whose they are: that is not kept waiting.
        self._owners = self._owners or bool(delta.new_streams) or any(r.kind == "start" for r in delta.records)
        self._printed = self._printed or bool(delta.bytes)
        self._news.tell(delta, slots, ranks, now=now)
        if not self._running and ranks and self._stopping is None:
            self._running = True
            self._ledger.set_run("running", reason=None, at=now)

    def _slots(self) -> tuple[SlotFacts, ...]:
        """The plan's slots, with what the backend sees of those whose records do not tell."""
        known = {facts.slot: facts for facts in self._observer.slots()}
        found = []
        for one in self._plan.slots:
            facts = known.get(one.slot) or SlotFacts(slot=one.slot, node=one.node, role=one.role, state="expected")
            if facts.state in {"expected", "lost"}:
                facts = self._unrecorded(facts)
            found.append(msgspec.structs.replace(facts, launcher=self._plan.launcher, node=facts.node or one.node))
        return tuple(found)

    def _unrecorded(self, facts: SlotFacts) -> SlotFacts:
        """A slot without an end record: a wrapper that was killed, never came up, or could write nothing because the disk is full."""
        slot = facts.slot
        if facts.state == "expected":
            if slot not in self._dead:
                if self._backend.life(self._plan, slot) in {"dead", "ended"}:
                    # Looked at once more by the next poll, so that a record written meanwhile is not overlooked.
                    self._dead.add(slot)
                return facts
            where = f"slots/attempt-{self._plan.attempt}/{facts.role or self._spec.role}-{slot}/wrapper.log"
            facts = msgspec.structs.replace(facts, state="lost", where=where)
            came_up = False
        else:
            came_up = True
        code = self._backend.exit_code(self._plan, slot)
        # A wrapper that never came up has a code of its own; only 0 is surely the command's.
        if code is None or (code and not came_up):
            return facts
        if slot not in self._unwritten:
            self._unwritten.add(slot)
            self._ledger.note(
                f"slot {slot} of attempt {self._plan.attempt} ended with code {code} and could not record it"
            )
        return msgspec.structs.replace(facts, state="ended", exit_code=code, where="exit status of the wrapper")

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

    def _close_window(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...]) -> None:
        if self._spec.elastic and went_on(ranks, slots, least=self._spec.nnodes):
            self._forgiven = bad_ends(slots, ranks, launcher=self._plan.launcher)
            self._window.close()
            self._events.say("gap", "the gang goes on without what fell", at=time.time_ns(), attempt=self._plan.attempt)
            return
        self._stop("another part of the job failed")

    # -- standing still

    def _watch_hang(self, delta: Delta, ranks: tuple[RankFacts, ...], *, now: int) -> None:
        self._hang.see(
            now, fresh=bool(delta.bytes or delta.records), ranks=ranks, activity=self._observer.last_activity
        )
        limit = self._spec.deadlines.startup_s
        if limit is not None and now - self._started > limit * _NS and (absent := self._absent(ranks)):
            self._stuck(f"{absent} ranks were not there {limit:g} s after the start", ranks)
        elif self._hang.hung(now):
            self._stuck(f"no progress for {self._hang.quiet_for(now):.0f} s", ranks)

    def _absent(self, ranks: tuple[RankFacts, ...]) -> int:
        nodes = self._spec.nnodes if self._spec.elastic else len(self._plan.slots)
        wanted = 1 if self._plan.launcher == "exec" else nodes * self._spec.nproc_per_node
        return max(0, wanted - len({r.rank for r in ranks}))

    def _stuck(self, why: str, ranks: tuple[RankFacts, ...]) -> None:
        """Take the stacks of all ranks while they stand, diagnose, and only then stop them."""
        self._events.say("hang", why, at=time.time_ns(), attempt=self._plan.attempt)
        asked = sum(1 for r in ranks if r.state == "running")
        self._observer.read_records()
        self._backend.ask_stacks(self._plan, [s.slot for s in self._plan.slots])
        deadline = time.monotonic() + _STACKS_S
        came = 0
        while asked and came < asked and time.monotonic() < deadline:
            self._control.wait(_FAST_S)
            delta = self._observer.poll(time.time_ns())
            came += sum(1 for record in delta.records if record.kind == "stacks")
            self._take(delta, self._slots(), self._observer.ranks(), now=time.time_ns())
        case = self._case(hung=True)
        case = msgspec.structs.replace(case, missing=(*case.missing, f"an end of the ranks: {why}"))
        self._verdict = diagnose_by(self._plan.strategy, case)
        # Stored before the stop: what a killed supervisor would never see again is the standing still itself.
        self._store(force=True)
        self._ledger.add_verdict(self._plan.attempt, self._verdict)
        self._stop(why)

    # -- the end

    def _stop(self, reason: str) -> None:
        if self._stopping is not None:
            return
        self._events.say("stopping", f"stopping: {reason}", at=time.time_ns(), attempt=self._plan.attempt)
        grace = self._spec.policies.grace_s
        self._stopping = Stopping(self._backend, self._plan, grace=grace, reason=reason, now=time.monotonic())

    def _say_early(self, clock: float) -> None:
        """The verdict is not kept waiting by slots that take their time to stop; what they still say makes a new version."""
        if self._said_early or self._cancelled or self._verdict or self._window.opened is None:
            return
        if self._stopping is not None and clock - self._stopping.began >= _PATIENCE_S:
            self._said_early = True
            self._store(force=True)
            case = msgspec.structs.replace(self._case(), ended=True)
            self._ledger.add_verdict(self._plan.attempt, diagnose_by(self._plan.strategy, case))

    def _conclude(self) -> Diagnosis:
        self._blame_the_disk()
        lost = [s.slot for s in self._slots() if s.state == "lost"]
        if lost and self._backend.end(self._plan, lost, grace=self._spec.policies.grace_s):
            slots = ", ".join(map(str, lost))
            self._events.say("gap", f"ended what slot {slots} left behind", at=time.time_ns(), slots=lost)
        for _ in range(_MAX_LAST_LOOKS):
            delta = self._observer.poll(time.time_ns())
            self._take(delta, self._slots(), self._observer.ranks(), now=time.time_ns())
            if not delta.bytes and not delta.changed:
                break
        case = msgspec.structs.replace(self._case(), ended=True)
        found = self._verdict or diagnose_by(self._plan.strategy, case)
        self._store(force=True)
        return found

    def _blame_the_disk(self) -> None:
        """A wrapper that could not come up where nothing can be written has a reason."""
        absent = [s for s in self._slots() if s.state == "lost" and s.slot in self._dead]
        if not absent or self._own_evidence or free_bytes(self._run_dir.path) > FULL_BYTES:
            return
        piece = start_failure(
            "No space left on device: no slot can be started in the run directory", attempt=self._plan.attempt
        )
        self._own_evidence.append(piece)
        self._unstored[piece.id] = piece

    def _case(self, *, hung: bool = False) -> Case:
        case = self._observer.case(cancelled=self._cancelled, hung=hung)
        slots = self._slots()
        succeeded = bool(slots) and all(s.state == "ended" and s.exit_code == 0 for s in slots)
        return msgspec.structs.replace(
            case, slots=slots, evidence=(*case.evidence, *self._own_evidence), succeeded=succeeded and not hung
        )

    # -- keeping

    def _pause(self) -> float:
        if self._stopping is not None or self._window.opened is not None:
            return _FAST_S
        return _SLOW_S if self._running else _START_S

    def _store(self, *, force: bool = False) -> None:
        if self._unstored:
            self._ledger.add_evidence(self._plan.attempt, self._unstored.values())
            self._unstored.clear()
        clock = time.monotonic()
        age = clock - self._stored_at
        if force or self._owners or (self._changed and age >= _STORE_S) or (self._printed and age >= _STORE_QUIET_S):
            self._stored_at, self._changed, self._printed, self._owners = clock, False, False, False
            self._ledger.put_facts(
                self._plan.attempt, slots=self._slots(), ranks=self._observer.ranks(), streams=self._observer.streams()
            )


def free_bytes(folder: Path) -> int:
    """Room for this user on the file system of ``folder``; very much where nobody can tell."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize


def start_failure(text: str, *, attempt: int) -> Evidence:
    """Evidence that a slot could not be started, as the supervisor saw it."""
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
