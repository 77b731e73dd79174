"""A job spec from the flags of ``run`` and ``submit`` and from ``-f job.yaml``; a flag beats the file's field."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.cli.values import parse_budgets, parse_env, parse_nnodes, parse_span_or_never
from rankfall.model import JobSpec, UsageError, spec_from

_MAX_FILE: Final = 1 << 20
_NAME_WORDS: Final = 64


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line of ``run`` said; None or empty = not said.

    Attributes:
        command: words after the flags: a script, a module's name with ``module``, or (also behind ``--``) any command.
    """

    command: tuple[str, ...] = ()
    module: bool = False
    file: Path | None = None
    name: str | None = None
    nnodes: str | None = None
    nproc_per_node: int | None = None
    max_restarts: int | None = None
    env: tuple[str, ...] = ()
    launcher: str | None = None
    python: str | None = None
    cwd: str | None = None
    inside: str | None = None
    strategy: str | None = None
    hang_timeout: str | None = None
    retryable: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()


def make_spec(flags: Flags) -> JobSpec:
    """The checked spec.

    Raises:
        UsageError: a flag, the file or a field is wrong; says which, where, and what is allowed.
    """
    data = read_job(flags.file) if flags.file else {}
    _top(data, flags)
    _policies(data, flags)
    if "command" not in data:
        raise UsageError(
            "there is nothing to run", hint="rankfall run train.py, rankfall run -- CMD ARGS, or -f job.yaml"
        )
    if "name" not in data:
        data["name"] = name_from(data["command"])
    return spec_from(data)


def read_job(path: Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file.

    Raises:
        UsageError: it cannot be read, is too large, or is no mapping of fields.
    """
    import yaml  # noqa: PLC0415 - only with -f

    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"-f {path}: {error.strerror or error}", hint="give the path of a job file") from error
    if len(raw) > _MAX_FILE:
        raise UsageError(f"-f {path}: more than {_MAX_FILE >> 20} MiB is no job file")
    try:
        data = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"-f {path}: no YAML: {_first_line(error)}", hint="rankfall config schema job") from None
    if not isinstance(data, dict):
        raise UsageError(f"-f {path}: a job is a mapping of fields", hint="as: command: [train.py, --lr, 1e-3]")
    return data


def name_from(command: object) -> str:
    """A run's name from its command: ``python train.py`` gives ``train``; ``job`` where nothing fits."""
    words = [word for word in command if isinstance(word, str)] if isinstance(command, Sequence) else []
    script = next((word for word in words[:_NAME_WORDS] if word.endswith(".py")), words[0] if words else "")
    name = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:30].strip("-")
    return name or "job"


def _top(data: dict[str, Any], flags: Flags) -> None:
    if flags.command:
        data["command"] = list(flags.command)
        data["module"] = flags.module
    elif flags.module:
        raise UsageError("-m names no module", hint="rankfall run -m package.module ARGS")
    if flags.nnodes is not None:
        data["nnodes"], data["nnodes_max"] = parse_nnodes(flags.nnodes)
    for field in ("name", "nproc_per_node", "launcher", "python", "cwd", "inside", "strategy"):
        value = getattr(flags, field)
        if value is not None:
            data[field] = value
    if flags.env:
        old = data.get("env")
        data["env"] = (old if isinstance(old, dict) else {}) | parse_env(flags.env, environ=os.environ)


def _policies(data: dict[str, Any], flags: Flags) -> None:
    said: dict[str, Any] = {}
    if flags.max_restarts is not None:
        said["max_restarts"] = flags.max_restarts
    if flags.hang_timeout is not None:
        said["hang_timeout_s"] = parse_span_or_never(flags.hang_timeout, flag="--hang-timeout")
    if flags.retryable:
        said["retryable"] = list(flags.retryable)
    if flags.final:
        said["final"] = list(flags.final)
    old = data.get("policies")
    if flags.budget:
        budgets = old.get("budgets") if isinstance(old, dict) else None
        said["budgets"] = (budgets if isinstance(budgets, dict) else {}) | parse_budgets(flags.budget)
    if said:
        data["policies"] = (old if isinstance(old, dict) else {}) | said


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return (getattr(error, "problem", None) or str(error).partition("\n")[0])[:200] + where
