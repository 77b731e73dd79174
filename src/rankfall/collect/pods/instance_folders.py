"""Log folders and record intake of an attempt's container instances.

Maps each container instance of a slot to its folder, so that the next collector finds it again. Records
that come as log lines are written to the records folder as if their writer shared our disk; the token
proves the attempt. Damaged, oversized or foreign records stay ordinary lines.

Cost: time linear in the bytes of a record line, at most ``MAX_LINE``; memory one record, and the newest progress of each process.
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

# rankfall_inside.records.MAX_LINE is 8 KiB; a little more costs nothing.
MAX_LINE: Final = 16 << 10
# Records of one container instance; a job that found the token must not fill the disk with them.
MAX_RECORDS: Final = 20_000
_ID: Final = anchored(r"[0-9a-zA-Z-]{8,64}", limit=64)
# What the termination message holds (rankfall_inside.delivery.exit_reports).
_LAST_WORDS: Final = frozenset({"error", "slot_end"})


class RecordIntake:
    """Takes the records of one container instance.

    Args:
        folder: the run's records folder.
        token: of the attempt.
        run, attempt, role, slot: whose log it is; a record that names others is refused.
        named: the attempt that records name instead, and are kept without; None = this one.
        uid: of its pod; a record is of this pod, whatever it says itself.
        on_printed: takes the wrapper's counts of what it printed.
        on_store: takes the folder of a log store that the wrapper names for its ranks' lines.
        on_progress: takes the newest record of progress of each process, once for all that came together; they are not kept as files.

    Attributes:
        refused: lines that bore the mark and were no record of this slot.
        ended: the slot's end came; only the wrapper writes that, after everything else.
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
        """Take one line; False when it is none of ours.

        Args:
            line: without its stamp and newline.
            at: its stamp, nanoseconds since the epoch by the node's clock.

        Raises:
            OSError: it could not be written.
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
            # Before the record: a process that is killed in between takes it again.
            self._on_store(record.log_store)
        self.keep(record, at)
        self.ended = self.ended or record.kind == "slot_end"
        self._counted(record)
        return True

    def tell_progress(self) -> None:
        """What came together was taken: its newest progress is told. A log that is replayed holds that of hours.

        Raises:
            OSError: it could not be written; it is told the next time.
        """
        for ordinal, record in [*self._progress.items()]:
            self._on_progress(record)
            del self._progress[ordinal]

    def take_message(self, text: str) -> int:
        """Take the records of a container's termination message: its first error and its end, where the log that held them is lost.

        Args:
            text: of the container's status; another program's message holds none.

        Returns:
            How many there were.

        Raises:
            OSError: one could not be written.
        """
        found = [record for line in text.encode().split(b"\n") if (record := self._read(line)) is not None]
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
        """A record of this slot, with what it left out about its place."""
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
        """Write a record of this slot as a file, once.

        Args:
            record: its id names it.
            at: nanoseconds since the epoch by the clock that its own times are of.

        Raises:
            OSError: it could not be written.
        """
        path = self._folder / f"{record.kind}-a{self._attempt}-{self._role}-{self._slot}-{record.id}.json"
        if path.exists():
            # It came before, by this channel or another one.
            return
        temporary = path.with_suffix(".new")
        try:
            write_file(temporary, msgspec.json.encode(record))
            if at is not None:
                # A reader tells from this how far the writer's clock is off; both stamps here are of the node's one clock.
                os.utime(temporary, ns=(at, at))
            temporary.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


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
            on_stream=self._on_stream,
            foreign=self._foreign,
        )
        if self._foreign:
            read_rank_map(folder).route(log.routes)
        return log

    def prove(self, slot: int, *, uid: str, number: int, fact: PodFact, probes: bool) -> None:
        """Write down what the manifest of a foreign pod proves of one instance and its lines; it holds for all of it.

        Args:
            slot: whose.
            uid: of the pod.
            number: of the container's restart.
            fact: the pod.
            probes: its processes may prove more.

        Raises:
            OSError: it cannot be written.
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
        """Take the records of a container's termination message, as ``RecordIntake.take_message``; its log may be open.

        Raises:
            OSError: one could not be written.
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
