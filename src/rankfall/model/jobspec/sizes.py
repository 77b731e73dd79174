"""Nodes of each role at the first start and after a resize. Pure.

Refuses impossible sizes and names the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rankfall.model.errors import Refused, SpecError
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.jobspec.policies import Positive
from rankfall.model.numbers import counted


class SizeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One resize in an attempt's plan. Times are nanoseconds since the epoch.

    Attributes:
        before: Previous nodes.
        nodes: New nodes.
        asked_at: Time of the request.
        by, reason: User and reason.
        done_at: Completion; None = in progress.
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
        """One line."""
        words = (
            f"{self.role}: {self.before} -> {counted(self.nodes, 'node')}, requested by {self.by or 'an unknown user'}"
        )
        return f"{words}: {self.reason}" if self.reason else words


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A slot outside a gang of ``MIN:MAX`` nodes while the attempt continues.

    Attributes:
        at: Time, nanoseconds since the epoch.
        why: ``resize``: fewer nodes requested. ``lost``: it failed alone. ``surplus``: the job finished before its
            start.
    """

    slot: int
    at: int
    why: Literal["resize", "lost", "surplus"]


def first_sizes(spec: JobSpec) -> dict[str, int]:
    """Returns nodes by role at the first start; the maximum of ``MIN:MAX``."""
    return {part.name: part.count for part in spec.parts}


def sized(spec: JobSpec, sizes: Mapping[str, int]) -> JobSpec:
    """Returns the resized spec; ``MIN:MAX`` stays, its size changes inside.

    Args:
        spec: Submitted spec.
        sizes: Nodes by role; others stay.
    """
    if spec.roles:
        roles = tuple(msgspec.structs.replace(role, nnodes=sizes.get(role.name, role.nnodes)) for role in spec.roles)
        return msgspec.structs.replace(spec, roles=roles)
    nodes = sizes.get(spec.role)
    if nodes is None or spec.elastic or nodes == spec.nnodes:
        return spec
    return msgspec.structs.replace(spec, nnodes=nodes, nnodes_max=None)


def check_size(spec: JobSpec, *, nodes: int, role: str | None) -> str:
    """Refuses an impossible size; returns the role's name.

    Args:
        spec: Submitted spec.
        nodes: Requested nodes.
        role: None = the only role.

    Raises:
        SpecError: No such role or size.
        Refused: Impossible resize; names field and alternative.
    """
    roles = first_sizes(spec)
    if role is not None and role not in roles:
        raise SpecError("--role", f"the job has no role {role!r}", hint=f"name one of its roles: {', '.join(roles)}")
    if role is None and len(roles) > 1:
        raise SpecError("--role", "the job has several roles", hint=f"name one of: {', '.join(roles)}")
    if nodes < 1:
        raise SpecError("N", f"{nodes} nodes are too few: at least 1")
    if spec.unattended:
        fraction = spec.success.policy == "fraction"
        raise Refused(
            "$.success.fraction: the number of slots that an unattended job needs is fixed in its object and would not change with the size"
            if fraction
            else "$.unattended: the job has no supervisor, so no process could start it with another size",
            hint="submit it again with the other size, or run it supervised",
        )
    if spec.elastic:
        _check_bounds(spec, nodes)
    return role or next(iter(roles))


def _check_bounds(spec: JobSpec, nodes: int) -> None:
    most = spec.nnodes_max or spec.nnodes
    if nodes > most:
        raise Refused(
            f"$.nnodes_max: {nodes} nodes are more than the MAX of {spec.nnodes}:{most}that every node got at its start",
            hint=f"submit it again with --nnodes {spec.nnodes}:{nodes}",
        )
    if nodes < spec.nnodes:
        raise Refused(
            f"$.nnodes: {nodes} nodes are fewer than the MIN of {spec.nnodes}:{most}, below which the gang does not run",
            hint=f"submit it again with --nnodes {nodes}:{most}, or rankfall suspend",
        )
