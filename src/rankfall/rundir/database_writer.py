"""The only writer of run.db: one transaction per call.

A full disk raises StoreError and leaves the writer usable.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.model import (
    FINAL_STATES,
    Decision,
    Diagnosis,
    Evidence,
    RankFacts,
    RunState,
    SlotFacts,
    StoreError,
    decoding,
)
from rankfall.model.errors import MORE_FILES, is_file_limit
from rankfall.rundir import database
from rankfall.rundir.database import NO_ROUND, Queries, StreamRow, read_all

MAX_NOTES: Final = 200
# Files that sqlite opens for one database at most.
_FILES: Final = 4
_MOST: Final = (1 << 63) - 1


class Writer(Queries):
    """Writes a run's tables; only ``RunDir.lease()`` creates it.

    ``journal`` is ``WAL`` or ``DELETE``.

    Attributes:
        reserved: False if a new database found no room for the run's end.

    Raises:
        StoreError: The database cannot be opened.
    """

    def __init__(self, path: Path, *, journal: str) -> None:
        super().__init__()
        self._path = path
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._encoder = msgspec.json.Encoder().encode
        self._connection, self.reserved = self._open(journal)

    def _open(self, journal: str) -> tuple[sqlite3.Connection, bool]:
        try:
            return database.open_for_writing(self._path, journal=journal)
        except sqlite3.OperationalError as error:
            raise _failed(self._path, error) from error
        except sqlite3.DatabaseError as error:
            # A damaged file is renamed, never overwritten; streams and records can be read again.
            aside = _set_aside(self._path)
            self._notes.append(
                f"{self._path.name} was damaged ({error}) and was renamed to {aside}; a new one was created"
            )
        try:
            return database.open_for_writing(self._path, journal=journal)
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error

    def close(self) -> None:
        """Merges the journal into the database, so that a finished run is readable from a read-only folder."""
        with self._lock:
            # While a reader is connected the journal cannot be removed; it is emptied then, which is equally valid.
            self._connection.execute("PRAGMA busy_timeout=500")
            for step in (self._shrink, "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode=DELETE"):
                with contextlib.suppress(sqlite3.Error):
                    step() if callable(step) else self._connection.execute(step)
            self._connection.close()

    def _shrink(self) -> None:
        """Frees an ended run's reserved space."""
        ended = self._connection.execute("SELECT state FROM run").fetchone()
        pages, free = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
        )
        if ended and ended[0] in FINAL_STATES and free * 2 > pages:
            self._connection.execute("VACUUM")

    def set_run(self, state: RunState, *, reason: str | None = None, at: int) -> None:
        """Stores the run's new state.

        The first state after ``queued`` and ``suspended`` sets the start time, a final one the end time; a later one
        clears the end time.
        """
        started = None if state in {"queued", "suspended"} else at
        ended = at if state in FINAL_STATES else None
        with self._transaction() as connection:
            connection.execute(
                "UPDATE run SET state = ?, reason = ?, started = coalesce(started, ?), ended = ?",
                (state, reason, started, ended),
            )

    def begin_attempt(self, attempt: int, *, at: int, plan: dict[str, Any]) -> None:
        """Records an attempt before its slots start; the first start time remains."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO attempts (attempt, started, state, plan) VALUES (?, ?, 'running', ?) "
                "ON CONFLICT (attempt) DO UPDATE SET plan = excluded.plan",
                (attempt, at, self._encode(plan)),
            )

    def end_attempt(self, attempt: int, *, at: int, state: str) -> None:
        """Records an attempt's end; the first end time remains."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE attempts SET ended = coalesce(ended, ?), state = ? WHERE attempt = ?", (at, state, attempt)
            )

    def put_slots(self, attempt: int, slots: Iterable[SlotFacts]) -> None:
        """Stores slots; replaces the same role and number."""
        self._many(
            "INSERT OR REPLACE INTO slots (attempt, role, slot, facts) VALUES (?, ?, ?, ?)",
            ((attempt, facts.role or "", facts.slot, self._encode(facts)) for facts in slots),
        )

    def put_ranks(self, attempt: int, ranks: Iterable[RankFacts]) -> None:
        """Stores ranks; replaces the same round and rank."""
        self._many(
            "INSERT OR REPLACE INTO ranks (attempt, round, rank, facts) VALUES (?, ?, ?, ?)",
            (
                (attempt, NO_ROUND if facts.round is None else facts.round, facts.rank, self._encode(facts))
                for facts in ranks
            ),
        )

    def put_streams(self, streams: Iterable[StreamRow]) -> None:
        """Stores ranks of bytes; replaces the same stream and first byte."""
        self._many(
            "INSERT OR REPLACE INTO streams (stream, from_byte, to_byte, attempt, round, role, slot, instance, local, rank, proof) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    s.stream,
                    s.from_byte,
                    s.to_byte,
                    s.attempt,
                    s.round,
                    s.role,
                    s.slot,
                    s.instance,
                    s.local,
                    s.rank,
                    s.proof,
                )
                for s in streams
            ),
        )

    def add_evidence(self, attempt: int, evidence: Iterable[Evidence]) -> int:
        """Stores evidence with new IDs; returns their number."""
        with self._transaction() as connection:
            before = connection.total_changes
            connection.executemany(
                "INSERT OR IGNORE INTO evidence (attempt, id, body) VALUES (?, ?, ?)",
                ((attempt, piece.id, self._encode(piece)) for piece in evidence),
            )
            return connection.total_changes - before

    def add_verdict(self, attempt: int, diagnosis: Diagnosis) -> int:
        """Stores a verdict unless it equals the last, without decision; returns its version."""
        with self._transaction() as connection:
            rows = read_all(
                connection,
                "SELECT version, body FROM verdicts WHERE attempt = ? ORDER BY version DESC LIMIT 1",
                (attempt,),
            )
            last = int(rows[0][0]) if rows else 0  # foreign-text: a column of whole numbers
            if rows and self._encode(_versioned(diagnosis, last)) == rows[0][1]:
                return last
            connection.execute(
                "INSERT INTO verdicts (attempt, version, body) VALUES (?, ?, ?)",
                (attempt, last + 1, self._encode(_versioned(diagnosis, last + 1))),
            )
            return last + 1

    def add_decision(self, attempt: int, decision: Decision) -> int:
        """Stores a decision before it is carried out; returns its number."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO decisions (attempt, body) VALUES (?, ?)", (attempt, self._encode(decision))
            )
            return int(cursor.lastrowid or 0)  # foreign-text: sqlite gives a number of 64 bits

    def decision_done(self, number: int, *, at: int) -> None:
        """Records that a decision was carried out; the first time remains."""
        with self._transaction() as connection:
            connection.execute("UPDATE decisions SET done_at = coalesce(done_at, ?) WHERE id = ?", (at, number))

    def note_incomplete(self, text: str) -> None:
        """Marks the record as incomplete, with a message.

        Never raises: an unwritten note is stored with the next call.
        """
        self._notes.append(text[:1000])
        with contextlib.suppress(StoreError), self._transaction():
            pass

    def _encode(self, value: object) -> bytes:
        try:
            return self._encoder(value)
        except UnicodeEncodeError:
            # Text that is not UTF-8 must not cost the run its record.
            return self._encoder(storable(msgspec.to_builtins(value)))

    def _many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        kept = list(rows)
        try:
            with self._transaction() as connection:
                connection.executemany(sql, kept)
        except (UnicodeEncodeError, OverflowError):
            with self._transaction() as connection:
                connection.executemany(sql, [tuple(map(storable, row)) for row in kept])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                notes = len(self._notes)
                if notes:
                    self._store_notes()
                yield self._connection
                self._connection.execute("COMMIT")
                del self._notes[:notes]
            except sqlite3.Error as error:
                self._rollback()
                raise _failed(self._path, error) from error
            except BaseException:
                self._rollback()
                raise

    def _store_notes(self) -> None:
        ((text,),) = read_all(self._connection, "SELECT incomplete FROM run", ())
        notes = list(dict.fromkeys([*decoding.decode(text, kind=list[str]), *self._notes]))
        if len(notes) > MAX_NOTES:
            notes = [*notes[: MAX_NOTES - 1], "more data is missing than this list shows"]
        self._connection.execute("UPDATE run SET incomplete = ?", (self._encode(notes).decode(),))

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _rows(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return read_all(self._connection, sql, args)
            except sqlite3.Error as error:
                raise _failed(self._path, error) from error


def _versioned(diagnosis: Diagnosis, version: int) -> Diagnosis:
    """Diagnosis with this version and no decision: a decision makes no version."""
    verdict = msgspec.structs.replace(diagnosis.verdict, version=version, decision=None)
    return msgspec.structs.replace(diagnosis, verdict=verdict)


def _set_aside(path: Path) -> str:
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    try:
        path.rename(aside)
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
        for suffix in ("-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(f"{aside}{suffix}")
    except OSError as error:
        raise _failed(path, error) from error
    return aside.name


def _failed(path: Path, error: Exception) -> StoreError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN and _lacks_descriptors():
        return StoreError(f"cannot write {path}: too many open files", hint=MORE_FILES)
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    what = "the disk is full" if full else str(error)
    hint = "free space; the job itself continues" if full else "check space and permissions of the run directory"
    return StoreError(f"cannot write {path}: {what}", hint=hint)


def _lacks_descriptors() -> bool:
    """True if this process cannot open the files of a database; sqlite does not report why."""
    opened: list[int] = []
    try:
        while len(opened) < _FILES:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return is_file_limit(error)
    finally:
        for fd in opened:
            os.close(fd)
    return False


def storable(value: Any) -> Any:
    """Converts data for JSON and sqlite: no unpaired surrogates, no number beyond 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_MOST, min(value, _MOST))
    if isinstance(value, dict):
        return {storable(key): storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [storable(inner) for inner in value]
    return value
