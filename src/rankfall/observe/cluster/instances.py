"""Folders of container instances: which one of a slot is which, kept so that the next feed finds them again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import Record, numbers
from rankfall.observe.cluster import settle
from rankfall.observe.cluster.channel import RecordIntake
from rankfall.observe.cluster.gaps import LogOf, gap_record, short_record
from rankfall.observe.cluster.instance import InstanceLog
from rankfall.observe.cluster.log_owner import OWNER_NAME, Identity, identity_of
from rankfall.observe.cluster.podfacts import PodFact
from rankfall.observe.cluster.told import Told, ToldRank, read_told, write_told
from rankfall.observe.log_store import StoreCopies
from rankfall.store import RunDir
from rankfall.store.fs import make_folder
from rankfall.store.home import replace_file

_MANIFEST: Final = "the manifest's static node rank"


class Instances:
    """The open logs of one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        role_of: gives the role of a slot.
        token: of the log channel.
        named: the attempt that its pods' own records name; None = this one.
        stores: told which of them store their ranks' lines elsewhere.
        on_stream: called when the first bytes of a stream are stored.
        foreign: Rankfall did not start the job.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        role_of: Callable[[int], str],
        token: str,
        named: int | None = None,
        stores: StoreCopies | None = None,
        on_stream: Callable[[], None] = lambda: None,
        foreign: bool = False,
    ) -> None:
        self._stores = stores
        self._on_stream = on_stream
        self._foreign = foreign
        self._run_dir = run_dir
        self._attempt = attempt
        self._role_of = role_of
        self._token = token
        self._named = named
        self._open: dict[tuple[int, str, int], InstanceLog] = {}

    def open(self, slot: int, *, uid: str, number: int) -> InstanceLog:
        """The log of an instance; its folder is found again or made, in the order in which instances of a slot were first seen.

        Raises:
            OSError: it cannot be made or read.
        """
        key = (slot, uid, number)
        held = self._open.get(key)
        if held is not None:
            return held
        folder = self._folder(slot, Identity(uid=uid, number=number))

        def on_printed(printed: Mapping[str, tuple[int, int]]) -> None:
            log.cursor.printed = settle.clean(printed)

        intake = self._intake(slot, uid=uid, instance=numbers.matched(folder.name), on_printed=on_printed)

        def on_gap(after: int | None, before: int | None) -> None:
            intake.keep(gap_record(self._log_of(slot, uid, number), after=after, before=before, why=log.why), after)

        log = self._open[key] = InstanceLog(
            folder,
            on_record=intake.take,
            on_records=intake.tell_progress,
            now=time.time_ns,
            on_gap=on_gap,
            ended=lambda: intake.ended,
            on_stream=self._on_stream,
            foreign=self._foreign,
        )
        if self._foreign:
            read_told(folder).route(log.routes)
        return log

    def prove(self, slot: int, *, uid: str, number: int, fact: PodFact, looks: bool) -> None:
        """Write down what the manifest of a foreign pod proves of one instance and its lines; it holds for all of it.

        Args:
            slot: whose.
            uid: of the pod.
            number: of the container's restart.
            fact: the pod.
            looks: its processes may prove more.

        Raises:
            OSError: it cannot be written.
        """
        if not self._foreign:
            return
        folder = self.folder(slot, uid=uid, number=number)
        held = read_told(folder)
        told = held
        if held.roles is None and fact.prefixes is not None:
            ranks = {local: ToldRank(rank=rank, proof=_MANIFEST) for local, rank in fact.ranks.items()}
            told = Told(roles=fact.prefixes, ranks=ranks, settled=not fact.prefixes)
        if not looks and not told.settled:
            told = msgspec.structs.replace(told, settled=True)
        if told != held:
            write_told(folder, told)
        told.route(self._open[slot, uid, number].routes)

    def take_message(self, slot: int, text: str, *, uid: str, number: int) -> int:
        """Take the records of a container's termination message, as ``RecordIntake.take_message``; its log may be open.

        Raises:
            OSError: one could not be written.
        """
        folder = self._folder(slot, Identity(uid=uid, number=number))
        log = self._open.get((slot, uid, number))

        def on_printed(printed: Mapping[str, tuple[int, int]]) -> None:
            if log is not None and log.cursor.printed is None:
                log.cursor.printed = settle.clean(printed)

        return self._intake(slot, uid=uid, instance=numbers.matched(folder.name), on_printed=on_printed).take_message(
            text
        )

    def settle(self, slot: int, *, uid: str, number: int, changed: bool = False) -> bool | None:
        """Compare what is stored of an open log with what its wrapper printed, and write down what is missing.

        Args:
            slot: whose.
            uid: of the pod.
            number: of the container's restart.
            changed: its lines came through something that changes bytes and gives more of them later: only lines are compared, each time.

        Returns:
            Whether all of it is stored; None where that cannot be told, or was told before.

        Raises:
            OSError: streams cannot be read, or records not written.
        """
        log = self._open[slot, uid, number]
        cursor = log.cursor
        if cursor.printed is None or (cursor.settled and not changed):
            return None
        held = log.held()
        folder = self.folder(slot, uid=uid, number=number)
        found = settle.compare(
            cursor.printed, held, returns=None if changed else lambda: settle.returns_of(folder, held)
        )
        of = self._log_of(slot, uid, number)
        settle.write_down(
            found,
            folder=self._run_dir.records_dir,
            head=of.head,
            uid=uid,
            number=number,
            record_of=lambda short: short_record(of, stream=short.stream, lines=short.lines, size=short.size),
        )
        if found.whole:
            cursor.gaps = 0
            cursor.closed = cursor.closed and "complete"
        if found.whole or not cursor.settled:
            cursor.settled = True
            cursor.commit({})
        return found.whole

    def drop(self, slot: int, *, uid: str, number: int) -> None:
        """Close one."""
        held = self._open.pop((slot, uid, number), None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Close all."""
        for log in self._open.values():
            log.close()
        self._open.clear()

    def _intake(
        self, slot: int, *, uid: str, instance: int, on_printed: Callable[[Mapping[str, tuple[int, int]]], None]
    ) -> RecordIntake:
        # Of slots that are not started again alone all instances share one folder.
        own = instance if self._run_dir.spec.restarts_alone(slot) else 0
        slot_dir = self._run_dir.slot_dir(self._attempt, self._role_of(slot), slot, own)
        make_folder(self._run_dir.records_dir)
        return RecordIntake(
            self._run_dir.records_dir,
            token=self._token,
            run=self._run_dir.id,
            attempt=self._attempt,
            role=self._role_of(slot),
            slot=slot,
            named=self._named,
            uid=uid,
            on_progress=lambda record: write_progress(slot_dir / "progress", record),
            on_printed=on_printed,
            on_store=lambda name: self._stored_elsewhere(slot, name, instance=instance),
        )

    def folder(self, slot: int, *, uid: str, number: int) -> Path:
        """Where the streams of an instance are, made when missing.

        Raises:
            OSError: it cannot be made or read.
        """
        return self._folder(slot, Identity(uid=uid, number=number))

    def _stored_elsewhere(self, slot: int, name: str, *, instance: int) -> None:
        if self._stores is not None:
            parent = self._run_dir.stream_dir(self._attempt, self._role_of(slot), slot).parent
            self._stores.add(parent / str(instance), name)

    def _log_of(self, slot: int, uid: str, number: int) -> LogOf:
        return LogOf(self._run_dir.id, self._attempt, self._role_of(slot), slot, uid, number)

    def _folder(self, slot: int, identity: Identity) -> Path:
        parent = self._run_dir.stream_dir(self._attempt, self._role_of(slot), slot).parent
        make_folder(parent)
        taken = 0
        for folder in sorted(parent.iterdir(), key=lambda path: (len(path.name), path.name)):
            number = numbers.whole(folder.name)
            if number is None:
                continue
            taken = max(taken, number + 1)
            if identity_of(folder) == identity:
                return folder
        folder = parent / str(taken)
        make_folder(folder, new=True)
        try:
            replace_file(folder / OWNER_NAME, msgspec.json.encode(identity))
        except OSError:
            # Tried again soon: a full disk must not leave a folder each time.
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
        return folder


def write_progress(folder: Path, record: Record) -> None:
    """Keep the newest step of a rank's process where a hook on this machine would have kept it.

    Raises:
        OSError: it cannot be written.
    """
    if record.ordinal is None:
        return
    row = {
        "step": record.step,
        "phase": record.phase,
        "at_ns": record.at_ns,
        "pid": record.pid,
        "cpu_s": record.cpu_s,
    }
    path, data = folder / f"{record.ordinal}.json", msgspec.json.encode(row)
    try:
        replace_file(path, data)
    except FileNotFoundError:
        make_folder(folder)
        replace_file(path, data)
