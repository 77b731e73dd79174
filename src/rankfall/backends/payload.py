"""Packs what travels into a slot: the recorder ``rankfall_inside`` and the code that the job brings.

The bundle holds ``rankfall_inside``, its ``sitecustomize.py`` and a ``__main__.py``, and nothing named
``rankfall``, which would hide an installed package in the job. Its bytes depend on the sources alone: the
same version has the same name everywhere, and compiled files beside unpacked sources stay valid. The job's
code is copied into the run directory at submission, so later edits change nothing of a run and every attempt
has the same code.
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
from pathlib import Path
from typing import Final

from rankfall.model import JobSpec, UsageError
from rankfall.rundir import RunDir
from rankfall.rundir.lease import make_folder, write_file
from rankfall_inside.transfer.frames import TransferError
from rankfall_inside.transfer.tree import Tree, merged, scan

_PACKAGE = "rankfall_inside"
_MAIN = "import sys\n\nfrom rankfall_inside.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
# The zip format's own first date; any fixed one makes the bytes repeatable.
_DATE = (1980, 1, 1, 0, 0, 0)


def contents() -> dict[str, bytes]:
    """All files of the bundle by their path in it, sorted."""
    files = {"__main__.py": _MAIN.encode()}
    for name, entry in _sources(resources.files(_PACKAGE), _PACKAGE):
        # site imports it by its bare name, so it lies beside the package.
        files["sitecustomize.py" if entry.name == "sitecustomize.py" else name] = entry.read_bytes()
    return dict(sorted(files.items()))


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", entry


def build_zip() -> bytes:
    """The bundle as a zip that Python can run and put on ``PYTHONPATH``; the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in contents().items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def location(home: Path) -> Path:
    """Where :func:`unpack` puts the bundle; creates nothing."""
    return _target(home, contents())


def _target(home: Path, files: dict[str, bytes]) -> Path:
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return home / "inside" / digest.hexdigest()[:12]


def unpack(home: Path) -> Path:
    """The bundle as a directory ``home/inside/<sha12>/``, made once and then used again.

    Args:
        home: Rankfall's home; created when it is missing.

    Returns:
        The directory to run (``python DIR wrap ...``).

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
            # Python would make the folder of compiled files by the umask; the files in it get the modes of their sources.
            make_folder(path.parent / "__pycache__")
            write_file(path, data)
        # Atomic: whoever is second finds a complete directory, ours or the other's.
        os.rename(temporary, target)  # noqa: PTH104 - Path.rename says the same with one more object
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


CODE: Final = "code"
"""Its folder in the run directory."""


def code_of(spec: JobSpec, run_dir: RunDir) -> Tree:
    """The code of a run, or of a job that is only looked at yet.

    Raises:
        UsageError: there is no such folder, or it cannot be copied.
    """
    kept = run_dir.path / CODE
    if kept.is_dir():
        return scan(os.fsencode(kept))
    return code_tree(spec, skip=run_dir.path.parent.parent)


def code_tree(spec: JobSpec, *, skip: Path) -> Tree:
    """The folders of ``code`` laid over each other.

    Args:
        spec: of the job.
        skip: Rankfall's home, which is no code wherever it lies.

    Raises:
        UsageError: there is no such folder, or it cannot be copied.
    """
    trees = []
    try:
        for folder in spec.code_folders:
            path = Path(folder).expanduser()
            if not path.is_dir():
                raise UsageError(f"$.code: {folder!r} is no folder", hint="give a folder of this machine")
            trees.append(scan(os.fsencode(path), exclude=spec.code_exclude, skip=os.fsencode(skip)))
        return merged(trees)
    except TransferError as error:
        raise UsageError(f"$.code: {error}", hint="leave it out with code_exclude (--code-exclude)") from None
