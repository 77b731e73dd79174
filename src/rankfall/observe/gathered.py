"""The evidence of one attempt, each piece under its own identity, and what is made anew because facts that it depends on may come later.

Whose process an error was, whether a signal was ours and who is the odd one out among stacks is known only by and by: so errors, signals and
stacks are kept as they came, and what is made of them takes the place of what was made before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

import msgspec

from rankfall.model import Evidence, RankFacts
from rankfall.observe import evidence as make
from rankfall.observe.cluster.stops import StopMark
from rankfall.observe.confirm import oom_evidence
from rankfall.observe.facts import Facts
from rankfall.observe.isolation import ReaderGuard
from rankfall.observe.records import Found
from rankfall.observe.signals import Signals
from rankfall.observe.stacks import imports, stack_evidence
from rankfall.signatures.catalogue import Catalogue


class Gathered:
    """Evidence of one attempt.

    Args:
        attempt: counted from 1.
        catalogue: the signatures in force.
        stop: the mark of our own stop; None on this machine.
        guard: takes what a reader fails on.
        unattended: Kubernetes alone stops slots.
    """

    def __init__(
        self,
        *,
        attempt: int,
        catalogue: Catalogue,
        stop: StopMark | None,
        guard: ReaderGuard | None = None,
        unattended: bool = False,
    ) -> None:
        self._unattended = unattended
        self._guard = guard or ReaderGuard()
        self._attempt = attempt
        self._catalogue = catalogue
        self._by_id: dict[str, Evidence] = {}
        # Whose process may not be known yet.
        self._errors: list[Found] = []
        self._stacks: list[Found] = []
        # What was made of them: with each further stack who is the odd one out may be another.
        self._by_stacks: frozenset[str] = frozenset()
        # Of what they were made: stacks are long, and the same ones say the same.
        self._stacks_of: object = None
        self._signals = Signals(stop)

    @property
    def all(self) -> Collection[Evidence]:
        """All pieces, in the order in which they came to be known first."""
        return self._by_id.values()

    def ids(self) -> set[str]:
        """Of all pieces, as of now."""
        return set(self._by_id)

    def of_slot(self, slot: int) -> tuple[str, ...]:
        """Ids of all evidence of a slot."""
        return tuple(sorted(key for key, piece in self._by_id.items() if piece.slot == slot))

    def importing(self) -> dict[tuple[int | None, int | None], str]:
        """Ranks that are inside of an import by the stacks that came: by slot and pid, what the stack is known again by."""
        found: dict[tuple[int | None, int | None], str] = self._guard.read(
            lambda: imports(item.record for item in self._stacks),
            otherwise={},
            what="records of stacks",
            where="records",
        )
        return found

    def keep(self, pieces: Iterable[Evidence]) -> None:
        """Keep these; one whose identity is known already is replaced."""
        for piece in pieces:
            self._by_id[piece.id] = piece

    def take(self, item: Found) -> None:
        """Take one record; of kinds that are no evidence nothing is taken."""
        kind = item.record.kind
        if kind == "error":
            self._errors.append(item)
        elif kind == "stacks":
            self._stacks.append(item)
        elif kind == "kill":
            self._signals.add(item)

    def forget(self, slot: int) -> None:
        """Forget all of a slot that is started again."""
        self._signals.forget(slot)
        self._by_id = {key: piece for key, piece in self._by_id.items() if piece.slot != slot}
        self._errors = [item for item in self._errors if item.record.slot != slot]
        self._stacks = [item for item in self._stacks if item.record.slot != slot]

    def forget_stacks(self) -> None:
        """Take the stacks that came for history: whoever stood there has gone on."""
        self._stacks = []

    def derive(self, facts: Facts) -> None:
        """Make anew what depends on facts, under the same identities."""
        guard = self._guard
        self._of_errors(facts)
        guard.read(lambda: self._of_signals(facts), otherwise=None, what="records of signals", where="records")
        ranks = facts.ranks()
        ends = (make.of_rank_end(sheet, attempt=self._attempt, unattended=self._unattended) for sheet in ranks)
        self.keep(end for end in ends if end is not None)
        self.keep(oom_evidence(facts, self._by_id.values(), attempt=self._attempt))
        self._of_stacks(ranks)

    def _of_signals(self, facts: Facts) -> None:
        theirs, ours = self._signals.weigh(facts)
        self.keep(theirs)
        for piece in ours:
            self._by_id.pop(piece.id, None)

    def _of_stacks(self, ranks: tuple[RankFacts, ...]) -> None:
        made_of = (
            [item.record.id for item in self._stacks],
            [(r.slot, r.pid, r.rank, r.node) for r in ranks] if self._stacks else (),
        )
        if made_of == self._stacks_of:
            return
        self._stacks_of = made_of
        stacks = [(item.name, item.record) for item in self._stacks]
        told: list[Evidence] = self._guard.read(
            lambda: stack_evidence(stacks, ranks=ranks, attempt=self._attempt),
            otherwise=[],
            what="records of stacks",
            where="records",
            data=lambda: "".join(item.record.stacks or "" for item in self._stacks[-1:]).encode(),
        )
        for key in self._by_stacks:
            self._by_id.pop(key, None)
        self._by_stacks = frozenset(piece.id for piece in told)
        self.keep(told)

    def _of_errors(self, facts: Facts) -> None:
        waiting: list[Found] = []
        for item in self._errors:
            if not facts.exit_stands(item.record):
                waiting.append(item)
                continue
            self.keep(
                self._guard.read(
                    partial(self._of_error, item, facts),
                    otherwise=[],
                    what="record",
                    where=f"records/{item.name}",
                    data=partial(msgspec.json.encode, item.record),
                )
            )
        self._errors = waiting

    def _of_error(self, item: Found, facts: Facts) -> list[Evidence]:
        record = item.record
        rank = facts.rank_of(record.slot, record.pid)
        if rank is None:
            rank = record.rank
        piece = make.of_error(record, name=f"records/{item.name}", catalogue=self._catalogue, rank=rank)
        start = facts.start_of(record.slot, record.pid)
        return [msgspec.structs.replace(piece, round=start.round if start else record.round)]
