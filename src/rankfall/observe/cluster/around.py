"""What is known around the pods of one attempt, as its readers need it: evidence, why slots wait, and what could not be had. Reads one file.

Made anew each time it is asked for: why a pod waits is true only while it does, and a node's trouble means more when a slot there fell silent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.observe.cluster.around_nodes import Fall, node_evidence, unheard_evidence
from rankfall.observe.cluster.around_pods import made_events, pod_events, work_evidence
from rankfall.observe.cluster.aroundfacts import Around, EventFact, NodeFact, Unseen, WorkFact
from rankfall.observe.cluster.looks import LookReader
from rankfall.observe.cluster.places import around_path
from rankfall.observe.cluster.podfacts import PodFact, stamp_ns
from rankfall.signatures.catalogue import Catalogue

_NS: Final = 1_000_000_000
# Kubernetes keeps an Event for an hour, unless its server was told otherwise.
EVENTS_LIVE_S: Final = 3600


class AroundView:
    """What the file says, taken in incrementally.

    Args:
        run: the run's directory.
        attempt: counted from 1.
        catalogue: the signatures in force.
        path: of the file, where it is not the attempt's own.
    """

    def __init__(self, run: Path, *, attempt: int, catalogue: Catalogue, path: Path | None = None) -> None:
        self._file: LookReader[Around] = LookReader(path or around_path(run, attempt), Around)
        self._attempt = attempt
        self._catalogue = catalogue

    def poll(self) -> bool:
        """Whether anything new came."""
        return bool(self._file.poll())

    @property
    def problems(self) -> list[str]:
        """Lines that could not be used, in words."""
        return self._file.problems

    def evidence(
        self,
        pods: Collection[PodFact],
        slots: Collection[SlotFacts],
        ranks: Iterable[RankFacts],
        *,
        before: Mapping[str, PodFact],
        stopped: bool,
    ) -> list[Evidence]:
        """Everything that speaks of this attempt, as it is now.

        Args:
            pods: those that count.
            slots: of the attempt.
            ranks: of the attempt.
            before: by UID: the last look at each pod before it was asked to go.
            stopped: Rankfall itself had begun to stop it.
        """
        looks = list(self._file.newest.values())
        events = [fact for fact in looks if isinstance(fact, EventFact)]
        by_uid = {pod.uid: pod for pod in pods if pod.slot is not None}
        by_slot = {facts.slot: facts for facts in slots}
        falls: dict[str, list[Fall]] = {}
        ranks = tuple(ranks)
        ends: list[SlotFacts | RankFacts] = [*by_slot.values(), *ranks]
        failed = any(facts.state == "lost" or facts.exit_code or facts.signal for facts in ends)
        for pod in _newest_of_slots(by_uid.values()):
            if pod.node and pod.slot in by_slot:
                falls.setdefault(pod.node, []).append(Fall(by_slot[pod.slot], pod, ranks, failed=failed))
        return [
            *pod_events(events, by_uid, before=before, attempt=self._attempt),
            *made_events(events, by_slot, by_uid, attempt=self._attempt),
            *node_evidence(
                [fact for fact in looks if isinstance(fact, NodeFact)],
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
            *work_evidence([fact for fact in looks if isinstance(fact, WorkFact)], attempt=self._attempt, ours=stopped),
        ]

    def missing(self, pods: Collection[PodFact]) -> list[str]:
        """What could not be had, and how to have it next time.

        Args:
            pods: of the attempt.
        """
        looks = list(self._file.newest.values())
        found = [fact.text for fact in looks if isinstance(fact, Unseen) and not fact.over]
        first = min((fact.seen_ns for fact in looks), default=None)
        made = min((at for pod in pods if (at := stamp_ns(pod.created)) is not None), default=None)
        if first is not None and made is not None and first - made > EVENTS_LIVE_S * _NS:
            found.append(
                "what Kubernetes said of the pods more than an hour before the first look: it keeps Events for an hour; "
                "what follows the job from its beginning keeps them (rankfall logs -f, rankfall wait)"
            )
        return found


def _newest_of_slots(pods: Iterable[PodFact]) -> list[PodFact]:
    found: dict[int | None, PodFact] = {}
    for pod in pods:
        held = found.get(pod.slot)
        if held is None or (not pod.gone, pod.created or "") >= (not held.gone, held.created or ""):
            found[pod.slot] = pod
    return list(found.values())
