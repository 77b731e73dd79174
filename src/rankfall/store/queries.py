"""The questions asked of a run's database, the same for readers and for the writer."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from rankfall.model import Decision, Diagnosis, Evidence, RankFacts, RunState, SlotFacts, decoding
from rankfall.store.rows import AttemptRow, DecisionRow, Fall, FallRow, RunRow, StreamRow, VerdictRow

T = TypeVar("T")
D = TypeVar("D", bound=Decision)
NO_ROUND = -1

_STREAM_COLUMNS = "stream, from_byte, to_byte, attempt, round, role, slot, instance, local, rank, proof"


class _About(msgspec.Struct, frozen=True):
    """What tells a fall from a decision about a whole attempt."""

    instance: int | None = None


class Queries(ABC):
    """Reading methods over one connection. Without an attempt, the newest one is meant where one is needed."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @abstractmethod
    def _rows(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""

    def run(self) -> RunRow:
        """State, reason, start and end of the run, and what its record lacks."""
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
        """All attempts, oldest first."""
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
        """Number of the newest attempt."""
        rows = self._rows("SELECT max(attempt) FROM attempts")
        return rows[0][0] if rows else None

    def slots(self, attempt: int) -> list[SlotFacts]:
        """Slots of an attempt, by role and number."""
        return self._bodies(SlotFacts, "SELECT facts FROM slots WHERE attempt = ? ORDER BY role, slot", (attempt,))

    def ranks(self, attempt: int) -> list[RankFacts]:
        """Ranks of an attempt, by round and rank."""
        return self._bodies(RankFacts, "SELECT facts FROM ranks WHERE attempt = ? ORDER BY round, rank", (attempt,))

    def streams(self, attempt: int | None = None) -> list[StreamRow]:
        """Which rank the bytes of which stream belong to; of all attempts without one."""
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
        """Evidence of an attempt in the order in which it was stored."""
        return self._bodies(Evidence, "SELECT body FROM evidence WHERE attempt = ? ORDER BY seq", (attempt,))

    def verdicts(self, attempt: int | None = None) -> list[VerdictRow]:
        """All versions, oldest first; of all attempts without one."""
        where, args = ("", ()) if attempt is None else (" WHERE attempt = ?", (attempt,))
        rows = self._rows(f"SELECT attempt, version, body FROM verdicts{where} ORDER BY attempt, version", args)  # noqa: S608 - constants
        found = []
        for number, version, body in rows:
            diagnosis = self._decode(body, Diagnosis)
            if diagnosis is not None:
                found.append(VerdictRow(attempt=number, version=version, diagnosis=diagnosis))
        return found

    def diagnosis(self, attempt: int | None = None) -> Diagnosis | None:
        """The newest verdict (of the newest attempt that has one), with the newest decision about that attempt in it."""
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
        """Decisions about whole attempts, oldest first; of all attempts without one. One that was carried out has state ``done``."""
        found = []
        for number, about, body, done_at in self._decided(attempt, falls=False):
            decision = self._decode(body, Decision)
            if decision is not None:
                found.append(DecisionRow(id=number, attempt=about, decision=_done(decision, done_at), done_at=done_at))
        return found

    def falls(self, attempt: int | None = None) -> list[FallRow]:
        """Decisions about slots that fell alone, likewise."""
        found = []
        for number, about, body, done_at in self._decided(attempt, falls=True):
            fall = self._decode(body, Fall)
            if fall is not None:
                found.append(FallRow(id=number, attempt=about, fall=_done(fall, done_at), done_at=done_at))
        return found

    def fall_of(self, slot: int, attempt: int | None = None) -> Diagnosis | None:
        """The verdict of the last time that a slot fell alone, with the decision about it; None where it never did."""
        own = [row.fall for row in self.falls(attempt) if row.fall.slot == slot]
        if not own:
            return None
        verdict = msgspec.structs.replace(own[-1].diagnosis.verdict, decision=own[-1].only_decision)
        return msgspec.structs.replace(own[-1].diagnosis, verdict=verdict)

    def starts(self, attempt: int) -> dict[int, int]:
        """The newest start of each slot of an attempt that was started again alone, counted from 0."""
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
    """All rows of a query, as tuples."""
    return connection.execute(sql, args).fetchall()
