"""Opens the log of one container: bytes in the order in which they come, nothing cut, nothing joined.

Resuming, lines and timestamps are the reader's work; messages of the kubelet in a body: ``kubelet_messages``.
Refused is what the API would refuse or round silently: a start without a time zone, a tail below 0.
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
    """Open a log; its chunks, none of them empty.

    A follow ends in order when the container ends, but also when the kubelet, the API server or a load balancer have had enough: the end of
    the chunks says nothing about the container. A pod that has no node yet has an empty log.

    Args:
        kube: an open client.
        pod: its name.
        container: its name; the API does not choose one.
        namespace: None = the client's.
        follow: stay until the log ends.
        since: lines of this time and later. The API knows whole seconds, so it is rounded down: lines before it may come too.
        since_second: the same as whole seconds since the epoch; one of the two.
        tail: at most so many *fragments* from the end (a line of more than 16 KiB has several); the API takes them before it looks at ``since``,
            so both together lose lines.
        previous: of the container's instance before this one.
        timestamps: a stamp before each line; without them the kubelet's complaints cannot be told from lines of the job.
        limit_bytes: at most so many.
        read_timeout: longest silence in seconds, then ``Unreachable``; None = any.
        gather_s: after each chunk the next one is left to gather this long; the first after a silence comes at once.
        repeat: let the client repeat the opening at its own pace; False = the caller does.

    Raises:
        ValueError: see above.
        ApiError: 400 with ``not_started(error.message)`` when the container has not begun, or without when there is no such container or no
            previous instance; ObjectNotFound when there is no such pod.
        Unreachable: no answer; also out of the chunks, when the connection breaks.
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
        # Older API servers send the head with the first byte, and that may take as long as the job is silent.
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
            # Also without a pause others have their turn: a body may come as fast as it is read.
            await (body.gather(gather_s, size=len(chunk)) if gather_s else asyncio.sleep(0))
            continue
        # Outside the block: aiohttp's errors carry the headers that were sent, and must not be chained to ours.
        raise lost


def _params(**given: str | None) -> dict[str, str]:
    return {name: value for name, value in given.items() if value is not None}


def _rfc3339(since: datetime | None, second: int | None) -> str | None:
    if since is not None:
        if second is not None:
            raise ValueError("since and since_second say the same thing: give one of them")
        if since.tzinfo is None:
            raise ValueError("since has no time zone: the node's clock cannot be compared with it")
        moment = since.astimezone(UTC)
    elif second is not None:
        moment = datetime.fromtimestamp(second, UTC)
    else:
        return None
    # Down, also before the epoch; int() would round those up.
    return f"{moment.replace(microsecond=0, tzinfo=None).isoformat()}Z"


def _count(name: str, value: int | None, *, least: int) -> str | None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}: at least {least}")
    return None if value is None else str(value)
