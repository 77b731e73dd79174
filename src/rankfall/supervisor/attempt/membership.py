"""The slots of an elastic attempt, which join, leave or are lost.

The plan records each change before and after it, so a later supervisor repeats nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.model import InfrastructureError, JobSpec, RankFacts, SlotFacts
from rankfall.model.jobspec.sizes import Left, SizeChange, first_sizes
from rankfall.rundir.requests import ResizeRequest
from rankfall.supervisor.attempt_facts import BadEnd, bad_ends
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.run_events import EventLog
from rankfall.supervisor.stopping import FORCE_AFTER_S

# Seconds until a refused change is retried.
_AGAIN_S: Final = 5.0


class Membership:
    """The gang of one attempt; ``plan`` is the current one."""

    def __init__(
        self, spec: JobSpec, *, plan: Plan, backend: Backend, run_store: BestEffortStore, events: EventLog, started: int
    ) -> None:
        self.plan = plan
        self._spec = spec
        self._backend = backend
        self._run_store = run_store
        self._events = events
        self._started = started
        self._announced = False
        self._began: float | None = None
        self._again = 0.0
        self._said = ""

    @property
    def sizes(self) -> dict[str, int]:
        """Requested number of nodes of this attempt by role."""
        return first_sizes(self._spec) | self.plan.sizes

    @property
    def departing(self) -> frozenset[int]:
        """Slots that left the gang and still run."""
        return frozenset(one.slot for one in self.plan.left if self._backend.alive(self.plan, one.slot))

    def ranks(self, ranks: tuple[RankFacts, ...]) -> tuple[RankFacts, ...]:
        """Returns the ranks of the gang's slots.

        With ``MIN:MAX`` nodes, without the ranks that torchrun stopped for a new round.
        """
        if not self._spec.elastic:
            return ranks
        gone = self.plan.gone
        return tuple(one for one in ranks if one.slot not in gone and one.killed_by != "agent")

    def bad(self, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts]) -> frozenset[BadEnd]:
        """Returns the bad ends that the gang has not outlived."""
        return bad_ends(slots, ranks, launcher=self.plan.launcher) - frozenset(self.plan.outlived)

    def changing(self, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], bad: frozenset[BadEnd]) -> bool:
        """True if slots joined or left meanwhile; that may explain the failure."""
        ranks = tuple(ranks)
        fallen = [one for one in ranks if ("rank", one.rank, one.pid) in bad]
        since = min((one.started_at or 0 for one in fallen), default=0)
        fell_at = min((one.ended_at for one in fallen if one.ended_at is not None), default=time.time_ns())
        seated = {one.slot for one in ranks if (one.started_at or 0) < fell_at}
        moves = [one.at for one in self.plan.left] + [one.asked_at for one in self.plan.changes]
        joins = any(one.state == "running" and one.slot not in seated for one in slots)
        return joins or any(at > since for at in moves)

    # -- resize

    def takes(self, request: ResizeRequest) -> bool:
        """True if this size is possible in place. A slot that left returns only with a new attempt."""
        if not self._spec.elastic or not self._backend.resizes(self.plan):
            return False
        there = {slot.slot for slot in (*self.plan.slots, *self.plan.spare)}
        left = {one.slot for one in self.plan.left if one.why != "lost"}
        wanted = set(range(request.nodes))
        stays = {slot.slot for slot in (*self.plan.present, *self.plan.spare)} & wanted
        return wanted <= there - left and len(stays) >= self._spec.nnodes

    def begin(self, request: ResizeRequest, *, now: int) -> None:
        """Stores a change; :meth:`step` carries it out."""
        plan = self.plan
        before = self.sizes[request.role]
        joining = tuple(slot for slot in plan.spare if slot.slot < request.nodes)
        departing = tuple(slot.slot for slot in plan.present if slot.slot >= request.nodes)
        change = SizeChange(
            role=request.role,
            before=before,
            nodes=request.nodes,
            asked_at=request.at,
            by=request.by,
            reason=request.reason,
        )
        self._store(
            msgspec.structs.replace(
                plan,
                slots=(*plan.slots, *joining),
                spare=tuple(slot for slot in plan.spare if slot.slot >= request.nodes),
                left=(*plan.left, *(Left(slot=number, at=now, why="resize") for number in departing)),
                sizes={**plan.sizes, request.role: request.nodes},
                changes=(*plan.changes, change),
            )
        )
        self._announced, self._began, self._again = False, None, 0.0
        how = [f"slots {_numbers(departing)} leave"] if departing else []
        how += [f"slots {_numbers(one.slot for one in joining)} join"] if joining else []
        text = f"{change.text}, in place: {', '.join(how) or 'as it is'}"
        self._events.say("resize", text, at=now, attempt=plan.attempt, nodes=request.nodes, done=False)

    def step(self, clock: float) -> None:
        """Continues an unfinished change; ``clock`` in monotonic seconds."""
        change = self.plan.changes[-1] if self.plan.changes else None
        if change is None or change.done_at is not None:
            return
        self._began = clock if self._began is None else self._began
        if not self._announced and clock >= self._again:
            self._tell(clock)
        departing = self.departing
        if departing and clock - self._began > self._spec.policies.grace_s + FORCE_AFTER_S:
            self._backend.end(self.plan, departing, grace=0.0)
        come = all(self._backend.life(self.plan, slot.slot) != "absent" for slot in self.plan.present)
        if self._announced and come and not departing:
            now = time.time_ns()
            done = msgspec.structs.replace(change, done_at=now)
            self._store(msgspec.structs.replace(self.plan, changes=(*self.plan.changes[:-1], done)))
            text = f"now {change.nodes} nodes of {change.role}"
            self._events.say("resize", text, at=now, attempt=self.plan.attempt, nodes=change.nodes, done=True)

    def give_up_joining(self) -> None:
        """Drops slots that were to join but never started, because the attempt is being stopped."""
        change = self.plan.changes[-1] if self.plan.changes else None
        if change is None or change.done_at is not None:
            return
        never = [
            s
            for s in self.plan.present
            if s.slot >= change.before and self._backend.life(self.plan, s.slot) == "absent"
        ]
        if never:
            numbers = {slot.slot for slot in never}
            slots = tuple(slot for slot in self.plan.slots if slot.slot not in numbers)
            self._store(msgspec.structs.replace(self.plan, slots=slots, spare=(*never, *self.plan.spare)))

    def _tell(self, clock: float) -> None:
        try:
            self._announced = self._backend.resize(self.plan)
        except InfrastructureError as error:
            self._again = clock + _AGAIN_S
            if error.message != self._said:
                self._said = error.message
                text = f"the new size waits: {error.message}"
                self._events.say("gap", text, at=time.time_ns(), attempt=self.plan.attempt)

    # -- outlived

    def outlive(self, bad: frozenset[BadEnd], *, now: int) -> None:
        """Records that the gang continued after these ends, without the slots among them."""
        gone = sorted(number for kind, number, _ in bad if kind == "slot")
        left = tuple(Left(slot=number, at=now, why="lost") for number in gone)
        outlived = (*self.plan.outlived, *sorted(bad, key=str))
        self._store(msgspec.structs.replace(self.plan, left=(*self.plan.left, *left), outlived=outlived))
        without = f" without slot {_numbers(gone)}" if gone else ""
        text = f"the gang continues in a new round{without}"
        self._events.say("resize" if not gone else "gap", text, at=now, attempt=self.plan.attempt, lost=gone)

    def surplus(self, slots: Iterable[int], *, now: int) -> None:
        """Records that the job finished before these slots began."""
        late = tuple(Left(slot=number, at=now, why="surplus") for number in sorted(slots))
        self._store(msgspec.structs.replace(self.plan, left=(*self.plan.left, *late)))

    def _store(self, plan: Plan) -> None:
        self.plan = plan
        self._run_store.begin_attempt(plan.attempt, at=self._started, plan=plan.row())


def _numbers(slots: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(slots)))
