"""Decides when an attempt has succeeded or failed: success policies, settle window, elastic survival.

The settle window opens at the first failed process. An elastic gang needs slot 0, which hosts the rendezvous.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal

from rankfall.backends.plan import Launcher
from rankfall.model import Case, Evidence, Policies, RankFacts, SlotFacts, Success, Verdict, cause_info
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attempt_facts import BadEnd, bad_ends

# Seconds that a proven cause waits for evidence of an earlier failure.
PROVEN_S: Final = 0.5
QUIET_S: Final = 0.1


class SettleWindow:
    """The time after the first failure in which more evidence may arrive; monotonic seconds."""

    def __init__(self, policies: Policies) -> None:
        self._quiet = policies.settle_quiet_s
        self._least = policies.settle_min_s
        self._most = policies.settle_max_s
        self.opened: float | None = None
        self._last_change = 0.0

    def see(self, now: float, *, failed: bool, changed: bool) -> bool:
        """Records one poll; ``changed``: new data arrived. Returns True if this poll opened the window."""
        opens = failed and self.opened is None
        if opens:
            self.opened = now
        if opens or changed:
            self._last_change = now
        return opens

    def over(self, now: float) -> bool:
        """True if the attempt need not wait for the remaining slots."""
        if self.opened is None:
            return False
        open_for = now - self.opened
        return open_for >= self._most or (open_for >= self._least and now - self._last_change >= self._quiet)

    def quiet(self, now: float) -> bool:
        """True if the output of the failed processes had time to arrive and no new data arrives."""
        if self.opened is None:
            return False
        least = min(self._most, max(PROVEN_S, self._least))
        return now - self.opened >= least and now - self._last_change >= QUIET_S

    def last_change(self) -> float:
        """Returns the monotonic time of the last new data."""
        return self._last_change

    def waits_for(self, verdict: Verdict) -> str:
        """Returns the user text about an open window and its pending evidence."""
        cause = verdict.cause
        so_far = "no cause found yet" if cause.slug == "unknown" else f"so far {cause.slug} ({cause.confidence})"
        return f"the verdict waits for more evidence until none arrives for {self._quiet:g} s, at most {self._most:g} s: {so_far}"

    def close(self) -> None:
        """Forgets the failure: the gang continued without the slot."""
        self.opened = None


def is_final(verdict: Verdict) -> bool:
    """True if the rank's own end proves the cause and no later node fault would change the decision."""
    return verdict.cause.confidence == "proven" and verdict.rank is not None and verdict.retry == "no"


def gang_recovered(ranks: Iterable[RankFacts], slots: Iterable[SlotFacts], *, least: int) -> bool:
    """True if an elastic gang runs in a new round.

    ``least``: slots that must run. Each running slot then has a rank younger than all bad ends.
    """
    ranks = tuple(ranks)
    running = {s.slot for s in slots if s.state == "running"}
    ends = [r.ended_at for r in ranks if r.state == "ended" and (r.signal is not None or r.exit_code)]
    last = max((at for at in ends if at is not None), default=0)
    young = {r.slot for r in ranks if r.state == "running" and (r.started_at or 0) > last}
    return len(running) >= least and running <= young


# open: the next bad end is a failure. tolerated: bad ends do not matter. reached: the job is complete.
Standing = Literal["open", "tolerated", "reached"]

_NS: Final = 1_000_000_000


class SuccessWatch:
    """Applies the success policy to one attempt.

    With launcher ``exec`` only the slot's end counts. ``head`` is the slot that counts as rank 0 if that rank is
    unknown.
    ``drain_s``: seconds for the other slots after success.
    """

    def __init__(self, success: Success, *, launcher: Launcher, head: int = 0) -> None:
        self._success = success
        self._head = head
        self._launcher: Launcher = launcher
        self._reached: int | None = None
        self._raised: dict[tuple[int | None, int | None], int] = {}
        self.drain_s = success.drain_s
        self.because = ""

    @property
    def reached(self) -> bool:
        """True if the job is complete."""
        return self._reached is not None

    def see(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, evidence: Iterable[Evidence] = (), now: int
    ) -> Standing:
        """Records one poll with its new ``evidence`` and returns the policy's state.

        ``now`` replaces an unknown time.
        """
        if self._reached is not None:
            return "reached"
        if self._success.policy == "rank0":
            self._note_exceptions(evidence, now=now)
            return self._see_rank0(slots, ranks, now=now)
        if self._success.policy == "fraction" or self._success.role is not None:
            return self._see_count(slots, ranks, now=now)
        return "open"

    def see_surplus(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, least: int, now: int
    ) -> tuple[int, ...]:
        """Returns the slots of a ``MIN:MAX`` gang without a rank when all others ended with 0.

        These slots have no gang left to join.
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
        """True if the others' drain time is over; ``now`` in nanoseconds since the epoch."""
        return self._reached is not None and now - self._reached >= self.drain_s * _NS

    def _note_exceptions(self, evidence: Iterable[Evidence], *, now: int) -> None:
        for piece in evidence:
            # An exception about a lost peer may follow from the end of rank 0.
            own = piece.role == "primary" and not (piece.thread or piece.teardown or piece.lost_peer)
            if piece.source == "record" and own:
                self._raised.setdefault((piece.rank, piece.pid), piece.at or now)

    def _see_rank0(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> Standing:
        own = [facts for facts in ranks if facts.rank == 0]
        first: RankFacts | SlotFacts | None = max(own, key=lambda r: (r.round or 0, r.started_at or 0), default=None)
        if first is None and not ranks:
            # An ``exec`` command may start no ranks.
            first = next((facts for facts in slots if facts.slot == self._head), None)
        if first is None or not _ended_well(first):
            return "open"
        at = first.ended_at or now
        everyone: tuple[RankFacts | SlotFacts, ...] = (*slots, *ranks)
        ends = [facts.ended_at for facts in everyone if _ended_badly(facts)]
        # A rank has failed with its recorded exception, although its process may end later.
        ends += [self._raised.get((facts.rank, facts.pid), at) for facts in ranks if not _ended_well(facts)]
        if any(other is None or other < at for other in ends):
            return "open"
        self._reached = at
        self.because = "rank 0 ended with 0" if isinstance(first, RankFacts) else f"slot {first.slot} ended with 0"
        return "reached"

    def _see_count(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int) -> Standing:
        """Checks whether enough slots, of all or of one role, ended with 0."""
        role = self._success.role
        counted = [facts for facts in slots if role is None or facts.role == role]
        wanted = self._success.wanted(len(counted))
        done = [facts for facts in counted if _ended_well(facts)]
        if len(done) >= wanted:
            self._reached = max((facts.ended_at or now for facts in done), default=now)
            of = f" of role {role}" if role is not None else ""
            self.because = f"{len(done)} of {len(counted)} slots{of} ended with 0, {wanted} are required"
            return "reached"
        places = {(facts.rank, facts.pid): facts.slot for facts in ranks}
        fallen = {
            number if kind == "slot" else places.get((number, pid))
            for kind, number, pid in bad_ends(slots, ranks, launcher=self._launcher)
        }
        own = {facts.slot for facts in counted}
        if role is not None and fallen - own:
            # Another role may not fail either.
            return "open"
        return "tolerated" if len(counted) - len(fallen & own) >= wanted else "open"


def _ended_well(facts: RankFacts | SlotFacts) -> bool:
    return facts.state == "ended" and facts.exit_code == 0 and facts.signal is None and facts.killed_by is None


def _ended_badly(facts: RankFacts | SlotFacts) -> bool:
    return facts.state == "lost" or (facts.state == "ended" and bool(facts.signal or facts.exit_code))


Answer = Literal["fell", "waits", "goes_on"]

# For a new round: torch drops a silent node after 15 s and waits 30 s for others.
PATIENCE_S: Final = 120.0
_BARE: Final = frozenset({"user_exit", "killed_unknown", "unknown"})


class Survival:
    """Decides for each failure of one attempt if the elastic gang continues."""

    def __init__(self, *, least: int, strategy: str) -> None:
        self._least = least
        self._strategy = strategy
        self._weighed: frozenset[BadEnd] = frozenset()
        self._own_fault = False
        self._since: float | None = None

    def weigh(
        self,
        case: Callable[[], Case],
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        *,
        bad: frozenset[BadEnd],
        changing: bool,
        clock: float,
    ) -> Answer:
        """Decides if the gang continues after these bad ends.

        ``case`` runs once for each new set; ``changing``: slots joined or left since the ranks started.
        """
        gone = {number for kind, number, _ in bad if kind == "slot"}
        running = {facts.slot for facts in slots if facts.state == "running"}
        if len(running) < self._least or 0 not in running or not (gone or changing):
            return self._settled("fell")
        if bad != self._weighed:
            self._weighed = bad
            self._own_fault = self._is_own_fault(case(), gone)
        if self._own_fault:
            return self._settled("fell")
        if gang_recovered(ranks, slots, least=self._least):
            return self._settled("goes_on")
        self._since = clock if self._since is None else self._since
        return self._settled("fell") if clock - self._since > PATIENCE_S else "waits"

    def _is_own_fault(self, case: Case, gone: Collection[int]) -> bool:
        """True if a rank of a remaining slot failed by itself, or if a removed slot's failure would repeat."""
        verdict = diagnose_by(self._strategy, case).verdict
        if verdict.slot in gone:
            return verdict.retry == "no"
        # A rank that lost its peer may end with a bare exit code.
        return cause_info(verdict.cause.slug).role == "primary" and verdict.cause.slug not in _BARE

    def _settled(self, answer: Answer) -> Answer:
        self._since = None
        return answer
