"""The job spec ``rankfall.job/1``: one frozen struct from flags, YAML or Python, the same for every backend.

A job without ``roles`` has one role; slots of several roles are numbered through in their order, so that a
slot number is one key everywhere. Only :class:`Part` looks at both forms. All roles but those with launcher
``exec`` form one world of ranks; what an ``exec`` command starts is unknown, so it is outside.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rankfall.model.jobspec.kubernetes import Kubernetes, Resources
from rankfall.model.jobspec.policies import Count, Deadlines, FailureRule, Policies, Positive, Success
from rankfall.model.jobspec.secrets import concealed

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

    def __repr__(self) -> str:
        return msgspec.Struct.__repr__(concealed(self))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(msgspec.structs.asdict(concealed(self)).items())


SCHEMA = "rankfall.job/1"

BackendName = Literal["local", "job", "jobset", "trainjob", "foreign"]
Inside = Literal["auto", "require", "off"]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job.

    Attributes:
        name: lower-case letters, digits and dashes; the run's id begins with it.
        backend: ``local`` processes, an Indexed ``job``, a ``jobset``, or a ``trainjob`` of Kubeflow Trainer. ``foreign`` stands in the
            records of jobs that Rankfall did not start, and is refused in every job.
        command: program and arguments. With launcher ``torchrun`` a script (or ``-m module``) and its arguments. May be left out
            when every role has one.
        launcher: ``auto`` picks torchrun when the job's Python has torch, else the plain launcher; ``exec`` starts the
            command once per node as it is.
        nnodes, nnodes_max: nodes; ``nnodes_max`` > ``nnodes`` is elastic (c10d rendezvous).
        nproc_per_node: ranks per node.
        roles: several roles in one job; each has its number of nodes, and what else it has of its own. Empty = the one ``role``.
        code: a folder of this machine whose files the job runs in, as they are at the submission; several are laid over each other,
            the later ones on top. ``cwd`` is then a path below them.
        code_exclude: patterns of the shell for what of it is left out: one without a slash for any name, one with a slash for
            the path below the folder.
        python: the job's Python; null = the one Rankfall runs under.
        env: variables added to the job's environment.
        success: when the job counts as done.
        deadlines: limits of time.
        rules: what to do about which failure, first match wins; what no rule matches is decided by its cause.
        suspend: begin suspended: nothing is started before ``rankfall resume``.
        ttl_s: how long the objects of an ended run stay in the cluster; null = until they are deleted.
        unattended: let the platform's own policies run the job, so that it needs no supervisor; what they cannot do is refused.
        strategy: how the root is chosen from what all ranks said: ``causal``, ``earliest``, ``first-listed`` or one that a
            package declares; null = the backend's own, which is ``causal``.
        log_dir: a folder of this machine with the files for reading: that of all ranks grows there, the others come at the end; it belongs to one run.
        record_store: where each rank's records are copied to as well, and read from: ``file:///path`` of a directory that all
            slots and this machine share, or ``s3://bucket/prefix``.
        error_file: where each slot writes its first error once more for readers that know no records: a path in the slot that ends
            with ``.json`` (torchelastic's form) or ``.pb`` (Flyte's); the first writer of a name wins, a ``*`` makes it unique.
        restart_scope: what is started again after a fall: the whole ``gang`` as a new attempt, or inside the attempt the one
            ``replica`` that fell, while the others run on; for independent workers (launcher ``exec``) only.
        kubernetes: its pods, on the backends that make some.
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
    kubernetes: Kubernetes = Kubernetes()

    def __repr__(self) -> str:
        return msgspec.Struct.__repr__(concealed(self))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(msgspec.structs.asdict(concealed(self)).items())

    @property
    def parts(self) -> tuple[Part, ...]:
        """The roles in their one form, in order: which slots each has, and the job as it alone has it."""
        return _parts_of(self)

    @property
    def code_folders(self) -> tuple[str, ...]:
        """The folders of ``code``, from the lowest to the one on top; empty = the job brings no code."""
        return (self.code,) if isinstance(self.code, str) else self.code

    @property
    def several_roles(self) -> bool:
        """Whether there is more than one role."""
        return len(self.roles) > 1

    @property
    def slot_count(self) -> int:
        """Slots of a full start: of all roles; the most, when elastic."""
        return sum(role.nnodes for role in self.roles) or self.nnodes_max or self.nnodes

    @property
    def least_slots(self) -> int:
        """Slots that an attempt needs: fewer than all only when elastic."""
        return self.nnodes if self.elastic else self.slot_count

    def role_of(self, slot: int) -> str:
        """The role of a slot. A slot beyond the last one is of the last role."""
        if not self.roles:
            return self.role
        for role in self.roles:
            if slot < role.nnodes:
                return role.name
            slot -= role.nnodes
        return self.roles[-1].name

    @property
    def one_role(self) -> str | None:
        """The role of everything in the job; None when there are several."""
        return None if self.several_roles else self.role_of(0)

    @property
    def head_slot(self) -> int:
        """The slot where the rendezvous is: the first one of the world; 0 when no role is in it."""
        return next((part.base for part in self.parts if part.in_world), 0)

    @property
    def world_nodes(self) -> int:
        """Slots of a full start whose processes are ranks of the one world; all, when no role is in it."""
        parts = self.parts
        return sum(part.count for part in parts if part.in_world) or self.slot_count

    @property
    def world_size(self) -> int:
        """Ranks of a full start, over the roles inside the world: nodes (the most, when elastic) times processes per node.

        When no role is inside, as many as there would be if all were.
        """
        parts = self.parts
        inside = [part for part in parts if part.in_world] or parts
        return sum(part.count * part.spec.nproc_per_node for part in inside)

    @property
    def alone(self) -> frozenset[int]:
        """Slots of a full start that are started again alone when they fall."""
        alone = [part for part in self.parts if part.spec.restart_scope == "replica" and not part.in_world]
        return frozenset(slot for part in alone for slot in part.slots)

    def restarts_alone(self, slot: int) -> bool:
        """Whether a slot is started again alone when it falls; those of a world of ranks never are. A slot beyond the last is as the last."""
        role = self.role_of(slot)
        part = next(part for part in self.parts if part.name == role)
        return part.spec.restart_scope == "replica" and not part.in_world

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change inside an attempt."""
        return self.nnodes_max is not None and self.nnodes_max != self.nnodes


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


def _parts_of(spec: JobSpec) -> tuple[Part, ...]:
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
