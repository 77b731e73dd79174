"""Builds a checked spec from plain data; refuses wrong fields with path and allowed values.

Checks a role like a job, and nothing that needs a machine or cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from rankfall.model import decoding, numbers
from rankfall.model.errors import SpecError
from rankfall.model.foreign import FOREIGN
from rankfall.model.jobspec.check_kubernetes import check_kubernetes
from rankfall.model.jobspec.check_rules import check_error_file, check_notify, check_record_store, check_rules
from rankfall.model.jobspec.job import JobSpec, Role
from rankfall.model.jobspec.kubernetes import Kubernetes
from rankfall.model.jobspec.policies import nearest
from rankfall.model.jobspec.secrets import is_masked, masked_text, masked_url, secrets_of

ROLE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_SPAN: Final = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
ROLE_RULE: Final = "1-20 lower-case letters, digits and dashes, no dash at the ends"


def check_roles(spec: JobSpec, *, alone: Callable[[JobSpec], None]) -> None:
    """Refuses roles that contradict each other or the job; ``alone`` checks a one-role job's variables and pods.

    Raises:
        SpecError: Names the field and allowed values.
    """
    _check_success(spec)
    _check_scopes(spec)
    if not spec.roles:
        return
    _check_top(spec)
    seen: set[str] = set()
    for number, role in enumerate(spec.roles):
        path = f"$.roles[{number}]"
        if not ROLE_NAME.fullmatch(role.name):
            raise SpecError(f"{path}.name", f"{role.name!r} is not a valid role: {ROLE_RULE}")
        if role.name in seen:
            raise SpecError(f"{path}.name", f"{role.name!r} is there twice", hint="give each role a different name")
        seen.add(role.name)
        _check_command(spec, role, path)
        for key in role.env:
            if key in spec.kubernetes.env_from:
                raise SpecError(f"{path}.env.{key}", "is also in $.kubernetes.env_from; choose one")
        with _errors_under(path):
            alone(_own(spec, role))
    _check_launchers(spec)


def _check_top(spec: JobSpec) -> None:
    """Refuses fields of a one-role job next to ``roles``."""
    for field in ("nnodes", "nnodes_max", "role"):
        if getattr(spec, field) != _DEFAULTS[field]:
            raise SpecError(
                f"$.{field}", "contradicts roles: each role has its own", hint="give name and nnodes in each role"
            )


def _check_command(spec: JobSpec, role: Role, path: str) -> None:
    if role.command is None:
        if role.module:
            raise SpecError(
                f"{path}.module", "belongs to a command", hint=f"give {path.removeprefix('$.')}.command too"
            )
        if not spec.command:
            raise SpecError(
                f"{path}.command", "is missing, and the job has none", hint="give one here, or $.command for all roles"
            )
        return
    if not role.command or not role.command[0]:
        raise SpecError(f"{path}.command", "is empty", hint="give a script or a command, or leave it out")
    if any("\0" in text for text in role.command):
        raise SpecError(f"{path}.command", "holds a NUL byte")


def _check_launchers(spec: JobSpec) -> None:
    """Refuses two launchers in one world: their ranks use different stores."""
    named = {"plain", "torchrun"}
    given = [(number, part.spec.launcher) for number, part in enumerate(spec.parts) if part.spec.launcher in named]
    for number, launcher in given:
        if launcher != given[0][1]:
            raise SpecError(
                f"$.roles[{number}].launcher",
                f"{launcher} cannot share a world of ranks with {given[0][1]} of role {spec.roles[given[0][0]].name}",
                hint="give all roles one launcher, or exec to those that are outside the world",
            )


def _check_scopes(spec: JobSpec) -> None:
    """Refuses restarts alone in a world, which one node cannot rejoin."""
    if spec.slot_count == 1:
        return
    for number, part in enumerate(spec.parts):
        if part.spec.restart_scope == "gang" or part.spec.launcher == "exec":
            continue
        own = bool(spec.roles) and spec.roles[number].restart_scope is not None
        launcher = part.spec.launcher
        of_role = f" of role {part.name}" if spec.roles else ""
        raise SpecError(
            f"$.roles[{number}].restart_scope" if own else "$.restart_scope",
            f"replica: with launcher {launcher} all ranks{of_role} are one world, and one node alone cannot join it again",
            hint="use restart_scope: gang; or launcher: exec, for workers that need nothing of each other",
        )


def _check_success(spec: JobSpec) -> None:
    role, names = spec.success.role, [part.name for part in spec.parts]
    if role is None:
        return
    if role not in names:
        raise SpecError("$.success.role", f"there is no role {role!r}; allowed: {', '.join(names)}")
    if spec.success.policy == "rank0":
        raise SpecError(
            "$.success.role",
            "is not used by policy rank0: the job has one rank 0",
            hint="leave it out, or use policy: all",
        )


def _own(spec: JobSpec, role: Role) -> JobSpec:
    own, usual = role.kubernetes, Kubernetes()
    pods = Kubernetes(
        image=own.image,
        resources=own.resources or usual.resources,
        node_selector=own.node_selector,
        tolerations=own.tolerations or (),
        pod=own.pod,
    )
    return JobSpec(backend=spec.backend, env=role.env, kubernetes=pods)


@contextmanager
def _errors_under(path: str) -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        message = error.message.removeprefix(f"{error.path}: ")
        raise SpecError(f"{path}{error.path.removeprefix('$')}", message, hint=error.hint) from None


_DEFAULTS: Final = msgspec.structs.asdict(JobSpec())


_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_RESERVED_ENV = ("RANKFALL_",)
# Fields of earlier versions and their new places.
_MOVED = {"$.policies.start_timeout_s": "$.deadlines.startup_s"}


def check_spec(spec: JobSpec) -> JobSpec:
    """Returns the spec if its fields are consistent.

    Raises:
        SpecError: Names field, fault and allowed values.
    """
    if spec.backend == FOREIGN:
        raise SpecError(
            "$.backend",
            "foreign is only for jobs that Rankfall did not start",
            hint="allowed values of $.backend: local, slurm, job, jobset, trainjob",
        )
    _check_text(spec)
    _check_names(spec)
    _check_masked(spec)
    _check_members(spec)
    _check_env(spec)
    _check_code(spec)
    _check_job_success(spec)
    policies = spec.policies
    if policies.settle_max_s < policies.settle_quiet_s:
        raise SpecError("$.policies.settle_max_s", "is less than settle_quiet_s")
    if policies.settle_max_s < policies.settle_min_s:
        raise SpecError("$.policies.settle_max_s", "is less than settle_min_s")
    for field in ("retryable", "final"):
        for name in getattr(policies, field):
            if not all(part.isidentifier() for part in name.split(".")):
                raise SpecError(
                    f"$.policies.{field}", f"{name!r} is no name of a class", hint="as: OSError, or my.Error"
                )
    both = set(policies.retryable) & set(policies.final)
    if both:
        raise SpecError("$.policies.retryable", f"{min(both)!r} is also in policies.final; choose one")
    check_rules(spec)
    check_record_store(spec)
    check_error_file(spec)
    check_notify(spec)
    check_kubernetes(spec)
    check_roles(spec, alone=_check_single_role)
    return spec


def _check_single_role(spec: JobSpec) -> None:
    _check_env(spec)
    check_kubernetes(spec)


@cache
def _job_fields() -> Any:
    return msgspec.inspect.type_info(JobSpec)


def spec_from(data: Any) -> JobSpec:
    """Returns a checked spec from plain data (parsed YAML or JSON).

    Raises:
        SpecError: A field is unknown, missing or wrong.
    """
    if not isinstance(data, dict):
        raise SpecError("$", f"a job is a mapping of fields, not {type(data).__name__}")
    _known_fields(data, _job_fields(), "$")
    try:
        return check_spec(decoding.convert(data, JobSpec))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        where, value = _exact(path.rpartition("`")[0].rpartition("`")[2] or "$", data)
        if path.startswith("key` in "):
            raise SpecError(where, f"a key: {message}", hint="write keys in quotes") from None
        raise SpecError(where, message, hint=_remedy(where, message, value)) from None


def typed(spec: object) -> JobSpec:
    """Returns a spec with checked fields and types."""
    if not isinstance(spec, JobSpec):
        raise SpecError(
            "$", f"a job is a JobSpec, not {type(spec).__name__}", hint="as: JobSpec(command=('train.py',))"
        )
    data = {}
    for name in spec.__struct_fields__:
        try:
            data[name] = msgspec.to_builtins(getattr(spec, name))
        except TypeError as error:
            raise SpecError(f"$.{name}", f"{error}", hint="give text, as: str(path)") from None
    return spec_from(data)


def _exact(path: str, data: Any) -> tuple[str, Any]:
    """Replaces ``[...]`` by the key; adds the value."""
    hint: Any = JobSpec
    where = "$"
    for name, number, other in re.findall(r"\.([^.\[]+)|\[(\d+)\]|\[(\.\.\.)\]", path):
        kinds = [one for one in _members(hint) if one is not type(None)]
        if name:
            struct = next(one for one in kinds if isinstance(one, type) and issubclass(one, msgspec.Struct))
            hint, data, where = get_type_hints(struct, include_extras=True)[name], data[name], f"{where}.{name}"
        elif number:
            hint = next(get_args(one)[0] for one in kinds if get_origin(one) is tuple)
            data, where = data[int(number)], f"{where}[{number}]"
        elif other:
            hint = next(get_args(one)[1] for one in kinds if get_origin(one) is dict)
            key = next(key for key, value in data.items() if not _fits(value, hint))
            data, where = data[key], f"{where}.{key}"
    return where, data


def _members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    try:
        decoding.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _remedy(where: str, message: str, value: Any) -> str | None:
    """Returns allowed values or the right form."""
    allowed = _choices().get(re.sub(r"\[\d+\]", "[]", where))
    if allowed:
        near = nearest(value, allowed) if isinstance(value, str) else None
        return f"{f'{near} ' if near else ''}allowed values of {where}: {', '.join(allowed)}"
    name = where.rpartition(".")[2]
    name = "- " if "[" in name else f"{name}: "
    if "Expected `array" in message and isinstance(value, str):
        word = value.partition(" ")[0][:60]
        return f"write a list, as: {name}[{masked_url(word) if '://' in word else masked_text(word)}]"
    if "Expected `str" in message and isinstance(value, bool | int | float | None):
        return f'write it in quotes, as: {name}"..."'
    if ("Expected `int" in message or "Expected `float" in message) and isinstance(value, str):
        return _number_remedy(name, value)
    if "Expected `object" in message:
        return f"write its fields, as: {name}{{FIELD: VALUE}}; rankfall config schema job lists them"
    return None


def _number_remedy(name: str, value: str) -> str:
    """Returns the right form of a text that must be a number, such as ``8h``."""
    span = _SPAN.fullmatch(value)
    if span is not None and name.endswith("_s: "):
        return f"write a number of seconds, as: {name}{numbers.matched(span[1]) * _SECONDS[span[2]]}"
    return f"write a number without quotes, as: {name}{value if _WHOLE.fullmatch(value) else 2}"


def _check_names(spec: JobSpec) -> None:
    if (not spec.command and not spec.roles) or (spec.command and not spec.command[0]):
        raise SpecError("$.command", "is empty", hint="give a script or a command, as: rankfall run train.py")
    for text in spec.command:
        if "\0" in text:
            raise SpecError("$.command", "holds a NUL byte")
    if not _NAME.fullmatch(spec.name):
        raise SpecError(
            "$.name",
            f"{spec.name!r} is not a valid name: 1-40 lower-case letters, digits and dashes, no dash at the ends",
            hint=f"as: {re.sub('[^a-z0-9]+', '-', spec.name.lower())[:40].strip('-') or 'train'}",
        )
    if not ROLE_NAME.fullmatch(spec.role):
        raise SpecError("$.role", f"{spec.role!r} is not a valid role: {ROLE_RULE}")


def _check_members(spec: JobSpec) -> None:
    if spec.nnodes_max is not None and spec.nnodes_max < spec.nnodes:
        raise SpecError("$.nnodes_max", f"{spec.nnodes_max} is less than nnodes {spec.nnodes}")
    if spec.elastic and spec.rdzv == "static":
        raise SpecError("$.rdzv", "static cannot change its members; allowed with MIN:MAX nodes: auto, c10d")
    if spec.elastic and spec.launcher in {"plain", "exec"}:
        raise SpecError(
            "$.launcher", f"{spec.launcher} cannot change its members; allowed with MIN:MAX nodes: auto, torchrun"
        )


def _check_text(spec: JobSpec) -> None:
    texts = {f"env.{key}": key + value for key, value in spec.env.items()}
    for name, value in (
        {field: getattr(spec, field) for field in spec.__struct_fields__ if field != "env"} | texts
    ).items():
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            hint = "rename the file or folder, or write the text in UTF-8"
            raise SpecError(f"$.{ascii(name)[1:-1]}", "holds bytes that are not UTF-8", hint=hint) from None


def _check_env(spec: JobSpec) -> None:
    for key, value in spec.env.items():
        if not key or "=" in key or "\0" in key + value:
            raise SpecError(f"$.env.{key}", "is not a valid variable: the name must not be empty or hold = or NUL")
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


def _check_job_success(spec: JobSpec) -> None:
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
            "rank0 does not work with MIN:MAX nodes: the slot of rank 0 may leave",
            hint="use policy all, or a fixed number of nodes",
        )
    if success.policy == "fraction" and success.wanted(spec.nnodes) != success.wanted(spec.nnodes_max or spec.nnodes):
        raise SpecError(
            "$.success.fraction",
            f"needs {success.wanted(spec.nnodes)} slots of {spec.nnodes} and {success.wanted(spec.nnodes_max or 0)} of {spec.nnodes_max}: "
            "the number would change with the size",
            hint="use policy all, or a fixed number of nodes",
        )


def _known_fields(data: Any, kind: msgspec.inspect.Type, path: str) -> None:
    """Refuses unknown fields at any depth with allowed ones; msgspec names only the field."""
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
                raise SpecError(
                    where, f"is not a field; allowed here: {', '.join(fields)}", hint=nearest(str(key), fields)
                )
            _known_fields(value, fields[key], where)
    elif isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(data, list | tuple):
        for number, value in enumerate(data):
            _known_fields(value, kind.item_type, f"{path}[{number}]")
    elif isinstance(kind, msgspec.inspect.DictType) and isinstance(data, dict):
        for key, value in data.items():
            _known_fields(value, kind.value_type, f"{path}.{key}")


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """Allowed values by path, in the model's order; list positions are ``[]``."""
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
