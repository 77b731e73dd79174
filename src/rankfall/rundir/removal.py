"""Deletes run directories: never a live run's, never another folder.

A directory first gets a hidden name, under its lease.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.model import FINAL_STATES, LockHeld, StoreError, UsageError
from rankfall.rundir import lease as leases
from rankfall.rundir.directory import RunDir
from rankfall.rundir.layout import RUN_FILES

_NS: Final = 1_000_000_000
_REMOVED: Final = ".removed-"
_BLOCK: Final = 512
# Held while an ended run's objects remain in the cluster.
TTL_LOCK: Final = "kube/expiry.lock"


class Kept(UsageError):
    """The directory may not be deleted."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Selects runs for removal; None = no such rule.

    Attributes:
        older_than: Seconds since the end.
        keep: Number of newest ended runs that stay.
        max_size: Bytes of all runs.
    """

    older_than: float | None = None
    keep: int | None = None
    max_size: int | None = None

    @property
    def empty(self) -> bool:
        """True without any rule."""
        return self.older_than is None and self.keep is None and self.max_size is None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A removable run and its end, nanoseconds since the epoch; of an unfinished foreign job, its last query."""

    run: RunDir
    at: int


@contextlib.contextmanager
def in_use(run: RunDir) -> Iterator[None]:
    """Prevents the removal of a run while this process prints its output and end; any number of processes may."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            stack.enter_context(leases.locked_folder(run.path, fcntl.LOCK_SH | fcntl.LOCK_NB))
        yield


@contextlib.contextmanager
def _unused(run: RunDir) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(leases.locked_folder(run.path, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            hint = "end its rankfall run, attach or wait, or let it print the end"
            raise Kept(f"another process still prints the output of {run.id}", hint=hint) from None
        yield


def ended(run: RunDir) -> Ended:
    """Returns a removable run.

    Raises:
        Kept: It lives, or the folder is no run directory.
    """
    _check_folder(run.path)
    with run.reader() as reader:
        row = reader.run()
    # Of a foreign job there is only this record.
    observed = run.foreign is not None
    if row.state not in FINAL_STATES and row.state != "unknown" and not observed:
        raise Kept(f"{run.id} has not ended: {row.state}", hint=f"rankfall cancel {run.id}")
    if row.state == "unknown":
        raise Kept(f"the state of {run.id} cannot be read", hint=f"delete {run.path} yourself")
    if _held(run.path / TTL_LOCK):
        raise Kept(f"{run.id} still has objects in the cluster, for its ttl_s", hint="wait until then")
    if run.lease_holder() is not None:
        raise Kept(f"the end of {run.id} is incomplete", hint=f"rankfall wait {run.id}")
    if run.end_lock_path.exists() and not _copies_only(run):
        # wait returns at the final state; only a supervisor completes the end.
        hint = f"rankfall attach {run.id} completes it; if the disk stays full, delete {run.path} yourself"
        raise Kept(f"the end of {run.id} is incomplete", hint=hint)
    with _unused(run):
        return Ended(run=run, at=row.ended or (run.last_seen() if observed else 0) or run.created)


def _copies_only(run: RunDir) -> bool:
    """True if the end lacks only readable copies in the folder that is deleted, as on a full disk."""
    with contextlib.suppress(StoreError):
        return run.spec.writes_run_dir and run.spec.log_dir is None
    return False


def _hidden(path: Path) -> Path:
    """New name of a run directory that is being deleted."""
    return path.with_name(f"{_REMOVED}{os.urandom(8).hex()}")


def remove(run: RunDir) -> int:
    """Deletes an ended run's directory; returns the freed bytes.

    Raises:
        Kept: As :func:`ended`.
        StoreError: Files remain.
    """
    ended(run)
    hidden = _hidden(run.path)
    try:
        with _unused(run), leases.hold(run.lease_path):
            with run.reader() as reader:
                if run.foreign is None and reader.run().state not in FINAL_STATES:
                    raise Kept(f"{run.id} continues", hint=f"rankfall cancel {run.id}")
            run.path.rename(hidden)
    except LockHeld as error:
        raise Kept(error.message, hint=error.hint) from None
    except StoreError as error:
        if run.path.exists():
            raise
        raise Kept(f"{run.id} is gone: {error.message}") from None
    except OSError as error:
        raise StoreError(f"cannot remove {run.path}: {error.strerror or error}") from error
    return _delete(hidden)


def has_begun(run: RunDir) -> bool:
    """True if an attempt may have begun, also without a database, or the run is of a foreign job."""
    with contextlib.suppress(OSError):
        return run.foreign is not None or any((run.path / "slots").iterdir()) or (run.path / "kube").exists()
    return True


def discard(run: RunDir) -> bool:
    """Deletes a run of which nothing began; False if another process holds it, or something began."""
    hidden = _hidden(run.path)
    try:
        with leases.hold(run.lease_path):
            if has_begun(run):
                return False
            run.path.rename(hidden)
        _delete(hidden)
    except (OSError, StoreError, LockHeld):
        return False
    return True


def remove_remains(home: Path) -> int:
    """Completes interrupted removals; returns the freed bytes."""
    with contextlib.suppress(OSError):
        return sum(_delete(path) for path in (home / "runs").glob(f"{_REMOVED}*") if not path.is_symlink())
    return 0


def chosen(
    rules: Rules,
    candidates: Sequence[Ended],
    *,
    others: Sequence[RunDir] = (),
    now: int,
    go_on: Callable[[], bool] = lambda: True,
) -> list[Ended]:
    """Returns the runs to remove, oldest first; of ``others`` only the size counts.

    If ``go_on`` becomes False, none is removed for its size.
    """
    oldest_first = sorted(candidates, key=lambda one: (one.at, one.run.id))
    free = oldest_first[: len(oldest_first) - rules.keep] if rules.keep else oldest_first
    if rules.keep is not None and rules.keep >= len(oldest_first):
        free = []
    if rules.older_than is not None:
        found = [one for one in free if one.at < now - int(rules.older_than * _NS)]
    else:
        found = free if rules.max_size is None else []
    if rules.max_size is None:
        return found
    sizes: dict[str, int] = {}
    for run in (*others, *(one.run for one in oldest_first)):
        if not go_on():
            return found
        sizes[run.id] = size_of(run.path)
    total = sum(sizes.values()) - sum(sizes[one.run.id] for one in found)
    for one in free:
        if total <= rules.max_size:
            break
        if one not in found:
            found.append(one)
            total -= sizes[one.run.id]
    return found


def size_of(path: Path) -> int:
    """Returns a folder's bytes on disk."""
    total = 0
    stack = [path]
    while stack:
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(Path(entry.path))
    return total


def time_limit(seconds: float) -> Callable[[], bool]:
    """Returns a function that is True for this time."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _check_folder(path: Path) -> None:
    try:
        found = path.lstat()
        marks = [(path / name).lstat() for name in RUN_FILES]
    except OSError as error:
        raise Kept(
            f"{path} is no run directory: {error.strerror or error}", hint="rankfall ps lists the runs"
        ) from None
    ours = [stat.S_ISDIR(found.st_mode), *(stat.S_ISREG(mark.st_mode) for mark in marks)]
    if not all(ours) or found.st_uid != os.geteuid():
        raise Kept(f"{path} is no run directory of this user", hint="rankfall ps")


def _held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _delete(path: Path) -> int:
    before = size_of(path)
    failed: list[OSError] = []

    def again(function: Callable[..., Any], name: str, _: Any) -> None:
        # Copied code may be read-only.
        try:
            Path(name).parent.chmod(stat.S_IRWXU)
            if Path(name).is_dir() and not Path(name).is_symlink():
                Path(name).chmod(stat.S_IRWXU)
                shutil.rmtree(name)
            else:
                function(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            failed.append(error)

    shutil.rmtree(path, onerror=again)
    if failed and path.exists():
        raise StoreError(
            f"cannot delete everything in {path}: {failed[0].strerror or failed[0]}", hint="delete it yourself"
        )
    return before
