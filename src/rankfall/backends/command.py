"""What the user's command is, and whether it can start at all: a script, a module, torchrun itself, or any program.

Refuses, before anything is created, what is missing or cannot be executed. What only running it can tell is left to the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final, Literal

import msgspec

from rankfall.backends import torchrun
from rankfall.backends.interpreter import Interpreter, resolve
from rankfall.model import JobSpec, Refused, SpecError

Kind = Literal["script", "module", "torchrun", "program"]

_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*")
_MIN_HOOK: Final = (3, 8)
_SHEBANG_BYTES: Final = 256


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The user's command.

    Attributes:
        words: as the user gave them.
        torchrun: the command taken apart, when it is torchrun.
    """

    kind: Kind
    words: tuple[str, ...]
    torchrun: torchrun.TorchrunCommand | None = None


def read_command(spec: JobSpec, *, cwd: Path) -> Command:
    """The kind of the command, checked.

    Raises:
        SpecError: the script or program does not exist or cannot be executed.
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
    """The kind of a command whose files are in a container's image: told by its words, nothing can be looked at."""
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
    """The words that a slot starts.

    Args:
        command: as read.
        python: the job's Python.
        flags: of torchrun for this slot; None starts the command without torchrun.
        log_dir: where torchrun keeps its own files; None leaves that to it.
        env: the job's environment, for ``PET_*``.

    Raises:
        SpecError: flags of a given torchrun say something else than the job does.
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
    """How the torchruns of all slots find each other: as the job says, else as a given torchrun does, else with fixed ranks."""
    if spec.elastic or spec.rdzv == "c10d":
        return "c10d"
    asked = command.torchrun.given.get("rdzv-backend") if command.torchrun and spec.rdzv == "auto" else None
    return "c10d" if asked == "c10d" else "static"


def given_torchrun(spec: JobSpec, command: Command) -> bool:
    """Whether the command is torchrun itself, to be completed for each slot.

    Raises:
        SpecError: it would be started once for each rank.
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
    """Refuse ``inside: require`` where the hook surely cannot be loaded.

    Raises:
        Refused: names why and the alternative.
    """
    if spec.inside != "require":
        return
    why = None
    if command.kind in {"script", "module"} and python.version < _MIN_HOOK:
        why = f"{python.path} is Python {'.'.join(map(str, python.version))}; the hook needs 3.8"
    elif command.kind in {"program", "torchrun"} and (flag := _isolating_flag(command.words)):
        why = f"{command.words[0]} {flag} does not load it"
    if why is not None:
        raise Refused(
            f"$.inside: require cannot be kept by the local backend: {why}",
            hint="set inside: auto; ranks are then seen from outside only",
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
        "$.command", f"script {script!r} {what} (looked in {cwd})", hint="give the path of a Python file, or set cwd"
    )


def _check_program(program: str, *, spec: JobSpec, cwd: Path) -> None:
    found = resolve(program, cwd=cwd, env=spec.env)
    if found is not None:
        _check_shebang(found, cwd=cwd)
        return
    path = cwd / Path(program).expanduser()
    if path.is_file():
        raise SpecError(
            "$.command",
            f"{program!r} is not executable",
            hint=f"chmod +x {program}, or name its interpreter, as: -- python {program}",
        )
    where = f"in {cwd}" if "/" in program else "on PATH"
    raise SpecError("$.command", f"{program!r} was not found {where}", hint="check the spelling, PATH or cwd")


def _check_shebang(path: Path, *, cwd: Path) -> None:
    """A script whose interpreter is missing fails with the same words as a missing script; say which one it is."""
    try:
        with path.open("rb") as file:
            head = file.read(_SHEBANG_BYTES)
    except OSError:
        return
    if not head.startswith(b"#!"):
        return
    words = head[2:].split(b"\n", 1)[0].split()
    interpreter = os.fsdecode(words[0]) if words else ""
    if interpreter and not (cwd / interpreter).exists():
        raise SpecError(
            "$.command", f"{path.name}: its interpreter {interpreter} does not exist", hint="correct its first line"
        )
