"""Looks at the Leases that kubelets renew, for what they prove of the nodes' clocks; see ``clock_proofs``.

Two looks a node soon after a pod is on it, then one every ten minutes, for at most :data:`MOST` nodes. Who may not read Leases is asked no more
for a while, and nothing is said of it: pods and lines bound the clocks too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, KubeError
from rankfall.kube.resources import LEASES
from rankfall.model.clocks import Bound
from rankfall.observe.cluster.clock_proofs import LeaseLook, lease_look, of_lease

NAMESPACE: Final = "kube-node-lease"
MOST: Final = 16
# A kubelet renews every 10 s.
SOON_S: Final = 15.0
LATER_S: Final = 600.0
_LOOK_S: Final = 1.0


class LeaseLooks:
    """One attempt's.

    Args:
        kube: an open client.
        nodes: names of the nodes that pods are on, at any moment.
        told: takes a node's name and how far its clock is ahead.
    """

    def __init__(self, kube: Kube, *, nodes: Callable[[], Collection[str]], told: Callable[[str, Bound], None]) -> None:
        self._kube, self._nodes, self._told = kube, nodes, told
        self._looks: dict[str, LeaseLook] = {}
        # When each node is due, on the monotonic clock.
        self._due: dict[str, float] = {}
        self._refused_until = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.step(time.monotonic())
            await asyncio.sleep(_LOOK_S)

    async def step(self, now: float) -> None:
        """Look at the nodes that are due.

        Args:
            now: seconds on a clock that never runs backward.
        """
        if now < self._refused_until:
            return
        for name in sorted(self._nodes())[:MOST]:
            if now < self._due.get(name, 0.0):
                continue
            self._due[name] = now + (SOON_S if name not in self._due else LATER_S)
            try:
                item = await self._kube.get(LEASES, name, namespace=NAMESPACE)
            except KubeError as error:
                if isinstance(error, ApiError):
                    self._refused_until = now + LATER_S
                return
            look = lease_look(item, seen_ns=time.time_ns())
            if look is not None:
                self._told(name, of_lease(look, self._looks.get(name), server=self._kube.server_ahead))
                self._looks[name] = look
