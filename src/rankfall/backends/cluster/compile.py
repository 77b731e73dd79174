"""From a job spec to manifests: pure, complete, and the same for the same input.

Whatever the chosen object cannot do is refused here, before anything is created.
"""

from __future__ import annotations

from collections.abc import Collection

from rankfall.backends.cluster import trainjob as trainer
from rankfall.backends.cluster.code import code_dir, packed_code
from rankfall.backends.cluster.command import Start, start_of
from rankfall.backends.cluster.indexed_job import config_map, indexed_job, service
from rankfall.backends.cluster.jobset import jobset
from rankfall.backends.cluster.merge import Object
from rankfall.backends.cluster.names import TRAINER_ROLE, names_for
from rankfall.backends.cluster.native import Native, native
from rankfall.backends.cluster.objects import Compiled, Request, ServedFacts, request_token
from rankfall.backends.cluster.pod import check_spec_of_pod, most_waited_for, template
from rankfall.backends.cluster.refusals import Problem, bundle, general, refuse, supervised_only
from rankfall.model import JobSpec, Refused
from rankfall_inside.carry_pack import digest_of
from rankfall_inside.carry_tree import Tree

DEFAULT_NAMESPACE = "default"


def compile_job(
    spec: JobSpec,
    *,
    run: str,
    attempt: int,
    token: str,
    served: ServedFacts,
    inside_zip: bytes,
    excluded_nodes: Collection[str] = (),
    namespace: str | None = None,
    nnodes: int | None = None,
    strategy: str = "causal",
    code: Tree | None = None,
) -> Compiled:
    """The manifests of one attempt.

    Args:
        spec: checked; its backend is one of a cluster.
        run: the run's id.
        attempt: counted from 1.
        token: random, of this attempt: lines of records carry it.
        served: what the server offers.
        inside_zip: what travels into the pods.
        excluded_nodes: nodes to avoid, beside those of the spec.
        namespace: where; None = the spec's, else ``default``.
        nnodes: how many of ``MIN:MAX`` nodes there are at first; None = the most.
        strategy: of diagnosis, where the spec names none.
        code: that the job brings; None = none.

    Raises:
        Refused: the backend or the server cannot do what is asked; all problems at once.
        SpecError: overrides or flags contradict the job.
    """
    check_spec_of_pod(spec)
    if spec.roles:
        raise Refused(
            f"$.roles: backend {spec.backend} starts jobs of one role only",
            hint="leave roles out: role, nnodes and command are the job's own; or use backend: local",
        )
    most = spec.nnodes_max or spec.nnodes
    count = nnodes or most
    packed = packed_code(spec, code)
    request = Request(
        spec=spec,
        names=names_for(run=run, attempt=attempt, backend=spec.backend, role=spec.role, count=most),
        namespace=namespace or spec.kubernetes.namespace or DEFAULT_NAMESPACE,
        count=count,
        least=spec.nnodes,
        most=most,
        token=token,
        strategy=spec.strategy or strategy,
        served=served,
        excluded=tuple(sorted({*excluded_nodes, *spec.kubernetes.exclude_nodes})),
        code_dir=code_dir(spec, run=run) if code is not None else None,
        code_digest=None if packed is None else digest_of(packed),
    )
    start = start_of(request)
    container = TRAINER_ROLE if spec.backend == "trainjob" else spec.kubernetes.container
    policies = native(request, container=container, rdzv=start.rdzv) if spec.unattended else Native()
    refuse(spec.backend, _problems(request, start, policies, inside_zip))
    objects, workload = _objects(request, start, policies, container=container)
    if spec.inside != "off":
        objects.append(config_map(request, inside_zip, packed))
    return Compiled(
        objects=tuple(objects),
        workload=workload,
        names=request.names,
        slots=count,
        selector=trainer.selector(request),
        container=container,
        launcher=start.chosen,
        rdzv=start.rdzv,
        port=spec.kubernetes.master_port,
        # A supervised attempt begins when its run may: only a run without supervisor is held by its own object.
        release=not (spec.suspend and spec.unattended) and spec.kubernetes.queue is None,
        request_token=request_token(token),
        notes=(start.note, *policies.notes, *_notes(request, by_rule=bool(policies.rules))),
    )


def _problems(request: Request, start: Start, policies: Native, inside_zip: bytes) -> list[Problem]:
    spec = request.spec
    found = general(request)
    if spec.inside != "off":
        found += bundle(len(inside_zip))
    if spec.backend == "trainjob":
        found += trainer.problems(request, start)
    if spec.unattended:
        found += [*supervised_only(spec), *policies.problems]
    return found


def _objects(request: Request, start: Start, policies: Native, *, container: str) -> tuple[list[Object], int]:
    """The objects in order, without the config map, and the workload's place."""
    pod = template(request, start, container=container)
    if request.spec.backend == "job":
        return [indexed_job(request, pod, policies), service(request)], 0
    if request.spec.backend == "jobset":
        return [jobset(request, pod, policies)], 0
    job = trainer.trainjob(request, start)
    if trainer.own_runtime(request.spec):
        # First: a TrainJob without its runtime is refused by Trainer's webhook, and fails for good without it.
        return [trainer.training_runtime(request, pod, policies), job], 1
    return [job], 0


def _notes(request: Request, *, by_rule: bool) -> list[str]:
    spec = request.spec
    found = []
    if spec.backend == "trainjob":
        if trainer.own_runtime(spec):
            why = ", ".join(trainer.needs_own(request))
            found.append(
                "runtime: a TrainingRuntime of this job's own, because "
                + (f"a shared one could not express {why}" if why else "kubernetes.runtime names none")
            )
        else:
            found.append(f"runtime: {spec.kubernetes.runtime}; what it restarts by itself is the platform's choice")
    most = most_waited_for(spec)
    if request.least == request.most > most:
        found.append(f"names: slots wait for slot 0's name only; above {most} slots a list of all is too long")
    if spec.kubernetes.queue is not None:
        found.append(f"queue: {spec.kubernetes.queue} of Kueue releases the job")
    if spec.unattended and spec.policies.hang_timeout_s is not None:
        found.append("hang: not looked for without a supervisor")
    if by_rule:
        found.append(
            "node: with rules Kubernetes waits for ever for a pod whose node is lost, until somebody removes it"
        )
    if spec.unattended and spec.success.policy != "all":
        found.append("success: Kubernetes ends the others at once; drain_s is the grace that their commands have")
    return found
