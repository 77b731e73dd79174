"""Number of nodes of each role: at the first start, and after a resize. Pure.

Refuses a size that the job cannot have and names the bound; what only a backend knows is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rankfall.model.errors import Refused, SpecError
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.jobspec.policies import Positive


class SizeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a role's size, as it stands in the plan of an attempt. Times are nanoseconds since the epoch.

    Attributes:
        before: nodes until then.
        nodes: nodes from then on.
        asked_at: when it was asked for.
        by, reason: by whom and why.
        done_at: when it held; None while it is being carried out.
    """

    role: str
    before: int
    nodes: Positive
    asked_at: int
    by: str = ""
    reason: str = ""
    done_at: int | None = None

    @property
    def text(self) -> str:
        """The change in one line."""
        words = f"{self.role}: {self.before} -> {self.nodes} nodes, asked for by {self.by or 'somebody'}"
        return f"{words}: {self.reason}" if self.reason else words


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that does not belong to a gang of ``MIN:MAX`` nodes any more, while the attempt goes on without it.

    Attributes:
        at: since when, nanoseconds since the epoch.
        why: ``resize``: fewer nodes were wished. ``lost``: it fell and the others went on. ``surplus``: the job was done before it began.
    """

    slot: int
    at: int
    why: Literal["resize", "lost", "surplus"]


def first_sizes(spec: JobSpec) -> dict[str, int]:
    """Nodes of each role at the first start; of ``MIN:MAX`` the most."""
    return {part.name: part.count for part in spec.parts}


def sized(spec: JobSpec, sizes: Mapping[str, int]) -> JobSpec:
    """The spec of a job that was resized; ``MIN:MAX`` stays as it is, because its size changes within.

    Args:
        spec: as it was submitted.
        sizes: nodes by role; a role that is not named keeps its own.
    """
    if spec.roles:
        roles = tuple(msgspec.structs.replace(role, nnodes=sizes.get(role.name, role.nnodes)) for role in spec.roles)
        return msgspec.structs.replace(spec, roles=roles)
    nodes = sizes.get(spec.role)
    if nodes is None or spec.elastic or nodes == spec.nnodes:
        return spec
    return msgspec.structs.replace(spec, nnodes=nodes, nnodes_max=None)


def check_size(spec: JobSpec, *, nodes: int, role: str | None) -> str:
    """Refuse a size that the job cannot have.

    Args:
        spec: as it was submitted.
        nodes: wished.
        role: whose; None = the job's only one.

    Returns:
        The role's name.

    Raises:
        SpecError: there is no such role, or no such size.
        Refused: the job cannot be resized so; names the field and the alternative.
    """
    roles = first_sizes(spec)
    if role is not None and role not in roles:
        raise SpecError("--role", f"the job has no role {role!r}", hint=f"its roles: {', '.join(roles)}")
    if role is None and len(roles) > 1:
        raise SpecError("--role", "the job has several roles", hint=f"name one of: {', '.join(roles)}")
    if nodes < 1:
        raise SpecError("N", f"{nodes} is no number of nodes: at least 1")
    if spec.unattended:
        fraction = spec.success.policy == "fraction"
        raise Refused(
            "$.success.fraction: the number of slots that an unattended job needs is fixed in its object and would not follow"
            if fraction
            else "$.unattended: nobody supervises the job, so nobody could begin it with another size",
            hint="submit it again with the other size, or run it supervised",
        )
    if spec.elastic:
        _check_bounds(spec, nodes)
    return role or next(iter(roles))


def _check_bounds(spec: JobSpec, nodes: int) -> None:
    most = spec.nnodes_max or spec.nnodes
    if nodes > most:
        raise Refused(
            f"$.nnodes_max: {nodes} nodes are more than the MAX of {spec.nnodes}:{most}, which every node was told at its start",
            hint=f"submit it again with --nnodes {spec.nnodes}:{nodes}",
        )
    if nodes < spec.nnodes:
        raise Refused(
            f"$.nnodes: {nodes} nodes are fewer than the MIN of {spec.nnodes}:{most}, below which the gang does not run",
            hint=f"submit it again with --nnodes {nodes}:{most}, or rankfall suspend",
        )
