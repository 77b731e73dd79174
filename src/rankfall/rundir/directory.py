"""Creates, finds, lists and reads run directories, named <name>-<6 hex>.

A reader needs no lock and works despite a missing or damaged database.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import resource
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.model import JobSpec, NotFound, RankFacts, RunSummary, SlotFacts, StatusDocument, StoreError, UsageError
from rankfall.model.foreign import Foreign
from rankfall.model.jobspec.secrets import concealed, is_masked, secrets_of
from rankfall.model.patterns import anchored
from rankfall.rundir import database, salvage, status
from rankfall.rundir import lease as leases
from rankfall.rundir.database import AttemptRow, Queries, RunRow, StreamRow, read_all
from rankfall.rundir.database_writer import Writer
from rankfall.rundir.incomplete import NEW_RUN_BYTES, disk_trouble
from rankfall.rundir.layout import FOREIGN_FILE, SECRETS_FILE, Meta, RunPaths, Secrets, meta_of, prepare
from rankfall.rundir.lease import file_system, make_folder, write_file


class Reader(Queries):
    """Read access to one run; ``RunDir.reader()`` creates it.

    ``problems``: messages about unreadable data.
    """

    def __init__(self, run_dir: RunPaths) -> None:
        super().__init__()
        self.run_dir = run_dir
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection | None:
        path = self.run_dir.db_path
        try:
            connection = database.open_for_reading(path) if path.exists() else None
        except sqlite3.OperationalError:
            return self._open_immutable()
        except (sqlite3.Error, OSError, StoreError) as error:
            self._note(f"{path.name} cannot be read: {error}")
            return None
        if connection is not None and database.version_of(connection):
            return connection
        if connection is not None:
            connection.close()
        # With a lease holder, the database is being created; a foreign job may have no record.
        unrecorded = self.run_dir.foreign is not None and not salvage.attempts(self.run_dir)
        if not unrecorded and self.run_dir.lease_holder() is None:
            self._note(f"{path.name} is missing or empty: only streams, records and slot folders can be read")
        return None

    def _open_immutable(self) -> sqlite3.Connection | None:
        """Opens the database in a folder without write permission; None on failure.

        No other process can write the database either.
        """
        path = self.run_dir.db_path
        try:
            connection = database.open_for_reading(path, immutable=True)
        except (sqlite3.Error, StoreError) as error:
            self._note(f"{path.name} cannot be read: {error}")
            return None
        if path.with_name(path.name + "-wal").exists():
            self._note(f"{path.name} is read without its journal: the last moments of the run may be missing")
        return connection

    def close(self) -> None:
        """Closes the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def damaged(self) -> bool:
        """True if the database cannot be read, so that results come from the other files of the directory."""
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
        """Run as ``ps`` lists it."""
        return status.summary(self.run_dir, self)

    def status(self, now: int) -> StatusDocument:
        """Run with its newest attempt's slots and ranks; ``now`` in nanoseconds since the epoch."""
        return status.status(self.run_dir, self, now=now)

    def _rows(self, sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._connection is None:
            return []
        try:
            return read_all(self._connection, sql, args)
        except sqlite3.Error as error:
            self._note(f"{self.run_dir.db_path.name} cannot be read: {error}")
            self.close()
            return []


_ID: Final = anchored(r"[a-z0-9][a-z0-9.-]{0,80}", limit=128)
_MAX_LISTED: Final = 5
_MAX_VALUE: Final = 120
_MAX_NUMBERS: Final = 1000
# Facts of the submitting process; a repeated request may come from another one.
_OF_THE_SUBMITTER: Final = frozenset({"python", "notify"})
#: Next step if a disk has no room for a run.
MAKE_ROOM: Final = "free space there (rankfall prune --keep 0 deletes all ended runs), or set RANKFALL_HOME to a folder on another disk"


class RunDir(RunPaths):
    """One run's directory: written under its lease, readable by any process.

    The constructor accesses no file.
    """

    @classmethod
    def create(
        cls,
        spec: JobSpec,
        *,
        home: Path,
        request_token: str | None = None,
        replace: bool = False,
        fill: Callable[[Path], object] | None = None,
    ) -> RunDir:
        """Creates a run directory; it gets its name only when complete.

        The same job under the same ``request_token`` returns the first call's run. ``replace``: the first attempt may
        remove cluster objects that an earlier request left. ``fill`` adds content.

        Raises:
            UsageError: The token is that of another job's run; names the run and the differences.
            StoreError: The home is unwritable, or no ID is free.
        """
        if request_token is not None and (earlier := _requested(home, request_token, spec)) is not None:
            return earlier
        meta = Meta(created=time.time_ns(), request_token=request_token, replace=replace)
        with _fresh(spec, home=home, meta=meta) as fresh, contextlib.ExitStack() as stack:
            if fill is not None:
                fill(fresh)
            trouble = disk_trouble(home, least=NEW_RUN_BYTES)
            if trouble is not None:
                raise StoreError(f"no run can start: {trouble}", hint=MAKE_ROOM)
            most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            if most != resource.RLIM_INFINITY and most < NEW_RUN_BYTES:
                raise StoreError(
                    f"no run can start: a file may have at most {most >> 10} KiB here; {NEW_RUN_BYTES >> 10} KiB are needed",
                    hint="raise the limit of this shell: ulimit -f unlimited",
                )
            if request_token is not None:
                # Other requests with a token name no run meanwhile.
                stack.enter_context(leases.locked_folder(home / "runs", fcntl.LOCK_EX))
            for number in range(_MAX_NUMBERS):
                if request_token is not None and (earlier := _requested(home, request_token, spec)) is not None:
                    return earlier
                path = home / "runs" / f"{spec.name}-{_suffix(request_token, number)}"
                if _take_name(fresh, path):
                    return cls(path)
            raise StoreError(f"no free id for {spec.name} in {home}/runs", hint="remove old runs or use another name")

    @classmethod
    def of_foreign(cls, spec: JobSpec, foreign: Foreign, *, home: Path) -> RunDir:
        """Returns a foreign job's directory; creates it if missing.

        Raises:
            StoreError: Unwritable home, or another object's directory.
        """
        path = home / "runs" / foreign.directory
        if not path.exists():
            with _fresh(spec, home=home, meta=Meta(created=time.time_ns())) as fresh:
                write_file(
                    fresh / FOREIGN_FILE, msgspec.json.format(msgspec.json.encode(foreign)) + b"\n", new=True, sync=True
                )
                _take_name(fresh, path)
        found = cls(path)
        if found.foreign is None or found.foreign.uid != foreign.uid:
            raise StoreError(
                f"{path} is the run directory of another object than {foreign.target.label} (UID {foreign.uid})",
                hint="move that directory away, or set RANKFALL_HOME to another folder",
            )
        return found

    @classmethod
    def open(cls, home: Path, run: str) -> RunDir:
        """Returns the run with this ID, else the only run with this name, else the only one whose ID begins with it.

        Raises:
            NotFound: No run matches; the hint names similar IDs.
            UsageError: Several runs match; the message names them.
        """
        ids = _ids(home)
        if run in ids:
            return cls(home / "runs" / run)
        named = [one for one in ids if one.rpartition("-")[0] == run]
        found = named if len(named) == 1 else sorted(one for one in ids if run and one.startswith(run))
        if len(found) == 1:
            return cls(home / "runs" / found[0])
        if found:
            raise UsageError(f"several runs begin with {run}: {_list(found)}", hint="give more characters of the id")
        import difflib  # noqa: PLC0415

        near = difflib.get_close_matches(run[:100], ids, n=_MAX_LISTED, cutoff=0.5)
        hint = f"near it: {_list(near)}" if near else "rankfall ps lists the runs"
        raise NotFound(f"there is no run {run[:100]!r} in {home}", hint=hint)

    @contextlib.contextmanager
    def lease(self, *, wait: float = 0.0) -> Iterator[Writer]:
        """Holds the run's lease and yields its writer; ``wait`` in seconds.

        Raises:
            LockHeld: Another process holds the lease.
            StoreError: The directory cannot be written.
        """
        if not self.path.is_dir():
            raise StoreError(f"{self.path} no longer exists", hint="rankfall ps lists the runs")
        with leases.hold(self.lease_path, wait=wait):
            writer = Writer(self.db_path, journal=file_system(self.path).journal)
            try:
                yield writer
            finally:
                writer.close()

    @contextlib.contextmanager
    def reader(self) -> Iterator[Reader]:
        """Yields a reader of the run, with or without an active writer; ``Reader.problems`` lists damaged data."""
        with contextlib.closing(Reader(self)) as reader:
            yield reader


@contextlib.contextmanager
def _fresh(spec: JobSpec, *, home: Path, meta: Meta) -> Iterator[Path]:
    """Creates a run directory under a temporary name; removes it unless renamed."""
    prepare(home)
    fresh = home / "runs" / f".new-{os.urandom(8).hex()}"
    try:
        for folder in ("logs", "records", "slots"):
            make_folder(fresh / folder, new=True)
        write_file(fresh / "meta.json", msgspec.json.encode(meta), new=True, sync=True)
        hidden = {pointer: found.text for pointer, found in secrets_of(spec).items() if not is_masked(found.text)}
        if hidden:
            write_file(fresh / SECRETS_FILE, msgspec.json.encode(Secrets(values=hidden)) + b"\n", new=True, sync=True)
        write_file(
            fresh / "spec.json", msgspec.json.format(msgspec.json.encode(concealed(spec))) + b"\n", new=True, sync=True
        )
        yield fresh
    except OSError as error:
        raise StoreError(
            f"cannot create a run directory in {home}/runs: {error.strerror or error}",
            hint=MAKE_ROOM
            if error.errno in {errno.ENOSPC, errno.EDQUOT}
            else "set RANKFALL_HOME to a folder that you can write to",
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def list_runs(home: Path) -> list[RunDir]:
    """Returns all runs, newest first.

    A damaged run's ``spec`` raises; its state is ``unknown``.

    Raises:
        StoreError: The folder cannot be read.
    """
    return sorted((RunDir(home / "runs" / one) for one in _ids(home)), key=lambda run: (-run.created, run.id))


def _ids(home: Path) -> list[str]:
    try:
        with os.scandir(home / "runs") as entries:
            return [entry.name for entry in entries if _ID.fullmatch(entry.name) and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(
            f"cannot read {home}/runs: {error.strerror or error}", hint="make it readable, or set RANKFALL_HOME"
        ) from error


def _suffix(token: str | None, number: int) -> str:
    if token is None:
        return os.urandom(3).hex()
    return hashlib.sha256(f"{number}:{token}".encode()).hexdigest()[:6]


def _requested(home: Path, token: str, spec: JobSpec) -> RunDir | None:
    """Returns the run of an earlier request with this token; refuses another job."""
    suffixes = {_suffix(token, number) for number in range(_MAX_NUMBERS)}
    ids = [one for one in _ids(home) if one.rpartition("-")[2] in suffixes]
    # Earlier versions started a run for each name.
    ids.sort(key=lambda one: (one.rpartition("-")[0] != spec.name, one))
    found = next(
        (RunDir(home / "runs" / one) for one in ids if meta_of(home / "runs" / one).request_token == token), None
    )
    if found is None:
        return None
    differences = list(_differences(*(msgspec.to_builtins(concealed(one)) for one in (found.spec, spec)), path=""))
    if not differences:
        return found
    more = f"; and {len(differences) - _MAX_LISTED} more" if len(differences) > _MAX_LISTED else ""
    raise UsageError(
        f"run {found.id} has this request token, and its job differs: {'; '.join(differences[:_MAX_LISTED])}{more}",
        hint=f"give this job another request token, or see that run: rankfall status {found.id}",
    )


def _differences(old: Any, new: Any, *, path: str) -> Iterator[str]:
    """Fields in which two jobs differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if path or key not in _OF_THE_SUBMITTER:
                yield from _differences(old.get(key), new.get(key), path=f"{path}.{key}" if path else key)
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
        for number, (one, other) in enumerate(itertools.zip_longest(old, new)):
            yield from _differences(one, other, path=f"{path}[{number}]")
    elif old != new:
        before, now = ("nothing" if value is None else json.dumps(value)[:_MAX_VALUE] for value in (old, new))
        yield f"{path[:_MAX_VALUE]} is {now}, in the run {before}"


def _take_name(fresh: Path, path: Path) -> bool:
    try:
        fresh.rename(path)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
            return False
        raise
    return True


def _list(ids: list[str]) -> str:
    more = f" and {len(ids) - _MAX_LISTED} more" if len(ids) > _MAX_LISTED else ""
    return ", ".join(ids[:_MAX_LISTED]) + more
