"""The tables of ``run.db`` and how it is opened. Fields that nobody queries by are JSON, so that a new field needs no new table.

Refuses a database of a newer schema: a writer that does not know a table must not write beside it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rankfall.model import StoreError
from rankfall.store.fs import private

VERSION: Final = 1
BUSY_S: Final = 10.0
ROOM: Final = 512 << 10

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


def open_for_writing(path: Path, *, journal: str) -> sqlite3.Connection:
    """The database, made when it is not there.

    Raises:
        sqlite3.Error: it cannot be opened or is damaged.
        StoreError: it is of a newer schema.
    """
    # An empty file is an empty database. Its journals get its mode. What is wrong with the folder, sqlite says itself.
    with contextlib.suppress(OSError):
        os.close(private(path, os.O_WRONLY | os.O_CREAT))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA journal_mode={journal}")
        # A power cut may lose the last moments of a WAL, never its order; a killed process loses nothing.
        connection.execute("PRAGMA synchronous=NORMAL")
        # Pages; so often that the journal stays within the room that was made for it.
        connection.execute("PRAGMA wal_autocheckpoint=64")
        version = version_of(connection)
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{TABLES}PRAGMA user_version={VERSION};COMMIT;")
            _make_room(connection)
        else:
            refuse_newer(version, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_room(connection: sqlite3.Connection) -> None:
    """Room for a verdict and an end on a disk that is full by then: free pages in the file, and a journal that is used again from its start."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("CREATE TABLE room (bytes BLOB)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM,))
        connection.execute("DROP TABLE room")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def open_for_reading(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """The database, read only. ``immutable`` reads a file that nobody writes, also where no file beside it can be made.

    Raises:
        sqlite3.Error: it cannot be opened or is damaged.
        StoreError: it is of a newer schema.
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
    """Stop at a schema that this code does not know.

    Raises:
        StoreError: the version is newer.
    """
    if version > VERSION:
        raise StoreError(
            f"{path} has schema {version}; this Rankfall knows {VERSION}",
            hint="use the Rankfall version that made this run",
        )


def version_of(connection: sqlite3.Connection) -> int:
    """Schema version; 0 = the tables are not made yet."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)  # foreign-text: sqlite gives a number of 32 bits
