"""What no kind of object, or not this one, can do with several roles: refused before anything is created."""

from __future__ import annotations

from collections.abc import Sequence

from rankfall.backends.cluster.names import TRAINER_ROLE
from rankfall.backends.cluster.refusals import Problem
from rankfall.backends.cluster.roles import Gang, trainer_of
from rankfall.backends.plan import Launcher
from rankfall.model import JobSpec, Part


def problems(gang: Gang, chosen: Sequence[tuple[Part, Launcher | None]]) -> list[Problem]:
    """What several roles cannot have on this backend.

    Args:
        gang: of the attempt.
        chosen: how each role starts its ranks; None = decided in its pods.
    """
    if not gang.several:
        return []
    spec = gang.spec
    found = _of_object(spec)
    for number, part in enumerate(gang.parts):
        if spec.inside == "off" and part.first_node:
            found.append(
                Problem(
                    path="$.inside",
                    why=f"with inside: off nobody in a pod of role {part.name} could work out its place among the ranks of all roles",
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
                    why="several roles are several Jobs, and without a supervisor nobody ends one when another falls",
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
    """One world has one launcher; where it is decided in the pods, the same image must decide for all."""
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
