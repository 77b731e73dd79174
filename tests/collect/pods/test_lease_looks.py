"""Looks at the Leases of kubelets: how many, of whom, and what is done when they may not be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rankfall.collect.pods.cluster_context import LATER_S, MOST, SOON_S, LeasePoller
from rankfall.kube.errors import ApiError, KubeError, Unreachable
from rankfall.model.timestamps import EXACT, Bound


class Server:
    """Knows one Lease a node, renewed with every look."""

    server_ahead = EXACT

    def __init__(self, error: KubeError | None = None) -> None:
        self.asked: list[str] = []
        self.error = error

    async def get(self, _resource: object, name: str, *, namespace: str) -> dict[str, Any]:
        assert namespace == "kube-node-lease"
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        second = len(self.asked)
        fields = {"time": f"2026-11-21T16:00:{second:02d}Z", "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
        spec = {"renewTime": f"2026-11-21T16:00:{second:02d}.500000Z"}
        return {"metadata": {"name": name, "managedFields": [fields]}, "spec": spec}


def looks(server: Server, *nodes: str) -> tuple[LeasePoller, dict[str, Bound]]:
    told: dict[str, Bound] = {}
    return LeasePoller(server, nodes=lambda: nodes, on_lease=told.__setitem__), told  # type: ignore[arg-type]


def test_two_looks_soon_and_one_now_and_then_bound_a_nodes_clock_on_both_sides():
    server = Server()
    made, told = looks(server, "n1")

    async def all_steps() -> None:
        await made.step(0.0)
        assert told["n1"].hi is None
        for now in (1.0, SOON_S - 1, SOON_S, SOON_S + LATER_S - 1):
            await made.step(now)
        assert server.asked == ["n1"] * 2
        assert told["n1"].lo is not None
        assert told["n1"].hi == 1_500_000_000
        await made.step(SOON_S + LATER_S)

    asyncio.run(all_steps())
    assert server.asked == ["n1"] * 3


@pytest.mark.parametrize(
    ("error", "again"), [(ApiError("no", status=403), LATER_S), (Unreachable("cut"), SOON_S)], ids=["refused", "cut"]
)
def test_who_may_not_look_asks_once_and_a_cut_is_no_refusal(error, again):
    server = Server(error)
    made, told = looks(server, "n1", "n2")

    async def all_steps() -> None:
        await made.step(0.0)
        assert server.asked == ["n1"]
        await made.step(again - 1)
        before = len(server.asked)
        await made.step(again)
        assert len(server.asked) == before + 1

    asyncio.run(all_steps())
    assert told == {}


def test_of_very_many_nodes_only_some_are_looked_at():
    server = Server()
    made, told = looks(server, *(f"n{number}" for number in range(1000)))
    asyncio.run(made.step(0.0))
    assert len(server.asked) == len(told) == MOST
