"""Maintains the user's --log-dir: a folder with the run's readable log files.

The file of all ranks grows there during the run; rank files are added at its end. A mark file ties the
folder to one run; a folder taken by another run is refused.
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
    """What the mark says.

    Attributes:
        run: whose the folder is; empty while that run is being made.
        request_token: of the request that makes it.
    """

    run: str = ""
    request_token: str | None = None


class Claim:
    """A folder that is kept for a run that is being made.

    Args:
        folder: the user's.
        owner: what its mark says.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        self._folder = folder
        self._owner = owner

    def give_to(self, run_dir: RunDir) -> None:
        """Write down whose it is.

        Raises:
            UsageError: the same request made another run for it before, or it cannot be written.
        """
        if self._owner.run not in {"", run_dir.id}:
            raise _taken(self._folder, self._owner)
        try:
            _write_mark(self._folder, msgspec.structs.replace(self._owner, run=run_dir.id))
        except OSError as error:
            raise _unusable(self._folder, error) from error


@contextlib.contextmanager
def claimed(folder: Path, *, request_token: str | None) -> Iterator[Claim]:
    """Keep a folder for the run that is made in the context; it is free again when making it fails.

    Args:
        folder: made when it is not there.
        request_token: of the request that makes the run: made again, it finds its folder and its run.

    Raises:
        UsageError: it belongs to another run, or cannot be written; nothing was changed.
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
    """The folder of one run, while the run goes on and at its end.

    Args:
        run_dir: the run.
        folder: its own.
    """

    def __init__(self, run_dir: RunDir, folder: Path) -> None:
        self._run_dir = run_dir
        self._folder = folder
        self._file = AllRanksFile(run_dir, folder)

    def advance(self) -> str | None:
        """Append what came to the file of all ranks.

        Returns:
            Why it is not there, in words; the next call goes on where this one stopped. None when it is.
        """
        return self._tried(self._file.advance)

    def finish(self) -> str | None:
        """Append what is left, and put the derived file of each rank beside it, over an earlier one, as a whole. Can be done again.

        Returns:
            Why they are not there, in words; None when they are.
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
            return f"{self._folder} is not filled: {error.message}"
        return None


def _link_or_copy(source: Path, target: Path) -> None:
    """A copy, with the modes of the user's umask: a link would have those of the run directory. Half of one never has the name."""
    half = target.with_name(f".{target.name}.half")
    try:
        half.unlink(missing_ok=True)
        shutil.copyfile(source, half)
        half.replace(target)
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def _take(mark: Path, owner: Owner) -> bool:
    """Make the mark; whether there was none."""
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
    """What a mark says; one that nobody can read is somebody's all the same."""
    with mark.open("rb") as file:
        data = file.read(_MAX_MARK)
    try:
        return decoding.decode(data, kind=Owner)
    except msgspec.MsgspecError:
        return Owner()


def _taken(folder: Path, owner: Owner) -> UsageError:
    whose = f"has the files of run {owner.run}" if owner.run else "is kept for a run that was being made"
    return UsageError(
        f"$.log_dir: {folder} {whose}",
        hint=f"name a folder for each run, or remove {MARK} there when its files are no longer needed",
    )


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"$.log_dir: {folder} cannot be used: {error.strerror or error}", hint="name a folder that you can write"
    )
