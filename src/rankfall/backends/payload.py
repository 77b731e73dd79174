"""Packs a slot's payload: the recorder ``rankfall_inside`` and the job's code.

The bundle's bytes depend on the sources alone. Code is copied once, at submission.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from rankfall.model import JobSpec, UsageError
from rankfall.rundir import RunDir
from rankfall.rundir.lease import make_folder, write_file
from rankfall_inside.transfer.frames import TransferError
from rankfall_inside.transfer.tree import Tree, merged, scan

_PACKAGE = "rankfall_inside"
_MAIN = "import sys\n\nfrom rankfall_inside.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
# Fixed, so the bytes are reproducible.
_DATE = (1980, 1, 1, 0, 0, 0)


def contents() -> dict[str, bytes]:
    """Returns all files of the bundle by path, sorted."""
    files = {"__main__.py": _MAIN.encode()}
    for name, entry in _sources(resources.files(_PACKAGE), _PACKAGE):
        # site imports it by its bare name.
        files["sitecustomize.py" if entry.name == "sitecustomize.py" else name] = entry.read_bytes()
    return dict(sorted(files.items()))


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry


def build_zip() -> bytes:
    """Bundle as a reproducible, runnable zip for ``PYTHONPATH``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in contents().items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def location(home: Path) -> Path:
    """Directory of :func:`unpack`; creates nothing."""
    return _target(home, contents())


def _target(home: Path, files: dict[str, bytes]) -> Path:
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return home / "inside" / digest.hexdigest()[:12]


def unpack(home: Path) -> Path:
    """Unpacks the bundle to ``home/inside/<sha12>/`` once; returns that directory.

    Raises:
        OSError: ``home`` cannot be written.
    """
    files = contents()
    target = _target(home, files)
    if target.is_dir():
        return target
    make_folder(target.parent)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for name, data in files.items():
            path = temporary / name
            # Python would apply the umask.
            make_folder(path.parent / "__pycache__")
            write_file(path, data)
        _copy_compiled(temporary)
        # Atomic for concurrent processes.
        os.rename(temporary, target)  # noqa: PTH104 - Path.rename does the same with one more object
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _copy_compiled(target: Path) -> None:
    """Copies what Python compiled of the package: else each slot of the first run of a home compiles it again."""
    package = resources.files(_PACKAGE)
    if not isinstance(package, Path):
        return
    for source in package.rglob("*.py"):
        copy = target / _PACKAGE / source.relative_to(package)
        cache = Path(cache_from_source(str(source)))
        try:
            compiled, times = cache.read_bytes(), source.stat()
        except OSError:
            continue  # not compiled yet, or not readable: slots compile it
        if copy.is_file():
            # Python compares it with time and size of the source.
            os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
            write_file(copy.parent / "__pycache__" / cache.name, compiled)


CODE: Final = "code"
"""Code folder in the run directory."""


def code_of(spec: JobSpec, run_dir: RunDir) -> Tree:
    """Returns the code of a run or an unsubmitted job.

    Raises:
        UsageError: Folder missing or not copyable.
    """
    kept = run_dir.path / CODE
    if kept.is_dir():
        return scan(os.fsencode(kept))
    return code_tree(spec, skip=run_dir.path.parent.parent)


def code_tree(spec: JobSpec, *, skip: Path) -> Tree:
    """Merges the folders of ``code``, without the folder ``skip``.

    Raises:
        UsageError: Folder missing or not copyable.
    """
    trees = []
    try:
        for folder in spec.code_folders:
            path = Path(folder).expanduser()
            if not path.is_dir():
                raise UsageError(f"$.code: {folder!r} is not a folder", hint="give a folder of this machine")
            trees.append(scan(os.fsencode(path), exclude=spec.code_exclude, skip=os.fsencode(skip)))
        return merged(trees)
    except TransferError as error:
        raise UsageError(f"$.code: {error}", hint="leave it out with code_exclude (--code-exclude)") from None
