"""Compiles a job spec into manifests: pure, complete and reproducible.

Refuses what the workload kind cannot do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rankfall.backends.command import command_elsewhere, naming_role, world_rendezvous
from rankfall.backends.kubernetes.manifests import trainjob as trainer
from rankfall.backends.kubernetes.manifests.code import code_dir, code_note, packed_code
from rankfall.backends.kubernetes.manifests.container_command import start_of
from rankfall.backends.kubernetes.manifests.jobs import Member, config_map, indexed_job, jobset, service
from rankfall.backends.kubernetes.manifests.names import TRAINER_ROLE, names_for
from rankfall.backends.kubernetes.manifests.native_policies import Native, native
from rankfall.backends.kubernetes.manifests.pod import check_spec_of_pod, most_required_names, shared_labels, template
from rankfall.backends.kubernetes.manifests.pod_overrides import Object
from rankfall.backends.kubernetes.manifests.refusals import (
    Problem,
    bundle,
    problems,
    refuse,
    supervised_only,
    two_classes,
    unsupported_fields,
)
from rankfall.backends.kubernetes.manifests.request import Compiled, Gang, Request, ServedFacts, pod_role, request_token
from rankfall.backends.kubernetes.manifests.secrets import secret, values_of
from rankfall.backends.plan import Launcher
from rankfall.model import JobSpec
from rankfall_inside.transfer.pack import digest_of
from rankfall_inside.transfer.tree import Tree

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
    left_out: Collection[str] = (),
    strategy: str = "causal",
    code: Tree | None = None,
) -> Compiled:
    """Returns the manifests of one attempt.

    ``nnodes``: initial ``MIN:MAX`` nodes, None = maximum; ``left_out``: roles that succeeded earlier.

    Raises:
        Refused: Unsupported; names all problems.
        SpecError: Overrides or flags contradict the job.
    """
    check_spec_of_pod(spec)
    packed = packed_code(spec, code)
    parts = tuple(part for part in spec.parts if part.name not in left_out)
    whole = Gang(
        spec=spec,
        parts=parts,
        names=names_for(
            run=run,
            attempt=attempt,
            backend=spec.backend,
            roles=[pod_role(spec, part.name) for part in parts],
            counts=[part.count for part in parts],
        ),
        rdzv=world_rendezvous([(part, command_elsewhere(part.spec)) for part in parts]),
    )
    container = TRAINER_ROLE if spec.backend == "trainjob" else spec.kubernetes.container
    members = []
    for part, names in zip(parts, whole.names, strict=True):
        request = Request(
            spec=part.spec,
            part=part,
            gang=whole,
            names=names,
            namespace=namespace or spec.kubernetes.namespace or DEFAULT_NAMESPACE,
            count=nnodes or part.count,
            least=spec.nnodes if spec.elastic else spec.world_nodes,
            most=spec.world_nodes,
            token=token,
            strategy=spec.strategy or strategy,
            served=served,
            excluded=tuple(sorted({*excluded_nodes, *spec.kubernetes.exclude_nodes})),
            code_dir=code_dir(spec, run=run) if code is not None else None,
            code_digest=None if packed is None else digest_of(packed),
        )
        with naming_role(spec, part):
            members.append(_member(request, container=container))
    refuse(spec.backend, _problems(whole, members, inside_zip))
    objects, workload = _objects(members)
    hidden: dict[str, str] = {}
    for one in members:
        hidden |= values_of(one.request, as_json=one.start.variable is not None)
    if hidden:
        first = members[0].request
        objects.insert(workload + 1, secret(first, hidden, labels=shared_labels(first)))
    if spec.inside != "off":
        objects.append(config_map(members[0].request, inside_zip, packed))
    others = [indexed_job(one.request, one.pod, one.policies) for one in members[1:]] if spec.backend == "job" else []
    return Compiled(
        objects=(*objects, *others),
        workload=workload,
        others=len(others),
        names=whole.names[0],
        slots=sum(one.request.count for one in members),
        selector=trainer.selector(members[0].request),
        container=container,
        launcher=_launcher(members),
        rdzv=whole.rdzv if any(one.start.rdzv != "none" for one in members) else "none",
        port=spec.kubernetes.master_port,
        # Only unsupervised runs stay suspended.
        release=not (spec.suspend and spec.unattended) and spec.kubernetes.queue is None,
        request_token=request_token(token),
        notes=(
            *_member_notes(members),
            *_notes(members),
            *((code_note(spec, code, packed, run=run),) if code is not None else ()),
        ),
    )


def _member(request: Request, *, container: str) -> Member:
    start = start_of(request)
    policies = native(request, container=container, rdzv=start.rdzv) if request.spec.unattended else Native()
    return Member(request=request, start=start, policies=policies, pod=template(request, start, container=container))


def _launcher(members: Sequence[Member]) -> Launcher | None:
    inside = [one.start.chosen for one in members if one.request.part.in_world]
    return inside[0] if inside else "exec"


def _problems(whole: Gang, members: Sequence[Member], inside_zip: bytes) -> list[Problem]:
    spec = whole.spec
    found = problems(whole, [(one.request.part, one.start.chosen) for one in members])
    for one in members:
        found += unsupported_fields(one.request)
        if spec.backend == "trainjob":
            found += trainer.problems(one.request, one.start)
        if spec.unattended:
            found += one.policies.problems
    if spec.inside != "off":
        found += bundle(len(inside_zip))
    if spec.unattended:
        found += supervised_only(spec)
    if any(one.policies.free for one in members) and any(
        one.policies.rules and not one.policies.free for one in members
    ):
        found.append(two_classes())
    # Each role repeats the whole job's problems.
    return list(dict.fromkeys(found))


def _objects(members: Sequence[Member]) -> tuple[list[Object], int]:
    """Returns ordered objects, without config map and other roles' Jobs, and the workload's index."""
    first = members[0]
    if first.request.spec.backend == "job":
        return [indexed_job(first.request, first.pod, first.policies), service(first.request)], 0
    if first.request.spec.backend == "jobset":
        return [jobset(members)], 0
    one = trainer.trainer(members)
    job = trainer.trainjob(one.request, one.start)
    if trainer.own_runtime(one.request.spec):
        # Trainer's webhook refuses a TrainJob without runtime, or it fails permanently.
        return [trainer.training_runtime(members), job], 1
    return [job], 0


def _member_notes(members: Sequence[Member]) -> list[str]:
    found = []
    for one in members:
        of = f"role {one.request.part.name}: " if one.request.gang.several else ""
        found += [f"{of}{note}" for note in (one.start.note, *one.policies.notes)]
    return found


def _notes(members: Sequence[Member]) -> list[str]:
    request = members[0].request
    spec, by_rule = request.gang.spec, any(one.policies.rules for one in members)
    found = []
    if spec.backend == "trainjob":
        if trainer.own_runtime(spec):
            why = ", ".join(trainer.needs_own(request))
            found.append(
                "runtime: a TrainingRuntime only for this job, because "
                + (f"a shared one could not express {why}" if why else "kubernetes.runtime names none")
            )
        else:
            found.append(f"runtime: {spec.kubernetes.runtime}; the platform decides which restarts it does by itself")
    most = most_required_names(spec)
    if not spec.elastic and spec.slot_count > most:
        found.append(
            f"names: slots wait for slot {spec.head_slot}'s name only; above {most} slots a list of all is too long"
        )
    if spec.kubernetes.queue is not None:
        found.append(f"queue: {spec.kubernetes.queue} of Kueue releases the job")
    if spec.unattended and spec.policies.hang_timeout_s is not None:
        found.append("hang: not detected without a supervisor")
    if by_rule:
        found.append("node: with rules, Kubernetes waits for a pod on a lost node until a user deletes the pod")
    if spec.unattended and spec.success.policy != "all":
        found.append("success: Kubernetes ends the other pods immediately; drain_s is the grace time of their commands")
    return found
