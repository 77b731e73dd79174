"""When a job counts as done before all of it has ended: the success policies ``rank0`` and ``fraction``, and success of one role alone.

Who is still running then may finish its work for ``drain_s`` and is stopped after that; how it ends no longer matters. A failure
that came before is not healed by a later success, and a fraction that can no longer be reached is a failure at that moment.
"""

from __future__ import annotations

from typing import Final, Literal

from rankfall.backends.plan import Launcher
from rankfall.model import RankFacts, SlotFacts, Success
from rankfall.supervise.news import bad_ends

# open: as without a policy, the next bad end is a failure. tolerated: bad ends so far do not matter. reached: the job is done.
Standing = Literal["open", "tolerated", "reached"]

_NS: Final = 1_000_000_000


class SuccessWatch:
    """One attempt's way to its success.

    Args:
        success: the policy.
        launcher: with ``exec`` only a slot's own end counts.
        head: the slot that stands for rank 0 where no rank is ever seen.

    Attributes:
        because: why the job is done, in words.
        drain_s: how long the others may go on after that.
    """

    def __init__(self, success: Success, *, launcher: Launcher, head: int = 0) -> None:
        self._success = success
        self._head = head
        self._launcher: Launcher = launcher
        self._reached: int | None = None
        self.drain_s = success.drain_s
        self.because = ""

    @property
    def reached(self) -> bool:
        """Whether the job is done."""
        return self._reached is not None

    def see(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> Standing:
        """Take one look.

        Args:
            slots: all slots of the plan.
            ranks: all rank processes that were seen.
            now: nanoseconds since the epoch; stands for the time of an end that has none.
        """
        if self._reached is not None:
            return "reached"
        if self._success.policy == "rank0":
            return self._see_rank0(slots, ranks, now=now)
        if self._success.policy == "fraction" or self._success.role is not None:
            return self._see_count(slots, ranks, now=now)
        return "open"

    def see_surplus(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, least: int, now: int
    ) -> tuple[int, ...]:
        """Of ``MIN:MAX`` nodes: slots that had no rank when all others ended with 0. There is no gang any more that they could join.

        Args:
            slots: of the gang.
            ranks: of those slots.
            least: nodes that are a gang.
            now: nanoseconds since the epoch; stands for the time of an end that has none.
        """
        seated = {facts.slot for facts in ranks}
        begun = [facts for facts in slots if facts.slot in seated]
        late = tuple(facts.slot for facts in slots if facts.slot not in seated)
        if self.reached or not late or len(begun) < least or not all(map(_ended_well, begun)):
            return ()
        self._reached = max(facts.ended_at or now for facts in begun)
        self.drain_s = 0.0
        self.because = f"the {len(begun)} slots of the gang ended with 0"
        return late

    def drained(self, now: int) -> bool:
        """Whether the others have had their time; ``now`` in nanoseconds since the epoch."""
        return self._reached is not None and now - self._reached >= self.drain_s * _NS

    def _see_rank0(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> Standing:
        own = [facts for facts in ranks if facts.rank == 0]
        first: RankFacts | SlotFacts | None = max(own, key=lambda r: (r.round or 0, r.started_at or 0), default=None)
        if first is None and not ranks:
            # A command of the user's own that starts no ranks: its first slot is the nearest thing to a rank 0.
            first = next((facts for facts in slots if facts.slot == self._head), None)
        if first is None or not _ended_well(first):
            return "open"
        at = first.ended_at or now
        everyone: tuple[RankFacts | SlotFacts, ...] = (*slots, *ranks)
        fell = [facts.ended_at for facts in everyone if _ended_badly(facts)]
        if any(other is None or other < at for other in fell):
            return "open"
        self._reached = at
        self.because = "rank 0 ended with 0" if isinstance(first, RankFacts) else f"slot {first.slot} ended with 0"
        return "reached"

    def _see_count(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> Standing:
        """So many slots, of all or of one role, ended with 0."""
        role = self._success.role
        counted = [facts for facts in slots if role is None or facts.role == role]
        wanted = self._success.wanted(len(counted))
        done = [facts for facts in counted if _ended_well(facts)]
        if len(done) >= wanted:
            self._reached = max((facts.ended_at or now for facts in done), default=now)
            of = f" of role {role}" if role is not None else ""
            self.because = f"{len(done)} of {len(counted)} slots{of} ended with 0, {wanted} are wanted"
            return "reached"
        places = {(facts.rank, facts.pid): facts.slot for facts in ranks}
        fallen = {
            number if kind == "slot" else places.get((number, pid))
            for kind, number, pid in bad_ends(slots, ranks, launcher=self._launcher)
        }
        own = {facts.slot for facts in counted}
        if role is not None and fallen - own:
            # Another role is not counted, and so it may not fall either.
            return "open"
        return "tolerated" if len(counted) - len(fallen & own) >= wanted else "open"


def _ended_well(facts: RankFacts | SlotFacts) -> bool:
    return facts.state == "ended" and facts.exit_code == 0 and facts.signal is None and facts.killed_by is None


def _ended_badly(facts: RankFacts | SlotFacts) -> bool:
    return facts.state == "lost" or (facts.state == "ended" and bool(facts.signal or facts.exit_code))
