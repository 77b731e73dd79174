"""Reads the records of one attempt, and other untrusted files of a run directory.

Reads never follow a link or block on a pipe. Records of other runs or attempts are skipped; damaged ones are reported.

Cost: time linear in bytes, at most ``MAX_RECORD`` bytes of each record; memory that of the records and file names.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankfall.model import Record, decoding, numbers
from rankfall.model.record import SCHEMA
from rankfall.rundir.lease import boot_id, start_ticks
from rankfall.rundir.reader_guard import MAX_COPY, Budget, ReaderGuard
from rankfall.rundir.streams.content import open_regular


def read_untrusted_file(path: Path, *, limit: int) -> tuple[bytes, int]:
    """Returns the first ``limit`` bytes of a regular file, and its modification time (nanoseconds).

    A link is not followed. Request one byte more to detect a longer file.

    Raises:
        OSError: Not a regular file, or unreadable.
    """
    fd = open_regular(path, links=False)
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        parts: list[bytes] = []
        left = limit
        # A network read may return less than available.
        while left > 0 and (data := file.read(left)):
            parts.append(data)
            left -= len(data)
    return b"".join(parts), status.st_mtime_ns


# Rankfall's records have at most 256 KiB.
MAX_RECORD: Final = 1 << 20
# Maximum records of a job, and bytes of large ones.
MAX_RECORDS: Final = 20_000
RECORDS_A_RANK: Final = 64
MAX_LARGE_BYTES: Final = 64 << 20
LARGE_BYTES_A_RANK: Final = 256 << 10
_LARGE: Final = 4 << 10
_MOST: Final = 1 << 62
# CPU seconds of one poll.
_POLL_S: Final = 1.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A record with its file name and modification time.

    Attributes:
        mtime: Nanoseconds since the epoch by this machine's clock.
    """

    record: Record
    name: str
    mtime: int


class SlotLock(NamedTuple):
    """The wrapper of a slot by its ``lock`` file, ``pid ticks boot``.

    ``ticks``: start since the boot, 0 = unknown. ``boot``: ID of the boot, ``-`` = unknown.
    """

    pid: int
    ticks: int
    boot: str

    def lives(self) -> bool:
        """True if the process lives; none outlives its boot."""
        if self.boot not in {"-", boot_id()}:
            return False
        now = start_ticks(self.pid)
        return now is not None and self.ticks in {0, now}


def read_lock(slot_dir: Path) -> SlotLock | None:
    """Returns the wrapper that a slot's directory names; None if it names none."""
    try:
        words = read_untrusted_file(slot_dir / "lock", limit=128)[0].split()
        pid, ticks, boot = numbers.whole(words[0]), numbers.whole(words[1]), words[2].decode("ascii", "replace")
    except (OSError, IndexError):
        return None
    return None if pid is None or ticks is None else SlotLock(pid, ticks, boot)


def read_end(slot_dir: Path) -> Record | None:
    """Returns the slot's end from its directory: a copy of the ``slot_end`` record; None if absent.

    The copy exists even if the records folder could not store it.

    Raises:
        ValueError: The copy is damaged.
    """
    try:
        data, _ = read_untrusted_file(slot_dir / "end.json", limit=MAX_RECORD)
    except OSError:
        return None
    try:
        return decoding.decode(data, kind=Record)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


class _Head(msgspec.Struct):
    schema: str = ""


class RecordFolder:
    """Incremental reader of a records folder, which need not exist yet.

    Only records of ``run`` and ``attempt``, or that name none, are accepted.
    """

    def __init__(
        self, folder: Path, *, run: str, attempt: int, ranks: int = 1, guard: ReaderGuard | None = None
    ) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._run = run
        self._attempt = attempt
        self._seen: set[str] = set()
        self._ids: set[str] = set()
        self._decoder = decoding.decoder(Record)
        self._guard = guard or ReaderGuard()
        self._left = MAX_RECORDS + RECORDS_A_RANK * ranks
        self._large = MAX_LARGE_BYTES + LARGE_BYTES_A_RANK * ranks
        self.behind = False

    def poll(self) -> list[Found]:
        """New records, by name; ``behind`` = more remain."""
        try:
            with os.scandir(self.folder) as entries:
                names = sorted(e.name for e in entries if e.name.endswith(".json") and e.name not in self._seen)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._problem(f"records folder {self.folder.name} cannot be read: {error.strerror}")
            return []
        found = []
        budget = Budget(_POLL_S, clock=time.thread_time)
        self.behind = False
        for name in names:
            if budget.spent:
                self.behind = True
                break
            self._seen.add(name)
            item = self._guard.read(
                partial(self._read, name), otherwise=None, what="record", where=name, data=partial(self._data, name)
            )
            if item is not None and item.record.id not in self._ids:
                self._ids.add(item.record.id)
                found.append(item)
        return found

    def _data(self, name: str) -> bytes:
        return read_untrusted_file(self.folder / name, limit=MAX_COPY)[0]

    def _read(self, name: str) -> Found | None:
        path = self.folder / name
        if self._left <= 0:
            self._problem("there are more records than ranks can have written; the rest was not read")
            return None
        self._left -= 1
        try:
            data, mtime = read_untrusted_file(path, limit=MAX_RECORD + 1)
        except OSError as error:
            self._problem(f"record {name} cannot be read: {error.strerror}")
            return None
        if not data.strip():
            self._problem(f"record {name} is empty")
            return None
        if len(data) > MAX_RECORD:
            self._problem(f"record {name} is larger than {MAX_RECORD} bytes and was not used")
            return None
        if len(data) > _LARGE:
            self._large -= len(data)
            if self._large < 0:
                self._problem(f"large records take too much space: {name} and further ones were not used")
                return None
        try:
            record = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            newer = _newer_schema(data)
            what = f"is of {newer}, newer than this reader, and was not understood" if newer else "is damaged"
            self._problem(f"record {name} {what}: {str(error)[:200]}")
            return None
        if not _in_range(record):
            self._problem(f"record {name} holds a number that no process, time or rank has, and was not used")
            return None
        if record.run not in {None, self._run} or record.attempt not in {None, self._attempt}:
            return None
        if record.schema != SCHEMA:
            self._problem(f"records of {record.schema[:60]!r} are newer than this reader: unknown fields are ignored")
        return Found(record=record, name=name, mtime=mtime)

    def _problem(self, text: str) -> None:
        if text not in self.problems and len(self.problems) < 50:  # noqa: PLR2004 - enough for a user
            self.problems.append(text)


def _in_range(value: msgspec.Struct) -> bool:
    """True if all its numbers fit into 63 bits, which all later code accepts."""
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        if isinstance(inner, int):
            if not -_MOST <= inner <= _MOST:
                return False
        elif isinstance(inner, msgspec.Struct) and not _in_range(inner):
            return False
    return True


def _newer_schema(data: bytes) -> str | None:
    """Schema that a record names if it is not this reader's; else None."""
    try:
        schema = decoding.decode(data, kind=_Head).schema
    except msgspec.DecodeError:
        return None
    return repr(schema[:60]) if schema not in {"", SCHEMA} else None
