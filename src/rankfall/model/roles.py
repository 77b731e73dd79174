"""Several roles in one job (workers, parameter servers, an evaluator): what each has of its own, and the one form in which everybody sees them.

A job without ``roles`` is a job of one role, and a job of several is numbered through: slots in the order of the roles, so that a slot's
number stays one key everywhere. Nobody but :class:`Part` looks at both forms. All roles but those with launcher ``exec`` make one world of
ranks; ``exec`` is outside of it, because nothing is known of what such a command starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rankfall.model.kubernetes_spec import Resources
from rankfall.model.policies import Positive

if TYPE_CHECKING:
    from rankfall.model.spec import JobSpec

LauncherName = Literal["auto", "torchrun", "plain", "exec"]
RestartScope = Literal["gang", "replica"]


class RoleKubernetes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a role's pods have of their own, over the job's section ``kubernetes``.

    Attributes:
        image, resources, tolerations: in place of the job's; null = the job's.
        node_selector: over the job's, key by key.
        pod: merged after the job's ``pod``, in the same way.
    """

    image: str | None = None
    resources: Resources | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] | None = None
    pod: dict[str, Any] = {}


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One role of a job of several; what is left out is the job's.

    Attributes:
        name: lower-case letters, digits and dashes; stands in names of pods and folders.
        nnodes: its slots.
        nproc_per_node: ranks per slot.
        command, module: as the job's; ``module`` belongs to the role's own command.
        launcher: as the job's. With ``exec`` the role is outside the world of ranks.
        env: variables over the job's.
        restart_scope: as the job's. A role of scope ``gang`` that falls ends the attempt; one of scope ``replica`` leaves the others alone.
        kubernetes: its pods.
    """

    name: str
    nnodes: Positive = 1
    nproc_per_node: Positive | None = None
    command: tuple[str, ...] | None = None
    module: bool = False
    launcher: LauncherName | None = None
    env: dict[str, str] = {}
    restart_scope: RestartScope | None = None
    kubernetes: RoleKubernetes = RoleKubernetes()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One role as everybody sees it.

    Attributes:
        name: of the role.
        base: its first slot.
        count: its slots in a full start.
        spec: the job as this role alone has it: a job of one role, with this role's command, launcher, variables and pods.
        pod: pod template of the role's own, merged after ``spec.kubernetes.pod``.
        first_node: place of its first slot among all slots of the world; None: outside the world.
        first_rank: first of its ranks where they are numbered by slot; None: outside the world.
    """

    name: str
    base: int
    count: int
    spec: JobSpec
    pod: dict[str, Any] = {}
    first_node: int | None = None
    first_rank: int | None = None

    @property
    def slots(self) -> range:
        """Numbers of its slots in the job."""
        return range(self.base, self.base + self.count)

    @property
    def in_world(self) -> bool:
        """Whether its processes are ranks of the job's one world."""
        return self.first_node is not None

    def index_of(self, slot: int) -> int:
        """A slot's place within the role."""
        return slot - self.base


def parts_of(spec: JobSpec) -> tuple[Part, ...]:
    """The roles of a job, in order; one for a job that names none."""
    if not spec.roles:
        inside = spec.launcher != "exec"
        first = 0 if inside else None
        count = spec.nnodes_max or spec.nnodes
        return (Part(name=spec.role, base=0, count=count, spec=spec, first_node=first, first_rank=first),)
    found = []
    base = node = rank = 0
    for role in spec.roles:
        own = _alone(spec, role)
        inside = own.launcher != "exec"
        found.append(
            Part(
                name=role.name,
                base=base,
                count=role.nnodes,
                spec=own,
                pod=role.kubernetes.pod,
                first_node=node if inside else None,
                first_rank=rank if inside else None,
            )
        )
        base += role.nnodes
        if inside:
            node += role.nnodes
            rank += role.nnodes * own.nproc_per_node
    return tuple(found)


def _alone(spec: JobSpec, role: Role) -> JobSpec:
    own = role.kubernetes
    pods = msgspec.structs.replace(
        spec.kubernetes,
        image=own.image or spec.kubernetes.image,
        resources=own.resources or spec.kubernetes.resources,
        tolerations=spec.kubernetes.tolerations if own.tolerations is None else own.tolerations,
        node_selector={**spec.kubernetes.node_selector, **own.node_selector},
    )
    return msgspec.structs.replace(
        spec,
        roles=(),
        role=role.name,
        nnodes=role.nnodes,
        nproc_per_node=role.nproc_per_node or spec.nproc_per_node,
        command=spec.command if role.command is None else role.command,
        module=spec.module if role.command is None else role.module,
        launcher=role.launcher or spec.launcher,
        env={**spec.env, **role.env},
        restart_scope=role.restart_scope or spec.restart_scope,
        kubernetes=pods,
    )
