"""``rankfall.nodes/1``, printed by ``rankfall nodes list`` and ``describe``. Unknown fields: null."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model.node_health.records import Held, NodeState

NODES_SCHEMA: Final = "rankfall.nodes/1"


class NodeCause(msgspec.Struct, frozen=True, kw_only=True):
    """One past or present fault; RFC 3339 times.

    Attributes:
        wants: Action demanded by current rules.
        count: Observations; a lower bound.
        due: Time of reaching its threshold.
        cured: Cleared and not seen since.
        text: Newest line, or a person's reason.
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
    """One node; RFC 3339 times.

    Attributes:
        tainted: True with Rankfall's taint; ``taints`` lists all as ``KEY=VALUE:EFFECT``.
        cordoned: True if a person made it unschedulable.
        state: State of its record; default: healthy.
        held: Obstacle to a due quarantine.
        history: Quarantines, oldest first.
        only_a_person: True if only a person may release it.
        clean: Consecutive passed rounds of checks.
        step: Remediation step that has begun.
        problem: Reason why its record is invalid.
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
    """All requested nodes, by name."""

    schema: Literal["rankfall.nodes/1"] = NODES_SCHEMA
    nodes: tuple[NodeStatus, ...]
