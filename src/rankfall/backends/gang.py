"""What the roles of one job must agree on before anything starts: one launcher and one rendezvous for the one world of ranks.

Roles outside the world (launcher ``exec``) are asked nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rankfall.backends.command import Command, rendezvous_of
from rankfall.backends.plan import Launcher, Rendezvous
from rankfall.model import JobSpec, Part, SpecError


@contextmanager
def told_of(spec: JobSpec, part: Part) -> Iterator[None]:
    """Name the role in what is wrong with one of several."""
    try:
        yield
    except SpecError as error:
        if not spec.several_roles:
            raise
        message = error.message.removeprefix(f"{error.path}: ")
        raise SpecError(error.path, f"{message} (role {part.name})", hint=error.hint) from error


def world_launcher(chosen: Sequence[tuple[Part, Launcher]]) -> Launcher:
    """The launcher of the job: that of all roles inside the world; ``exec`` when there is none.

    Args:
        chosen: each role with its own.

    Raises:
        SpecError: torchrun's ranks meet in their agents' store and plain ones in rank 0's; together they would wait for each other for ever.
    """
    inside = [(part, launcher) for part, launcher in chosen if part.in_world]
    for part, launcher in inside:
        first, its = inside[0]
        if launcher != its:
            raise SpecError(
                "$.roles",
                f"role {part.name} would be started by {launcher} and role {first.name} by {its}, and one world of ranks has one launcher",
                hint="give both the same launcher, or exec to the one that is outside the world",
            )
    return inside[0][1] if inside else "exec"


def world_rendezvous(commands: Sequence[tuple[Part, Command]]) -> Rendezvous:
    """How the torchruns of all roles inside the world find each other: c10d when one of them asks for it."""
    asked = {rendezvous_of(part.spec, command) for part, command in commands if part.in_world}
    return "c10d" if "c10d" in asked else "static"
