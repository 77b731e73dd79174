"""Where Rankfall keeps its runs: ``$RANKFALL_HOME``, else the platform's user data folder.

Refuses a home that was laid out by a version it does not know: guessing at somebody's records is worse than stopping.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from rankfall.model import StoreError
from rankfall.store.fs import FOLDER_MODE, make_folder, write_file

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
                folder.chmod(FOLDER_MODE)


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
