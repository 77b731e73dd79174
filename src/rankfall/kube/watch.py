"""A list that stays true: the objects that fit a selector, then every change, for as long as the caller wants, whatever happens on the way.

One list, then one connection after the other from the last version seen. Where the server has forgotten that version (410) a new list is
compared with what is remembered, so nothing is lost and nothing told twice; several changes of one object in between become one.
Interrupted connections, busy and failing servers are ridden out with growing pauses, without end.

It refuses to ride out what waiting does not heal: 401, 403, a kind that is not served. Those are raised; after a connection that was granted a
denial is doubted for some seconds first, because a server that starts denies what it has not read yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from rankfall.kube.client import Kube
from rankfall.kube.resources import Resource
from rankfall.kube.watch_known import Book, Keep, Object
from rankfall.kube.watch_run import Event, Trouble, Watcher
from rankfall.kube.watch_wait import Pace, Waits

__all__ = ["Event", "Pace", "watch"]


async def watch(
    kube: Kube,
    resource: Resource,
    *,
    namespace: str | None = None,
    labels: str | None = None,
    fields: str | None = None,
    stop: asyncio.Event | None = None,
    keep: Keep | None = None,
    trouble: Trouble | None = None,
    pace: Pace | None = None,
) -> AsyncGenerator[Event, None]:
    """All objects that fit, and every change from then on.

    Close it when leaving early (``contextlib.aclosing``). A consumer that is slow makes the server wait, not this process grow.

    Args:
        kube: an open client.
        resource: the kind.
        namespace: None = the client's, ``client.ALL_NAMESPACES`` = every one.
        labels: selector.
        fields: selector.
        stop: ends the watch when set.
        keep: what is remembered of each object, for the day it vanishes unseen; the memory of a watch is that. None = the whole object.
        trouble: told of each failed try, and None when a connection stands again after that.
        pace: times; None = the usual ones.

    Raises:
        CredentialsError: the server does not know us, not with renewed credentials either.
        ApiError: 403, 404 (the kind is not served) and what else waiting does not heal.
        Unreachable: the server's certificate is refused before the first list.
        KubeError: an object is larger than ``watch_lines.MAX_LINE``.
    """
    watcher = Watcher(kube, resource, namespace=namespace, labels=labels, fields=fields, trouble=trouble, pace=pace)
    async with Waits(stop) as waits, contextlib.aclosing(watcher.events(waits, Book(keep or _whole))) as events:
        async for event in events:
            yield event


def _whole(item: Object) -> Object:
    return item
