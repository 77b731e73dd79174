"""Watches all Nodes and the switches.

A starting API server answers 403 for unread data; a lasting denial ends the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Forbidden, KubeError, ServerError, TooManyRequests, Unauthorized
from rankfall.kube.resources import CONFIG_MAPS, NODES
from rankfall.kube.watch.watcher import Pace, watch
from rankfall.nodes.controller import settings
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.notifier import LOG

#: Seconds of retries after a denial.
DENIED_S: Final = 60.0
_AGAIN_S: Final = 2.0


def doubting() -> Pace:
    """Returns the pace of a watch that retries a denial."""
    return Pace(denied=DENIED_S, doubting=True)


async def until_done(call: Callable[[], Awaitable[None]]) -> None:
    """Repeats a call until it is answered.

    Raises:
        ApiError: A lasting refusal.
    """
    until = time.monotonic() + DENIED_S
    while True:
        try:
            return await call()
        except ApiError as error:
            doubted = isinstance(error, Forbidden | Unauthorized) and time.monotonic() < until
            if not doubted and not isinstance(error, ServerError | TooManyRequests):
                raise
            LOG.warning("%s", error.message)
        except KubeError as error:
            LOG.warning("%s", error.message)
        await asyncio.sleep(_AGAIN_S)


_MAX_CONCURRENT: Final = 20


async def watch_nodes(kube: Kube, loop: Loop) -> None:
    """Passes every Node change to the loop, until canceled.

    Raises:
        KubeError: The server refuses permanently.
    """
    following = watch(kube, NODES, keep=_name_of, trouble=_log_watch_error, pace=doubting())
    async with contextlib.aclosing(following) as events:
        number = 0
        async for event in events:
            loop.node_event(event)
            number += 1
            if number % _MAX_CONCURRENT == 0:
                # A list of a thousand arrives as one; the lease must be renewed.
                await asyncio.sleep(0)


async def watch_switches(kube: Kube, loop: Loop, *, namespace: str) -> None:
    """Passes switch changes to the loop until canceled.

    Raises:
        KubeError: As :func:`watch_nodes`.
    """
    following = watch(
        kube,
        CONFIG_MAPS,
        namespace=namespace,
        fields=f"metadata.name={settings.NAME}",
        keep=_name_of,
        trouble=_log_watch_error,
        pace=doubting(),
    )
    async with contextlib.aclosing(following) as events:
        async for event in events:
            if event.type != "bookmark":
                loop.switch(settings.read_switches(None if event.type == "deleted" else event.object))


def _name_of(item: dict[str, Any]) -> dict[str, Any]:
    meta = item["metadata"]
    return {"metadata": {"name": meta["name"], "uid": meta.get("uid", "")}}


def _log_watch_error(error: KubeError | None) -> None:
    if error is not None:
        LOG.warning("%s", error.message)
