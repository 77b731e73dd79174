"""Packs what travels into a slot: ``rankfall_inside``, its ``sitecustomize.py`` and ``__main__.py``, and nothing named ``rankfall``.

A zip that holds ``rankfall/`` would hide the installed package in the job. The bytes depend on the sources alone, so the same version
gives the same name everywhere and compiled files beside the unpacked sources stay valid.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from importlib import resources
from pathlib import Path

from rankfall.store.fs import make_folder, write_file

_PACKAGE = "rankfall_inside"
_MAIN = "import sys\n\nfrom rankfall_inside.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
# The zip format's own first date; any fixed one makes the bytes repeatable.
_DATE = (1980, 1, 1, 0, 0, 0)


def contents() -> dict[str, bytes]:
    """All files of the bundle by their path in it, sorted."""
    files = {"__main__.py": _MAIN.encode()}
    for entry in resources.files(_PACKAGE).iterdir():
        if entry.name.endswith(".py"):
            # site imports it by its bare name, so it lies beside the package.
            name = entry.name if entry.name == "sitecustomize.py" else f"{_PACKAGE}/{entry.name}"
            files[name] = entry.read_bytes()
    return dict(sorted(files.items()))


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
