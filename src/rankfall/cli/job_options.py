"""Options of ``run`` and ``submit``, and the job spec from them and ``-f job.yaml``; flags win."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from rankfall.backends import torchrun
from rankfall.backends.command import gpus_here
from rankfall.backends.slurm import allocation
from rankfall.cli.options import files, output_option
from rankfall.cli.values import (
    PROCESS_WORDS,
    line_of,
    parse_budgets,
    parse_env,
    parse_nnodes,
    parse_processes,
    parse_span,
    parse_span_or_never,
    parse_success,
    repeated_key,
    yaml_problem,
)
from rankfall.model import JobSpec, SpecError, UsageError, numbers, spec_from
from rankfall.model.jobspec.job import WITHOUT_PODS
from rankfall.model.patterns import bounded

_MAX_FILE: Final = 1 << 20
_NAME_WORDS: Final = 64
_STRANGE: Final = bounded(r"[^a-z0-9]+", limit=4_096)


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags of ``run``; None or empty if not given.

    Attributes:
        command: Script, module name (if ``module`` is set) or program, then its arguments; a ``--`` before it is
            dropped.
    """

    command: tuple[str, ...] = ()
    module: bool = False
    file: Path | None = None
    name: str | None = None
    nnodes: str | None = None
    nproc_per_node: str | None = None
    standalone: bool = False
    rdzv_backend: str | None = None
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


def make_spec(flags: Flags, *, notify: dict[str, Any] | None = None) -> JobSpec:
    """Returns the checked spec; ``notify`` is that of a file without its own.

    Raises:
        UsageError: A flag, file or field is wrong; names it and allowed values.
    """
    data = read_job(flags.file) if flags.file else {}
    _top(data, flags)
    if notify and data.get("unattended") is not True:
        data.setdefault("notify", notify)
    _policies(data, flags)
    _ends(data, flags)
    _kubernetes(data, flags)
    _of_torchrun(data)
    _of_slurm(data, flags)
    _standalone(data, flags)
    _processes(data)
    roles = data.get("roles")
    named = [role["command"] for role in roles if _has_command(role)] if isinstance(roles, list) else []
    if "command" not in data and not named:
        with in_file(flags.file, data):
            # A misspelt key explains it.
            spec_from({"command": ["a"], "name": "job"} | data)
        raise UsageError(
            "there is nothing to run", hint="rankfall run train.py, rankfall run -- CMD ARGS, or -f job.yaml"
        )
    if "name" not in data:
        data["name"] = name_from(data["command"] if "command" in data else named[0])
    with in_file(flags.file, data):
        return spec_from(data)


@contextmanager
def in_file(path: Path | None, data: dict[str, Any]) -> Iterator[None]:
    """Adds file and line to errors of a job file."""
    try:
        yield
    except SpecError as error:
        line = line_of(error.path, path.read_bytes(), data) if path is not None else None
        if line is not None:
            error.message = f"{path}:{line}: {error.message}"
        raise


def _of_torchrun(data: dict[str, Any]) -> None:
    """Moves size and restarts of a torchrun command into the job."""
    words = data.get("command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return
    if data.get("roles") or data.get("launcher", "auto") not in {"auto", "torchrun"}:
        return
    parsed = torchrun.parse(words)
    if parsed is None:
        return
    policies = data.get("policies", {})
    given, used = parsed.given, set[str]()
    if "nnodes" in given and "nnodes" not in data:
        data["nnodes"], data["nnodes_max"] = parse_nnodes(given["nnodes"])
        used.add("nnodes")
    if "nproc-per-node" in given and "nproc_per_node" not in data:
        data["nproc_per_node"] = parse_processes(given["nproc-per-node"])
        used.add("nproc-per-node")
    if "max-restarts" in given and isinstance(policies, dict) and "max_restarts" not in policies:
        number = numbers.whole(given["max-restarts"], digits=6)
        if number is None:
            raise UsageError(f"torchrun --max-restarts {given['max-restarts'][:60]!r} is no number", hint="as: 3")
        _merge(data, "policies", {"max_restarts": number})
        used.add("max-restarts")
    if "standalone" in given and data.get("nnodes", 1) == 1 and data.get("nnodes_max") is None:
        used.add("standalone")
    data["command"] = list(torchrun.without(parsed, used))


def _of_slurm(data: dict[str, Any], flags: Flags) -> None:
    """Uses the allocation that this process runs in, unless another backend or one node is requested."""
    backend = data.get("backend", "local" if flags.standalone or not allocation.inside(os.environ) else "slurm")
    if backend != "slurm":
        return
    data["backend"] = backend
    nodes, ranks = allocation.size(os.environ)
    if data.get("roles"):
        return
    if nodes is not None and data.get("nnodes_max") is None:
        data.setdefault("nnodes", nodes)
    if ranks is not None and data.get("launcher") != "exec":
        data.setdefault("nproc_per_node", ranks)


def _standalone(data: dict[str, Any], flags: Flags) -> None:
    """Accepts torchrun's flag for one node."""
    if flags.standalone and (
        data.get("nnodes", 1) != 1 or data.get("roles") or data.get("nnodes_max") not in {None, 1}
    ):
        raise UsageError(
            "--standalone contradicts the number of nodes: it is for one node", hint="leave --standalone out"
        )


def _processes(data: dict[str, Any]) -> None:
    """Counts ``gpu``, ``cpu`` and ``auto`` as torchrun."""
    word = data.get("nproc_per_node")
    if word not in PROCESS_WORDS:
        return
    if data.get("backend") == "slurm" and (number := allocation.processors(os.environ, word=str(word))):
        data["nproc_per_node"] = number
        return
    if data.get("backend", "local") not in WITHOUT_PODS:
        pods = data.get("kubernetes")
        resources = pods.get("resources") if isinstance(pods, dict) else None
        number = resources.get("gpus") if isinstance(resources, dict) and word != "cpu" else None
        if not number:
            raise UsageError(
                f"--nproc-per-node {word}: the nodes of a cluster are unknown here",
                hint="give a number, or --gpus N with --nproc-per-node gpu",
            )
        data["nproc_per_node"] = number
        return
    number = 0 if word == "cpu" else gpus_here(data.get("python") or sys.executable)
    if word == "gpu" and not number:
        raise UsageError("--nproc-per-node gpu: this machine shows no GPU", hint="give a number, or auto")
    data["nproc_per_node"] = number or os.cpu_count() or 1


def _has_command(role: object) -> bool:
    return isinstance(role, dict) and "command" in role


def read_job(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML or JSON file.

    Raises:
        UsageError: Unreadable, too large, or no mapping.
    """
    import yaml  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"-f {path}: {error.strerror or error}", hint="give the path of a job file") from error
    if len(raw) > _MAX_FILE:
        raise UsageError(f"-f {path}: more than {_MAX_FILE >> 20} MiB, too large for a job file")
    try:
        twice = repeated_key(raw)
        data = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"-f {path}: no YAML: {yaml_problem(error)}", hint="rankfall config schema job") from None
    if twice is not None:
        raise UsageError(
            f"{path}:{twice.line}: {twice.key[:60]!r} is there twice, first in line {twice.first}", hint="remove one"
        )
    if not isinstance(data, dict):
        kind = "; TOML is not read" if path.suffix == ".toml" else ""
        raise UsageError(
            f"-f {path}: a job is a mapping of fields in YAML or JSON{kind}", hint="as: command: [train.py, --lr, 1e-3]"
        )
    return data


def name_from(command: object) -> str:
    """Makes a run name: ``python train.py`` gives ``train``; default ``job``."""
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
    if flags.nproc_per_node is not None:
        data["nproc_per_node"] = parse_processes(flags.nproc_per_node)
    if flags.rdzv_backend is not None:
        data["rdzv"] = flags.rdzv_backend
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
    given: dict[str, Any] = {}
    if flags.max_restarts is not None:
        given["max_restarts"] = flags.max_restarts
    if flags.hang_timeout is not None:
        given["hang_timeout_s"] = parse_span_or_never(flags.hang_timeout, flag="--hang-timeout")
    if flags.retryable:
        given["retryable"] = list(flags.retryable)
    if flags.final:
        given["final"] = list(flags.final)
    _merge(data, "policies", given)
    if flags.budget:
        policies = data.setdefault("policies", {})
        if isinstance(policies, dict):
            _merge(policies, "budgets", parse_budgets(flags.budget, also=_drawn_on(data.get("rules"))))


def _ends(data: dict[str, Any], flags: Flags) -> None:
    """Sets success condition and deadlines."""
    if flags.success is not None:
        _merge(data, "success", parse_success(flags.success))
    given = {}
    for field, text, flag in (
        ("total_s", flags.deadline, "--deadline"),
        ("startup_s", flags.startup_deadline, "--startup-deadline"),
    ):
        if text is not None:
            given[field] = parse_span_or_never(text, flag=flag)
    _merge(data, "deadlines", given)


def _kubernetes(data: dict[str, Any], flags: Flags) -> None:
    if (flags.namespace or "").isdecimal() and data.get("backend", "local") in WITHOUT_PODS:
        raise UsageError("-n is the namespace of a cluster", hint="for the number of ranks use --nproc-per-node")
    given: dict[str, Any] = {}
    for field in ("image", "namespace", "context", "queue", "log_store"):
        value = getattr(flags, field)
        if value is not None:
            given[field] = value
    if flags.annotate:
        given["annotate"] = True
    if flags.workspace is not None:
        claim, colon, place = flags.workspace.partition(":")
        given["workspace"] = {"claim": claim, **({"path": place} if colon else {})}
    if flags.exclude_node:
        given["exclude_nodes"] = list(flags.exclude_node)
    resources: dict[str, Any] = {} if flags.gpus is None else {"gpus": flags.gpus}
    requests = {key: text for key, text in (("cpu", flags.cpu), ("memory", flags.memory)) if text is not None}
    if not (given or resources or requests):
        return
    _merge(data, "kubernetes", given, empty=True)
    if isinstance(data["kubernetes"], dict) and (resources or requests):
        held = data["kubernetes"]
        _merge(held, "resources", resources, empty=True)
        if isinstance(held["resources"], dict):
            _merge(held["resources"], "requests", requests)
            # Nodes short of memory first kill slots above their request.
            _merge(held["resources"], "limits", {key: requests[key] for key in requests if key == "memory"})


def _merge(data: dict[str, Any], section: str, given: dict[str, Any], *, empty: bool = False) -> None:
    """Overwrites fields of ``section`` of the job file with flags (``said``); a later check reports wrong types.

    ``empty``: creates the section even without flags.
    """
    old = data.get(section, {})
    if (given or empty) and isinstance(old, dict):
        data[section] = old | given


def _drawn_on(rules: object) -> frozenset[str]:
    """Names of the budgets that the job file's rules use."""
    found = [rule.get("budget") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    return frozenset(name for name in found if isinstance(name, str))


F = TypeVar("F", bound=Callable[..., Any])
_TABLE: Final[dict[str, Any]] = tomllib.loads(
    resources.files("rankfall.cli").joinpath("job_options.toml").read_text("utf-8")
)
HELP: Final[dict[str, str]] = _TABLE["help"]
FORMAT: Final = "Format of --dry-run, of -d, and of the outcome with -q."


def job_options(function: F) -> F:
    """Adds all job options, named as in :class:`rankfall.cli.job_options.Flags`."""
    for row in reversed(_TABLE["option"]):
        function = _option(row)(function)
    function = output_option(FORMAT)(function)
    words = "SCRIPT [ARGS]... | -- CMD [ARGS]..."
    return click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar=words, shell_complete=files)(function)


def _option(row: dict[str, Any]) -> Callable[[F], F]:
    kind: click.ParamType[Any] | None = None
    if "range" in row:
        kind = click.IntRange(*row["range"])
    elif "choices" in row:
        kind = click.Choice(row["choices"])
    elif row.get("path"):
        kind = click.Path(path_type=Path)
    return click.option(
        *row["names"],
        is_flag=row.get("flag"),
        multiple=row.get("multiple", False),
        metavar=row.get("metavar"),
        type=kind,
        help=row["help"],
    )
