"""Packs a run directory into one archive, and unpacks it, or any archive of logs.

An untrusted archive yields only regular files in one folder, within limits.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Final

from rankfall.model import StoreError, UsageError
from rankfall.rundir.layout import SECRETS_FILE

#: Suffix of an archive.
SUFFIX: Final = ".tar.gz"
_MAX_FILES: Final = 200_000
_MAX_BYTES: Final = 64 << 30
# Of an archive of logs: more takes too much of a temporary folder.
_MAX_LOG_BYTES: Final = 4 << 30
# Archives of a folder that are unpacked.
_MAX_ARCHIVES: Final = 20
# A tar file's first header, and the place of its magic.
_TAR_HEAD: Final = 512
_TAR_MAGIC: Final = 257
_DAMAGE: Final = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)
_META: Final = "meta.json"
# Files that concern this machine or hold secrets.
_LEFT_OUT: Final = frozenset({SECRETS_FILE, "lock", "lease"})


def pack(run: Path, to: Path, *, extra: dict[str, bytes]) -> int:
    """Writes a run directory without secrets, links and special files; returns the archive's bytes.

    Args:
        run: Run directory.
        to: New archive.
        extra: More files, by name.

    Raises:
        StoreError: A file is not accessible.
    """
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        # As private as the run directory: lines may hold secrets.
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600, exist_ok=False)
        with tarfile.open(temporary, "w:gz", compresslevel=6) as archive:
            for path in sorted(run.rglob("*")):
                if path.name in _LEFT_OUT or not stat.S_ISREG(path.lstat().st_mode):
                    continue
                archive.add(path, f"{run.name}/{path.relative_to(run)}", recursive=False, filter=_anonymous)
            for name, data in extra.items():
                info = tarfile.TarInfo(f"{run.name}/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        temporary.rename(to)
    except (OSError, tarfile.TarError) as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {to}: {error}", hint="choose another file with -o") from error
    return to.stat().st_size


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def is_bundle(path: Path) -> bool:
    """True for an archive of a run directory."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            for _ in range(_MAX_FILES):
                found = archive.next()
                if found is None:
                    return False
                place = PurePosixPath(found.name)
                if place.name == _META and len(place.parts) == 2:  # noqa: PLR2004 - folder and file
                    return True
    except (OSError, EOFError, tarfile.TarError, ValueError):
        return False
    return False


def unpack(path: Path, folder: Path) -> Path:
    """Unpacks an archive into an empty folder; returns the run directory.

    Raises:
        UsageError: Damaged, too large, or with other files.
    """
    hint = "make it again with rankfall report RUN --bundle"
    left, names = _MAX_BYTES, set[str]()
    try:
        with tarfile.open(path, "r:gz") as archive:
            for number, info in enumerate(archive):
                place = PurePosixPath(info.name)
                if not info.isreg() or place.is_absolute() or ".." in place.parts or len(place.parts) < 2:  # noqa: PLR2004
                    raise UsageError(f"{path} contains {info.name[:200]!r}, which is no file of a run", hint=hint)
                names.add(place.parts[0])
                left -= info.size
                if left < 0 or number >= _MAX_FILES or len(names) > 1:
                    raise UsageError(f"{path} is larger than a run may be", hint=hint)
                source = archive.extractfile(info)
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    while source is not None and (data := source.read(1 << 20)):
                        file.write(data)
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise UsageError(f"cannot unpack {path}: {error}", hint=hint) from error
    return folder / names.pop()


def is_archive(path: Path) -> bool:
    """True for a tar archive, compressed or not, or a zip archive."""
    try:
        with path.open("rb") as file:
            head = file.read(_TAR_HEAD)
        packed = head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ"))
        return head.startswith(b"PK\x03\x04") or (
            (packed or head[_TAR_MAGIC : _TAR_MAGIC + 5] == b"ustar") and tarfile.is_tarfile(path)
        )
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error):
        return False


def unpack_logs(path: Path, folder: Path, *, most: int | None = None) -> None:
    """Unpacks the regular files of an archive below an empty folder, without other members and unsafe names.

    ``most``: bytes, if less than for an archive alone.

    Raises:
        UsageError: Damaged, or too large.
    """
    left = _MAX_LOG_BYTES if most is None else most
    try:
        with _members(path) as members:
            for number, (name, source) in enumerate(members):
                place = PurePosixPath(name)
                if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in name:
                    continue
                target = folder / place
                # Two members of one name, or a name that is a folder's: the first stays.
                with contextlib.suppress(FileExistsError, NotADirectoryError):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("xb") as file:
                        while data := source.read(1 << 20):
                            left -= len(data)
                            if left < 0 or number >= _MAX_FILES:
                                raise UsageError(
                                    f"{path} unpacks to more than {_MAX_LOG_BYTES >> 30} GiB or {_MAX_FILES:,} files",
                                    hint="unpack it, and name the folder",
                                )
                            file.write(data)
    except (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, *_DAMAGE) as error:
        raise UsageError(f"cannot unpack {path}: {error}", hint="unpack it, and name the folder") from error


def unpack_archives(archives: Sequence[Path], within: Path, to: Path) -> None:
    """Unpacks the archives of logs in a folder, each into a folder of its name; all of them have the limit of one.

    Of an archive that cannot be unpacked, an empty file of its name shows that there is one.
    """
    left = _MAX_LOG_BYTES
    for number, path in enumerate(archives):
        target = to / path.relative_to(within)
        readable = number < _MAX_ARCHIVES and left > 0 and is_archive(path) and not is_bundle(path)
        try:
            if readable:
                unpack_logs(path, target, most=left)
        except UsageError:
            readable = False
        left -= sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        if not readable:
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()


@contextlib.contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Yields names and contents of the regular files of an archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            yield ((info.filename, zipped.open(info)) for info in zipped.infolist() if not info.is_dir())
        return
    with tarfile.open(path, "r:*") as archive:
        yield (
            (info.name, source)
            for info in archive
            if info.isreg() and (source := archive.extractfile(info)) is not None
        )
