"""Platform state of one attempt: pods, context around them, node clocks.

Waiting reasons are valid only while a pod waits, so all is derived again at each call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from rankfall.evidence.cluster.event_evidence import deletions, made_events, pod_events, work_evidence
from rankfall.evidence.cluster.node_evidence import SlotFailure, node_evidence, unheard_evidence
from rankfall.evidence.cluster.pod_evidence import LastWords, PodView
from rankfall.evidence.facts import Facts
from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.rundir.cluster.clock_bounds import ClockView, ProofView
from rankfall.rundir.cluster.context_facts import ContextFact, EventFact, NodeFact, Unseen, WorkFact
from rankfall.rundir.cluster.journal import SnapshotReader
from rankfall.rundir.cluster.marks import Stop
from rankfall.rundir.cluster.pod_facts import PodFact, stamp_ns
from rankfall.rundir.layout import context_path
from rankfall.verdict.diagnose.cause_tables import NEVER_STARTED
from rankfall.verdict.signatures.catalogue import Catalogue

_NS: Final = 1_000_000_000
# Kubernetes stores an Event for an hour by default.
EVENTS_LIVE_S: Final = 3600


class ContextView:
    """Reads the context file incrementally; ``path`` None = the attempt's."""

    def __init__(self, run: Path, *, attempt: int, catalogue: Catalogue, path: Path | None = None) -> None:
        self._file: SnapshotReader[ContextFact] = SnapshotReader(path or context_path(run, attempt), ContextFact)
        self._attempt = attempt
        self._catalogue = catalogue

    def poll(self) -> bool:
        """Reads new data; True if the context file had any."""
        return bool(self._file.poll())

    @property
    def problems(self) -> list[str]:
        """Messages about unusable data."""
        return self._file.problems

    def evidence(
        self,
        pods: Collection[PodFact],
        slots: Collection[SlotFacts],
        ranks: Iterable[RankFacts],
        *,
        before: Mapping[str, PodFact],
        stop: Stop | None,
    ) -> list[Evidence]:
        """All current evidence about this attempt.

        ``before``: last snapshots of pods before deletion requests, by UID. ``stop``: the attempt's stop, if any.
        """
        snapshots = list(self._file.newest.values())
        events = [fact for fact in snapshots if isinstance(fact, EventFact)]
        works = [fact for fact in snapshots if isinstance(fact, WorkFact)]
        events = _without_namesakes(events, works)
        by_uid = {pod.uid: pod for pod in pods if pod.slot is not None}
        by_slot = {facts.slot: facts for facts in slots}
        falls: dict[str, list[SlotFailure]] = {}
        ranks = tuple(ranks)
        ends: list[SlotFacts | RankFacts] = [*by_slot.values(), *ranks]
        failed = any(facts.state == "lost" or facts.exit_code or facts.signal for facts in ends)
        for pod in _newest_of_slots(by_uid.values()):
            if pod.node and pod.slot in by_slot:
                falls.setdefault(pod.node, []).append(SlotFailure(by_slot[pod.slot], pod, ranks, failed=failed))
        return [
            *pod_events(events, by_uid, before=before, attempt=self._attempt),
            *made_events(events, by_slot, by_uid, attempt=self._attempt),
            *node_evidence(
                [fact for fact in snapshots if isinstance(fact, NodeFact)],
                [event for event in events if event.kind == "Node"],
                falls,
                catalogue=self._catalogue,
                attempt=self._attempt,
            ),
            *(
                piece
                for fall in (one for some in falls.values() for one in some)
                if (piece := unheard_evidence(fall, attempt=self._attempt)) is not None
            ),
            *work_evidence(works, attempt=self._attempt, ours=stop is not None),
            *deletions(by_uid.values(), events, works, attempt=self._attempt, stop=stop),
        ]

    def missing(self, pods: Collection[PodFact]) -> list[str]:
        """Messages about missing evidence, and advice how to get the evidence next time."""
        snapshots = list(self._file.newest.values())
        found = [fact.text for fact in snapshots if isinstance(fact, Unseen) and not fact.over]
        first = min((fact.seen_ns for fact in snapshots), default=None)
        made = min((at for pod in pods if (at := stamp_ns(pod.created)) is not None), default=None)
        if first is not None and made is not None and first - made > EVENTS_LIVE_S * _NS:
            found.append(
                "Events older than an hour at the first query (Kubernetes stores Events for an hour); "
                "next time follow the job from its start (rankfall logs -f, rankfall wait)"
            )
        return found


def _without_namesakes(events: Iterable[EventFact], works: Iterable[WorkFact]) -> list[EventFact]:
    """Removes Events of an earlier object with the name of one that exists."""
    uids: dict[tuple[str, str], set[str]] = {}
    for work in works:
        uids.setdefault((work.kind, work.name), set()).add(work.uid)
    return [one for one in events if one.about in uids.get((one.kind, one.name), {one.about})]


def _newest_of_slots(pods: Iterable[PodFact]) -> list[PodFact]:
    found: dict[int | None, PodFact] = {}
    for pod in pods:
        held = found.get(pod.slot)
        if held is None or (not pod.gone, pod.created or "") >= (not held.gone, held.created or ""):
            found[pod.slot] = pod
    return list(found.values())


# Causes that may delay the start of a slot.
_WAITS_FOR: Final = NEVER_STARTED | {"command_not_found"}
_MAX_WORDS: Final = 500


class PlatformView:
    """Reads the platform's files of one attempt incrementally."""

    def __init__(self, run: Path, *, attempt: int, catalogue: Catalogue, context_path: Path | None = None) -> None:
        self.pods = PodView(run, attempt=attempt)
        self._cluster_context = ContextView(run, attempt=attempt, catalogue=catalogue, path=context_path)
        self._clocks = ClockView(run, attempt=attempt)
        self._proofs = ProofView(run, attempt=attempt)
        self._last_words = LastWords(run, attempt=attempt, catalogue=catalogue)

    @property
    def problems(self) -> list[str]:
        """Messages about unusable data."""
        return [*self.pods.problems, *self._cluster_context.problems]

    def poll(self, facts: Facts) -> tuple[bool, list[Evidence]]:
        """Updates the slots' facts; returns True if there is new data, and evidence of ends."""
        clocks = facts.clocks
        for slot, delay in self._clocks.poll().items():
            clocks.came(slot, delay)
        changed, found = self.pods.poll()
        if changed:
            found += self._last_words.new(self.pods.counting())
        proved = self._proofs.poll()
        if changed or proved:
            self._prove(facts)
        if self.pods.stop is not None:
            facts.set_stop(self.pods.stop.at_ns)
        context = self._cluster_context.poll()
        for sheet in tuple(facts.slots.values()):
            # Every time: a new record may contain the slot's start or end.
            facts.set_slot(self.pods.merged(sheet, late_ns=clocks.late(sheet.slot)))
        if changed:
            clocks.placed()
        return changed or context, found

    def waiting(self) -> list[Evidence]:
        """Reasons why slots do not start; valid only now, so never stored."""
        return self.pods.waiting()

    def context_evidence(self, facts: Facts) -> list[Evidence]:
        """Current evidence of Events, nodes and the objects that create the pods."""
        return self._cluster_context.evidence(
            self.pods.counting(),
            tuple(facts.slots.values()),
            facts.ranks(),
            before=self.pods.before(),
            stop=self.pods.stop,
        )

    def waits(self, facts: Facts) -> str | None:
        """Platform's reason why slots do not start; None if there is none."""
        pieces = [*self.waiting(), *self.context_evidence(facts)]
        pieces = [piece for piece in pieces if piece.slug in _WAITS_FOR and piece.slot is not None]
        if not pieces:
            return None
        first = pieces[0]
        others = len({piece.slot for piece in pieces}) - 1
        more = f" (and {others} more)" if others else ""
        return f"slot {first.slot}{more} waits: {first.line}"[:_MAX_WORDS]

    def missing(self) -> list[str]:
        """Messages about missing evidence, and advice how to get the evidence next time."""
        return self._cluster_context.missing(self.pods.counting())

    def _prove(self, facts: Facts) -> None:
        """Updates the clock bounds that timestamps of objects prove."""
        clocks, proofs = facts.clocks, self._proofs.proofs
        clocks.server(proofs.server)
        for slot, bound in self.pods.clock_bounds(server=proofs.server):
            clocks.proved(slot, bound)
        for node, ahead in proofs.nodes.items():
            clocks.proved_of_node(node, ahead)
