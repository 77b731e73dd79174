"""The job spec ``rankfall.job/1``: one frozen struct from flags, YAML or Python.

Slot numbers continue across roles. Roles form one world of ranks, except those with launcher ``exec``. :class:`Part`
unifies jobs with and without ``roles``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from rankfall.model.jobspec.kubernetes import Kubernetes, Resources
from rankfall.model.jobspec.policies import (
    Count,
    Deadlines,
    FailureRule,
    JobStruct,
    Notify,
    Policies,
    Positive,
    Success,
)
from rankfall.model.jobspec.secrets import concealed

LauncherName = Literal["auto", "torchrun", "plain", "exec"]
RestartScope = Literal["gang", "replica"]


class RoleKubernetes(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pod settings of a role, over the section ``kubernetes``.

    Attributes:
        image, resources, tolerations: Replace the job's; null = the job's.
        node_selector: Merged over the job's by key.
        pod: Merged after the job's ``pod``.
    """

    image: str | None = None
    resources: Resources | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] | None = None
    pod: dict[str, Any] = {}


class Role(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One role of a job; absent fields come from the job.

    Attributes:
        name: Lower-case letters, digits, dashes; part of pod and folder names.
        nnodes: Number of slots.
        nproc_per_node: Ranks per slot.
        command, module: As the job's; ``module`` needs the role's own command.
        launcher: As the job's; ``exec`` puts the role outside the world of ranks.
        env: Variables over the job's.
        restart_scope: As the job's. A failed ``gang`` role ends the attempt, a ``replica`` role does not.
        kubernetes: Pod settings.
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

    def __repr__(self) -> str:
        return msgspec.Struct.__repr__(concealed(self))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(msgspec.structs.asdict(concealed(self)).items())


SCHEMA = "rankfall.job/1"

BackendName = Literal["local", "slurm", "job", "jobset", "trainjob", "foreign"]
# Backends whose slots write into the run directory themselves.
WITHOUT_PODS: Final = frozenset({"local", "slurm"})
Inside = Literal["auto", "require", "off"]


class JobSpec(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job.

    Attributes:
        name: Lower-case letters, digits, dashes; prefix of the run's id.
        backend: ``local`` processes, steps of a ``slurm`` allocation, Indexed ``job``, ``jobset``, or Kubeflow
            ``trainjob``. ``foreign`` marks jobs not started by Rankfall and is refused.
        command: Program and arguments; for ``torchrun`` a script or ``-m module``. Optional if every role has one.
        module: The first word of ``command`` is a module, as with ``python -m``.
        launcher: ``auto``: torchrun if the job's Python has torch, else plain; ``exec``: the unchanged command, once
            per node.
        nnodes, nnodes_max: Nodes; ``nnodes_max`` > ``nnodes`` is elastic (c10d rendezvous).
        nproc_per_node: Ranks per node.
        role: Name of the only role.
        roles: Roles with their own settings; empty = the one ``role``.
        cwd: Working folder of the ranks; null = that of the submitting process.
        code: Local folders, copied at submission as the job's code; later ones on top. ``cwd`` is then a path below
            them.
        code_exclude: Shell patterns to omit; without a slash for names, with one for paths below the folder.
        python: The job's Python; null = Rankfall's.
        env: Additional variables.
        inside: Hook and wrapper in the ranks: if possible, always, or not.
        rdzv: Rendezvous of torchrun; ``auto``: c10d if elastic, else static.
        policies: Reaction to failures.
        success: Condition of success.
        deadlines: Time limits.
        rules: Failure rules, first match wins; else the cause decides.
        suspend: Start nothing before ``rankfall resume``.
        ttl_s: Seconds that an ended run's objects remain in the cluster; null = until deleted.
        unattended: The platform's policies run the job without supervisor; unsupported fields are refused.
        strategy: Choice of the root: ``causal``, ``earliest``, ``first-listed`` or a package's; null = backend's
            default, ``causal``.
        log_dir: Local folder of readable logs for one run; the file of all ranks grows live, each rank's file comes at
            the end.
        record_store: Shared copy of all records: ``file:///path`` visible to slots and this machine, or
            ``s3://bucket/prefix``.
        error_file: Path in the slot for its first error: ``.json`` (torchelastic) or ``.pb`` (Flyte); first writer
            wins, ``*`` makes names unique.
        restart_scope: Restart after a failure: the ``gang`` in a new attempt, or only the failed ``replica``, for
            independent workers (launcher ``exec``).
        notify: Messages about the run; without it ``[notify]`` of the user's ``config.toml``.
        kubernetes: Pod settings for cluster backends.
    """

    schema: Literal["rankfall.job/1"] = "rankfall.job/1"
    name: str = "job"
    backend: BackendName = "local"
    command: tuple[str, ...] = ()
    module: bool = False
    launcher: LauncherName = "auto"
    nnodes: Positive = 1
    nnodes_max: Positive | None = None
    nproc_per_node: Positive = 1
    role: str = "worker"
    roles: tuple[Role, ...] = ()
    cwd: str | None = None
    code: str | tuple[str, ...] = ()
    code_exclude: tuple[str, ...] = (".git", "__pycache__")
    python: str | None = None
    env: dict[str, str] = {}
    inside: Inside = "auto"
    rdzv: Literal["auto", "static", "c10d"] = "auto"
    policies: Policies = Policies()
    success: Success = Success()
    deadlines: Deadlines = Deadlines()
    rules: tuple[FailureRule, ...] = ()
    suspend: bool = False
    ttl_s: Count | None = None
    unattended: bool = False
    strategy: str | None = None
    log_dir: str | None = None
    record_store: str | None = None
    error_file: str | None = None
    restart_scope: RestartScope = "gang"
    notify: Notify = Notify()
    kubernetes: Kubernetes = Kubernetes()

    def __repr__(self) -> str:
        return msgspec.Struct.__repr__(concealed(self))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(msgspec.structs.asdict(concealed(self)).items())

    @property
    def parts(self) -> tuple[Part, ...]:
        """Roles in order, with slots and the job of each alone."""
        return _parts_of(self)

    @property
    def code_folders(self) -> tuple[str, ...]:
        """Folders of ``code``, the top one last; empty = no code."""
        return (self.code,) if isinstance(self.code, str) else self.code

    @property
    def several_roles(self) -> bool:
        """True with more than one role."""
        return len(self.roles) > 1

    @property
    def slot_count(self) -> int:
        """Slots of a full start over all roles; the maximum if elastic."""
        return sum(role.nnodes for role in self.roles) or self.nnodes_max or self.nnodes

    @property
    def least_slots(self) -> int:
        """Slots that an attempt needs; fewer only if elastic."""
        return self.nnodes if self.elastic else self.slot_count

    def role_of(self, slot: int) -> str:
        """Returns a slot's role; slots beyond the last get the last role."""
        if not self.roles:
            return self.role
        for role in self.roles:
            if slot < role.nnodes:
                return role.name
            slot -= role.nnodes
        return self.roles[-1].name

    @property
    def one_role(self) -> str | None:
        """The only role; None with several."""
        return None if self.several_roles else self.role_of(0)

    @property
    def head_slot(self) -> int:
        """Slot of the rendezvous, the first in the world; 0 without world."""
        return next((part.base for part in self.parts if part.in_world), 0)

    @property
    def world_nodes(self) -> int:
        """Slots of a full start inside the world; all without world."""
        parts = self.parts
        return sum(part.count for part in parts if part.in_world) or self.slot_count

    @property
    def world_size(self) -> int:
        """Ranks of a full start inside the world: nodes (maximum if elastic) times processes per node.

        Without world, counts all roles.
        """
        parts = self.parts
        inside = [part for part in parts if part.in_world] or parts
        return sum(part.count * part.spec.nproc_per_node for part in inside)

    @property
    def alone(self) -> frozenset[int]:
        """Slots of a full start that restart alone."""
        alone = [part for part in self.parts if part.spec.restart_scope == "replica" and not part.in_world]
        return frozenset(slot for part in alone for slot in part.slots)

    def restarts_alone(self, slot: int) -> bool:
        """True if a failed slot restarts alone, never inside a world. Slots beyond the last count as the last."""
        role = self.role_of(slot)
        part = next(part for part in self.parts if part.name == role)
        return part.spec.restart_scope == "replica" and not part.in_world

    @property
    def writes_run_dir(self) -> bool:
        """True if slots write into the run directory themselves, on this machine or through a shared file system."""
        return self.backend in WITHOUT_PODS

    @property
    def elastic(self) -> bool:
        """True if nodes may change inside an attempt."""
        return self.nnodes_max is not None and self.nnodes_max != self.nnodes


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One role in uniform form.

    Attributes:
        name: Name of the role.
        base: First slot.
        count: Slots of a full start.
        spec: Job of this role alone, with its command, launcher, variables and pods.
        pod: Role's pod template, merged after ``spec.kubernetes.pod``.
        first_node: Index of its first slot in the world; None: outside.
        first_rank: Its first rank, numbered by slot; None: outside.
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
        """Slot numbers."""
        return range(self.base, self.base + self.count)

    @property
    def in_world(self) -> bool:
        """True if its processes are ranks of the world."""
        return self.first_node is not None

    def index_of(self, slot: int) -> int:
        """Returns a slot's index in the role."""
        return slot - self.base


def _parts_of(spec: JobSpec) -> tuple[Part, ...]:
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
