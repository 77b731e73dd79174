"""Finds the directory that the hook is loaded from, with compiled files: a rank that compiles them itself starts slower.

A zip is unpacked once into the slot directory. Where nothing can be written the zip itself, or the directory as it is, is used.
"""

from __future__ import annotations

import os
import sys

_PACKAGE = "rankfall_inside"


def prepare(slot_dir: str) -> str:
    """What goes in front of PYTHONPATH: a directory or zip with ``sitecustomize.py`` and this package."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        if os.path.isfile(here):
            here = _unpack(here, os.path.join(slot_dir, "inside"))
        _compile(here)
    except Exception:
        return here
    return here


def _unpack(archive: str, target: str) -> str:
    import zipfile

    if os.path.isdir(target):
        return target
    temporary = f"{target}.{os.getpid()}"
    with zipfile.ZipFile(archive) as file:
        file.extractall(temporary)
    os.rename(temporary, target)
    return target


def _compile(here: str) -> None:
    """Compile what has no fresh compiled file for this Python; also where PYTHONDONTWRITEBYTECODE is set, which speaks of the job's files."""
    from importlib.util import cache_from_source

    names = [os.path.join(here, "sitecustomize.py")]
    package = os.path.join(here, _PACKAGE)
    names += [os.path.join(package, name) for name in os.listdir(package) if name.endswith(".py")]
    missing = [name for name in names if os.path.exists(name) and not os.path.exists(cache_from_source(name))]
    if missing and sys.implementation.cache_tag:
        import py_compile

        from rankfall_inside import private

        for folder in {os.path.dirname(cache_from_source(name)) for name in missing}:
            private.make_folders(folder)
        for name in missing:
            py_compile.compile(name, doraise=False, quiet=2)
