"""Rankfall's Python, the job's Python, and whether the hook is loaded there: by a real wrapper that starts a real rank."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends.bundle import unpack
from rankfall.backends.interpreter import Interpreter, find_interpreter
from rankfall.cli.checks import Check, State
from rankfall.model import JobSpec, Record, SpecError, decoding
from rankfall.store import default_home

_HOOK_LIMIT_S: Final = 30.0
_OLDEST_JOB_PYTHON: Final = (3, 8)


def own_python() -> Check:
    """Rankfall's own interpreter."""
    return Check(name="python", state="pass", text=f"Rankfall runs under Python {platform.python_version()}")


def job_python(python: str | None) -> tuple[Check, Interpreter | None]:
    """The job's interpreter and its torch."""
    try:
        found = find_interpreter(JobSpec(command=("true",), python=python), cwd=Path.cwd())
    except SpecError as error:
        return Check(name="job-python", state="fail", text=error.message, next=error.hint), None
    version = ".".join(str(part) for part in found.version)
    text = f"the job's Python is {version} ({found.path})"
    if found.version < _OLDEST_JOB_PYTHON:
        return Check(
            name="job-python", state="warn", text=f"{text}: too old for the hook", next="use Python >= 3.8 in the job"
        ), found
    return Check(name="job-python", state="pass", text=text), found


def torch(found: Interpreter) -> Check:
    """Whether torchrun can be used."""
    if found.torch is None:
        return Check(
            name="torch",
            state="warn",
            text="the job's Python has no torch: Rankfall's own launcher starts the ranks",
            next="nothing, unless the job needs torch: then install it there, or name the right Python with --python",
        )
    return Check(name="torch", state="pass", text=f"torch {found.torch}: torchrun starts the ranks")


def hook(found: Interpreter) -> Check:
    """Start one rank under the wrapper and look for the start record that only the hook can write."""
    try:
        with tempfile.TemporaryDirectory(prefix="rankfall-doctor-") as name:
            return _hook(found, Path(name))
    except (OSError, subprocess.SubprocessError) as error:
        return Check(
            name="hook", state="fail", text=f"the wrapper did not run: {error}", next="RANKFALL_DEBUG=1 rankfall doctor"
        )


def _hook(found: Interpreter, folder: Path) -> Check:
    for part in ("slot", "records", "streams/0"):
        (folder / part).mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANKFALL_", "TORCHELASTIC_"))}
    env |= {
        "RANKFALL_RUN": "doctor-000000",
        "RANKFALL_ATTEMPT": "1",
        "RANKFALL_ROLE": "worker",
        "RANKFALL_SLOT": "0",
        "RANKFALL_SLOT_DIR": str(folder / "slot"),
        "RANKFALL_RECORD_DIR": str(folder / "records"),
        "RANKFALL_NODE": "node0",
    }
    command = [found.path, str(unpack(_unpack_home(folder))), "wrap", "--stream-dir", str(folder / "streams" / "0")]
    command += ["--launcher", "plain", "--nproc", "1", "--grace", "1", "--", found.path, "-c", "print('here')"]
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_HOOK_LIMIT_S, check=False, cwd=folder
    )
    starts = [r for r in _records(folder / "records") if r.kind == "start" and r.writer == "hook" and r.rank == 0]
    if starts:
        streams = "its streams are kept apart" if starts[0].streams else "its streams stay with the slot's"
        state: State = "pass" if starts[0].streams else "warn"
        return Check(name="hook", state=state, text=f"the hook is loaded in a rank; {streams}")
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    return Check(
        name="hook",
        state="warn" if done.returncode == 0 else "fail",
        text=f"a rank started without the hook{f': {said}' if said else ''}",
        next="see whether the job's Python ignores PYTHONPATH (python -I, -E) or replaces sitecustomize",
    )


def _unpack_home(folder: Path) -> Path:
    """Where the bundle is unpacked: the real home when it can be written, so that jobs use the same files; else the temporary one."""
    home = default_home()
    return home if os.access(home, os.W_OK) else folder


def _records(folder: Path) -> list[Record]:
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append(decoding.decode(path.read_bytes(), kind=Record))
        except (OSError, msgspec.MsgspecError):
            continue
    return found
