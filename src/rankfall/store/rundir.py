"""Run directories: made, found by their id, listed; each with its lease and its readers. Making the object touches nothing and takes no lock.

A run's id is ``<name>-<6 hex>``; whatever else lies in ``runs/`` is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import JobSpec, NotFound, StoreError, UsageError
from rankfall.model.foreign import Foreign
from rankfall.model.patterns import anchored
from rankfall.model.secrets import concealed, is_masked, secrets_of
from rankfall.store import lease as leases
from rankfall.store.fs import file_system, make_folder, write_file
from rankfall.store.home import prepare
from rankfall.store.place import FOREIGN_FILE, SECRETS_FILE, Meta, RunPlace, Secrets, meta_of
from rankfall.store.reader import Reader
from rankfall.store.writer import Writer

_ID: Final = anchored(r"[a-z0-9][a-z0-9.-]{0,80}", limit=128)
_SHOWN: Final = 5


class RunDir(RunPlace):
    """One run's directory: found or made, written under its lease, read by anybody."""

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
        """A new run directory; it appears under its name only when spec and folders are in it.

        Args:
            spec: the job.
            home: Rankfall's home.
            request_token: names the request: a second call with the same token and name gives the first call's run.
            replace: end what an earlier request with this token left running in a cluster.
            fill: puts what else belongs to it into the new directory, before that has its name.

        Raises:
            StoreError: home cannot be written.
        """
        meta = Meta(created=time.time_ns(), request_token=request_token, replace=replace)
        with _fresh(spec, home=home, meta=meta) as fresh:
            if fill is not None:
                fill(fresh)
            for number in range(1000):
                path = home / "runs" / f"{spec.name}-{_suffix(request_token, number)}"
                if _take_name(fresh, path):
                    return cls(path)
                if request_token is not None and meta_of(path).request_token == request_token:
                    return cls(path)
            raise StoreError(f"no free id for {spec.name} in {home}/runs", hint="remove old runs or use another name")

    @classmethod
    def of_foreign(cls, spec: JobSpec, foreign: Foreign, *, home: Path) -> RunDir:
        """The directory of a job that Rankfall did not start: the one that there is, or a new one.

        Args:
            spec: what is known of the job, in the words of a job of ours.
            foreign: the object; names the directory.
            home: Rankfall's home.

        Raises:
            StoreError: home cannot be written, or the name is another object's.
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
                f"{path} is the record of another object than {foreign.target.shown} (UID {foreign.uid})",
                hint="move that directory away, or set RANKFALL_HOME to another folder",
            )
        return found

    @classmethod
    def open(cls, home: Path, run: str) -> RunDir:
        """The run with this id, or the only one whose id begins so.

        Raises:
            NotFound: there is none; names those that look like it.
            UsageError: several begin so; names them.
        """
        ids = _ids(home)
        if run in ids:
            return cls(home / "runs" / run)
        found = sorted(one for one in ids if run and one.startswith(run))
        if len(found) == 1:
            return cls(home / "runs" / found[0])
        if found:
            raise UsageError(f"several runs begin with {run}: {_list(found)}", hint="give more of the id")
        import difflib  # noqa: PLC0415 - for a refusal only

        near = difflib.get_close_matches(run[:100], ids, n=_SHOWN, cutoff=0.5)
        hint = f"near it: {_list(near)}" if near else "rankfall ps lists the runs"
        raise NotFound(f"there is no run {run[:100]!r} in {home}", hint=hint)

    @contextlib.contextmanager
    def lease(self, *, wait: float = 0.0) -> Iterator[Writer]:
        """Hold the run's lease and write to it.

        Args:
            wait: seconds to wait for another holder to let go.

        Raises:
            LockHeld: another process holds it.
            StoreError: the directory cannot be written.
        """
        if not self.path.is_dir():
            raise StoreError(f"{self.path} is gone", hint="rankfall ps lists the runs")
        with leases.hold(self.lease_path, wait=wait):
            writer = Writer(self.db_path, journal=file_system(self.path).journal)
            try:
                yield writer
            finally:
                writer.close()

    @contextlib.contextmanager
    def reader(self) -> Iterator[Reader]:
        """Read the run, whether or not somebody writes it; what is damaged stands in ``Reader.problems``."""
        with contextlib.closing(Reader(self)) as reader:
            yield reader


@contextlib.contextmanager
def _fresh(spec: JobSpec, *, home: Path, meta: Meta) -> Iterator[Path]:
    """A run directory that has no name yet; what was not given one is removed."""
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
            f"cannot make a run directory in {home}/runs: {error.strerror or error}",
            hint="free space there, or set RANKFALL_HOME to a folder that you can write",
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def list_runs(home: Path) -> list[RunDir]:
    """All runs, newest first. Damaged ones are in the list too: their ``spec`` raises, their summary says ``unknown``.

    Raises:
        StoreError: the folder cannot be read.
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


def _take_name(fresh: Path, path: Path) -> bool:
    try:
        fresh.rename(path)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
            return False
        raise
    return True


def _list(ids: list[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
