"""Tables of run.db: row types, schema, connections, and queries.

Times are nanoseconds since the epoch. Refuses a newer schema.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

import msgspec

from rankfall.model import Decision, Diagnosis, Evidence, RankFacts, RunState, SlotFacts, StoreError, decoding
from rankfall.rundir.lease import private


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """State of the whole run.

    Attributes:
        reason: Reason of the state, for users.
        incomplete: Messages about unrecorded data.
    """

    state: RunState = "queued"
    reason: str | None = None
    started: int | None = None
    ended: int | None = None
    incomplete: tuple[str, ...] = ()


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt.

    ``plan`` lets the backend find its slots; ``state`` is ``running`` until the end.
    """

    attempt: int
    started: int | None = None
    ended: int | None = None
    state: str = "running"
    plan: dict[str, Any] = {}


#: ``proof`` of a stream that will never have a rank.
NO_RANK: Final = "no rank"


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """Maps bytes ``from_byte`` (included) to ``to_byte`` (excluded, None = open) of a stream to their rank.

    Attributes:
        stream: Path relative to the run directory.
        local: Process ordinal, or ``slot`` without a rank.
        proof: Source of the rank, as ``record``; ``NO_RANK`` if never known.
    """

    stream: str
    attempt: int
    round: int | None = None
    role: str
    slot: int
    instance: int = 0
    local: str
    rank: int | None = None
    from_byte: int = 0
    to_byte: int | None = None
    proof: str = ""


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered decision; ``done_at`` is None until carried out."""

    id: int
    attempt: int
    decision: Decision
    done_at: int | None = None


class SlotFailure(Decision, frozen=True, kw_only=True):
    """The decision about a slot that failed alone, with its diagnosis, in one row.

    Attributes:
        slot, instance: Slot and start number.
        diagnosis: Of that start; its ``verdict.decision`` is null.
        evidence: IDs of that start's evidence.
        step: Last reported step.
        due: Earliest next start, nanoseconds since the epoch.
    """

    slot: int
    instance: int
    diagnosis: Diagnosis
    evidence: tuple[str, ...] = ()
    step: int | None = None
    due: int = 0

    @property
    def again(self) -> bool:
        """True if the slot is started again."""
        return self.action in {"retry", "retry_elsewhere"}

    @property
    def only_decision(self) -> Decision:
        """The decision without the other fields."""
        return Decision(**{name: getattr(self, name) for name in Decision.__struct_fields__})


class SlotFailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered ``SlotFailure``; ``done_at`` is None until carried out."""

    id: int
    attempt: int
    fall: SlotFailure
    done_at: int | None = None


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an attempt's verdict."""

    attempt: int
    version: int
    diagnosis: Diagnosis


VERSION: Final = 1
BUSY_S: Final = 10.0
ROOM: Final = 512 << 10
_MAX_WORDS: Final = 20

TABLES: Final = """
CREATE TABLE run (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  state TEXT NOT NULL, reason TEXT, started INTEGER, ended INTEGER, incomplete TEXT NOT NULL DEFAULT '[]'
);
CREATE TABLE attempts (attempt INTEGER PRIMARY KEY, started INTEGER, ended INTEGER, state TEXT NOT NULL, plan BLOB NOT NULL);
CREATE TABLE slots (
  attempt INTEGER NOT NULL, role TEXT NOT NULL, slot INTEGER NOT NULL, facts BLOB NOT NULL,
  PRIMARY KEY (attempt, role, slot)
) WITHOUT ROWID;
CREATE TABLE ranks (
  attempt INTEGER NOT NULL, round INTEGER NOT NULL, rank INTEGER NOT NULL, facts BLOB NOT NULL,
  PRIMARY KEY (attempt, round, rank)
) WITHOUT ROWID;
CREATE TABLE streams (
  stream TEXT NOT NULL, from_byte INTEGER NOT NULL, to_byte INTEGER, attempt INTEGER NOT NULL, round INTEGER,
  role TEXT NOT NULL, slot INTEGER NOT NULL, instance INTEGER NOT NULL, local TEXT NOT NULL, rank INTEGER, proof TEXT NOT NULL,
  PRIMARY KEY (stream, from_byte)
) WITHOUT ROWID;
CREATE TABLE evidence (
  seq INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (attempt, id)
);
CREATE TABLE verdicts (
  attempt INTEGER NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (attempt, version)
) WITHOUT ROWID;
CREATE TABLE decisions (id INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, body BLOB NOT NULL, done_at INTEGER);
INSERT INTO run (id, state) VALUES (1, 'queued');
"""


def open_for_writing(path: Path, *, journal: str) -> tuple[sqlite3.Connection, bool]:
    """Opens the database; creates it if missing. The second value is False if a new one has no reserved space.

    Raises:
        sqlite3.Error: Unopenable or damaged.
        StoreError: Its schema is newer.
    """
    # sqlite gives journals the mode of this file, empty at first. sqlite reports problems with the folder.
    with contextlib.suppress(OSError):
        os.close(private(path, os.O_WRONLY | os.O_CREAT))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    room = True
    try:
        connection.execute(f"PRAGMA journal_mode={journal}")
        # A power failure may lose a WAL's last moments, never its order.
        connection.execute("PRAGMA synchronous=NORMAL")
        # Pages: keeps the journal within its reserved space.
        connection.execute("PRAGMA wal_autocheckpoint=64")
        version = version_of(connection)
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{TABLES}PRAGMA user_version={VERSION};COMMIT;")
            room = _make_room(connection)
        else:
            refuse_newer(version, path)
            _refuse_damaged(connection)
    except BaseException:
        connection.close()
        raise
    return connection, room


def _refuse_damaged(connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()[-_MAX_WORDS:]))


def _make_room(connection: sqlite3.Connection) -> bool:
    """Reserves disk space, so that a verdict and the run's end can be stored when the disk is full."""
    try:
        connection.execute("CREATE TABLE room (bytes BLOB)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM,))
        connection.execute("DROP TABLE room")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    except sqlite3.Error:
        return False
    return True


def open_for_reading(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Opens the database read-only.

    ``immutable``: for a folder in which sqlite can create no file; no process may write meanwhile.

    Raises:
        sqlite3.Error: Unopenable or damaged.
        StoreError: Its schema is newer.
    """
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        refuse_newer(version_of(connection), path)
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_newer(version: int, path: Path) -> None:
    """Raises an error for a schema that this version does not know.

    Raises:
        StoreError: The version is newer.
    """
    if version > VERSION:
        raise StoreError(
            f"{path} has schema {version}; this Rankfall knows {VERSION}",
            hint="use the Rankfall version that made this run",
        )


def version_of(connection: sqlite3.Connection) -> int:
    """Schema version; 0 without tables."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)  # foreign-text: sqlite gives a number of 32 bits


T = TypeVar("T")
D = TypeVar("D", bound=Decision)
NO_ROUND = -1

_STREAM_COLUMNS = "stream, from_byte, to_byte, attempt, round, role, slot, instance, local, rank, proof"


class _About(msgspec.Struct, frozen=True):
    instance: int | None = None


class Queries(ABC):
    """Read methods over one connection; the default attempt is the newest."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @abstractmethod
    def _rows(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Returns all rows of a query."""

    def run(self) -> RunRow:
        """Run's state."""
        rows = self._rows("SELECT state, reason, started, ended, incomplete FROM run")
        if not rows:
            return RunRow(state="unknown")
        state, reason, started, ended, incomplete = rows[0]
        return RunRow(
            state=cast("RunState", state),
            reason=reason,
            started=started,
            ended=ended,
            incomplete=self._decode(incomplete, tuple[str, ...]) or (),
        )

    def attempts(self) -> list[AttemptRow]:
        """Returns all attempts, oldest first."""
        return [
            AttemptRow(
                attempt=attempt,
                started=started,
                ended=ended,
                state=state,
                plan=self._decode(plan, dict[str, Any]) or {},
            )
            for attempt, started, ended, state, plan in self._rows(
                "SELECT attempt, started, ended, state, plan FROM attempts ORDER BY attempt"
            )
        ]

    def newest_attempt(self) -> int | None:
        """Number of the newest attempt; None if absent."""
        rows = self._rows("SELECT max(attempt) FROM attempts")
        return rows[0][0] if rows else None

    def slots(self, attempt: int) -> list[SlotFacts]:
        """Slots of an attempt, by role and number."""
        return self._bodies(SlotFacts, "SELECT facts FROM slots WHERE attempt = ? ORDER BY role, slot", (attempt,))

    def ranks(self, attempt: int) -> list[RankFacts]:
        """Ranks of an attempt, by round and rank."""
        return self._bodies(RankFacts, "SELECT facts FROM ranks WHERE attempt = ? ORDER BY round, rank", (attempt,))

    def failed_step(self, attempt: int, rank: int | None) -> int | None:
        """Last step of a failed rank; None for a rank that restarted alone and has not failed again."""
        ends = [facts for facts in self.ranks(attempt) if facts.rank == rank]
        return ends[-1].step if ends and (ends[-1].signal or ends[-1].exit_code) else None

    def streams(self, attempt: int | None = None) -> list[StreamRow]:
        """Rank of each stream's bytes; without an attempt, of all."""
        where, args = ("", ()) if attempt is None else (" WHERE attempt = ?", (attempt,))
        return [
            StreamRow(
                stream=row[0],
                from_byte=row[1],
                to_byte=row[2],
                attempt=row[3],
                round=row[4],
                role=row[5],
                slot=row[6],
                instance=row[7],
                local=row[8],
                rank=row[9],
                proof=row[10],
            )
            for row in self._rows(f"SELECT {_STREAM_COLUMNS} FROM streams{where} ORDER BY stream, from_byte", args)  # noqa: S608 - constants
        ]

    def evidence(self, attempt: int) -> list[Evidence]:
        """Evidence of an attempt in the order of storage."""
        return self._bodies(Evidence, "SELECT body FROM evidence WHERE attempt = ? ORDER BY seq", (attempt,))

    def verdicts(self, attempt: int | None = None) -> list[VerdictRow]:
        """Returns all verdict versions, oldest first; without an attempt, of all."""
        where, args = ("", ()) if attempt is None else (" WHERE attempt = ?", (attempt,))
        rows = self._rows(f"SELECT attempt, version, body FROM verdicts{where} ORDER BY attempt, version", args)  # noqa: S608 - constants
        found = []
        for number, version, body in rows:
            diagnosis = self._decode(body, Diagnosis)
            if diagnosis is not None:
                found.append(VerdictRow(attempt=number, version=version, diagnosis=diagnosis))
        return found

    def diagnosis(self, attempt: int | None = None) -> Diagnosis | None:
        """Returns the newest verdict, with the newest decision about its attempt.

        Without an attempt, of the newest that has a verdict. None without any.
        """
        where, args = ("", ()) if attempt is None else (" WHERE attempt = ?", (attempt,))
        rows = self._rows(
            f"SELECT attempt, body FROM verdicts{where} ORDER BY attempt DESC, version DESC LIMIT 1",  # noqa: S608 - constants
            args,
        )
        found = self._decode(rows[0][1], Diagnosis) if rows else None
        if found is None:
            return None
        decisions = self.decisions(rows[0][0])
        if not decisions:
            return found
        verdict = msgspec.structs.replace(found.verdict, decision=decisions[-1].decision)
        return msgspec.structs.replace(found, verdict=verdict)

    def decisions(self, attempt: int | None = None) -> list[DecisionRow]:
        """Returns the decisions about whole attempts, oldest first; without an attempt, of all.

        A decision that was carried out has state ``done``.
        """
        found = []
        for number, about, body, done_at in self._decided(attempt, falls=False):
            decision = self._decode(body, Decision)
            if decision is not None:
                found.append(DecisionRow(id=number, attempt=about, decision=_done(decision, done_at), done_at=done_at))
        return found

    def falls(self, attempt: int | None = None) -> list[SlotFailureRow]:
        """Decisions about slots that failed alone, like :meth:`decisions`."""
        found = []
        for number, about, body, done_at in self._decided(attempt, falls=True):
            fall = self._decode(body, SlotFailure)
            if fall is not None:
                found.append(SlotFailureRow(id=number, attempt=about, fall=_done(fall, done_at), done_at=done_at))
        return found

    def slot_failure_of(self, slot: int, attempt: int | None = None) -> Diagnosis | None:
        """Verdict of a slot's last failure alone, with the decision about it, or None."""
        own = [row.fall for row in self.falls(attempt) if row.fall.slot == slot]
        if not own:
            return None
        verdict = msgspec.structs.replace(own[-1].diagnosis.verdict, decision=own[-1].only_decision)
        return msgspec.structs.replace(own[-1].diagnosis, verdict=verdict)

    def starts(self, attempt: int) -> dict[int, int]:
        """Newest start, from 0, of each slot that restarted alone in an attempt."""
        return {row.fall.slot: row.fall.instance + 1 for row in self.falls(attempt) if row.fall.again}

    def _decided(self, attempt: int | None, *, falls: bool) -> list[tuple[Any, ...]]:
        where, args = ("", ()) if attempt is None else (" WHERE attempt = ?", (attempt,))
        rows = self._rows(f"SELECT id, attempt, body, done_at FROM decisions{where} ORDER BY id", args)  # noqa: S608 - constants
        return [row for row in rows if _of_a_slot(row[2]) == falls]

    def _bodies(self, kind: type[T], sql: str, args: Sequence[Any]) -> list[T]:
        decoder = decoding.decoder(kind)
        found = []
        for (body,) in self._rows(sql, args):
            try:
                found.append(decoder.decode(body))
            except msgspec.MsgspecError as error:
                self._note(f"a stored {kind.__name__} cannot be read: {error}")
        return found

    def _decode(self, body: bytes | str, kind: type[T]) -> T | None:
        try:
            return decoding.decode(body, kind=kind)
        except msgspec.MsgspecError as error:
            self._note(f"a stored {getattr(kind, '__name__', kind)} cannot be read: {error}")
            return None

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _of_a_slot(body: bytes | str) -> bool:
    try:
        return decoding.decode(body, kind=_About).instance is not None
    except msgspec.MsgspecError:
        return False


def _done(decision: D, done_at: int | None) -> D:
    return decision if done_at is None else msgspec.structs.replace(decision, state="done")


def read_all(connection: sqlite3.Connection, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns all rows of a query as tuples."""
    return connection.execute(sql, args).fetchall()
