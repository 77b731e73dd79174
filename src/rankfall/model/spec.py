"""What the user wants: ``rankfall.job/1``. One frozen spec, from flags, YAML or Python."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from rankfall.model.errors import SpecError

SCHEMA = "rankfall.job/1"

Backend = Literal["local"]
Inside = Literal["auto", "require", "off"]
LauncherName = Literal["auto", "torchrun", "plain", "exec"]

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Policies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do when the job falls.

    Attributes:
        max_restarts: new attempts in all, over every cause.
        budgets: new attempts by cause slug or family, as ``{"network": 5, "host_oom": 0}``; the tightest one counts.
        retryable, final: qualified names of exception types that the user declares retryable or final.
        hang_timeout_s: no progress (step records, output, CPU time of the ranks) for so long is a hang; null = never.
        settle_quiet_s: after the first failure: how long nothing new must come before the verdict.
        settle_max_s: after the first failure: the hard limit of waiting.
        grace_s: between SIGTERM and SIGKILL when Rankfall stops slots.
        start_timeout_s: from the start of an attempt until every rank is there; null = no limit.
    """

    max_restarts: Count = 3
    budgets: dict[str, Count] = {}
    retryable: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    hang_timeout_s: Seconds | None = 1800.0
    settle_quiet_s: Seconds = 2.0
    settle_max_s: Seconds = 30.0
    grace_s: Seconds = 10.0
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    backoff_max_s: Seconds = 60.0
    start_timeout_s: Seconds | None = None


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job.

    Attributes:
        name: lower-case letters, digits and dashes; the run's id begins with it.
        command: program and arguments. With launcher ``torchrun`` a script (or ``-m module``) and its arguments.
        launcher: ``auto`` picks torchrun when the job's Python has torch, else the plain launcher; ``exec`` starts the
            command once per node as it is.
        nnodes, nnodes_max: nodes; ``nnodes_max`` > ``nnodes`` is elastic (c10d rendezvous).
        nproc_per_node: ranks per node.
        python: the job's Python; null = the one Rankfall runs under.
        env: variables added to the job's environment.
    """

    schema: Literal["rankfall.job/1"] = "rankfall.job/1"
    name: str = "job"
    backend: Backend = "local"
    command: tuple[str, ...]
    module: bool = False
    launcher: LauncherName = "auto"
    nnodes: Positive = 1
    nnodes_max: Positive | None = None
    nproc_per_node: Positive = 1
    role: str = "worker"
    cwd: str | None = None
    python: str | None = None
    env: dict[str, str] = {}
    inside: Inside = "auto"
    rdzv: Literal["auto", "static", "c10d"] = "auto"
    policies: Policies = Policies()

    @property
    def world_size(self) -> int:
        """Ranks of a full start: nodes (the most, when elastic) times processes per node."""
        return (self.nnodes_max or self.nnodes) * self.nproc_per_node

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change inside an attempt."""
        return self.nnodes_max is not None and self.nnodes_max != self.nnodes


_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_ROLE = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
_RESERVED_ENV = ("RANKFALL_",)


def check_spec(spec: JobSpec) -> JobSpec:
    """The same spec, when its fields agree with each other.

    Raises:
        SpecError: with the path of the field, what is wrong, and the allowed values.
    """
    if not spec.command or not spec.command[0]:
        raise SpecError("$.command", "is empty", hint="give a script or a command, as: rankfall run train.py")
    if not _NAME.fullmatch(spec.name):
        raise SpecError(
            "$.name", f"{spec.name!r} is no valid name: 1-40 lower-case letters, digits and dashes, no dash at the ends"
        )
    if not _ROLE.fullmatch(spec.role):
        raise SpecError(
            "$.role", f"{spec.role!r} is no valid role: 1-20 lower-case letters, digits and dashes, no dash at the ends"
        )
    if spec.nnodes_max is not None and spec.nnodes_max < spec.nnodes:
        raise SpecError("$.nnodes_max", f"{spec.nnodes_max} is less than nnodes {spec.nnodes}")
    if spec.elastic and spec.rdzv == "static":
        raise SpecError("$.rdzv", "static cannot change its members; allowed with MIN:MAX nodes: auto, c10d")
    if spec.elastic and spec.launcher in {"plain", "exec"}:
        raise SpecError(
            "$.launcher", f"{spec.launcher} cannot change its members; allowed with MIN:MAX nodes: auto, torchrun"
        )
    for text in spec.command:
        if "\0" in text:
            raise SpecError("$.command", "holds a NUL byte")
    for key, value in spec.env.items():
        if not key or "=" in key or "\0" in key + value:
            raise SpecError(f"$.env.{key}", "is no valid variable: the name must not be empty or hold = or NUL")
        if key.startswith(_RESERVED_ENV):
            raise SpecError(f"$.env.{key}", "names beginning with RANKFALL_ are set by Rankfall itself")
    policies = spec.policies
    if policies.settle_max_s < policies.settle_quiet_s:
        raise SpecError("$.policies.settle_max_s", "is less than settle_quiet_s")
    both = set(policies.retryable) & set(policies.final)
    if both:
        raise SpecError("$.policies.retryable", f"{min(both)!r} stands in policies.final too; choose one")
    return spec


def spec_from(data: Any) -> JobSpec:
    """A checked spec from plain data (parsed YAML or JSON).

    Raises:
        SpecError: unknown, missing or wrong field, with its path and the allowed values.
    """
    if not isinstance(data, dict):
        raise SpecError("$", f"a job is a mapping of fields, not {type(data).__name__}")
    _known_fields(data, JobSpec, "$")
    if isinstance(data.get("policies"), dict):
        _known_fields(data["policies"], Policies, "$.policies")
    try:
        return check_spec(msgspec.convert(data, JobSpec))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        where = path.rstrip("`") or "$"
        raise SpecError(where, message, hint=_allowed(where)) from None


def _known_fields(data: dict[Any, Any], struct: type[msgspec.Struct], path: str) -> None:
    """Name an unknown field with the allowed ones; msgspec would name the field alone."""
    allowed = [field.encode_name for field in msgspec.structs.fields(struct)]
    for key in data:
        if key not in allowed:
            raise SpecError(f"{path}.{key}", f"is no field; allowed here: {', '.join(allowed)}")


_CHOICES = {
    "$.backend": ("local",),
    "$.inside": ("auto", "require", "off"),
    "$.launcher": ("auto", "torchrun", "plain", "exec"),
    "$.rdzv": ("auto", "static", "c10d"),
    "$.schema": (SCHEMA,),
}


def _allowed(path: str) -> str | None:
    values = _CHOICES.get(path)
    return f"allowed values of {path}: {', '.join(values)}" if values else None
