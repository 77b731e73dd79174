"""Copies an attempt's lines from Loki, once or while the job runs.

A log is marked lost before Loki's first line is stored, so no API tailer continues it. Pods are those that vanished by the journal, or were
never observed; indistinguishable ones (two unknown ones of one slot) are skipped, with a message.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from rankfall.collect.loki.pod_lines import IDENTIFYING_LABELS, LokiPodCollector, LostPod, origin
from rankfall.collect.loki.resume_state import LokiState
from rankfall.collect.pods import log_gaps
from rankfall.collect.pods.instance_folders import Instances
from rankfall.collect.pods.known_pods import instances_of
from rankfall.collect.pods.log_gaps import LogOf, gap_record
from rankfall.loki import LokiError, logql
from rankfall.loki.reader import PATIENCE_S, SECOND, Cursor, Entry, PageSource, Reader, State
from rankfall.loki.settings import LokiSettings
from rankfall.model import Record, decoding
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.log_routes import RECORD_MARK
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource

# Clock errors of nodes; Loki accepts such future timestamps.
MARGIN_NS: Final = 900 * SECOND
# Time before the newest line at which a quick poll starts.
QUICK_NS: Final = 60 * SECOND


def keys_of(settings: LokiSettings) -> tuple[str, ...]:
    """Labels that identify a run's lines."""
    return (*settings.labels.values(), *IDENTIFYING_LABELS)


class LokiCollector:
    """Copies the lines of one attempt's lost pods; the caller holds the run's lease."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource,
        loki: PageSource,
        settings: LokiSettings,
        over: bool,
        live: bool = False,
        since: int,
        until: int,
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._loki = loki
        self._live = live
        self._since = since - MARGIN_NS
        self._until = until
        self._tell = say
        self._journal = JournalReader.read(journal_path(run_dir.path, attempt))
        self._instances = Instances(
            run_dir, attempt=attempt, role_of=source.role_of, token=source.token, named=source.named or attempt
        )
        self._takes: dict[str, LokiPodCollector] = {}
        # Pods with unstored lines: only thorough polls read them again.
        self._refused: set[str] = set()
        # Per pod: slot, and True if its wrapper's last record is stored.
        self._ended: dict[str, tuple[int, bool]] = {}
        self._pods = LostPods(
            run_dir,
            attempt=attempt,
            source=source,
            journal=self._journal,
            labels=settings.labels,
            pages=self._pages,
            since=self._since,
            over=over or live,
            say=self._say,
        )
        self._said: set[str] = set()
        self._blind = False

    async def take(self) -> int:
        """Stores all lines and returns the number of new ones.

        Raises:
            LokiError: Loki cannot be queried.
            OSError: The run directory cannot be written.
        """
        try:
            return await self.look(self._until)
        finally:
            self.forget()

    async def look(self, until: int, *, quick: bool = False) -> int:
        """Polls once and returns the number of new lines; a quick poll ignores lines over a minute late.

        Raises:
            LokiError: Loki cannot be queried; the next poll continues.
            OSError: The run directory cannot be written.
        """
        self._until = until
        count = 0
        self._pods.left_out()
        for pod in [*self._pods.known(), *await self._pods.unknown(quick=quick)]:
            count += await self._take(pod, quick=quick)
        if self._blind:
            self._blind = False
            self._tell("Loki answers again")
        return count

    def forget(self) -> None:
        """Closes the state files; the next poll reads them again."""
        self._takes.clear()
        self._instances.close()

    def ended(self, slots: Iterable[int]) -> bool:
        """True if each slot has a pod, and the last record of every known pod of these slots is stored."""
        done = {fact.slot for fact in self._journal.values() if fact.log == "complete"}
        done |= {slot for slot, _ in self._ended.values()}
        return done.issuperset(slots) and all(ended for _, ended in self._ended.values())

    def trouble(self, error: LokiError) -> None:
        """Reports a failed query; a live collector reports it once until Loki answers again."""
        if not (self._live and self._blind):
            self._tell(f"{error.message}; trying again")
        self._blind = self._live

    # -- one pod

    async def _take(self, pod: LostPod, *, quick: bool) -> int:
        take = self._takes.get(pod.uid)
        if quick and (pod.uid in self._refused or self._ended.get(pod.uid, (0, False))[1]):
            # Late lines of an ended pod are rare.
            return 0
        if take is None:
            quick = False
            take = self._takes[pod.uid] = LokiPodCollector(
                pod,
                open_log=lambda number: self._instances.open(pod.slot, uid=pod.uid, number=number),
                state=LokiState(self._run_dir.path, attempt=self._attempt, uid=pod.uid),
                start_ns=self._since,
            )
        before = take.lines
        async for page in self._pages(self._pods.selector(pod), take.cursor, quick=quick):
            take.take(page)
        for problem in take.problems:
            self._say(problem)
        ends = take.ends()
        for number in ends:
            end = ends[number] or self._last_word(pod, take, number)
            # The container's status may report the end before Loki has all lines.
            ends[number] = (
                end and self._instances.settle(pod.slot, uid=pod.uid, number=number, changed=True) is not False
            )
            if ends[number]:
                self._complete(pod, take, number)
            elif not self._live:
                take.claim(number)
        self._ended[pod.uid] = (pod.slot, bool(ends) and all(ends.values()))
        lines = take.lines - before
        if not self._live and lines:
            self._say(f"{pod.name}: {lines} lines from Loki, stored as slot {pod.slot}")
        elif not self._live and not take.problems:
            self._say(f"{pod.name}: all lines of it in Loki are already stored")
        self._refused.discard(pod.uid)
        if take.problems:
            self._refused.add(pod.uid)
            del self._takes[pod.uid]
        return lines

    def _complete(self, pod: LostPod, take: LokiPodCollector, number: int) -> None:
        """Marks a log as complete; only the wrapper's record proves that Loki lacks no line."""
        cursor = take.log(number).cursor
        if cursor.closed != "complete":
            self._filled(pod, number, take.after(number))
            cursor.closed = "complete"
            cursor.commit({})

    def _filled(self, pod: LostPod, number: int, after: int | None) -> None:
        role = self._source.role_of(pod.slot)
        log = LogOf(self._run_dir.id, self._attempt, role, pod.slot, pod.uid, number)
        record = gap_record(log, after=after, before=None)
        with contextlib.suppress(FileNotFoundError):
            (self._run_dir.records_dir / f"{log.head}{record.id}.json").unlink()

    def _last_word(self, pod: LostPod, take: LokiPodCollector, number: int) -> bool:
        """True if this container, without restarts, wrote the slot's end record."""
        if len(pod.numbers) > 1:
            return False
        role = self._source.role_of(pod.slot)
        for path in self._run_dir.records_dir.glob(f"slot_end-a{self._attempt}-{role}-{pod.slot}-*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                record = decoding.decode(path.read_bytes(), kind=Record)
                if record.pod_uid == pod.uid:
                    cursor = take.log(number).cursor
                    if cursor.printed is None and record.printed is not None:
                        cursor.printed = log_gaps.clean(record.printed)
                    return True
        return False

    # -- queries

    def _pages(self, query: str, cursor: Cursor, *, quick: bool) -> AsyncIterator[list[Entry]]:
        def stuck(at: int) -> None:
            self._say(f"Loki has more lines of the nanosecond {at} than one answer can hold: some of them are lost")

        # One pod's query must not delay the others.
        patience_s = 0.0 if self._live else PATIENCE_S
        return Reader(self._loki, query, cursor, trouble=self.trouble, on_stuck=stuck, patience_s=patience_s).read(
            self._until + MARGIN_NS, settled=self._until, overlap_ns=QUICK_NS if quick else None
        )

    def _say(self, text: str) -> None:
        if not self._live or text not in self._said:
            self._said.add(text)
            self._tell(text)


POLL_S: Final = 2.0
# Between two thorough polls.
THOROUGH_NS: Final = 300 * SECOND
# Between the end and the last poll: a collector may hold lines.
SETTLE_NS: Final = 10 * SECOND
# Seconds after an answer that waiting may not fix, or a full disk.
REFUSED_S: Final = 10.0
# After the end, for the last poll of a silent Loki.
PATIENCE_NS: Final = 60 * SECOND


class LokiLive:
    """Copies lines of one or more attempts while the job runs."""

    def __init__(
        self,
        takes: Sequence[LokiCollector],
        *,
        ended: Callable[[], bool],
        say: Callable[[str], None],
        clock: Callable[[], int] = time.time_ns,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._takes = takes
        self._ended = ended
        self._say = say
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Polls until the run ends.

        Raises:
            LokiError: Loki does not answer.
            OSError: The run directory cannot be written.
        """
        try:
            await self._run()
        finally:
            self._forget()

    async def _run(self) -> None:
        answered = full = False
        thorough_at: int | None = None
        ended_at: int | None = None
        while True:
            now = self._clock()
            last = ended_at is not None and now >= ended_at + SETTLE_NS
            quick = not last and thorough_at is not None and now < thorough_at + THOROUGH_NS
            try:
                for take in self._takes:
                    await take.look(now, quick=quick)
            except LokiError as error:
                given_up = ended_at is not None and now >= ended_at + SETTLE_NS + PATIENCE_NS
                if given_up or not (answered or error.passing):
                    raise
                self._takes[0].trouble(error)
                await self._pause(max(REFUSED_S, error.retry_after or 0.0))
                continue
            except OSError as error:
                # Memory may be ahead of the files.
                self._forget()
                thorough_at = None
                if ended_at is not None:
                    raise
                if not full:
                    full = True
                    self._say(f"cannot store lines from Loki: {error.strerror or error}; trying again")
                await self._pause(REFUSED_S)
                continue
            answered, full = True, False
            if last:
                return
            thorough_at = thorough_at if quick else now
            if ended_at is None and self._ended():
                ended_at = now
            await self._pause(POLL_S)

    def _forget(self) -> None:
        for take in self._takes:
            take.forget()


# Of pods in one message.
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
