"""Reads a run without a lock, while a writer lives, and when its database is missing or damaged: what can be had, and what cannot.

Readers never write: the database is opened read only, and where even that would need a file beside it, as a file nobody writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from rankfall.model import RankFacts, RunSummary, SlotFacts, StatusDocument, StoreError
from rankfall.store import documents, salvage, schema
from rankfall.store.place import RunPlace
from rankfall.store.queries import Queries, read_all
from rankfall.store.rows import AttemptRow, RunRow, StreamRow


class Reader(Queries):
    """Reading side of one run; made by ``RunDir.reader()``.

    Attributes:
        problems: what could not be read so far, in words.
    """

    def __init__(self, run_dir: RunPlace) -> None:
        super().__init__()
        self.run_dir = run_dir
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection | None:
        path = self.run_dir.db_path
        try:
            connection = schema.open_for_reading(path) if path.exists() else None
        except sqlite3.OperationalError:
            return self._open_immutable()
        except (sqlite3.Error, OSError, StoreError) as error:
            self._note(f"{path.name} cannot be read: {error}")
            return None
        if connection is not None and schema.version_of(connection):
            return connection
        if connection is not None:
            connection.close()
        # With a holder of the lease it is just being made; of a job that Rankfall did not start nobody may have recorded anything yet.
        unrecorded = self.run_dir.foreign is not None and not salvage.attempts(self.run_dir)
        if not unrecorded and self.run_dir.lease_holder() is None:
            self._note(f"{path.name} is missing or empty: only streams, records and slot folders can be read")
        return None

    def _open_immutable(self) -> sqlite3.Connection | None:
        """A folder without write permission: sqlite can make no file beside the database, and nobody else can either."""
        path = self.run_dir.db_path
        try:
            connection = schema.open_for_reading(path, immutable=True)
        except (sqlite3.Error, StoreError) as error:
            self._note(f"{path.name} cannot be read: {error}")
            return None
        if path.with_name(path.name + "-wal").exists():
            self._note(f"{path.name} is read without its journal: the last moments of the run may be missing")
        return connection

    def close(self) -> None:
        """Let go of the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def damaged(self) -> bool:
        """Whether the database cannot be read, so that answers come from the other files of the directory."""
        return self._connection is None

    def run(self) -> RunRow:  # noqa: D102 - as Queries
        found = super().run()
        if self.damaged:
            started = self.run_dir.created or None
            return RunRow(
                state="queued" if not self.problems else "unknown", started=started, incomplete=tuple(self.problems)
            )
        return found

    def attempts(self) -> list[AttemptRow]:  # noqa: D102 - as Queries
        return salvage.attempts(self.run_dir) if self.damaged else super().attempts()

    def newest_attempt(self) -> int | None:  # noqa: D102 - as Queries
        if self.damaged:
            found = salvage.attempts(self.run_dir)
            return found[-1].attempt if found else None
        return super().newest_attempt()

    def slots(self, attempt: int) -> list[SlotFacts]:  # noqa: D102 - as Queries
        return salvage.slots(self.run_dir, attempt) if self.damaged else super().slots(attempt)

    def ranks(self, attempt: int) -> list[RankFacts]:  # noqa: D102 - as Queries
        return salvage.ranks(self.run_dir, attempt) if self.damaged else super().ranks(attempt)

    def streams(self, attempt: int | None = None) -> list[StreamRow]:  # noqa: D102 - as Queries
        return salvage.streams(self.run_dir, attempt) if self.damaged else super().streams(attempt)

    def summary(self) -> RunSummary:
        """The run as ``ps`` lists it."""
        return documents.summary(self.run_dir, self)

    def status(self, now: int) -> StatusDocument:
        """The run with slots and ranks of its newest attempt.

        Args:
            now: nanoseconds since the epoch, for the age of each rank's last line.
        """
        return documents.status(self.run_dir, self, now=now)

    def _rows(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._connection is None:
            return []
        try:
            return read_all(self._connection, sql, args)
        except sqlite3.Error as error:
            self._note(f"{self.run_dir.db_path.name} cannot be read: {error}")
            self.close()
            return []
