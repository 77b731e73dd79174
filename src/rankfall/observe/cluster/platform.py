"""What the platform says of one attempt in a cluster: its pods, what is around them, and what both prove of the nodes' clocks. Reads files only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankfall.diagnose.rules import NEVER_BEGAN
from rankfall.model import Evidence
from rankfall.observe.cluster.around import AroundView
from rankfall.observe.cluster.clocks import ClockView, ProofView
from rankfall.observe.cluster.pods import PodView
from rankfall.observe.facts import Facts
from rankfall.signatures.catalogue import Catalogue

# What a slot may wait for, as evidence has it.
_WAITS_FOR: Final = NEVER_BEGAN | {"command_not_found"}
_MAX_WORDS: Final = 500


class PlatformView:
    """What the platform's own files of one attempt say, taken in incrementally.

    Args:
        run: the run's directory.
        attempt: counted from 1.
        catalogue: the signatures in force.
        around: file of what is around the pods, where it is not the attempt's own.

    Attributes:
        pods: of the attempt.
    """

    def __init__(self, run: Path, *, attempt: int, catalogue: Catalogue, around: Path | None = None) -> None:
        self.pods = PodView(run, attempt=attempt)
        self._around = AroundView(run, attempt=attempt, catalogue=catalogue, path=around)
        self._clocks = ClockView(run, attempt=attempt)
        self._proofs = ProofView(run, attempt=attempt)

    @property
    def problems(self) -> list[str]:
        """What could not be used, in words."""
        return [*self.pods.problems, *self._around.problems]

    def poll(self, facts: Facts) -> tuple[bool, list[Evidence]]:
        """Put what is new into the facts of the slots.

        Returns:
            Whether anything new came, and the evidence of ends in it.
        """
        clocks = facts.clocks
        for slot, delay in self._clocks.poll().items():
            clocks.came(slot, delay)
        changed, found = self.pods.poll()
        proved = self._proofs.poll()
        if changed or proved:
            self._prove(facts)
        if self.pods.stop is not None:
            facts.set_stop(self.pods.stop.at_ns)
        around = self._around.poll()
        for sheet in tuple(facts.slots.values()):
            # Every time, not only when a pod changed: a record that came since may have told of the slot's start or end.
            facts.set_slot(self.pods.merged(sheet, late_ns=clocks.late(sheet.slot)))
        if changed:
            clocks.placed()
        return changed or around, found

    def waiting(self) -> list[Evidence]:
        """Why slots do not start: true only as long as they wait, so it is never kept."""
        return self.pods.waiting()

    def around(self, facts: Facts) -> list[Evidence]:
        """What Events, nodes and the objects that make the pods say, as it stands now."""
        return self._around.evidence(
            self.pods.counting(),
            tuple(facts.slots.values()),
            facts.ranks(),
            before=self.pods.before(),
            stopped=self.pods.stop is not None,
        )

    def waits(self, facts: Facts) -> str | None:
        """Why slots do not begin, in the platform's words; None where nothing is known to keep them."""
        told = [*self.waiting(), *self.around(facts)]
        told = [piece for piece in told if piece.slug in _WAITS_FOR and piece.slot is not None]
        if not told:
            return None
        first = told[0]
        others = len({piece.slot for piece in told}) - 1
        more = f" (and {others} more)" if others else ""
        return f"slot {first.slot}{more} waits: {first.line}"[:_MAX_WORDS]

    def missing(self) -> list[str]:
        """What could not be had, and how to have it next time."""
        return self._around.missing(self.pods.counting())

    def _prove(self, facts: Facts) -> None:
        """What stamps on objects prove of the nodes' clocks."""
        clocks, proofs = facts.clocks, self._proofs.proofs
        clocks.server(proofs.server)
        for slot, bound in self.pods.clock_bounds(server=proofs.server):
            clocks.proved(slot, bound)
        for node, ahead in proofs.nodes.items():
            clocks.proved_of_node(node, ahead)
