"""Refuses unsupported requests before anything is created; one refusal lists all problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rankfall.backends.kubernetes.manifests.names import TRAINER_ROLE
from rankfall.backends.kubernetes.manifests.request import Gang, Request, ServedFacts, trainer_of
from rankfall.backends.plan import Launcher
from rankfall.model import JobSpec, Kubernetes, Part, Policies, Refused

KINDS: Final = {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}
_INSTALL: Final = {
    "jobset": "JobSet (jobset.x-k8s.io/v1alpha2), installed in the cluster",
    "trainjob": "Kubeflow Trainer (trainer.kubeflow.org/v1alpha1), installed in the cluster",
}
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_THEIR_LABELS: Final = frozenset({"app.kubernetes.io/managed-by", "job-name", "controller-uid"})
_THEIR_DOMAINS: Final = ("batch.kubernetes.io/", "jobset.sigs.k8s.io/", "trainer.kubeflow.org/")
# Indexed Jobs and suspend exist since 1.24.
_OLDEST: Final = 24
POD_FAILURE_POLICY_SINCE: Final = 31
SUCCESS_POLICY_SINCE: Final = 33
# A config map holds 1 MiB, with fields.
MOST_BUNDLE_BYTES: Final = 1_000_000


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One unsupported request.

    Attributes:
        path: Path of the field.
        why: What is unsupported, and why.
        needs: Version that supports it.
        instead: Alternative.
    """

    path: str
    why: str
    needs: str | None = None
    instead: str

    def text(self, backend: str) -> str:
        """Problem as text."""
        needs = f"; needs {self.needs}" if self.needs else ""
        return f"{self.path}: {self.why} (backend {backend}{needs})"


def refuse(backend: str, problems: Sequence[Problem]) -> None:
    """Raises one refusal with all problems, if any.

    Raises:
        Refused: The list is not empty.
    """
    if not problems:
        return
    texts = [problem.text(backend) for problem in problems]
    message = texts[0] if len(texts) == 1 else "\n  ".join(("this job cannot run as it is:", *texts))
    raise Refused(message, hint="; ".join(dict.fromkeys(problem.instead for problem in problems)))


def unsupported_fields(request: Request) -> list[Problem]:
    """Returns problems of server or object kind, supervised or not."""
    spec, served = request.spec, request.served
    return [
        *_served(spec, served),
        *_scope(request.gang.spec),
        *_runtime(spec),
        *_labels(spec),
        *_excluded(request),
        *_log_store(spec),
    ]


def _served(spec: JobSpec, served: ServedFacts) -> list[Problem]:
    found = []
    kind = KINDS[spec.backend]
    version = ".".join(map(str, served.version))
    if not served.at_least(_OLDEST):
        found.append(
            Problem(
                path="$.backend",
                why=f"the server is Kubernetes {version}, which has no Indexed Jobs that can be suspended",
                needs=f"Kubernetes 1.{_OLDEST}",
                instead="use a newer cluster, or backend: local",
            )
        )
    if kind not in served.kinds:
        found.append(
            Problem(
                path="$.backend",
                why=f"the server does not serve {kind}",
                needs=_INSTALL.get(spec.backend),
                instead="install it, or use backend: job",
            )
        )
    if spec.kubernetes.image is None and (spec.backend != "trainjob" or spec.kubernetes.runtime is None):
        found.append(
            Problem(
                path="$.kubernetes.image",
                why="is missing: pods need an image",
                instead="give one, as: --image registry/name:tag",
            )
        )
    return found


def _log_store(spec: JobSpec) -> list[Problem]:
    if spec.kubernetes.log_store is None or spec.inside != "off":
        return []
    return [
        Problem(
            path="$.kubernetes.log_store",
            why="with inside: off, no code of Rankfall in the pod could write there",
            instead="use inside: auto, or leave the log store out",
        )
    ]


def _scope(spec: JobSpec) -> list[Problem]:
    found = []
    if spec.backend in {"jobset", "trainjob"} and (path := _replica(spec)) is not None:
        found.append(
            Problem(
                path=path,
                why="one replica alone cannot be restarted",
                needs="JobSet 0.12" if spec.backend == "jobset" else None,
                instead="use restart_scope: gang, or backend: job",
            )
        )
    alone = set() if spec.unattended else {spec.role_of(slot) for slot in spec.alone}
    for number, rule in enumerate(spec.rules):
        elsewhere = rule.exclude_node or rule.action == "restart_elsewhere"
        if spec.backend == "job" and elsewhere and alone & set(rule.roles or alone):
            found.append(
                Problem(
                    path=f"$.rules[{number}].{'exclude_node' if rule.exclude_node else 'action'}",
                    why="a pod that is replaced alone may be placed on the same node again",
                    instead="use action: restart, or restart_scope: gang",
                )
            )
    if spec.elastic and spec.backend in {"jobset", "trainjob"}:
        found.append(
            Problem(
                path="$.nnodes_max",
                why="MIN:MAX nodes are not supported",
                needs="JobSet 0.12" if spec.backend == "jobset" else None,
                instead="use a fixed number of nodes, or backend: job",
            )
        )
    elif spec.elastic and spec.unattended:
        found.append(
            Problem(
                path="$.nnodes_max",
                why="MIN:MAX nodes need a supervisor",
                instead="leave unattended out, or use a fixed number of nodes",
            )
        )
    return found


def _replica(spec: JobSpec) -> str | None:
    for number, role in enumerate(spec.roles):
        if role.restart_scope == "replica":
            return f"$.roles[{number}].restart_scope"
    return "$.restart_scope" if any(part.spec.restart_scope == "replica" for part in spec.parts) else None


def _runtime(spec: JobSpec) -> list[Problem]:
    section, usual = spec.kubernetes, Kubernetes()
    if spec.backend != "trainjob":
        return [
            Problem(path=f"$.kubernetes.{field}", why="only a TrainJob has a runtime", instead="use backend: trainjob")
            for field in ("runtime", "runtime_kind")
            if getattr(section, field) != getattr(usual, field)
        ]
    if section.runtime is None and section.runtime_kind != usual.runtime_kind:
        return [
            Problem(
                path="$.kubernetes.runtime_kind", why="no runtime is named", instead="name it in kubernetes.runtime"
            )
        ]
    return []


def _labels(spec: JobSpec) -> list[Problem]:
    found = []
    for key in spec.kubernetes.labels:
        path = f"$.kubernetes.labels.{key}"
        if key == QUEUE_LABEL:
            found.append(
                Problem(
                    path=path, why="is the label that kubernetes.queue sets for Kueue", instead="use kubernetes.queue"
                )
            )
        elif key in _THEIR_LABELS or key.startswith(_THEIR_DOMAINS):
            found.append(
                Problem(path=path, why="is set by Kubernetes or by Rankfall itself", instead="leave that label out")
            )
    return found


def _excluded(request: Request) -> list[Problem]:
    """Returns problems of excluded nodes; only newer Trainers change a shared runtime's affinity."""
    spec, served = request.spec, request.served
    shared = spec.backend == "trainjob" and spec.kubernetes.runtime is not None
    if not shared or not request.excluded or served.pod_overrides not in {None, "podSpecOverrides"}:
        return []
    return [
        Problem(
            path="$.kubernetes.exclude_nodes",
            why=f"nodes cannot be excluded with runtime {spec.kubernetes.runtime!r}",
            needs="Kubeflow Trainer 2.1",
            instead="leave kubernetes.runtime out: Rankfall then makes a TrainingRuntime for this job",
        )
    ]


def two_classes() -> Problem:
    """Problem that a JobSet cannot distinguish two classes of failure."""
    return Problem(
        path="$.rules",
        why="a JobSet has two classes of failure: rules that fail exclude rules that ignore",
        needs="JobSet 0.10",
        instead="leave unattended out",
    )


def bundle(size: int) -> list[Problem]:
    """Returns a problem if the bundle exceeds a config map."""
    if size <= MOST_BUNDLE_BYTES:
        return []
    return [
        Problem(
            path="$.inside",
            why=f"the bundle for the pods has {size} bytes, but a config map holds only {MOST_BUNDLE_BYTES}",
            instead="use inside: off",
        )
    ]


def supervised_only(spec: JobSpec) -> list[Problem]:
    """Returns problems of fields that need a supervisor, without one."""
    policies, usual = spec.policies, Policies()
    found = [
        _needs_supervisor(f"$.policies.{field}")
        for field in ("settle_min_s", "settle_quiet_s", "settle_max_s", "backoff_s", "backoff_max_s")
        if getattr(policies, field) != getattr(usual, field)
    ]
    if policies.hang_timeout_s not in {None, usual.hang_timeout_s}:
        found.append(_needs_supervisor("$.policies.hang_timeout_s"))
    found += [
        _needs_supervisor(f"$.deadlines.{field}")
        for field in ("total_s", "startup_s")
        if getattr(spec.deadlines, field) is not None
    ]
    if spec.backend == "trainjob" and spec.deadlines.attempt_s is not None:
        found.append(_needs_supervisor("$.deadlines.attempt_s", needs="Kubeflow Trainer 2.2"))
    return found


def _needs_supervisor(path: str, *, needs: str | None = None) -> Problem:
    return Problem(
        path=path, why="needs a supervisor", needs=needs, instead="leave unattended out, or leave these fields out"
    )


def problems(gang: Gang, chosen: Sequence[tuple[Part, Launcher | None]]) -> list[Problem]:
    """Returns problems of several roles on this backend."""
    if not gang.several:
        return []
    spec = gang.spec
    found = _of_object(spec)
    for number, part in enumerate(gang.parts):
        if spec.inside == "off" and part.first_node:
            found.append(
                Problem(
                    path="$.inside",
                    why=f"with inside: off, no code of Rankfall in a pod of role {part.name} could compute its ranks among all roles",
                    instead="put the role with ranks first, or use inside: auto",
                )
            )
        if spec.backend == "trainjob" and part.name == TRAINER_ROLE != trainer_of(spec):
            found.append(
                Problem(
                    path=f"$.roles[{number}].name",
                    why=f"Kubeflow Trainer calls the role that trains {TRAINER_ROLE!r}, and that is {trainer_of(spec)}",
                    instead="give the role another name",
                )
            )
    return [*found, *_launchers(chosen)]


def _of_object(spec: JobSpec) -> list[Problem]:
    found = []
    if spec.backend == "job":
        if spec.unattended:
            found.append(
                Problem(
                    path="$.roles",
                    why="several roles are several Jobs, and without a supervisor a failed Job does not end the others",
                    instead="leave unattended out, or use backend: jobset",
                )
            )
        if spec.kubernetes.queue is not None:
            found.append(
                Problem(
                    path="$.kubernetes.queue",
                    why="several roles are several Jobs, and Kueue would admit one of them without the others",
                    instead="use backend: jobset",
                )
            )
        if spec.ttl_s is not None:
            found.append(
                Problem(
                    path="$.ttl_s",
                    why="several roles are several Jobs, and one that ends early would be removed while the others run",
                    instead="leave it out and remove the objects with: rankfall cancel; or use backend: jobset",
                )
            )
    if spec.backend == "trainjob" and spec.kubernetes.runtime is not None:
        found.append(
            Problem(
                path="$.roles",
                why=f"runtime {spec.kubernetes.runtime!r} has its own roles, and a TrainJob cannot add any",
                instead="leave kubernetes.runtime out: Rankfall then makes a TrainingRuntime for this job",
            )
        )
    return found


def _launchers(chosen: Sequence[tuple[Part, Launcher | None]]) -> list[Problem]:
    """Returns problems of different launchers; if pods decide, images must be equal."""
    inside = [(part, launcher) for part, launcher in chosen if part.in_world]
    for part, launcher in inside[1:]:
        first, its = inside[0]
        same_image = part.spec.kubernetes.image == first.spec.kubernetes.image
        if launcher == its and (launcher is not None or same_image):
            continue
        return [
            Problem(
                path="$.roles",
                why=f"role {part.name} would be started by {launcher or 'torchrun or plain'} and role {first.name} by "
                f"{its or 'torchrun or plain'}, and one world of ranks has one launcher",
                instead="name the same launcher for both, or exec for the one that is outside the world",
            )
        ]
    return []
