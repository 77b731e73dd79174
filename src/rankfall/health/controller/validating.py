"""Has the nodes checked that may be given back: rounds of the operator's checks on nodes that are validating, one node at a time.

What a round means is the core's matter. Its Jobs are named after the state of the record, so a controller that is killed in a round finds them again. Checks ask
for all GPUs of a node, so where a job still runs there they wait, and a round that could not be made is no pass: nobody's pods are touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rankfall.health.checks.rounds import Round, run_checks
from rankfall.health.config import ConfigFile
from rankfall.health.controller.loop import Loop
from rankfall.health.controller.nodebook import NodeBook
from rankfall.health.controller.telling import LOG
from rankfall.health.node_objects import NodeObject
from rankfall.health.nodes import CheckRound
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.model.health import NodeHealth

#: Between two looks for a node whose turn it is, seconds.
LOOK_S: Final = 2.0
#: After a round that could not even be begun, seconds.
REFUSED_S: Final = 60.0
_SECOND: Final = 1_000_000_000


class Validator:
    """Makes rounds of checks.

    Args:
        kube: an open client that may make Jobs.
        book: of the Nodes.
        loop: takes the rounds.
        config: has the checks.
        namespace: of the Jobs.
        check: makes a round.
        look_s: between two looks.
        refused_s: after a round that could not be begun.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeBook,
        loop: Loop,
        config: ConfigFile,
        namespace: str,
        check: Callable[..., Awaitable[Round]] = run_checks,
        look_s: float = LOOK_S,
        refused_s: float = REFUSED_S,
    ) -> None:
        self._kube, self._book, self._loop, self._config = kube, book, loop, config
        self._namespace, self._check = namespace, check
        self._look_s, self._refused_s = look_s, refused_s

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(self._look_s)
            found = self.whose_turn(now=time.time_ns())
            if found is not None:
                await self._round(*found)

    def whose_turn(self, *, now: int) -> tuple[NodeObject, NodeHealth] | None:
        """The node that waited longest for its next round; None = none, or nothing may be given back now."""
        policy = self._loop.in_force.policy
        if not self._config.config.checks or policy.kill_switch:
            return None
        # So many rounds must cover that time; more often would prove no more.
        apart = policy.clean_s * _SECOND // max(1, policy.clean_rounds - 1)
        waiting = [
            (node, record)
            for node in self._book.nodes.values()
            if (record := node.view.record) is not None
            and record.state == "validating"
            and not node.view.opted_out
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
