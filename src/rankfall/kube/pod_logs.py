"""Opens one container's log as ordered chunks of bytes.

A start without time zone and a negative tail are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp

from rankfall.kube.client import Kube
from rankfall.kube.http.body_stream import BodyStream
from rankfall.kube.http.responses import broken
from rankfall.kube.kubelet_messages import Complaint, complaint, not_started
from rankfall.kube.resources import PODS

__all__ = ["Complaint", "complaint", "not_started", "open_log"]


@asynccontextmanager
async def open_log(
    kube: Kube,
    pod: str,
    *,
    container: str,
    namespace: str | None = None,
    follow: bool = False,
    since: datetime | None = None,
    since_second: int | None = None,
    tail: int | None = None,
    previous: bool = False,
    timestamps: bool = True,
    limit_bytes: int | None = None,
    read_timeout: float | None = None,
    gather_s: float = 0.0,
    repeat: bool = False,
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Opens a log and yields its chunks, none of them empty.

    A followed log also ends when kubelet, API server or load balancer close it. A pod without a node has an empty log.

    The API rounds ``since`` down to seconds. ``tail`` counts *fragments* (lines over 16 KiB have several) and is
    applied before ``since``: used with it, lines are lost.

    Without ``timestamps`` the kubelet's messages are indistinguishable from lines. ``gather_s``: seconds to collect
    after each chunk; the first after silence comes immediately.

    Raises:
        ValueError: ``since`` has no time zone, or ``tail`` is negative.
        ApiError: 400: see ``not_started``; else no such container or instance.
        ObjectNotFound: No such pod.
        Unreachable: No answer or a broken connection.
    """
    params = _params(
        container=container,
        follow="true" if follow else None,
        previous="true" if previous else None,
        timestamps="true" if timestamps else None,
        sinceTime=_rfc3339(since, since_second),
        tailLines=_count("tail", tail, least=0),
        limitBytes=_count("limit_bytes", limit_bytes, least=1),
    )
    space = kube.namespace if namespace is None else namespace
    what = f"log of {PODS.label(pod, space)}, container {container}"
    opened = kube.open_body(
        PODS.path(space, pod, "log"),
        params=params,
        read_timeout=read_timeout,
        # Older API servers send headers with the first byte, possibly late.
        head_timeout=read_timeout,
        verb="get",
        what=what,
        repeat=repeat,
    )
    async with opened as body:
        yield _chunks(body, what=f"get {what}", server=kube.access.server, gather_s=gather_s)


async def _chunks(body: BodyStream, *, what: str, server: str, gather_s: float) -> AsyncIterator[bytes]:
    while True:
        try:
            chunk = await body.chunk()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            lost = broken(error, what=what, server=server)
        else:
            if not chunk:
                return
            yield chunk
            # Yields to other tasks: a body may arrive as fast as read.
            await (body.gather(gather_s, size=len(chunk)) if gather_s else asyncio.sleep(0))
            continue
        # Outside the block: aiohttp's errors contain sent headers and must not be chained.
        raise lost


def _params(**given: str | None) -> dict[str, str]:
    return {name: value for name, value in given.items() if value is not None}


def _rfc3339(since: datetime | None, second: int | None) -> str | None:
    if since is not None:
        if second is not None:
            raise ValueError("since and since_second contradict each other: give one of them")
        if since.tzinfo is None:
            raise ValueError("since has no time zone: the node's clock cannot be compared with it")
        moment = since.astimezone(UTC)
    elif second is not None:
        moment = datetime.fromtimestamp(second, UTC)
    else:
        return None
    # Rounded down, also before the epoch.
    return f"{moment.replace(microsecond=0, tzinfo=None).isoformat()}Z"


def _count(name: str, value: int | None, *, least: int) -> str | None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}: at least {least}")
    return None if value is None else str(value)
