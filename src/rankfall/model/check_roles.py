"""Whether the roles of a job can be told apart and carried out: facts of the spec alone.

A role is checked as the job that it would be alone, and what is wrong is named by its own path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from rankfall.model.errors import SpecError
from rankfall.model.kubernetes_spec import Kubernetes
from rankfall.model.roles import Role
from rankfall.model.spec import JobSpec

ROLE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
ROLE_RULE: Final = "1-20 lower-case letters, digits and dashes, no dash at the ends"


def check_roles(spec: JobSpec, *, alone: Callable[[JobSpec], None]) -> None:
    """Refuse roles that contradict each other or the job.

    Args:
        spec: the job.
        alone: checks the variables and the pods of a job of one role.

    Raises:
        SpecError: with the path of the field and what is allowed.
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
            raise SpecError(f"{path}.name", f"{role.name!r} is no valid role: {ROLE_RULE}")
        if role.name in seen:
            raise SpecError(
                f"{path}.name", f"{role.name!r} stands there twice", hint="give each role a name of its own"
            )
        seen.add(role.name)
        _check_command(spec, role, path)
        for key in role.env:
            if key in spec.kubernetes.env_from:
                raise SpecError(f"{path}.env.{key}", "stands in $.kubernetes.env_from too; choose one")
        with _told_as(path):
            alone(_own(spec, role))
    _check_launchers(spec)


def _check_top(spec: JobSpec) -> None:
    """Fields of a job of one role say nothing beside a list of them."""
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
    """One world has one way to start its ranks: those of torchrun meet in its agents' store, those of plain in rank 0's."""
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
    """Ranks of one world stand and fall together: one of its nodes alone could not join it again. One slot is its own gang."""
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
    """What the role itself says, as a job: what it has of the job was checked there."""
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
def _told_as(path: str) -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        message = error.message.removeprefix(f"{error.path}: ")
        raise SpecError(f"{path}{error.path.removeprefix('$')}", message, hint=error.hint) from None


_DEFAULTS: Final = msgspec.structs.asdict(JobSpec())
