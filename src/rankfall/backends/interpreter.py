"""The job's Python: where it is, how old it is, and whether it has torch. Asked without importing torch, once per interpreter.

Refuses an interpreter that does not exist or does not run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import JobSpec, SpecError, decoding

# A cold interpreter on a slow disk; asked once.
_ASK_TIMEOUT_S: Final = 60.0
_ASK: Final = """\
import json, sys
version = None
try:
    from importlib.util import find_spec
    if find_spec("torch") is not None:
        from importlib.metadata import version as version_of
        try:
            version = version_of("torch")
        except Exception:
            version = "of unknown version"
except Exception:
    pass
print("\\n" + json.dumps({"python": list(sys.version_info[:3]), "torch": version}))
"""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """One Python.

    Attributes:
        path: absolute, links kept: a virtual environment is known by its own path.
        version: of the language, as (3, 11, 4).
        torch: version of torch; None when it has none.
    """

    path: str
    version: tuple[int, int, int]
    torch: str | None = None


def find_interpreter(spec: JobSpec, *, cwd: Path) -> Interpreter:
    """The job's Python.

    Raises:
        SpecError: it does not exist, is not executable, or does not answer.
    """
    if spec.python is None:
        return _own()
    path = resolve(spec.python, cwd=cwd, env=spec.env)
    if path is None:
        raise SpecError(
            "$.python", f"{spec.python!r} does not exist or is not executable", hint="give the path of a Python"
        )
    try:
        same = path.samefile(sys.executable) and str(path) == sys.executable
        mtime = path.stat().st_mtime_ns
    except OSError as error:
        raise SpecError("$.python", f"{spec.python!r} cannot be read: {error.strerror}") from error
    return _own() if same else _ask(str(path), mtime)


def resolve(program: str, *, cwd: Path, env: dict[str, str]) -> Path | None:
    """The executable file that a shell in ``cwd`` with ``env`` would start; None when there is none."""
    if "/" in program:
        path = cwd / Path(program).expanduser()
        return path if path.is_file() and os.access(path, os.X_OK) else None
    search = env.get("PATH", os.environ.get("PATH", os.defpath))
    # Relative parts of PATH are relative to where the job runs.
    folders = os.pathsep.join(str(cwd / part) for part in search.split(os.pathsep))
    found = shutil.which(program, path=folders)
    return Path(found) if found else None


@lru_cache(maxsize=1)
def _own() -> Interpreter:
    torch: str | None = None
    if importlib.util.find_spec("torch") is not None:
        from importlib import metadata  # noqa: PLC0415 - brings e-mail along, and is asked for torch only

        try:
            torch = metadata.version("torch")
        except metadata.PackageNotFoundError:
            torch = "of unknown version"
    major, minor, micro = sys.version_info[:3]
    return Interpreter(path=sys.executable, version=(major, minor, micro), torch=torch)


@lru_cache(maxsize=64)
def _ask(path: str, mtime: int) -> Interpreter:  # noqa: ARG001 - a changed file is asked again
    hint = "give a working Python >= 3.8 in $.python (--python)"
    try:
        done = subprocess.run(
            [path, "-c", _ASK], capture_output=True, timeout=_ASK_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SpecError("$.python", f"{path} does not start: {error}", hint=hint) from error
    try:
        answer = decoding.decode(done.stdout.strip().rpartition(b"\n")[2])
        major, minor, micro = answer["python"]
        return Interpreter(path=path, version=(int(major), int(minor), int(micro)), torch=answer["torch"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise SpecError("$.python", f"{path} is no Python that answers: {said}", hint=hint) from error
