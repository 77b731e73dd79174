"""The two watches of a controller: of all Nodes, and of the ConfigMap in which people set its switches."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from rankfall.health.controller import switches
from rankfall.health.controller.loop import Loop
from rankfall.health.controller.patience import doubting
from rankfall.health.controller.telling import LOG
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import CONFIG_MAPS, NODES
from rankfall.kube.watch import watch

#: Nodes that are taken in before others have their turn.
_TOGETHER: Final = 20


async def watch_nodes(kube: Kube, loop: Loop) -> None:
    """Give every change of a Node to the loop, until cancelled.

    Raises:
        KubeError: the server refuses, and goes on refusing.
    """
    following = watch(kube, NODES, keep=_name_of, trouble=_say_trouble, pace=doubting())
    async with contextlib.aclosing(following) as events:
        number = 0
        async for event in events:
            loop.node_event(event)
            number += 1
            if number % _TOGETHER == 0:
                # A list of a thousand comes at once, and the lease is to be renewed meanwhile.
                await asyncio.sleep(0)


async def watch_switches(kube: Kube, loop: Loop, *, namespace: str) -> None:
    """Give what people set to the loop, until cancelled.

    Raises:
        KubeError: as :func:`watch_nodes`.
    """
    following = watch(
        kube,
        CONFIG_MAPS,
        namespace=namespace,
        fields=f"metadata.name={switches.NAME}",
        keep=_name_of,
        trouble=_say_trouble,
        pace=doubting(),
    )
    async with contextlib.aclosing(following) as events:
        async for event in events:
            if event.type != "bookmark":
                loop.switch(switches.read_switches(None if event.type == "deleted" else event.object))


def _name_of(item: dict[str, Any]) -> dict[str, Any]:
    meta = item["metadata"]
    return {"metadata": {"name": meta["name"], "uid": meta.get("uid", "")}}


def _say_trouble(error: KubeError | None) -> None:
    if error is not None:
        LOG.warning("%s", error.message)
