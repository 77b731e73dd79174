"""Takes what Loki has of an attempt's pods that the API no longer has into the run directory, and says what became of each.

Pods that the journal knows are read by name. Pods that nobody ever saw are found by the attempt's token, which only the records of its own
wrappers carry: such a record names the slot and the pod. What cannot be told apart (two unknown pods of one slot) is left out, and said.
Nothing here asks the API: a pod that may still be there is its, not Loki's.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import msgspec

from rankfall.model import Record
from rankfall.observe.cluster.followed import instances_of
from rankfall.observe.cluster.gaps import gap_record
from rankfall.observe.cluster.instance import RECORD_MARK
from rankfall.observe.cluster.instances import Instances
from rankfall.observe.cluster.journal import JournalReader, journal_path
from rankfall.observe.cluster.loki_labels import TELLING, origin
from rankfall.observe.cluster.loki_pod import LostPod, PodTake
from rankfall.observe.cluster.loki_state import LokiState
from rankfall.observe.cluster.source import PodSource
from rankfall.observe.loki import logql
from rankfall.observe.loki.cursor import SECOND, Cursor, Entry, State
from rankfall.observe.loki.errors import LokiError
from rankfall.observe.loki.reader import Asks, Reader
from rankfall.observe.loki.settings import LokiSettings
from rankfall.store import RunDir

# How far clocks of nodes may be off, and how far ahead Loki takes stamps.
MARGIN_NS: Final = 900 * SECOND


def keys_of(settings: LokiSettings) -> tuple[str, ...]:
    """Labels whose values tell a run's lines apart."""
    return (*settings.labels.values(), *TELLING)


class LokiTake:
    """One attempt's lost pods.

    Args:
        run_dir: the run; its lease must be held.
        attempt: counted from 1.
        source: which pods.
        loki: gives pages.
        settings: names of the labels.
        over: the run has ended, so that nobody will read a log by the API any more.
        since: when the attempt began, nanoseconds since the epoch.
        until: when it ended, or now.
        say: takes lines for people.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource,
        loki: Asks,
        settings: LokiSettings,
        over: bool,
        since: int,
        until: int,
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._loki = loki
        self._labels = settings.labels
        self._over = over
        self._since = since - MARGIN_NS
        self._until = until
        self._say = say
        self._named = source.named or attempt
        self._journal = JournalReader.read(journal_path(run_dir.path, attempt))
        self._instances = Instances(
            run_dir, attempt=attempt, role_of=source.role_of, token=source.token, named=self._named
        )

    async def take(self) -> int:
        """Store what there is; the number of lines that are new.

        Raises:
            LokiError: it cannot be asked; what came before is stored.
            OSError: the run directory cannot be written.
        """
        try:
            count = 0
            for pod in [*self._known(), *await self._unknown()]:
                count += await self._take(pod)
            return count
        finally:
            self._instances.close()

    # -- which pods

    def _known(self) -> list[LostPod]:
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

    async def _unknown(self) -> list[LostPod]:
        """Pods whose wrappers wrote records with this attempt's token, and that nobody saw."""
        if not self._source.container:
            # A job that Rankfall did not start: its pods write no records.
            return []
        known = {fact.uid for fact in self._journal.values()}
        for other in self._source.apart:
            known |= JournalReader.read(journal_path(self._run_dir.path, other)).keys()
        query = self._selector() + logql.containing([f"rankfall/1 {self._source.token} "])
        found: dict[str, LostPod] = {}
        cursor = Cursor(State.beginning(self._since))
        async for page in self._pages(query, cursor):
            for entry in page:
                record = self._record(entry)
                name = entry.labels.get(self._labels["pod"])
                if record is None or record.kind != "slot_start" or not name or record.slot is None:
                    continue
                uid = origin(entry.labels).uid or record.pod_uid
                if uid and uid not in known:
                    found[uid] = LostPod(name=name, uid=uid, container=self._source.container, slot=record.slot)
        return self._unmistakable(found.values())

    def _unmistakable(self, pods: Iterable[LostPod]) -> list[LostPod]:
        """Pods of an attempt that Kubernetes may have started several times are told from its others by a look only."""
        by_slot: dict[int, list[LostPod]] = {}
        for pod in pods:
            by_slot.setdefault(pod.slot, []).append(pod)
        seen = {fact.slot for fact in self._journal.values()}
        chosen = []
        for slot, several in sorted(by_slot.items()):
            if self._run_dir.spec.unattended and (len(several) > 1 or slot in seen or self._source.apart):
                self._say(
                    f"slot {slot}: Loki has {len(several)} pods of it that nobody saw ({', '.join(pod.name for pod in several)}); of which start of "
                    "the gang they are is not known: left out"
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
            record = msgspec.json.decode(data, type=Record)
        except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
            return None
        fits = record.run == self._run_dir.id and record.attempt == self._named
        return record if fits and record.writer == "wrapper" else None

    # -- one pod

    async def _take(self, pod: LostPod) -> int:
        take = PodTake(
            pod,
            open_log=lambda number: self._instances.open(pod.slot, uid=pod.uid, number=number),
            state=LokiState(self._run_dir.path, attempt=self._attempt, uid=pod.uid),
            beginning=self._since,
        )
        if all(take.log(number).cursor.closed == "complete" for number in pod.numbers or (0,)):
            return 0
        async for page in self._pages(self._selector(pod), take.cursor):
            take.take(page)
        for problem in take.problems:
            self._say(problem)
        for number, ended in take.ends().items():
            self._close(pod, take, number, ended=ended or self._has(pod, "slot_end"))
        if take.lines:
            self._say(f"{pod.name}: {take.lines} lines from Loki, stored as slot {pod.slot}")
        elif not take.problems:
            self._say(f"{pod.name}: Loki has no line of it that is not stored")
        return take.lines

    def _close(self, pod: LostPod, take: PodTake, number: int, *, ended: bool) -> None:
        """Say in the record whether all of it is there: nobody but its wrapper can know that a line is missing in Loki."""
        log = take.log(number)
        if log.cursor.closed == "lost" and ended:
            self._filled(pod, number, take.after(number))
        if log.cursor.closed is None and not ended:
            log.lose()
        log.cursor.closed = "complete" if ended else "lost"
        log.cursor.commit({})

    def _filled(self, pod: LostPod, number: int, after: int | None) -> None:
        """The gap that was said when the pod vanished is none any more."""
        role = self._source.role_of(pod.slot)
        record = gap_record(
            run=self._run_dir.id,
            attempt=self._attempt,
            role=role,
            slot=pod.slot,
            uid=pod.uid,
            number=number,
            after=after,
            before=None,
        )
        with contextlib.suppress(FileNotFoundError):
            (self._run_dir.records_dir / f"gap-a{self._attempt}-{role}-{pod.slot}-{record.id}.json").unlink()

    def _has(self, pod: LostPod, kind: str) -> bool:
        """Whether a record of this kind came from this pod, whichever process took it; of a container that never was restarted."""
        if len(pod.numbers) > 1:
            return False
        role = self._source.role_of(pod.slot)
        for path in self._run_dir.records_dir.glob(f"{kind}-a{self._attempt}-{role}-{pod.slot}-*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                if msgspec.json.decode(path.read_bytes(), type=Record).pod_uid == pod.uid:
                    return True
        return False

    # -- asking

    def _selector(self, pod: LostPod | None = None) -> str:
        names = self._labels
        container = self._source.container if pod is None else pod.container
        wanted = {names["namespace"]: self._source.namespace}
        if container:
            wanted[names["container"]] = container
        return logql.selector(wanted if pod is None else {**wanted, names["pod"]: pod.name})

    def _pages(self, query: str, cursor: Cursor) -> AsyncIterator[list[Entry]]:
        def waits(error: LokiError) -> None:
            self._say(f"{error.message}; asked again")

        def stuck(at: int) -> None:
            self._say(f"Loki has more lines of the nanosecond {at} than it gives at once: some of them are lost")

        return Reader(self._loki, query, cursor, trouble=waits, on_stuck=stuck).read(
            self._until + MARGIN_NS, settled=self._until
        )
