"""Maintains the user's --log-dir with the run's readable log files.

A mark file ties the folder to one run; another run's is refused.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankfall.model import StoreError, UsageError, decoding
from rankfall.rundir.lines.derived_files import ALL_RANKS, AllRanksFile, derived_files

if TYPE_CHECKING:
    from rankfall.rundir.directory import RunDir

MARK: Final = ".rankfall-run"
_MAX_MARK: Final = 4096


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the mark file.

    Attributes:
        run: Owning run's ID; empty during creation.
        request_token: Token of the creating request.
    """

    run: str = ""
    request_token: str | None = None


class Claim:
    """A folder that is reserved for a run that is being created."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder = folder
        self._owner = owner

    def give_to(self, run_dir: RunDir) -> None:
        """Records the run that owns the folder.

        Raises:
            UsageError: The folder is another run's, or the mark is unwritable.
        """
        if self._owner.run not in {"", run_dir.id}:
            raise _taken(self._folder, self._owner)
        try:
            _write_mark(self._folder, msgspec.structs.replace(self._owner, run=run_dir.id))
        except OSError as error:
            raise _unusable(self._folder, error) from error


@contextlib.contextmanager
def claimed(folder: Path, *, request_token: str | None) -> Iterator[Claim]:
    """Reserves a folder for the run created in the context; a failure frees it.

    A repeated request finds its folder by ``request_token``.

    Raises:
        UsageError: Another run's, or unwritable; nothing changed.
    """
    owner = Owner(request_token=request_token)
    mark = folder / MARK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = _take(mark, owner)
        if not fresh:
            owner = _read_mark(mark)
    except OSError as error:
        raise _unusable(folder, error) from error
    if not fresh and (request_token is None or owner.request_token != request_token):
        raise _taken(folder, owner)
    try:
        yield Claim(folder, owner)
    except BaseException:
        if fresh:
            with contextlib.suppress(OSError):
                mark.unlink()
        raise


class LogDir:
    """The log folder of one run, during the run and at its end."""

    def __init__(self, run_dir: RunDir, folder: Path) -> None:
        self._run_dir = run_dir
        self._folder = folder
        self._file = AllRanksFile(run_dir, folder)

    def advance(self) -> str | None:
        """Appends new lines to the file of all ranks; returns a failure's reason, or None."""
        return self._tried(self._file.advance)

    def finish(self) -> str | None:
        """Appends the remaining lines and copies each rank's file; returns a failure's reason, or None.

        Repeatable.
        """
        return self._tried(self._all)

    def _all(self) -> None:
        self._file.advance(final=True)
        for path in derived_files(self._run_dir):
            if path.name != ALL_RANKS:
                _link_or_copy(path, self._folder / path.name)

    def _tried(self, what: Callable[[], None]) -> str | None:
        try:
            if _read_mark(self._folder / MARK).run != self._run_dir.id:
                return f"{self._folder} belongs to another run now: nothing was written there"
            what()
        except OSError as error:
            return f"{self._folder} cannot be written: {error.strerror or error}"
        except StoreError as error:
            return f"{self._folder} gets no files: {error.message}"
        return None


def _link_or_copy(source: Path, target: Path) -> None:
    """Copies a file with the umask's modes, atomically; a link would keep private modes."""
    half = target.with_name(f".{target.name}.half")
    try:
        half.unlink(missing_ok=True)
        shutil.copyfile(source, half)
        half.replace(target)
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def _take(mark: Path, owner: Owner) -> bool:
    """Creates the mark; returns False if there is one."""
    try:
        with mark.open("xb") as file:
            file.write(msgspec.json.encode(owner) + b"\n")
    except FileExistsError:
        return False
    return True


def _write_mark(folder: Path, owner: Owner) -> None:
    half = folder / f"{MARK}.half"
    half.write_bytes(msgspec.json.encode(owner) + b"\n")
    half.replace(folder / MARK)


def _read_mark(mark: Path) -> Owner:
    """Returns a mark; an unreadable one still means an owner."""
    with mark.open("rb") as file:
        data = file.read(_MAX_MARK)
    try:
        return decoding.decode(data, kind=Owner)
    except msgspec.MsgspecError:
        return Owner()


def _taken(folder: Path, owner: Owner) -> UsageError:
    whose = (
        f"has the files of run {owner.run}" if owner.run else "is reserved for a run that was never completely created"
    )
    return UsageError(
        f"$.log_dir: {folder} {whose}",
        hint=f"name another folder for each run, or remove {MARK} there if its files are no longer needed",
    )


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"$.log_dir: {folder} cannot be used: {error.strerror or error}", hint="name a folder that you can write to"
    )
