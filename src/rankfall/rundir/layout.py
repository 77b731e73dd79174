"""Paths of the home folder and of one run directory, and atomic file writes.

Also holds what is written once when a run is made: spec, foreign object, creation time. Refuses a home
laid out by an unknown version. The layout is documented in docs/architecture.md.
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
_OTHERS: Final = 0o077


def home() -> Path:
    """Rankfall's home folder, with ``layout``, ``runs/`` and ``inside/`` in it; made when it is not there.

    A home that cannot be written but has a known layout is fine for reading.

    Raises:
        StoreError: it cannot be made or read, or its layout is of another version.
    """
    return prepare(default_home())


def default_home() -> Path:
    """Where home would be; touches nothing."""
    chosen = os.environ.get("RANKFALL_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs  # noqa: PLC0415 - only without RANKFALL_HOME; start-up is watched

    return Path(platformdirs.user_data_dir("rankfall", appauthor=False))


def prepare(path: Path) -> Path:
    """Check the layout of ``path`` and make what is missing.

    Raises:
        StoreError: as :func:`home`.
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
    """Close our own folders that an earlier version left open for others. The home itself may be a folder that the user chose."""
    for folder in (path / "runs", path / "inside", path / "kube"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
                # What its owner took from himself stays taken: a folder that may only be read is not opened for writing.
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
    """Write a file under its name only when it is whole; False when the name is taken already.

    Raises:
        OSError: it cannot be written.
    """
    temporary = _temporary(path)
    try:
        write_file(temporary, data, new=True, sync=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except PermissionError:
            # Some mounted file systems have no hard links; the name may then be taken by a second writer of equal text.
            temporary.rename(path)
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes) -> None:
    """Put a whole file in the place of what is there. Not synced: for what comes again, or may be lost with the machine.

    Raises:
        OSError: it cannot be written; what was there stays.
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
    # Of its own name: two who write at once must not write into each other's file.
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot use {path} as Rankfall's home: {error.strerror or error}",
        hint="set RANKFALL_HOME to a folder that you can write",
    )


_MAX_SPEC: Final = 16 << 20
FOREIGN_FILE: Final = "foreign.json"
SECRETS_FILE: Final = "secrets.json"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """``meta.json``.

    Attributes:
        created: when the run was made, nanoseconds since the epoch.
        request_token: of the request that made it.
        replace: its first attempt may end what an earlier request with this token left running in a cluster.
    """

    created: int
    request_token: str | None = None
    replace: bool = False


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """``secrets.json``.

    Attributes:
        values: what stands at places of the spec where ``spec.json`` has ``***``, by their JSON pointers.
    """

    schema: Literal["rankfall.secrets/1"] = "rankfall.secrets/1"
    values: dict[str, str]

    def __repr__(self) -> str:
        return f"Secrets({len(self.values)})"


class RunPaths:
    """One run's directory as a place.

    Args:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @cached_property
    def spec(self) -> JobSpec:
        """The job spec, with ``***`` in the place of secrets: what starts something takes :meth:`whole_spec`.

        Raises:
            StoreError: spec.json is missing or damaged.
        """
        path = self.path / "spec.json"
        try:
            with path.open("rb") as file:
                return decoding.decode(file.read(_MAX_SPEC), kind=JobSpec)
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"cannot read {path}: {error}", hint=f"the run's logs are still in {self.path / 'logs'}"
            ) from error

    def whole_spec(self) -> JobSpec:
        """The job spec with its secrets, for the supervisor that starts something from it; not to be shown or stored.

        Raises:
            StoreError: spec.json is missing or damaged.
            InfrastructureError: secrets.json is damaged, or a secret is missing there.
        """
        path = self.path / SECRETS_FILE
        try:
            with path.open("rb") as file:
                values = decoding.decode(file.read(_MAX_SPEC), kind=Secrets).values
        except FileNotFoundError:
            values = {}
        except (OSError, msgspec.MsgspecError):
            # Not in the words of the decoder, which may quote the text.
            raise InfrastructureError(
                f"cannot read {path}, which holds the secret values of the job",
                hint="submit the job again; the run's logs and verdicts are as they were",
            ) from None
        whole = replaced(self.spec, values)
        lost = [pointer for pointer, found in secrets_of(whole).items() if is_masked(found.text)]
        if lost:
            raise InfrastructureError(
                f"the value at {lost[0]} of {self.path / 'spec.json'} is masked and not in {SECRETS_FILE}",
                hint="submit the job again with its values; the run's logs and verdicts are as they were",
            )
        return whole

    @cached_property
    def foreign(self) -> Foreign | None:
        """The object that this is the record of, where Rankfall did not start the job.

        Raises:
            StoreError: it should be written there, and cannot be read.
        """
        path = self.path / FOREIGN_FILE
        try:
            return decoding.decode(path.read_bytes(), kind=Foreign)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"cannot read {path}: {error}", hint=f"the run's logs are still in {self.path / 'logs'}"
            ) from error

    @cached_property
    def created(self) -> int:
        """When the run was made, nanoseconds since the epoch; 0 when nothing tells."""
        return meta_of(self.path).created

    @cached_property
    def replaces(self) -> bool:
        """Whether its first attempt may end what an earlier request of the same token left running in a cluster."""
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
        """The sqlite database."""
        return self.path / "run.db"

    @property
    def lease_path(self) -> Path:
        """The writer's lease."""
        return self.path / "lease"

    @property
    def end_lock_path(self) -> Path:
        """There from right before the final state is stored until nothing of the run's end is left to do; says what comes next."""
        return self.path / "closing"

    def slot_dir(self, attempt: int, role: str, slot: int, instance: int = 0) -> Path:
        """Folder that supervisor and wrapper of one start of a slot share."""
        name = f"{role}-{slot}.{instance}" if instance else f"{role}-{slot}"
        return self.path / "slots" / f"attempt-{attempt}" / name

    def stream_dir(self, attempt: int, role: str, slot: int, instance: int = 0) -> Path:
        """Folder of one instance's raw streams."""
        return self.logs_dir / f"attempt-{attempt}" / f"{role}-{slot}" / str(instance)

    def lease_holder(self) -> leases.Holder | None:
        """The living process that holds the lease (or may, on another host); None when nobody does. Takes no lock."""
        found = leases.holder(self.lease_path)
        return found if found is not None and found.alive() is not False else None


def meta_of(path: Path) -> Meta:
    """What stands in a directory's ``meta.json``; without one, its age by the file that is written once."""
    try:
        with (path / "meta.json").open("rb") as file:
            return decoding.decode(file.read(65536), kind=Meta)
    except (OSError, msgspec.MsgspecError):
        pass
    try:
        # spec.json is written once, so its age is the run's.
        return Meta(created=(path / "spec.json").stat().st_mtime_ns)
    except OSError:
        return Meta(created=0)


def pods_folder(run: Path, attempt: int) -> Path:
    """``kube/attempt-N`` of a run directory: journal, clocks, marks of what Rankfall itself did."""
    return run / "kube" / f"attempt-{attempt}"


def context_path(run: Path, attempt: int) -> Path:
    """Where what is known around an attempt's pods lies."""
    return pods_folder(run, attempt) / "around.jsonl"
