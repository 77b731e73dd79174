"""Runs rounds of checks on nodes that may be returned, one node at a time.

Jobs have deterministic names, so a killed controller finds them. No pod is evicted.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.model.node_health.records import NodeHealth
from rankfall.nodes.checks.rounds import Round, run_checks
from rankfall.nodes.config import ConfigFile
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG
from rankfall.nodes.rules.node_objects import NodeObject
from rankfall.nodes.rules.node_state import CheckRound

#: Seconds between searches for a due node.
POLL_INTERVAL_S: Final = 2.0
#: Seconds after a round that could not begin.
REFUSED_S: Final = 60.0
_SECOND: Final = 1_000_000_000


class Validator:
    """Runs rounds of checks."""

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeCache,
        loop: Loop,
        config: ConfigFile,
        namespace: str,
        check: Callable[..., Awaitable[Round]] = run_checks,
        poll_interval_s: float = POLL_INTERVAL_S,
        refused_s: float = REFUSED_S,
    ) -> None:
        self._kube, self._book, self._loop, self._config = kube, book, loop, config
        self._namespace, self._check = namespace, check
        self._poll_interval_s, self._refused_s = poll_interval_s, refused_s

    async def run(self) -> None:
        """Checks forever."""
        while True:
            await asyncio.sleep(self._poll_interval_s)
            found = self.next_node(now=time.time_ns())
            if found is not None:
                await self._round(*found)

    def next_node(self, *, now: int) -> tuple[NodeObject, NodeHealth] | None:
        """Returns the node that waited longest for its next round; None if none is due or none may return."""
        policy = self._loop.in_force.policy
        if not self._config.config.checks or policy.kill_switch:
            return None
        # More frequent rounds would prove no more.
        apart = policy.clean_s * _SECOND // max(1, policy.clean_rounds - 1)
        waiting = [
            (node, record)
            for node in self._book.nodes.values()
            if (record := node.view.record) is not None
            and record.state == "validating"
            and not node.view.hands_off
            and (record.checked_at is None or now - record.checked_at >= apart)
        ]
        return min(waiting, key=lambda each: (each[1].checked_at or 0, each[0].name), default=None)

    async def _round(self, node: NodeObject, record: NodeHealth) -> None:
        word = hashlib.blake2b(f"{record.since} {record.checked_at}".encode(), digest_size=4).hexdigest()
        try:
            done = await self._check(
                self._kube,
                self._config.config.checks,
                node=node.name,
                peer=self._peer(node.name),
                namespace=self._namespace,
                policy=self._loop.in_force.policy,
                round_=word,
            )
        except KubeError as error:
            LOG.warning("node `%s` cannot be checked now: %s", node.name, error.message)
            await asyncio.sleep(self._refused_s)
            return
        LOG.info(
            "node `%s`: checks %s%s", node.name, done.round.outcome, f": {done.round.check}" if done.round.check else ""
        )
        rounds: Sequence[CheckRound] = [done.round]
        await self._loop.give(rounds)

    def _peer(self, name: str) -> str | None:
        policy = self._loop.in_force.policy
        good = (
            each.name
            for each in self._book.nodes.values()
            if each.name != name
            and each.view.ready
            and not each.cordoned
            and not each.view.tainted(policy)
            and (each.view.record is None or each.view.record.state == "healthy")
        )
        return min(good, default=None)
