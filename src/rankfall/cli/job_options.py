"""Options of ``run`` and ``submit``, and the job spec from them and ``-f job.yaml``; flags win."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from rankfall.backends import torchrun
from rankfall.backends.command import gpus_here
from rankfall.cli.options import output_option
from rankfall.cli.values import (
    line_of,
    parse_budgets,
    parse_env,
    parse_nnodes,
    parse_span,
    parse_span_or_never,
    parse_success,
)
from rankfall.model import JobSpec, SpecError, UsageError, numbers, spec_from
from rankfall.model.patterns import bounded

_MAX_FILE: Final = 1 << 20
_WORDS: Final = ("gpu", "cpu", "auto")
_MAX_RANKS: Final = 100_000
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


def make_spec(flags: Flags) -> JobSpec:
    """Returns the checked spec.

    Raises:
        UsageError: A flag, file or field is wrong; names it and allowed values.
    """
    data = read_job(flags.file) if flags.file else {}
    _top(data, flags)
    _policies(data, flags)
    _ends(data, flags)
    _kubernetes(data, flags)
    _of_torchrun(data)
    _standalone(data, flags)
    _processes(data)
    roles = data.get("roles")
    named = [role["command"] for role in roles if _has_command(role)] if isinstance(roles, list) else []
    if "command" not in data and not named:
        raise UsageError(
            "there is nothing to run", hint="rankfall run train.py, rankfall run -- CMD ARGS, or -f job.yaml"
        )
    if "name" not in data:
        data["name"] = name_from(data["command"] if "command" in data else named[0])
    with in_file(flags.file, data):
        return spec_from(data)


@contextmanager
def in_file(path: Path | None, data: dict[str, Any]) -> Iterator[None]:
    """Adds file and line to errors of fields whose value in ``data`` comes from the job file."""
    try:
        yield
    except SpecError as error:
        line = line_of(error.path, path.read_bytes(), data) if path is not None else None
        if line is not None:
            error.message = f"{path}:{line}: {error.message}"
        raise


def _of_torchrun(data: dict[str, Any]) -> None:
    """Moves size and restarts of a torchrun command into the job, where neither flag nor file has them."""
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
        data["nproc_per_node"] = _count(given["nproc-per-node"])
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


def _standalone(data: dict[str, Any], flags: Flags) -> None:
    """Accepts torchrun's word for a job of one node."""
    if flags.standalone and (
        data.get("nnodes", 1) != 1 or data.get("roles") or data.get("nnodes_max") not in {None, 1}
    ):
        raise UsageError(
            "--standalone contradicts the number of nodes: it is for one node", hint="leave --standalone out"
        )


def _processes(data: dict[str, Any]) -> None:
    """Replaces ``gpu``, ``cpu`` and ``auto`` by a number, with torchrun's meaning."""
    word = data.get("nproc_per_node")
    if word not in _WORDS:
        return
    if data.get("backend", "local") != "local":
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


def _count(text: str) -> int | str:
    """Parses ``--nproc-per-node``."""
    number = numbers.whole(text, digits=6) if text.isdecimal() else None
    if text in _WORDS:
        return text
    if number is None or not 1 <= number <= _MAX_RANKS:
        raise UsageError(
            f"--nproc-per-node {text[:60]!r} is no number of ranks",
            hint=f"allowed: 1-{_MAX_RANKS}, {', '.join(_WORDS)}",
        )
    return number


def _has_command(role: object) -> bool:
    return isinstance(role, dict) and "command" in role


def read_job(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML or JSON file.

    Raises:
        UsageError: Unreadable, too large, or no mapping.
    """
    import yaml  # noqa: PLC0415 - only -f

    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"-f {path}: {error.strerror or error}", hint="give the path of a job file") from error
    if len(raw) > _MAX_FILE:
        raise UsageError(f"-f {path}: more than {_MAX_FILE >> 20} MiB, too large for a job file")
    try:
        data = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"-f {path}: no YAML: {_first_line(error)}", hint="rankfall config schema job") from None
    if not isinstance(data, dict):
        raise UsageError(f"-f {path}: a job is a mapping of fields", hint="as: command: [train.py, --lr, 1e-3]")
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
        data["nproc_per_node"] = _count(flags.nproc_per_node)
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
    """Sets success condition and deadlines."""
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
    if (flags.namespace or "").isdecimal() and data.get("backend", "local") == "local":
        raise UsageError("-n is the namespace of a cluster", hint="for the number of ranks use --nproc-per-node")
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
            # Nodes short of memory first kill slots above their request.
            _merge(held["resources"], "limits", {key: requests[key] for key in requests if key == "memory"})


def _merge(data: dict[str, Any], section: str, said: dict[str, Any], *, empty: bool = False) -> None:
    """Overwrites fields of ``section`` of the job file with flags (``said``); a later check reports wrong types.

    ``empty``: creates the section even without flags.
    """
    old = data.get(section, {})
    if (said or empty) and isinstance(old, dict):
        data[section] = old | said


def _drawn_on(rules: object) -> frozenset[str]:
    """Returns the names of the budgets that the job file's rules use."""
    found = [rule.get("budget") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    return frozenset(name for name in found if isinstance(name, str))


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return (getattr(error, "problem", None) or str(error).partition("\n")[0])[:200] + where


F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS: Final = (
    click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]... | -- CMD [ARGS]..."),
    click.option("-f", "--file", type=click.Path(path_type=Path), help="job.yaml; flags override its fields."),
    click.option("--name", help="First part of the run's id; default: the script's name."),
    click.option("-N", "--nnodes", metavar="N|MIN:MAX", help="Nodes; MIN:MAX is elastic. Default: 1."),
    click.option(
        "--nproc-per-node",
        metavar="N|gpu|cpu|auto",
        help="Ranks per node; auto: one for each GPU, else for each CPU. Default: 1.",
    ),
    click.option("--standalone", is_flag=True, help="One node; as torchrun's."),
    click.option(
        "--rdzv-backend", type=click.Choice(["static", "c10d"]), help="Rendezvous; default: c10d for MIN:MAX nodes."
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(0, 1_000_000),
        metavar="N",
        help="Maximum number of new attempts; default: 3.",
    ),
    click.option(
        "-e", "--env", multiple=True, metavar="K=V", help="Variable for the job; K alone passes the current value."
    ),
    click.option(
        "--launcher",
        metavar="auto|torchrun|plain|exec",
        help="Program that starts the ranks; auto is torchrun if the job's Python has torch.",
    ),
    click.option("--python", metavar="PATH", help="The job's Python."),
    click.option(
        "--cwd", metavar="PATH", help="Folder of the job; default: the current one. With --code a path in the copy."
    ),
    click.option(
        "--code",
        multiple=True,
        metavar="DIR",
        help="Folder that is copied for the job; later ones overlay earlier ones.",
    ),
    click.option(
        "--code-exclude",
        multiple=True,
        metavar="PATTERN",
        help="Files to skip in --code; default: `.git` and `__pycache__`.",
    ),
    click.option(
        "--workspace",
        metavar="CLAIM[:PATH]",
        help="Volume for code and files, and its path in pods; default: /workspace.",
    ),
    click.option("--log-dir", metavar="DIR", help="Write log-allranks_0.out there, and one file per rank at the end."),
    click.option(
        "--log-store",
        metavar="volume:/PATH|s3://BUCKET/PREFIX",
        help="A shared volume or a bucket for the lines of ranks, instead of the API server.",
    ),
    click.option(
        "--inside", metavar="auto|require|off", help="Rankfall's code inside the ranks: if possible, always, never."
    ),
    click.option(
        "--hang-timeout", metavar="10m|never", help="Time without progress that counts as a hang; default: 30m."
    ),
    click.option("--retryable", multiple=True, metavar="TYPE", help="Exception that allows a new attempt."),
    click.option("--final", multiple=True, metavar="TYPE", help="Exception that ends the run."),
    click.option(
        "--budget",
        multiple=True,
        metavar="SLUG=N",
        help="Maximum number of new attempts for one cause, family, or budget of a rule.",
    ),
    click.option(
        "--strategy", metavar="NAME", help="Rule that chooses the root: causal, earliest, first-listed, or a plug-in's."
    ),
    click.option("--record-store", metavar="URL", help="Copies of all records: file:///DIR or s3://BUCKET/PREFIX."),
    click.option(
        "--success", metavar="all|rank0|80%", help="Slots that must succeed: all, that of rank 0, or a share."
    ),
    click.option(
        "--deadline",
        metavar="8h|never",
        help="Time limit of the whole run, over all attempts; never removes that of the file.",
    ),
    click.option(
        "--startup-deadline",
        metavar="10m|never",
        help="Time limit until all ranks of an attempt have started; never removes that of the file.",
    ),
    click.option("--suspend", is_flag=True, help="Create the run suspended; rankfall resume starts it."),
    click.option(
        "--backend", metavar="local|job|jobset|trainjob", help="Platform that runs the job; default: local processes."
    ),
    click.option("--image", metavar="NAME", help="The container's image."),
    click.option("-n", "--namespace", metavar="NAME", help="Namespace in the cluster; default: that of the context."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one."),
    click.option("--gpus", type=click.IntRange(0, 1024), metavar="N", help="GPUs of each slot."),
    click.option("--cpu", metavar="8|500m", help="CPU request of each slot."),
    click.option("--memory", metavar="64Gi", help="Memory request and limit of each slot."),
    click.option("--queue", metavar="NAME", help="Kueue's local queue."),
    click.option("--exclude-node", multiple=True, metavar="NAME", help="A node that no slot may run on."),
    click.option("--ttl", metavar="1d", help="Time that the objects of an ended run remain in the cluster."),
    click.option("--annotate", is_flag=True, help="Put the verdict on the job's object, for kubectl describe."),
    click.option("--unattended", is_flag=True, help="Let the platform run the job without a supervisor."),
    click.option("--request-token", metavar="TEXT", help="Token of this request; the same token returns the same run."),
    click.option(
        "--replace", is_flag=True, help="End what an earlier request with this token still runs in the cluster."
    ),
    click.option("-m", "--module", is_flag=True, help="The first argument is a module's name."),
    click.option("--dry-run", is_flag=True, help="Print what would be started, without secrets; create nothing."),
    output_option("Format of --dry-run and of -d."),
    click.option("-q", "--quiet", is_flag=True, help="Print only the outcome: no output of the job, no progress."),
)


def job_options(function: F) -> F:
    """Adds all job options, named as in :class:`rankfall.cli.job_options.Flags`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
