"""Log folders and record intake of an attempt's container instances.

The token proves a record's attempt. Damaged, oversized or foreign records stay ordinary lines.

Cost: time linear in the bytes of a record line, at most ``MAX_LINE``; memory one record, and the newest progress of
each process.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.collect.background import Stir, undisturbed
from rankfall.collect.pods import log_gaps
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.collect.pods.log_gaps import LogOf, gap_record, short_record
from rankfall.collect.stores.log_store import StoreCopies
from rankfall.model import Record, decoding, numbers
from rankfall.model.patterns import anchored
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.log_routes import RECORD_MARK
from rankfall.rundir.cluster.marks import (
    OWNER_NAME,
    Identity,
    RankMap,
    RankMapEntry,
    identity_of,
    read_rank_map,
    write_rank_map,
)
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.layout import replace_file
from rankfall.rundir.lease import make_folder, write_file

# Above ``rankfall_inside.records.MAX_LINE``, 8 KiB.
MAX_LINE: Final = 16 << 10
# Per instance: a job that found the token must not fill the disk.
MAX_RECORDS: Final = 20_000
_ID: Final = anchored(r"[0-9a-zA-Z-]{8,64}", limit=64)
# Records in the termination message (``rankfall_inside.delivery.exit_reports``).
_LAST_WORDS: Final = frozenset({"error", "slot_end"})


class RecordIntake:
    """Stores the records of one container instance.

    Progress records are not stored as files; ``on_progress`` receives the newest of each process. ``ended`` is True
    after the slot's end record.
    """

    def __init__(
        self,
        folder: Path,
        *,
        token: str,
        run: str,
        attempt: int,
        role: str,
        slot: int,
        uid: str,
        on_progress: Callable[[Record], None],
        on_printed: Callable[[Mapping[str, tuple[int, int]]], None] | None = None,
        on_store: Callable[[str], None] | None = None,
        named: int | None = None,
    ) -> None:
        self.refused = 0
        self.ended = False
        self._folder = folder
        self._head = RECORD_MARK + token.encode() + b" "
        self._run, self._attempt, self._role, self._slot, self._uid = run, attempt, role, slot, uid
        self._named = named or attempt
        self._decoder = decoding.decoder(Record)
        self._on_progress = on_progress
        self._progress: dict[int | None, Record] = {}
        self._on_printed = on_printed
        self._on_store = on_store
        self._taken = 0

    def take(self, line: bytes, at: int | None) -> bool:
        """Stores one line without timestamp; False if it is no record of this slot.

        Raises:
            OSError: The record could not be written.
        """
        record = self._decode(line) if line.startswith(self._head) and len(line) <= MAX_LINE else None
        if record is None or self._taken >= MAX_RECORDS:
            self.refused += 1
            return False
        if record.kind == "progress":
            self._progress[record.ordinal] = record
            return True
        self._taken += 1
        if record.log_store is not None and record.writer == "wrapper" and self._on_store is not None:
            # Before the record, so that a kill in between repeats it.
            self._on_store(record.log_store)
        self.keep(record, at)
        self.ended = self.ended or record.kind == "slot_end"
        self._counted(record)
        return True

    def tell_progress(self) -> None:
        """Reports the batch's newest progress: a replayed log holds hours of it.

        Raises:
            OSError: A write failed; the next call retries.
        """
        for ordinal, record in [*self._progress.items()]:
            self._on_progress(record)
            del self._progress[ordinal]

    def take_message(self, text: str) -> int:
        """Stores a termination message's records, or those in the end of a log, and returns their number.

        Raises:
            OSError: A record could not be written.
        """
        lines = text.encode().split(b"\n")
        read = (self._decode(line) if line.startswith(self._head) else self._read(line) for line in lines)
        found = [record for record in read if record is not None]
        found = [record for record in found if record.kind in _LAST_WORDS][: len(_LAST_WORDS)]
        for record in found:
            self.keep(record, record.at_ns)
            self._counted(record)
        return len(found)

    def _counted(self, record: Record) -> None:
        if record.kind == "slot_end" and record.printed is not None and self._on_printed is not None:
            self._on_printed(record.printed)

    def _decode(self, line: bytes) -> Record | None:
        try:
            data = base64.b64decode(line[len(self._head) :], altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        return self._read(data)

    def _read(self, data: bytes) -> Record | None:
        try:
            record = self._decoder.decode(data)
        except ValueError:
            return None
        if (
            not _ID.fullmatch(record.id)
            or record.run not in {None, self._run}
            or record.attempt not in {None, self._named}
            or record.role not in {None, self._role}
            or record.slot not in {None, self._slot}
        ):
            return None
        return msgspec.structs.replace(
            record, run=self._run, attempt=self._attempt, role=self._role, slot=self._slot, pod_uid=self._uid
        )

    def keep(self, record: Record, at: int | None) -> None:
        """Writes a record of this slot as a file, once; ``at``: its timestamp, for its clock's offset, or None.

        Raises:
            OSError: The record could not be written.
        """
        path = self._folder / f"{record.kind}-a{self._attempt}-{self._role}-{self._slot}-{record.id}.json"
        if path.exists():
            # Already received.
            return
        temporary = path.with_suffix(".new")
        try:
            write_file(temporary, msgspec.json.encode(record))
            if at is not None:
                # A reader derives the writer's clock offset from this.
                os.utime(temporary, ns=(at, at))
            temporary.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


_MANIFEST: Final = "the manifest's static node rank"


class Instances:
    """The open logs of one attempt; ``number`` is the restart number of a pod's container."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        role_of: Callable[[int], str],
        token: str,
        named: int | None = None,
        stores: StoreCopies | None = None,
        stir: Stir = undisturbed,
        foreign: bool = False,
    ) -> None:
        self._stores = stores
        self._stir = stir
        self._foreign = foreign
        self._run_dir = run_dir
        self._attempt = attempt
        self._role_of = role_of
        self._token = token
        self._named = named
        self._open: dict[tuple[int, str, int], InstanceLog] = {}

    def open(self, slot: int, *, uid: str, number: int) -> InstanceLog:
        """Log of an instance; creates its folder if missing.

        Raises:
            OSError: The folder cannot be created or read.
        """
        key = (slot, uid, number)
        held = self._open.get(key)
        if held is not None:
            return held
        folder = self._folder(slot, Identity(uid=uid, number=number))

        def on_printed(printed: Mapping[str, tuple[int, int]]) -> None:
            log.cursor.printed = log_gaps.clean(printed)

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
            stir=self._stir,
            foreign=self._foreign,
        )
        if self._foreign:
            read_rank_map(folder).route(log.routes)
        return log

    def prove(self, slot: int, *, uid: str, number: int, fact: PodFact, probes: bool) -> None:
        """Stores the facts that a foreign pod's manifest proves about one instance and all its lines.

        Raises:
            OSError: The rank map cannot be written.
        """
        if not self._foreign:
            return
        folder = self.folder(slot, uid=uid, number=number)
        held = read_rank_map(folder)
        rank_map = held
        if held.roles is None and fact.prefixes is not None:
            ranks = {local: RankMapEntry(rank=rank, proof=_MANIFEST) for local, rank in fact.ranks.items()}
            rank_map = RankMap(roles=fact.prefixes, ranks=ranks, settled=not fact.prefixes)
        if not probes and not rank_map.settled:
            rank_map = msgspec.structs.replace(rank_map, settled=True)
        if rank_map != held:
            write_rank_map(folder, rank_map)
        rank_map.route(self._open[slot, uid, number].routes)

    def take_message(self, slot: int, text: str, *, uid: str, number: int) -> int:
        """Stores a container's termination message; its log may be open.

        Raises:
            OSError: A record could not be written.
        """
        folder = self._folder(slot, Identity(uid=uid, number=number))
        log = self._open.get((slot, uid, number))

        def on_printed(printed: Mapping[str, tuple[int, int]]) -> None:
            if log is not None and log.cursor.printed is None:
                log.cursor.printed = log_gaps.clean(printed)

        return self._intake(slot, uid=uid, instance=numbers.matched(folder.name), on_printed=on_printed).take_message(
            text
        )

    def settle(self, slot: int, *, uid: str, number: int, changed: bool = False) -> bool | None:
        """Compares an open log with the wrapper's counts, and records missing lines.

        Returns True if all is stored; None if the counts are unknown or were compared before. With ``changed`` (the
        source changes bytes) only lines are compared, and again.

        Raises:
            OSError: A stream or record is not accessible.
        """
        log = self._open[slot, uid, number]
        cursor = log.cursor
        if cursor.printed is None or (cursor.settled and not changed):
            return None
        held = log.held()
        folder = self.folder(slot, uid=uid, number=number)
        found = log_gaps.compare(
            cursor.printed, held, returns=None if changed else lambda: log_gaps.returns_of(folder, held)
        )
        of = self._log_of(slot, uid, number)
        log_gaps.write_down(
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
        """Closes one log."""
        held = self._open.pop((slot, uid, number), None)
        if held is not None:
            held.close()

    def close(self) -> None:
        """Closes all logs."""
        for log in self._open.values():
            log.close()
        self._open.clear()

    def _intake(
        self, slot: int, *, uid: str, instance: int, on_printed: Callable[[Mapping[str, tuple[int, int]]], None]
    ) -> RecordIntake:
        # One folder if the slot does not restart alone.
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
        """Stream folder of an instance, created if missing.

        Raises:
            OSError: The folder cannot be created or read.
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
            # Retries follow: a full disk must not leave folders.
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
        return folder


def write_progress(folder: Path, record: Record) -> None:
    """Stores the newest step of a rank's process in the place of a local hook's file.

    Raises:
        OSError: The step cannot be written.
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
