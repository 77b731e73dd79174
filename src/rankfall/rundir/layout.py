"""Paths of the home and of one run directory, and atomic file writes (docs/architecture.md).

Refuses a home with an unknown layout version.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankfall.model import InfrastructureError, JobSpec, StoreError, decoding
from rankfall.model.foreign import Foreign
from rankfall.model.jobspec.secrets import is_masked, replaced, secrets_of
from rankfall.rundir import lease as leases
from rankfall.rundir.lease import make_folder, write_file

LAYOUT: Final = "1"
#: Files of every run directory, from its creation on.
RUN_FILES: Final = ("meta.json", "spec.json")
_OTHERS: Final = 0o077


def home() -> Path:
    """Returns Rankfall's home folder; creates it if missing.

    A read-only home is usable for reading.

    Raises:
        StoreError: Inaccessible, or another layout version.
    """
    return prepare(default_home())


def default_home() -> Path:
    """Home's path; accesses no file."""
    chosen = os.environ.get("RANKFALL_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs  # noqa: PLC0415

    return Path(platformdirs.user_data_dir("rankfall", appauthor=False))


def prepare(path: Path) -> Path:
    """Checks the layout of ``path`` and creates missing parts.

    Raises:
        StoreError: As for :func:`home`.
    """
    version = _version(path)
    if version is None:
        version = _make(path)
    if version != LAYOUT:
        raise StoreError(
            f"{path} has layout {version[:20]!r}; this Rankfall knows layout {LAYOUT}",
            hint="use the Rankfall version that made it, or set RANKFALL_HOME to another folder",
        )
    _tighten(path)
    return path


def _version(path: Path) -> str | None:
    try:
        with (path / "layout").open("rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(path, error) from error


def _tighten(path: Path) -> None:
    """Removes other users' access to Rankfall's folders, but not the home, which users choose."""
    for folder in (path / "runs", path / "inside", path / "kube"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
                # The owner's missing permissions stay missing.
                folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def _make(path: Path) -> str:
    try:
        for folder in (path / "runs", path / "inside"):
            make_folder(folder)
        write_new(path / "layout", f"{LAYOUT}\n".encode())
    except OSError as error:
        raise _unusable(path, error) from error
    return _version(path) or LAYOUT


def write_new(path: Path, data: bytes) -> bool:
    """Writes a file that gets its name only when complete; False if the name is used.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = _temporary(path)
    try:
        write_file(temporary, data, new=True, sync=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except PermissionError:
            # Without hard links, a second writer of equal content may take the name.
            temporary.rename(path)
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file atomically, without sync: the machine's failure may lose it.

    Raises:
        OSError: Unwritable; the old file remains.
    """
    temporary = _temporary(path)
    try:
        write_file(temporary, data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> Path:
    # Two concurrent writers must not write into each other's file.
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot use {path} as Rankfall's home: {error.strerror or error}",
        hint="set RANKFALL_HOME to a folder that you can write to",
    )


_MAX_SPEC: Final = 16 << 20
FOREIGN_FILE: Final = "foreign.json"
WRAPPER_LOG: Final = "wrapper.log"
SECRETS_FILE: Final = "secrets.json"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``meta.json``.

    Attributes:
        created: Run's creation, nanoseconds since the epoch.
        request_token: Token of the creating request.
        replace: True if the first attempt may remove cluster objects that an earlier request left.
    """

    created: int
    request_token: str | None = None
    replace: bool = False


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``secrets.json``: values behind ``***`` in ``spec.json``, by JSON pointer."""

    schema: Literal["rankfall.secrets/1"] = "rankfall.secrets/1"
    values: dict[str, str]

    def __repr__(self) -> str:
        return f"Secrets({len(self.values)})"


class RunPaths:
    """Paths and fixed files of one run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @cached_property
    def spec(self) -> JobSpec:
        """The job spec with ``***`` for secrets; starters use :meth:`whole_spec`.

        Raises:
            StoreError: spec.json is missing or damaged.
        """
        path = self.path / "spec.json"
        try:
            with path.open("rb") as file:
                return decoding.decode(file.read(_MAX_SPEC), kind=JobSpec)
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"cannot read {path}: {error}", hint=f"read the run's logs in {self.path / 'logs'}"
            ) from error

    def whole_spec(self) -> JobSpec:
        """Returns the job spec with its secrets; never print or store it.

        Raises:
            StoreError: spec.json is missing or damaged.
            InfrastructureError: secrets.json is damaged or incomplete.
        """
        path = self.path / SECRETS_FILE
        try:
            with path.open("rb") as file:
                values = decoding.decode(file.read(_MAX_SPEC), kind=Secrets).values
        except FileNotFoundError:
            values = {}
        except (OSError, msgspec.MsgspecError):
            # The decoder's message may quote the secret.
            raise InfrastructureError(
                f"cannot read {path}, which holds the secret values of the job",
                hint="submit the job again; the run's logs and verdicts are unchanged",
            ) from None
        whole = replaced(self.spec, values)
        lost = [pointer for pointer, found in secrets_of(whole).items() if is_masked(found.text)]
        if lost:
            raise InfrastructureError(
                f"the value at {lost[0]} of {self.path / 'spec.json'} is masked and not in {SECRETS_FILE}",
                hint="submit the job again with its secret values; the run's logs and verdicts are unchanged",
            )
        return whole

    @cached_property
    def foreign(self) -> Foreign | None:
        """The object that this directory records, if Rankfall did not start the job; else None.

        Raises:
            StoreError: The file cannot be read.
        """
        path = self.path / FOREIGN_FILE
        try:
            return decoding.decode(path.read_bytes(), kind=Foreign)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"cannot read {path}: {error}", hint=f"read the run's logs in {self.path / 'logs'}"
            ) from error

    @cached_property
    def created(self) -> int:
        """Creation time, nanoseconds since the epoch; 0 if unknown."""
        return meta_of(self.path).created

    @cached_property
    def replaces(self) -> bool:
        """True if the run's first attempt may remove cluster objects that an earlier request left."""
        return meta_of(self.path).replace

    @property
    def records_dir(self) -> Path:
        """Folder of the records."""
        return self.path / "records"

    @property
    def logs_dir(self) -> Path:
        """Folder of all raw streams."""
        return self.path / "logs"

    @property
    def db_path(self) -> Path:
        """Path of the sqlite database."""
        return self.path / "run.db"

    def tables_mark(self) -> object:
        """Value that differs after each change of the database, but for changes in one tick of the file system's clock."""
        found = []
        for path in (self.db_path, self.db_path.with_name(self.db_path.name + "-wal")):
            try:
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    @property
    def lease_path(self) -> Path:
        """Path of the writer's lease."""
        return self.path / "lease"

    @property
    def end_lock_path(self) -> Path:
        """Path of the file that marks an unfinished end of the run and names the next step.

        Exists from before the final state is stored until the end is complete.
        """
        return self.path / "closing"

    @property
    def seen_path(self) -> Path:
        """Path of the file whose modification time is that of the last successful query of the cluster."""
        return self.path / "seen"

    def mark_seen(self) -> None:
        """Marks a successful query of the cluster."""
        with contextlib.suppress(OSError):
            write_file(self.seen_path, b"")
            os.utime(self.seen_path)

    def last_seen(self) -> int:
        """Time of the last query of the cluster, else of the record's last change, nanoseconds; 0 if unknown."""
        with contextlib.suppress(OSError):
            return self.seen_path.stat().st_mtime_ns
        found = [0]
        for path in (self.db_path, self.db_path.with_name(self.db_path.name + "-wal")):
            with contextlib.suppress(OSError):
                stat = path.stat()
                # A reader makes an empty WAL.
                found.append(stat.st_mtime_ns if stat.st_size else 0)
        return max(found)

    def slot_dir(self, attempt: int, role: str, slot: int, instance: int = 0) -> Path:
        """Folder that supervisor and wrapper of one start of a slot share."""
        name = f"{role}-{slot}.{instance}" if instance else f"{role}-{slot}"
        return self.path / "slots" / f"attempt-{attempt}" / name

    def stream_dir(self, attempt: int, role: str, slot: int, instance: int = 0) -> Path:
        """Folder of one instance's raw streams."""
        return self.logs_dir / f"attempt-{attempt}" / f"{role}-{slot}" / str(instance)

    def lease_holder(self) -> leases.Holder | None:
        """Lease's live holder, or None; on another host it counts as live."""
        found = leases.holder(self.lease_path)
        return found if found is not None and found.alive() is not False else None


def meta_of(path: Path) -> Meta:
    """Content of a directory's ``meta.json``; if missing, the creation time comes from ``spec.json``."""
    try:
        with (path / "meta.json").open("rb") as file:
            return decoding.decode(file.read(65536), kind=Meta)
    except (OSError, msgspec.MsgspecError):
        pass
    try:
        # spec.json is written once.
        return Meta(created=(path / "spec.json").stat().st_mtime_ns)
    except OSError:
        return Meta(created=0)


def pods_folder(run: Path, attempt: int) -> Path:
    """Returns ``kube/attempt-N`` of a run directory: journal, clocks, marks of Rankfall's own actions."""
    return run / "kube" / f"attempt-{attempt}"


def context_path(run: Path, attempt: int) -> Path:
    """Path of the facts around an attempt's pods."""
    return pods_folder(run, attempt) / "around.jsonl"
