"""The user's command: kind, Python and checks before anything is created.

A child process reports the interpreter's version and torch, without importing torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Final, Literal

import msgspec

from rankfall.backends import torchrun
from rankfall.backends.plan import Launcher, Rendezvous
from rankfall.model import JobSpec, Part, Refused, SpecError, decoding, numbers

# Seconds for a cold interpreter on a slow disk.
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
    """One Python interpreter.

    Attributes:
        path: Absolute, links unresolved: identifies a virtual environment.
        version: As (3, 11, 4).
        torch: Version; None if absent.
    """

    path: str
    version: tuple[int, int, int]
    torch: str | None = None


def find_interpreter(spec: JobSpec, *, cwd: Path) -> Interpreter:
    """Returns the job's Python.

    Raises:
        SpecError: Missing, not executable, or silent.
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
    """File that a shell in ``cwd`` with ``env`` would execute, or None."""
    if "/" in program:
        path = cwd / Path(program).expanduser()
        return path if path.is_file() and os.access(path, os.X_OK) else None
    search = env.get("PATH", os.environ.get("PATH", os.defpath))
    # Relative parts of PATH belong to the working directory.
    folders = os.pathsep.join(str(cwd / part) for part in search.split(os.pathsep))
    found = shutil.which(program, path=folders)
    return Path(found) if found else None


@lru_cache(maxsize=1)
def _own() -> Interpreter:
    torch: str | None = None
    if importlib.util.find_spec("torch") is not None:
        from importlib import metadata  # noqa: PLC0415

        try:
            torch = metadata.version("torch")
        except metadata.PackageNotFoundError:
            torch = "of unknown version"
    major, minor, micro = sys.version_info[:3]
    return Interpreter(path=sys.executable, version=(major, minor, micro), torch=torch)


@lru_cache(maxsize=64)
def _ask(path: str, mtime: int) -> Interpreter:  # noqa: ARG001 - a changed file is queried again
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
        text = done.stderr.decode("utf-8", "replace").strip()[-300:]
        text = (
            text or f"it printed {'other text' if done.stdout.strip() else 'nothing'} and exited with {done.returncode}"
        )
        raise SpecError("$.python", f"{path} does not answer as a Python: {text}", hint=hint) from error


def gpus_here(python: object, *, devices: Path = Path("/dev")) -> int:
    """Counts the GPUs of the job's torch; without torch, device files."""
    files = [path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdecimal()]
    if not files and not (devices / "kfd").exists():
        return 0
    program = "import torch; print(torch.cuda.device_count())"
    try:
        done = subprocess.run(
            [str(python), "-c", program],
            capture_output=True,
            timeout=2 * _ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        text = done.stdout.decode("ascii", "replace").strip()
    except (OSError, subprocess.SubprocessError):
        text = ""
    found = numbers.whole(text.rpartition("\n")[2], digits=6)
    return len(files) if found is None else found


Kind = Literal["script", "module", "torchrun", "program"]

_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*")
_MIN_HOOK: Final = (3, 8)
_SHEBANG_BYTES: Final = 256


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The user's command; ``torchrun`` is its parsed form, or None."""

    kind: Kind
    words: tuple[str, ...]
    torchrun: torchrun.TorchrunCommand | None = None


def read_command(spec: JobSpec, *, cwd: Path) -> Command:
    """Checks the command and returns it with its kind.

    Raises:
        SpecError: File missing or not executable.
    """
    first = spec.command[0]
    if spec.module:
        return Command(kind="module", words=spec.command)
    parsed = torchrun.parse(spec.command)
    if parsed is not None:
        _check_program(first, spec=spec, cwd=cwd)
        return Command(kind="torchrun", words=spec.command, torchrun=parsed)
    if first.endswith(".py") or (spec.launcher == "torchrun" and resolve(first, cwd=cwd, env=spec.env) is None):
        _check_script(first, cwd=cwd)
        return Command(kind="script", words=spec.command)
    _check_program(first, spec=spec, cwd=cwd)
    return Command(kind="program", words=spec.command)


def command_elsewhere(spec: JobSpec) -> Command:
    """Returns a command from a container image; only its words determine its kind."""
    first = spec.command[0]
    if spec.module:
        return Command(kind="module", words=spec.command)
    parsed = torchrun.parse(spec.command)
    if parsed is not None:
        return Command(kind="torchrun", words=spec.command, torchrun=parsed)
    return Command(kind="script" if first.endswith(".py") else "program", words=spec.command)


def job_words(
    command: Command,
    *,
    python: str,
    flags: Mapping[str, str] | None,
    log_dir: str | None,
    env: Mapping[str, str],
) -> tuple[str, ...]:
    """Returns the words that a slot starts; ``flags`` None = no torchrun.

    Raises:
        SpecError: torchrun flags contradict the job.
    """
    words = command.words
    if flags is not None:
        if command.torchrun is not None:
            return torchrun.merge(command.torchrun, flags, env=env)
        own = dict(flags) if log_dir is None else {**flags, "log-dir": log_dir}
        form = ("-m",) if command.kind == "module" else ("--no-python",) if command.kind == "program" else ()
        return (python, "-m", "torch.distributed.run", *torchrun.as_words(own), *form, *words)
    if command.kind == "module":
        return (python, "-m", *words)
    return (python, *words) if command.kind == "script" else words


def rendezvous_of(spec: JobSpec, command: Command) -> Literal["static", "c10d"]:
    """Job's rendezvous; without one that of the given torchrun, else ``static`` (fixed ranks)."""
    if spec.elastic or spec.rdzv == "c10d":
        return "c10d"
    asked = command.torchrun.given.get("rdzv-backend") if command.torchrun and spec.rdzv == "auto" else None
    return "c10d" if asked == "c10d" else "static"


def given_torchrun(spec: JobSpec, command: Command) -> bool:
    """True if the command is torchrun itself.

    Raises:
        SpecError: torchrun would start once per rank.
    """
    if command.kind != "torchrun" or spec.launcher == "exec":
        return False
    if spec.launcher == "plain":
        raise SpecError(
            "$.launcher",
            "plain would start torchrun once for each rank",
            hint="use launcher auto, or give the script itself",
        )
    return True


def check_hook(spec: JobSpec, command: Command, python: Interpreter) -> None:
    """Refuses ``inside: require`` if the hook certainly cannot be loaded.

    Raises:
        Refused: Names reason and alternative.
    """
    if spec.inside != "require":
        return
    why = None
    if command.kind in {"script", "module"} and python.version < _MIN_HOOK:
        why = f"{python.path} is Python {'.'.join(map(str, python.version))}; the hook needs 3.8"
    elif command.kind in {"program", "torchrun"} and (flag := _isolating_flag(command.words)):
        why = f"{command.words[0]} {flag} does not load the hook"
    if why is not None:
        raise Refused(
            f"$.inside: require is not possible here: {why}",
            hint="set inside: auto; then Rankfall observes the ranks only from outside",
        )


def _isolating_flag(words: tuple[str, ...]) -> str | None:
    if not _PYTHON.fullmatch(PurePath(words[0]).name):
        return None
    for word in words[1:]:
        if not re.fullmatch(r"-[A-Za-z]+", word) or word.startswith(("-m", "-c")):
            return None
        if set("IES") & set(word):
            return word
    return None


def _check_script(script: str, *, cwd: Path) -> None:
    path = cwd / Path(script).expanduser()
    if path.is_file():
        if not os.access(path, os.R_OK):
            raise SpecError("$.command", f"script {script!r} cannot be read", hint="check its permissions")
        return
    what = "is a folder" if path.is_dir() else "does not exist"
    raise SpecError(
        "$.command", f"script {script!r} {what} (searched in {cwd})", hint="give the path of a Python file, or set cwd"
    )


def _check_program(program: str, *, spec: JobSpec, cwd: Path) -> None:
    found = resolve(program, cwd=cwd, env=spec.env)
    if found is not None:
        _check_shebang(found, cwd=cwd)
        return
    path = cwd / Path(program).expanduser()
    if path.is_file():
        job = path.suffix in {".yaml", ".yml", ".json", ".toml"}
        interpreter = f"chmod +x {program}, or name its interpreter, as: -- python {program}"
        raise SpecError(
            "$.command",
            f"{program!r} is not executable",
            hint=f"give a job file with -f: rankfall run -f {program}" if job else interpreter,
        )
    if path.is_dir():
        raise SpecError(
            "$.command", f"{program!r} is a folder, no program", hint=f"name a file in it, as: {program}/train.py"
        )
    where = f"in {cwd}" if "/" in program else "on PATH"
    raise SpecError("$.command", f"{program!r} was not found {where}", hint="check the spelling, PATH or cwd")


def _check_shebang(path: Path, *, cwd: Path) -> None:
    """Raises SpecError if the kernel cannot start a script by its first line.

    The kernel's error would not name the reason. ``cwd`` is the job's folder, the base of a relative path.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_SHEBANG_BYTES)
    except OSError:
        return
    if not head.startswith(b"#!"):
        if b"\0" not in head and not _has_own_starter(path):
            raise SpecError(
                "$.command",
                f"{path.name}: a text without a first line #! starts only inside a shell",
                hint=f"add #!/bin/sh or another interpreter as its first line, or name it, as: -- sh {path.name}",
            )
        return
    line = head[2:].split(b"\n", 1)[0].strip(b" \t")
    # Only blanks and tabs end the path: with Windows line ends its last character is a carriage return.
    words = re.split(rb"[ \t]+", line)
    interpreter = os.fsdecode(words[0])
    if (cwd / interpreter).exists() and not (words[-1].endswith(b"\r") and Path(interpreter).name == "env"):
        return
    if line.endswith(b"\r"):
        raise SpecError(
            "$.command",
            f"{path.name}: its lines end as on Windows, so its interpreter would be {os.fsdecode(words[-1])!r}",
            hint=f"convert the line ends, as: sed -i 's/\\r$//' {path.name}",
        )
    raise SpecError(
        "$.command",
        f"{path.name}: its interpreter {interpreter} does not exist",
        hint="correct the script's first line (#!)",
    )


def _has_own_starter(path: Path) -> bool:
    """True if this machine's kernel may start files with this suffix by a registered interpreter."""
    for entry in Path("/proc/sys/fs/binfmt_misc").glob("*"):
        try:
            if path.suffix and f"extension {path.suffix}\n" in entry.read_text("utf-8", "replace"):
                return True
        except OSError:
            continue
    return False


@contextmanager
def naming_role(spec: JobSpec, part: Part) -> Iterator[None]:
    """Adds the role to errors of a job with several roles."""
    try:
        yield
    except SpecError as error:
        if not spec.several_roles:
            raise
        message = error.message.removeprefix(f"{error.path}: ")
        raise SpecError(error.path, f"{message} (role {part.name})", hint=error.hint) from error


def world_launcher(chosen: Sequence[tuple[Part, Launcher]]) -> Launcher:
    """Returns the launcher of all roles in the world; ``exec`` if none.

    Raises:
        SpecError: Launchers differ; ranks would wait at different stores.
    """
    inside = [(part, launcher) for part, launcher in chosen if part.in_world]
    for part, launcher in inside:
        first, its = inside[0]
        if launcher != its:
            raise SpecError(
                "$.roles",
                f"role {part.name} would be started by {launcher} and role {first.name} by {its}, and one world of ranks has one launcher",
                hint="give both the same launcher, or exec to the one that is outside the world",
            )
    return inside[0][1] if inside else "exec"


def world_rendezvous(commands: Sequence[tuple[Part, Command]]) -> Rendezvous:
    """Rendezvous of the world: c10d if any role requests it."""
    asked = {rendezvous_of(part.spec, command) for part, command in commands if part.in_world}
    return "c10d" if "c10d" in asked else "static"
