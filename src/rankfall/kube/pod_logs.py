"""Opens one container's log as ordered chunks of bytes, and recognizes the kubelet's messages in it.

A start without time zone and a negative tail are refused. The kubelet's messages, as of Kubernetes 1.25 to 1.34, end a
body, without LF. Lines with a timestamp never count: a job may print the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, Literal

import aiohttp
import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.http.body_stream import BodyStream
from rankfall.kube.http.responses import broken
from rankfall.kube.resources import PODS
from rankfall.model.patterns import bounded

Kind = Literal["gone", "limits", "runtime", "file"]

# The kubelet's timestamp before every line.
STAMP: Final = bounded(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ", limit=8_192)
# A path and an error number: a few hundred bytes.
MAX_COMPLAINT: Final = 4096

_PATH: Final = rb'"(?:[^"\\]|\\.)*"'
_TABLE: Final[tuple[tuple[Kind, bytes], ...]] = (
    ("gone", rb"unable to retrieve container logs for \S+"),
    ("gone", rb"failed to try resolving symlinks in path " + _PATH + rb": .*"),
    ("gone", rb"failed to open log file " + _PATH + rb": .*"),
    ("limits", rb"failed to create fsnotify watcher: .*"),
    ("limits", rb"failed to watch (?:directory|file) " + _PATH + rb": .*"),
    ("file", rb"failed to (?:tail -?\d+ lines of|seek -?\d+ in|read|reset seek in) log file " + _PATH + rb": .*"),
    ("file", rb"failed to get parse function: .*"),
    ("file", rb"container status is nil"),
    ("runtime", rb"rpc error: code = \w+ desc = .*"),
    ("runtime", rb"context cancell?ed"),
)
_COMPLAINTS: Final = tuple((kind, bounded(pattern, limit=8_192)) for kind, pattern in _TABLE)


class Complaint(msgspec.Struct, frozen=True):
    """Error message of the kubelet in place of a log line.

    Attributes:
        kind: ``gone``: no log; ``limits``: no inotify watch left, retry later; ``runtime``: runtime
            unreachable; ``file``: unreadable log.
        text: Message of the kubelet.
    """

    kind: Kind
    text: str


def complaint(piece: bytes) -> Complaint | None:
    """Returns the kubelet's message at the end of a body, or None."""
    if not piece or len(piece) > MAX_COMPLAINT or b"\n" in piece or STAMP.match(piece):
        return None
    for kind, pattern in _COMPLAINTS:
        if pattern.fullmatch(piece):
            return Complaint(kind=kind, text=piece.decode("utf-8", "replace"))
    return None


# Rankfall's messages end with the status in parentheses.
_WAITS: Final = bounded(
    r'container "[^"]*" in pod "[^"]*" is waiting to start(?:: (?P<why>[^\n]*?)| - no logs yet)(?: \(\d{3}(?: \w+)?\))?$',
    limit=8_192,
)
_NOT_THERE: Final = bounded(
    r'container "[^"]*" in pod "[^"]*" is not available|pod "[^"]*" cannot be found - no logs available', limit=8_192
)


def not_started(message: str) -> str | None:
    """Returns from a 400 message why a container has no log yet, as ``ContainerCreating``, or None.

    Such a container is a state to wait in.
    """
    found = _WAITS.search(message)
    if found:
        return found["why"] or ""
    return "" if _NOT_THERE.search(message) else None


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
