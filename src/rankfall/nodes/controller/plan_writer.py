"""Writes a plan: stored state, then record and taint of each Node, conditions, Events.

The lease is checked before each write. A Node that changed repeats the step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Literal

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Conflict, KubeError, ObjectNotFound, ServerError, TooManyRequests
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG, Notifier
from rankfall.nodes.node_writes import write_condition, write_node
from rankfall.nodes.rules import node_state
from rankfall.nodes.rules.fault_rules import Rules
from rankfall.nodes.rules.planner import EVENT_MAX_AGE_NS, NodeEvent, NodePatch, Plan
from rankfall.nodes.rules.policy import Policy

_AT_ONCE: Final = 8

#: ``refused`` is final; ``later`` may succeed.
Written = Literal["written", "changed", "gone", "refused", "later"]


class LeadershipLost(Exception):
    """This process may not act any more."""


@contextlib.contextmanager
def sole_writer() -> Iterator[None]:
    """Guards writes in the block, which only the leader may make.

    Raises:
        LeadershipLost: Another controller wrote.
    """
    try:
        yield
    except Conflict as error:
        LOG.warning("another controller wrote the state: %s", error.message)
        raise LeadershipLost from error


class PlanWriter:
    """Writes plans to the Nodes; without ``kube`` nothing (dry run).

    Attributes:
        untold: True if an Event could not be sent and must be repeated.
    """

    def __init__(
        self,
        kube: Kube | None,
        *,
        book: NodeCache,
        sure: Callable[[], Awaitable[bool]],
        teller: Notifier,
        metrics: Metrics,
    ) -> None:
        self._kube = kube
        self._book = book
        self._sure = sure
        self._notifier = teller
        self._metrics = metrics
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._sent: set[tuple[str, str, int]] = set()
        self._began = 0
        self.untold = False

    async def apply(self, plan: Plan, *, policy: Policy, now: int) -> dict[str, Written]:
        """Writes a plan whose safety is stored. Returns the outcome by Node.

        Raises:
            LeadershipLost: Another process may act.
        """
        kube = self._kube
        if kube is None:
            await self._notifier.happened(plan.happenings, now=now)
            return {}
        results = await asyncio.gather(*(self._node(kube, patch, policy=policy) for patch in plan.patches))
        found = {patch.node: result for patch, result in zip(plan.patches, results, strict=True)}
        for patch in plan.patches:
            self._count(patch, found[patch.node], policy=policy)
        settled = [each for each in plan.happenings if found.get(each.node, "written") == "written"]
        done = [patch for patch in plan.patches if found[patch.node] == "written"]
        await asyncio.gather(*(self._condition(kube, patch, policy=policy, now=now) for patch in done))
        await self._notifier.happened(settled, now=now)
        return found

    async def repair_conditions(self, *, rules: Rules, policy: Policy, now: int) -> None:
        """Writes conditions that differ from the records, because a kill may come between both.

        Raises:
            LeadershipLost: As :meth:`apply`.
        """
        kube = self._kube
        if kube is None:
            return
        for node in list(self._book.nodes.values()):
            record = node.view.record
            if record is None:
                continue
            condition = node_state.condition(record, rules)
            before = node.condition or {}
            if any(before.get(key) != value for key, value in msgspec.structs.asdict(condition).items()):
                patch = NodePatch(
                    node=node.name, version=node.view.version, taint="keep", record=record, condition=condition
                )
                await self._condition(kube, patch, policy=policy, now=now)

    async def tell(self, *, now: int, until: int) -> int:
        """Sends unsent Events of the records; returns the time up to which all are sent, nanoseconds since the epoch.

        That is ``until`` if some remain.

        Raises:
            LeadershipLost: As :meth:`apply`.
        """
        self._began = self._began or now
        due = [
            (NodeEvent(node=node.name, reason=each.reason, message=each.message, warning=each.warning), each.at)
            for node in list(self._book.nodes.values())
            for each in (node.view.record.untold if node.view.record is not None else ())
            if now - each.at <= EVENT_MAX_AGE_NS and (node.name, each.reason, each.at) not in self._sent
            if each.at > until or each.at >= self._began
        ]
        self._sent = {each for each in self._sent if now - each[2] <= EVENT_MAX_AGE_NS}
        done = await asyncio.gather(*(self._event(event, at=at) for event, at in due))
        self.untold = not all(done)
        return max(now, until) if done and all(done) else until

    async def _event(self, event: NodeEvent, *, at: int) -> bool:
        async with self._slots:
            if not await self._sure():
                raise LeadershipLost
            sent = await self._notifier.event(event, at=at, about=str(at))
            if sent:
                self._sent.add((event.node, event.reason, at))
            return sent

    async def _node(self, kube: Kube, patch: NodePatch, *, policy: Policy) -> Written:
        async with self._slots:
            if not await self._sure():
                raise LeadershipLost
            node = self._book.nodes.get(patch.node)
            if node is None:
                return "gone"
            if node.view.version != patch.version:
                return "changed"
            try:
                item = await write_node(kube, patch, node=node, policy=policy, also=policy.keys)
            except Conflict:
                return "changed"
            except ObjectNotFound:
                LOG.warning("node `%s` no longer exists; its changes are dropped", patch.node)
                return "gone"
            except KubeError as error:
                LOG.warning("node `%s` cannot be written: %s", patch.node, error.message)
                return _lasting(error)
            self._book.written(item, policy=policy)
            return "written"

    async def _condition(self, kube: Kube, patch: NodePatch, *, policy: Policy, now: int) -> None:
        async with self._slots:
            if not await self._sure():
                raise LeadershipLost
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
