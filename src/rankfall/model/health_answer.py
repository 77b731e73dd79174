"""What a node's record answers to the verdict of a run: whether the controller took it up, and what it made of it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model.health import MAX_MESSAGE, NodeHealth, shown
from rankfall.model.health_verdict import RunVerdict

#: Lease by which controllers of node health say who of them acts, and the namespace in which it is by default.
LEASE: Final = "rankfall-controller"
NAMESPACE: Final = "rankfall"
#: Environment of a supervisor: another namespace of the controller.
CONTROLLER_NAMESPACE: Final = "RANKFALL_CONTROLLER_NAMESPACE"

#: ``waiting``: not taken up yet; ``none``: nobody is there who could.
State = Literal["tainted", "held", "noted", "waiting", "none"]


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a verdict on its node.

    Attributes:
        state: ``tainted``: the scheduler keeps away; ``held``: it should, and a limit forbids; ``noted``: written down, or of no weight.
        text: why, as the node's condition says it; bounded, without control characters.
    """

    state: State
    text: str = ""


def answer_of(health: NodeHealth | None, verdict: RunVerdict, *, condition: str = "") -> NodeAnswer:
    """Read the answer out of a node's record.

    Args:
        health: the record; None = there is none.
        verdict: that was told.
        condition: message of the node's condition.
    """
    outcome = next((each.outcome for each in health.answered if each.id == verdict.id), None) if health else None
    if health is None or outcome is None:
        return NodeAnswer(state="waiting")
    told = shown(condition, MAX_MESSAGE)
    # Record and taint are one request, so a record that says so is the API server's word for the taint.
    if health.tainted:
        return NodeAnswer(state="tainted", text=told)
    if health.held is not None:
        return NodeAnswer(state="held", text=told)
    return NodeAnswer(state="noted", text=told if outcome == "counted" else f"{outcome}: {told}")
