"""A job spec from the flags of ``run`` and ``submit`` and from ``-f job.yaml``; a flag beats the file's field."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.cli.values import (
    parse_budgets,
    parse_env,
    parse_nnodes,
    parse_span,
    parse_span_or_never,
    parse_success,
)
from rankfall.model import JobSpec, UsageError, spec_from
from rankfall.model.patterns import bounded

_MAX_FILE: Final = 1 << 20
_NAME_WORDS: Final = 64
_STRANGE: Final = bounded(r"[^a-z0-9]+", limit=4_096)


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
    code: tuple[str, ...] = ()
    code_exclude: tuple[str, ...] = ()
    workspace: str | None = None
    log_store: str | None = None
    inside: str | None = None
    strategy: str | None = None
    record_store: str | None = None
    hang_timeout: str | None = None
    retryable: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    backend: str | None = None
    image: str | None = None
    namespace: str | None = None
    context: str | None = None
    gpus: int | None = None
    cpu: str | None = None
    memory: str | None = None
    queue: str | None = None
    exclude_node: tuple[str, ...] = ()
    success: str | None = None
    deadline: str | None = None
    startup_deadline: str | None = None
    suspend: bool = False
    ttl: str | None = None
    unattended: bool = False
    log_dir: str | None = None
    annotate: bool = False


def make_spec(flags: Flags) -> JobSpec:
    """The checked spec.

    Raises:
        UsageError: a flag, the file or a field is wrong; says which, where, and what is allowed.
    """
    data = read_job(flags.file) if flags.file else {}
    _top(data, flags)
    _policies(data, flags)
    _ends(data, flags)
    _kubernetes(data, flags)
    roles = data.get("roles")
    named = [role["command"] for role in roles if _has_command(role)] if isinstance(roles, list) else []
    if "command" not in data and not named:
        raise UsageError(
            "there is nothing to run", hint="rankfall run train.py, rankfall run -- CMD ARGS, or -f job.yaml"
        )
    if "name" not in data:
        data["name"] = name_from(data["command"] if "command" in data else named[0])
    return spec_from(data)


def _has_command(role: object) -> bool:
    return isinstance(role, dict) and "command" in role


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
    name = _STRANGE.sub("-", Path(script).stem.lower()).strip("-")[:30].strip("-")
    return name or "job"


def _top(data: dict[str, Any], flags: Flags) -> None:
    if flags.command:
        data["command"] = list(flags.command)
        data["module"] = flags.module
    elif flags.module:
        raise UsageError("-m names no module", hint="rankfall run -m package.module ARGS")
    if flags.nnodes is not None:
        if data.get("roles"):
            raise UsageError(
                "--nnodes contradicts the file's roles: each has its own", hint="change nnodes of a role in the file"
            )
        data["nnodes"], data["nnodes_max"] = parse_nnodes(flags.nnodes)
    for field in (
        "name",
        "nproc_per_node",
        "launcher",
        "python",
        "cwd",
        "inside",
        "strategy",
        "record_store",
        "backend",
        "log_dir",
    ):
        value = getattr(flags, field)
        if value is not None:
            data[field] = value
    for field in ("suspend", "unattended"):
        if getattr(flags, field):
            data[field] = True
    for field in ("code", "code_exclude"):
        if getattr(flags, field):
            data[field] = list(getattr(flags, field))
    if flags.ttl is not None:
        data["ttl_s"] = round(parse_span(flags.ttl, flag="--ttl"))
    if flags.env:
        _merge(data, "env", parse_env(flags.env, environ=os.environ))


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
    _merge(data, "policies", said)
    if flags.budget:
        policies = data.setdefault("policies", {})
        if isinstance(policies, dict):
            _merge(policies, "budgets", parse_budgets(flags.budget, also=_drawn_on(data.get("rules"))))


def _ends(data: dict[str, Any], flags: Flags) -> None:
    """When the job is done, and when its time is up."""
    if flags.success is not None:
        _merge(data, "success", parse_success(flags.success))
    said = {}
    for field, text, flag in (
        ("total_s", flags.deadline, "--deadline"),
        ("startup_s", flags.startup_deadline, "--startup-deadline"),
    ):
        if text is not None:
            said[field] = parse_span_or_never(text, flag=flag)
    _merge(data, "deadlines", said)


def _kubernetes(data: dict[str, Any], flags: Flags) -> None:
    said: dict[str, Any] = {}
    for field in ("image", "namespace", "context", "queue", "log_store"):
        value = getattr(flags, field)
        if value is not None:
            said[field] = value
    if flags.annotate:
        said["annotate"] = True
    if flags.workspace is not None:
        claim, colon, place = flags.workspace.partition(":")
        said["workspace"] = {"claim": claim, **({"path": place} if colon else {})}
    if flags.exclude_node:
        said["exclude_nodes"] = list(flags.exclude_node)
    resources: dict[str, Any] = {} if flags.gpus is None else {"gpus": flags.gpus}
    requests = {key: text for key, text in (("cpu", flags.cpu), ("memory", flags.memory)) if text is not None}
    if not (said or resources or requests):
        return
    _merge(data, "kubernetes", said, empty=True)
    if isinstance(data["kubernetes"], dict) and (resources or requests):
        held = data["kubernetes"]
        _merge(held, "resources", resources, empty=True)
        if isinstance(held["resources"], dict):
            _merge(held["resources"], "requests", requests)
            # A slot that may use more memory than it asked for is what a node that runs out of it kills first.
            _merge(held["resources"], "limits", {key: requests[key] for key in requests if key == "memory"})


def _merge(data: dict[str, Any], section: str, said: dict[str, Any], *, empty: bool = False) -> None:
    """What flags said over a section of the file; one of a wrong type is left for the check, which names it."""
    old = data.get(section, {})
    if (said or empty) and isinstance(old, dict):
        data[section] = old | said


def _drawn_on(rules: object) -> frozenset[str]:
    """The budgets that the file's rules name."""
    found = [rule.get("budget") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    return frozenset(name for name in found if isinstance(name, str))


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return (getattr(error, "problem", None) or str(error).partition("\n")[0])[:200] + where
