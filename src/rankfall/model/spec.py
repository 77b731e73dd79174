"""What the user wants: ``rankfall.job/1``. One frozen spec, from flags, YAML or Python, the same for every backend."""

from __future__ import annotations

from typing import Literal

import msgspec

from rankfall.model.kubernetes_spec import Kubernetes
from rankfall.model.policies import Count, Deadlines, FailureRule, Policies, Positive, Success

SCHEMA = "rankfall.job/1"

BackendName = Literal["local", "job", "jobset", "trainjob"]
Inside = Literal["auto", "require", "off"]
LauncherName = Literal["auto", "torchrun", "plain", "exec"]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job.

    Attributes:
        name: lower-case letters, digits and dashes; the run's id begins with it.
        backend: ``local`` processes, an Indexed ``job``, a ``jobset``, or a ``trainjob`` of Kubeflow Trainer.
        command: program and arguments. With launcher ``torchrun`` a script (or ``-m module``) and its arguments.
        launcher: ``auto`` picks torchrun when the job's Python has torch, else the plain launcher; ``exec`` starts the
            command once per node as it is.
        nnodes, nnodes_max: nodes; ``nnodes_max`` > ``nnodes`` is elastic (c10d rendezvous).
        nproc_per_node: ranks per node.
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
        restart_scope: what a new attempt starts again: the whole ``gang``, or the one ``replica`` that fell.
        kubernetes: its pods, on the backends that make some.
    """

    schema: Literal["rankfall.job/1"] = "rankfall.job/1"
    name: str = "job"
    backend: BackendName = "local"
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
    success: Success = Success()
    deadlines: Deadlines = Deadlines()
    rules: tuple[FailureRule, ...] = ()
    suspend: bool = False
    ttl_s: Count | None = None
    unattended: bool = False
    strategy: str | None = None
    restart_scope: Literal["gang", "replica"] = "gang"
    kubernetes: Kubernetes = Kubernetes()

    @property
    def world_size(self) -> int:
        """Ranks of a full start: nodes (the most, when elastic) times processes per node."""
        return (self.nnodes_max or self.nnodes) * self.nproc_per_node

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change inside an attempt."""
        return self.nnodes_max is not None and self.nnodes_max != self.nnodes
