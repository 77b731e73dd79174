"""Whether a job runs on a node: asked only of nodes where something waits for its end, so a cluster at rest is asked for no pod.

A job is a pod that asks for devices (a resource with a domain in its name, or a claim) and has not ended. Pods of DaemonSets, of the node itself and the controller's own
checks are none. Who may not list pods cannot tell, and what cannot be told counts as a job that runs: nothing is ever drained by a guess.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rankfall.health import nodes
from rankfall.health.controller.loop import Loop
from rankfall.health.controller.nodebook import NodeBook
from rankfall.health.controller.telling import LOG
from rankfall.kube.client import ALL_NAMESPACES, Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import PODS

#: Between two looks at the pods of nodes on which something waits, seconds.
LOOK_S: Final = 10.0


class Occupied:
    """Looks.

    Args:
        kube: an open client that may list pods.
        book: of the Nodes; it is told which have no job.
        loop: names the policy.
        namespace: of the controller's own Jobs.
        look_s: between two looks.
        clock: nanoseconds since the epoch.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeBook,
        loop: Loop,
        namespace: str,
        look_s: float = LOOK_S,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._kube, self._book, self._loop, self._namespace = kube, book, loop, namespace
        self._look_s, self._clock = look_s, clock
        self._told: set[str] = set()
        self._waiting: set[str] = set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """One look at each node with a fault that waits for the end of its job."""
        if not self._loop.in_force.policy.after_job:
            return
        for name, node in list(self._book.nodes.items()):
            record = node.view.record
            if record is not None and nodes.awaits_idle(record, self._loop.in_force.rules):
                begun = self._clock()
                if await self.idle(name):
                    self._book.idle[name] = begun
                    self._waiting.discard(name)
                    continue
                self._book.idle.pop(name, None)
                if name not in self._waiting:
                    LOG.info("node `%s`: what waits for the end of the job on it goes on waiting", name)
                    self._waiting.add(name)

    async def idle(self, name: str) -> bool:
        """Whether no job runs on a node; false also where that cannot be seen."""
        try:
            # Of all namespaces: with one, only the controller's own would be seen, and every node would be idle.
            found = await self._kube.list(PODS, namespace=ALL_NAMESPACES, fields=f"spec.nodeName={name}")
        except KubeError as error:
            if name not in self._told:
                LOG.warning("whether a job runs on node `%s` cannot be seen: %s", name, error.message)
                self._told.add(name)
            return False
        self._told.discard(name)
        return not any(_is_job(each, own=self._namespace) for each in found.items)


def _is_job(pod: Mapping[str, Any], *, own: str) -> bool:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if status.get("phase") in {"Succeeded", "Failed"} or meta.get("namespace") == own:
        return False
    if any(each.get("kind") in {"DaemonSet", "Node"} for each in meta.get("ownerReferences") or ()):
        return False
    if spec.get("resourceClaims"):
        return True
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    asked = [(each.get("resources") or {}).get(kind) or {} for each in containers for kind in ("requests", "limits")]
    return any("/" in name for each in asked for name in each)
