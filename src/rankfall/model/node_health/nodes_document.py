"""``rankfall.nodes/1``: what ``rankfall nodes list`` and ``describe`` print. Unknown fields are null."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model.node_health.records import Held, NodeState

NODES_SCHEMA: Final = "rankfall.nodes/1"


class NodeCause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is or was wrong with a node; times are RFC 3339.

    Attributes:
        wants: what it asks for now, by the rules in force.
        count: observations; a lower bound in a storm.
        due: when it reached its threshold.
        cured: it was taken back and not seen since.
        text: the newest line, or the reason that a person gave.
    """

    code: str
    device: str | None
    wants: Literal["none", "watch", "suspect", "quarantine"]
    count: int
    first: str | None
    last: str | None
    due: str | None
    cured: bool
    text: str


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node; times are RFC 3339.

    Attributes:
        tainted: a taint of ours stands on it; ``taints`` are all of them, as ``KEY=VALUE:EFFECT``.
        cordoned: a person keeps the scheduler away from it.
        state: of its record; a node without one is healthy as far as anybody knows.
        held: why it is not quarantined although it should be.
        history: when it was quarantined, oldest first.
        only_a_person: nobody but a person gives it back.
        clean: rounds of checks in a row that passed.
        step: of remediation, as its hook is called.
        problem: why its record is not believed.
    """

    node: str
    pool: str
    ready: bool
    cordoned: bool
    opted_out: bool
    state: NodeState
    since: str | None
    held: Held | None
    tainted: bool
    taints: tuple[str, ...]
    causes: tuple[NodeCause, ...]
    more_causes: int
    history: tuple[str, ...]
    only_a_person: bool
    probation_until: str | None
    cleared: str | None
    clean: int
    checked: str | None
    failed_check: str | None
    step: str | None
    boot: str | None
    past_boots: tuple[str, ...]
    problem: str | None


class NodesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes that were asked for, by name."""

    schema: Literal["rankfall.nodes/1"] = NODES_SCHEMA
    nodes: tuple[NodeStatus, ...]
