"""Records that came as lines of a container's log, written into the run's records folder as if their writer had shared our disk.

The token proves that the line is of this attempt and not of another's log; it does not make it more than text of the job. A line that is
damaged, too large or of another run is no record: it stays an ordinary line.

Cost: time linear in the bytes of a line, at most ``MAX_LINE``; memory one record, and the newest progress of each process.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import Record, decoding
from rankfall.model.patterns import anchored
from rankfall.observe.cluster.routes import RECORD_MARK
from rankfall.store.fs import write_file

# rankfall_inside.records.MAX_LINE is 8 KiB; a little more costs nothing.
MAX_LINE: Final = 16 << 10
# Records of one container instance; a job that found the token must not fill the disk with them.
MAX_RECORDS: Final = 20_000
_ID: Final = anchored(r"[0-9a-zA-Z-]{8,64}", limit=64)
# What rankfall_inside.termination writes.
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
