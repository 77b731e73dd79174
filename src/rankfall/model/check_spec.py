"""A checked spec from plain data. Refuses unknown, wrong and contradictory fields, each with its path and what is allowed there.

Only what the spec alone can tell is checked here; what a machine or a cluster must be asked for is its backend's matter.
"""

from __future__ import annotations

import re
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from rankfall.model import decoding
from rankfall.model.check_kubernetes import check_kubernetes
from rankfall.model.check_roles import ROLE_NAME, ROLE_RULE, check_roles
from rankfall.model.check_rules import check_rules
from rankfall.model.check_store import check_error_file, check_record_store
from rankfall.model.errors import SpecError
from rankfall.model.foreign import FOREIGN
from rankfall.model.secrets import is_masked, secrets_of
from rankfall.model.spec import JobSpec

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_RESERVED_ENV = ("RANKFALL_",)
# Fields of earlier versions: where their meaning went.
_MOVED = {"$.policies.start_timeout_s": "$.deadlines.startup_s"}


def check_spec(spec: JobSpec) -> JobSpec:
    """The same spec, when its fields agree with each other.

    Raises:
        SpecError: with the path of the field, what is wrong, and the allowed values.
    """
    if spec.backend == FOREIGN:
        raise SpecError(
            "$.backend",
            "foreign is of the records of jobs that Rankfall did not start",
            hint="allowed values of $.backend: local, job, jobset, trainjob",
        )
    _check_names(spec)
    _check_masked(spec)
    _check_members(spec)
    _check_env(spec)
    _check_code(spec)
    _check_success(spec)
    policies = spec.policies
    if policies.settle_max_s < policies.settle_quiet_s:
        raise SpecError("$.policies.settle_max_s", "is less than settle_quiet_s")
    if policies.settle_max_s < policies.settle_min_s:
        raise SpecError("$.policies.settle_max_s", "is less than settle_min_s")
    both = set(policies.retryable) & set(policies.final)
    if both:
        raise SpecError("$.policies.retryable", f"{min(both)!r} stands in policies.final too; choose one")
    check_rules(spec)
    check_record_store(spec)
    check_error_file(spec)
    check_kubernetes(spec)
    check_roles(spec, alone=_check_alone)
    return spec


def _check_alone(spec: JobSpec) -> None:
    _check_env(spec)
    check_kubernetes(spec)


def spec_from(data: Any) -> JobSpec:
    """A checked spec from plain data (parsed YAML or JSON).

    Raises:
        SpecError: unknown, missing or wrong field, with its path and the allowed values.
    """
    if not isinstance(data, dict):
        raise SpecError("$", f"a job is a mapping of fields, not {type(data).__name__}")
    _known_fields(data, msgspec.inspect.type_info(JobSpec), "$")
    try:
        return check_spec(decoding.convert(data, JobSpec))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        where = path.rstrip("`") or "$"
        raise SpecError(where, message, hint=_allowed(where)) from None


def _check_names(spec: JobSpec) -> None:
    if (not spec.command and not spec.roles) or (spec.command and not spec.command[0]):
        raise SpecError("$.command", "is empty", hint="give a script or a command, as: rankfall run train.py")
    for text in spec.command:
        if "\0" in text:
            raise SpecError("$.command", "holds a NUL byte")
    if not _NAME.fullmatch(spec.name):
        raise SpecError(
            "$.name", f"{spec.name!r} is no valid name: 1-40 lower-case letters, digits and dashes, no dash at the ends"
        )
    if not ROLE_NAME.fullmatch(spec.role):
        raise SpecError("$.role", f"{spec.role!r} is no valid role: {ROLE_RULE}")


def _check_members(spec: JobSpec) -> None:
    if spec.nnodes_max is not None and spec.nnodes_max < spec.nnodes:
        raise SpecError("$.nnodes_max", f"{spec.nnodes_max} is less than nnodes {spec.nnodes}")
    if spec.elastic and spec.rdzv == "static":
        raise SpecError("$.rdzv", "static cannot change its members; allowed with MIN:MAX nodes: auto, c10d")
    if spec.elastic and spec.launcher in {"plain", "exec"}:
        raise SpecError(
            "$.launcher", f"{spec.launcher} cannot change its members; allowed with MIN:MAX nodes: auto, torchrun"
        )


def _check_env(spec: JobSpec) -> None:
    for key, value in spec.env.items():
        if not key or "=" in key or "\0" in key + value:
            raise SpecError(f"$.env.{key}", "is no valid variable: the name must not be empty or hold = or NUL")
        if key.startswith(_RESERVED_ENV):
            raise SpecError(f"$.env.{key}", "names beginning with RANKFALL_ are set by Rankfall itself")


def _check_masked(spec: JobSpec) -> None:
    for pointer, found in secrets_of(spec).items():
        if is_masked(found.text):
            raise SpecError(
                f"${pointer.replace('/', '.')}",
                "is masked: the value itself is not in this document",
                hint="give the value, or take it from your environment with --env NAME",
            )


def _check_code(spec: JobSpec) -> None:
    if spec.log_dir is not None and (not spec.log_dir or "\0" in spec.log_dir):
        raise SpecError("$.log_dir", "is empty or holds NUL", hint="give a folder, as: log_dir: logs/train")
    for text in (*spec.code_folders, *spec.code_exclude):
        if not text or "\0" in text:
            raise SpecError(
                "$.code" if text in spec.code_folders else "$.code_exclude", "has a part that is empty or holds NUL"
            )
    if spec.code_folders and spec.cwd is not None:
        parts = spec.cwd.split("/")
        if any(part in {"", ".."} for part in parts):
            raise SpecError(
                "$.cwd",
                f"{spec.cwd!r}: with $.code it is a path below the code's folder",
                hint="as: src; leave it out for the folder itself",
            )


def _check_success(spec: JobSpec) -> None:
    success = spec.success
    if success.policy == "fraction" and success.fraction is None:
        raise SpecError("$.success.fraction", "is missing", hint="as: success: {policy: fraction, fraction: 0.8}")
    if success.policy != "fraction" and success.fraction is not None:
        raise SpecError("$.success.fraction", f"is not used by policy {success.policy}", hint="set policy: fraction")
    if not spec.elastic:
        return
    if success.policy == "rank0":
        raise SpecError(
            "$.success.policy",
            "rank0 cannot be kept with MIN:MAX nodes: the slot of rank 0 may leave",
            hint="use policy all, or a fixed number of nodes",
        )
    if success.policy == "fraction" and success.wanted(spec.nnodes) != success.wanted(spec.nnodes_max or spec.nnodes):
        raise SpecError(
            "$.success.fraction",
            f"asks for {success.wanted(spec.nnodes)} slots of {spec.nnodes} and {success.wanted(spec.nnodes_max or 0)} of {spec.nnodes_max}: "
            "the number would change with the size",
            hint="use policy all, or a fixed number of nodes",
        )


def _known_fields(data: Any, kind: msgspec.inspect.Type, path: str) -> None:
    """Name an unknown field with the allowed ones, at any depth; msgspec would name the field alone."""
    if isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            _known_fields(data, one, path)
    elif isinstance(kind, msgspec.inspect.StructType) and isinstance(data, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, value in data.items():
            where = f"{path}.{key}"
            if where in _MOVED:
                raise SpecError(where, f"is now {_MOVED[where]}", hint=f"move it: {_MOVED[where].removeprefix('$.')}")
            if key not in fields:
                raise SpecError(where, f"is no field; allowed here: {', '.join(fields)}")
            _known_fields(value, fields[key], where)
    elif isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(data, list | tuple):
        for number, value in enumerate(data):
            _known_fields(value, kind.item_type, f"{path}[{number}]")
    elif isinstance(kind, msgspec.inspect.DictType) and isinstance(data, dict):
        for key, value in data.items():
            _known_fields(value, kind.value_type, f"{path}.{key}")


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """The allowed values of every field that has a list of them, by path, in the order of the model; list positions stand as ``[]``."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(kind: Any, path: str) -> None:
        origin = get_origin(kind)
        if origin is Literal:
            found[path] = tuple(map(str, get_args(kind)))
        elif origin in {Union, UnionType}:
            for one in get_args(kind):
                walk(one, path)
        elif origin is tuple:
            walk(get_args(kind)[0], f"{path}[]")
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            for name, hint in get_type_hints(kind).items():
                walk(hint, f"{path}.{name}")

    walk(JobSpec, "$")
    return found


def _allowed(path: str) -> str | None:
    values = _choices().get(re.sub(r"\[\d+\]", "[]", path))
    return f"allowed values of {path}: {', '.join(values)}" if values else None
