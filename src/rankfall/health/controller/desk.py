"""Carries out what a step decided: first what must outlive us, then record and taint of each Node, then conditions, then Events.

Before each write the lease is asked for: who lost it writes nothing more. A write that is refused because somebody changed the Node is no failure: the step is
made again with the Node as it is. A Node that is gone is said and left; it never keeps the others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from rankfall.health import nodes
from rankfall.health.controller.metrics import Metrics
from rankfall.health.controller.nodebook import NodeBook
from rankfall.health.controller.telling import LOG, Teller
from rankfall.health.machine import NodePatch, Plan
from rankfall.health.node_writes import write_condition, write_node
from rankfall.health.policy import Policy
from rankfall.health.rules import Rules
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Conflict, KubeError, ObjectNotFound, ServerError, TooManyRequests

_AT_ONCE: Final = 8

#: ``refused``: the server will say so again; ``later``: the same may succeed.
Written = Literal["written", "changed", "gone", "refused", "later"]


class LeaseGone(Exception):  # noqa: N818 - reads as the answer that it is
    """This process may not act any more."""


class Desk:
    """Writes.

    Args:
        kube: an open client; None = nothing is written (dry run).
        book: of the Nodes; the answers go there.
        firm: whether nobody else can be acting now.
        teller: tells people.
        metrics: counts.
    """

    def __init__(
        self, kube: Kube | None, *, book: NodeBook, firm: Callable[[], bool], teller: Teller, metrics: Metrics
    ) -> None:
        self._kube = kube
        self._book = book
        self._firm = firm
        self._teller = teller
        self._metrics = metrics
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def carry_out(self, plan: Plan, *, policy: Policy, now: int) -> dict[str, Written]:
        """Write what was decided; what became of each Node's part.

        Args:
            plan: its safety is stored already.
            policy: in force.
            now: nanoseconds since the epoch.

        Raises:
            LeaseGone: somebody else may act; what was not written yet is not written.
        """
        kube = self._kube
        if kube is None:
            await self._teller.happened(plan.happenings, now=now)
            return {}
        results = await asyncio.gather(*(self._node(kube, patch, policy=policy) for patch in plan.patches))
        found = {patch.node: result for patch, result in zip(plan.patches, results, strict=True)}
        for patch in plan.patches:
            self._count(patch, found[patch.node], policy=policy)
        settled = [each for each in plan.happenings if found.get(each.node, "written") == "written"]
        done = [patch for patch in plan.patches if found[patch.node] == "written"]
        await asyncio.gather(*(self._condition(kube, patch, policy=policy, now=now) for patch in done))
        await self._teller.happened(settled, now=now)
        return found

    async def mend_conditions(self, *, rules: Rules, policy: Policy, now: int) -> None:
        """Write the conditions that are not as the records say: a kill may come between both.

        Raises:
            LeaseGone: as :meth:`carry_out`.
        """
        kube = self._kube
        if kube is None:
            return
        for node in list(self._book.nodes.values()):
            record = node.view.record
            if record is None:
                continue
            told = nodes.condition(record, rules)
            before = node.condition or {}
            if any(before.get(key) != value for key, value in msgspec.structs.asdict(told).items()):
                patch = NodePatch(
                    node=node.name, version=node.view.version, taint="keep", record=record, condition=told
                )
                await self._condition(kube, patch, policy=policy, now=now)

    async def _node(self, kube: Kube, patch: NodePatch, *, policy: Policy) -> Written:
        async with self._slots:
            if not self._firm():
                raise LeaseGone
            node = self._book.nodes.get(patch.node)
            if node is None:
                return "gone"
            if node.view.version != patch.version:
                return "changed"
            try:
                item = await write_node(kube, patch, node=node, policy=policy)
            except Conflict:
                return "changed"
            except ObjectNotFound:
                LOG.warning("node `%s` is gone; nothing is written of it", patch.node)
                return "gone"
            except KubeError as error:
                LOG.warning("node `%s` cannot be written: %s", patch.node, error.message)
                return _lasting(error)
            self._book.written(item, policy=policy)
            return "written"

    async def _condition(self, kube: Kube, patch: NodePatch, *, policy: Policy, now: int) -> None:
        async with self._slots:
            if not self._firm():
                raise LeaseGone
            node = self._book.nodes.get(patch.node)
            if node is None:
                return
            try:
                item = await write_condition(kube, patch, node=node, now=now)
            except ObjectNotFound:
                return
            except KubeError as error:
                LOG.warning("the condition of node `%s` cannot be written: %s", patch.node, error.message)
                return
            if item is not None:
                self._book.written(item, policy=policy)

    def _count(self, patch: NodePatch, result: Written, *, policy: Policy) -> None:
        self._metrics.add("health_writes_total", result=result)
        if result != "written" or patch.taint == "keep":
            return
        taint = f"{policy.key}={policy.value}:{policy.effect}"
        if patch.taint == "add":
            LOG.info("Node %s tainted. (%s)", patch.node, taint)
            self._metrics.add("health_quarantined_total")
        else:
            LOG.info("Node %s taint removed. (%s)", patch.node, taint)
            self._metrics.add("health_returned_total")


def _lasting(error: KubeError) -> Written:
    passing = not isinstance(error, ApiError) or isinstance(error, ServerError | TooManyRequests)
    return "later" if passing else "refused"
