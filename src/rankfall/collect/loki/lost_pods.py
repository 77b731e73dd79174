"""Selects the pods for Loki queries: gone according to the journal, or never observed.

Indistinguishable pods (two unknown ones of one slot) are skipped, with a message.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, Protocol

from rankfall.collect.loki.pod_lines import LostPod, origin
from rankfall.collect.pods.known_pods import instances_of
from rankfall.loki import logql
from rankfall.loki.reader import Cursor, Entry, State
from rankfall.model import Record, decoding
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.log_routes import RECORD_MARK
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource

_NAMED: Final = 3


class Pages(Protocol):
    """Returns a query's results page by page; a quick poll omits very late lines."""

    def __call__(self, query: str, cursor: Cursor, *, quick: bool) -> AsyncIterator[list[Entry]]:
        """Reads the pages."""


class LostPods:
    """The lost pods of one attempt."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource,
        journal: Mapping[str, PodFact],
        labels: Mapping[str, str],
        pages: Pages,
        since: int,
        over: bool,
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._journal = journal
        self._labels = labels
        self._pages = pages
        self._over = over
        self._say = say
        self._named = source.named or attempt
        self._found: dict[str, LostPod] = {}
        self._finder = Cursor(State.starting_at(since))

    def selector(self, pod: LostPod | None = None) -> str:
        """Query for the lines of one pod, or of all for None."""
        names = self._labels
        container = self._source.container if pod is None else pod.container
        wanted = {names["namespace"]: self._source.namespace}
        if container:
            wanted[names["container"]] = container
        return logql.selector(wanted if pod is None else {**wanted, names["pod"]: pod.name})

    def known(self) -> list[LostPod]:
        """Journal's pods whose logs the record lacks."""
        return [
            LostPod(
                name=fact.name,
                uid=fact.uid,
                container=fact.container or self._source.container,
                slot=fact.slot,
                numbers=instances_of(fact),
            )
            for fact in self._journal.values()
            if fact.slot is not None and fact.log != "complete" and (fact.gone or self._over)
        ]

    def left_out(self) -> None:
        """Reports the pods for which Loki is not queried: the API may have them, and a log has only one source."""
        if self._over:
            return
        there = [fact.name for fact in self._journal.values() if not fact.gone and fact.log not in {"complete", "none"}]
        if there:
            self._say(
                f"Loki is not queried for {', '.join(sorted(there)[:_NAMED])}{' and others' if len(there) > _NAMED else ''}: these pods may still exist. "
                f"To record them from the API server: rankfall attach {self._run_dir.id}; from Loki: rankfall logs -f --log-source loki"
            )

    async def unknown(self, *, quick: bool) -> list[LostPod]:
        """Returns unobserved pods whose wrappers wrote records with this attempt's token."""
        if not self._source.container:
            # A foreign job writes no records.
            return []
        known = {fact.uid for fact in self._journal.values()}
        for other in self._source.apart:
            known |= JournalReader.read(journal_path(self._run_dir.path, other)).keys()
        query = self.selector() + logql.containing([f"rankfall/1 {self._source.token} "])
        async for page in self._pages(query, self._finder, quick=quick):
            for entry in page:
                record = self._record(entry)
                name = entry.labels.get(self._labels["pod"])
                if record is None or record.kind != "slot_start" or not name or record.slot is None:
                    continue
                uid = origin(entry.labels).uid or record.pod_uid
                if uid and uid not in known:
                    self._found[uid] = LostPod(name=name, uid=uid, container=self._source.container, slot=record.slot)
        return self._unmistakable(self._found.values())

    def _unmistakable(self, pods: Iterable[LostPod]) -> list[LostPod]:
        """Pods whose start of the gang is certain; reports the others.

        Kubernetes may have started the gang of an attempt several times.
        """
        by_slot: dict[int, list[LostPod]] = {}
        for pod in pods:
            by_slot.setdefault(pod.slot, []).append(pod)
        seen = {fact.slot for fact in self._journal.values()}
        chosen = []
        for slot, several in sorted(by_slot.items()):
            if self._run_dir.spec.unattended and (len(several) > 1 or slot in seen or self._source.apart):
                self._say(
                    f"slot {slot}: Loki has {len(several)} pods of it that were never recorded ({', '.join(pod.name for pod in several)}); "
                    "Rankfall cannot match them to a start of the gang and skips them"
                )
            else:
                chosen += several
        return chosen

    def _record(self, entry: Entry) -> Record | None:
        head = f"{RECORD_MARK.decode()}{self._source.token} "
        if not entry.text.startswith(head):
            return None
        try:
            data = base64.b64decode(entry.text[len(head) :].strip(), altchars=b"-_", validate=True)
            record = decoding.decode(data, kind=Record)
        except ValueError:
            return None
        fits = record.run == self._run_dir.id and record.attempt == self._named
        return record if fits and record.writer == "wrapper" else None
