"""Watches all objects that match a selector: one list, then connections from the last version seen.

After 410 a new list is compared with the known objects: nothing is lost or reported twice, and several
changes of one object in between become one. Broken connections and failing servers are retried with back-off,
without end. 401, 403 and kinds that are not served are raised; after a connection that was granted a denial
is doubted for some seconds, because a starting server denies what it has not read yet. Half a line and a line
beyond ``MAX_LINE`` are never decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Literal

import aiohttp
import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import (
    ApiError,
    CredentialsError,
    Expired,
    Forbidden,
    KubeError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from rankfall.kube.http import responses
from rankfall.kube.http.responses import broken
from rankfall.kube.request import labelled
from rankfall.kube.resources import Resource
from rankfall.kube.watch.known_objects import Book, Change, Head, Keep, Object, head_of, is_object, version_of
from rankfall.kube.watch.pace import Pace, Waits
from rankfall.model import decoding

__all__ = ["Event", "Pace", "watch"]

# An object is at most about 1.5 MiB in etcd; its JSON with managed fields is a few times that in the worst case.
MAX_LINE: Final = 16 << 20


class LineTooLong(ValueError):  # noqa: N818 - reads as the answer that it is
    """A line is longer than the bound."""


class Lines:
    """Cuts chunks into lines.

    Args:
        limit: longest line in bytes, without its LF.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of the line that has not ended yet."""
        return self._held

    def push(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, without LF; empty ones are left out.

        Raises:
            LineTooLong: a line is longer than the bound; what this object held is gone.
        """
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        found: list[bytes] = []
        for piece in rest:
            # Joined once per line: adding to a bytes object would make a long line cost the square of its length.
            found.append(b"".join(self._pieces))
            self._pieces, self._held = [], 0
            self._hold(piece)
        return [line for line in found if line]

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._limit:
            self._pieces, self._held = [], 0
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        if piece:
            self._pieces.append(piece)


_DENIED: Final = frozenset({401, 403})


class Gap(Exception):  # noqa: N818 - not an error: the server's history has a hole, a list closes it
    """The next try has to begin with a list.

    Args:
        error: that said so.
    """

    def __init__(self, error: KubeError) -> None:
        super().__init__(error.message)
        self.error = error


def of_answer(error: ApiError) -> ApiError | Gap:
    """Whether an answer calls for a new list."""
    return Gap(error) if isinstance(error, Expired) or _version_too_new(error) else error


def of_body(status: Any, line: bytes, *, what: str) -> ApiError | Gap:
    """The error for an ``ERROR`` in the body.

    A server that breaks off there with anything but a refusal or a wish for patience cannot go on from this version; a new list always can.

    Args:
        status: the Status object, or whatever stands in its place.
        line: the whole line.
        what: verb and object, for the message.
    """
    code = status.get("code") if isinstance(status, dict) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return unreadable(line, what=what)
    error = responses.refused(responses.Refusal(code, {}, msgspec.json.encode(status)), what=what)
    return error if isinstance(error, TooManyRequests) or code in _DENIED else Gap(error)


def unreadable(line: bytes, *, what: str) -> ServerError:
    """The error for what no API server writes: something on the way did, and may stop doing so."""
    error = responses.unreadable(200, line, what=what)
    return ServerError(error.message, status=error.status, hint=error.hint)


def _version_too_new(error: ApiError) -> bool:
    """The version is newer than the server's newest: its storage went back in time."""
    causes = error.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )


Trouble = Callable[[KubeError | None], None]
Type = Literal["listed", "added", "modified", "deleted", "relisted", "bookmark"]

# How a change is told that a list shows, in the first list and in later ones.
_LISTED: Final[dict[tuple[Change, bool], Type]] = {
    ("added", False): "listed",
    ("added", True): "added",
    ("modified", True): "relisted",
    ("deleted", True): "deleted",
}


class Event(msgspec.Struct, frozen=True):
    """One thing that happened.

    Attributes:
        type: ``listed``: an object of the first list. ``added``, ``modified``, ``deleted``: of an object. ``relisted``: after a gap in the
            server's history an object is in another state than before; one or several changes made it so. ``bookmark``: nothing else happened up to this
            version; one comes after each list, so the first one says that all objects that were there have been told.
        object: the object; of a bookmark only ``metadata.resourceVersion`` means something.
        vanished: a ``deleted`` whose last state nobody saw; ``object`` is what ``keep`` made of the state before.
    """

    type: Type
    object: Any
    vanished: bool = False


class _Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str | None = None
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - as the API writes it


class _Item(msgspec.Struct, frozen=True):
    metadata: _Meta


_ITEM: Final = decoding.decoder(_Item)


class Watcher:
    """One watch.

    Args:
        kube: an open client.
        resource: the kind.
        namespace: as for ``watch``.
        labels: selector.
        fields: selector.
        trouble: told of each failed try, and None when a connection stands again.
        pace: times.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        *,
        namespace: str | None,
        labels: str | None,
        fields: str | None,
        trouble: Trouble | None,
        pace: Pace | None,
    ) -> None:
        self._kube, self._resource, self._trouble = kube, resource, trouble
        self._labels, self._fields = labels, fields
        self._space = (kube.namespace if namespace is None else namespace) if resource.namespaced else None
        self._pace = pace or Pace()
        self._rng = random.Random()  # noqa: S311 - of pauses, not of secrets
        self._version: str | None = None
        self._listed = False
        self._tries = 0
        self._opened: float | None = None
        self._granted = False
        self._denied: float | None = None
        self._troubled = False

    @property
    def _what(self) -> str:
        return self._resource.label(None, self._space)

    async def events(self, waits: Waits, book: Book) -> AsyncGenerator[Event, None]:
        """All there is to tell, until the caller wants to stop.

        Args:
            waits: entered.
            book: empty.
        """
        while not waits.stopped:
            try:
                steps = [self._list] if self._version is None else []
                for step in [*steps, self._connection]:
                    async with contextlib.aclosing(step(waits, book)) as events:
                        async for event in events:
                            yield event
                            if waits.stopped:
                                return
            except (Unreachable, TooManyRequests, ServerError, Gap) as error:
                if waits.stopped:
                    return
                await self._failed(waits, error)
            except (Forbidden, CredentialsError) as error:
                if not self._may_be_starting(error):
                    raise
                await self._failed(waits, error)
            except TimeoutError:
                # Of our own waits only the caller's wish to stop gets here; a watch never ends for another reason.
                if not waits.stopped:
                    raise
                return

    async def _list(self, waits: Waits, book: Book) -> AsyncGenerator[Event, None]:
        try:
            async with waits.within(None):
                listing = await self._kube.raw_list(
                    self._resource, namespace=self._space, labels=self._labels, fields=self._fields
                )
        except Expired as error:
            raise Gap(error) from None
        for change, item, vanished in book.compare([self._head(raw) for raw in listing.items]):
            yield Event(_LISTED[change, self._listed], item, vanished)
        self._version, self._listed = listing.resource_version, True
        yield Event("bookmark", {"metadata": {"resourceVersion": listing.resource_version}})

    async def _connection(self, waits: Waits, book: Book) -> AsyncGenerator[Event, None]:
        """The events of one connection; ends when the server ends it in order, raises when it broke."""
        self._opened = None
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with waits.within(None):
                    response = await stack.enter_async_context(
                        self._kube.stream(
                            self._resource.path(self._space or None),
                            params=self._params(),
                            read_timeout=None,
                            head_timeout=self._pace.head,
                            verb="watch",
                            what=self._what,
                            repeat=False,
                        )
                    )
            except ApiError as error:
                raise of_answer(error) from None
            self._well()
            lines = Lines(MAX_LINE)
            while chunk := await self._read(response, waits):
                for line in self._cut(lines, chunk):
                    for event in self._events_of(line, book):
                        yield event
        await self._rest(waits, retry_after=None)

    def _params(self) -> dict[str, str]:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(self._pace.life(self._rng)),
            "labelSelector": self._labels,
            "fieldSelector": self._fields,
        }
        return {name: value for name, value in params.items() if value}

    async def _read(self, response: aiohttp.ClientResponse, waits: Waits) -> bytes:
        """The next bytes; none at the end of the body, and when the connection seems dead: both call for the next one."""
        try:
            async with waits.within(self._pace.idle):
                return await response.content.readany()
        except TimeoutError:
            if waits.stopped:
                raise
            return b""
        except (aiohttp.ClientError, OSError) as error:
            lost = broken(error, what=f"watch {self._what}", server=self._kube.access.server)
        # Outside the block: aiohttp's errors carry the headers that were sent, and must not be chained to ours.
        raise lost

    def _cut(self, lines: Lines, chunk: bytes) -> list[bytes]:
        try:
            return lines.push(chunk)
        except LineTooLong as error:
            raise KubeError(
                f"cannot watch {self._what}: {error}", hint="no object is that large; is this an API server?"
            ) from None

    def _events_of(self, line: bytes, book: Book) -> list[Event]:
        """The events of one line of the body."""
        try:
            document = decoding.decode(line)
        except msgspec.DecodeError:
            document = None
        kind, item = (document.get("type"), document.get("object")) if isinstance(document, dict) else (None, None)
        if kind == "ERROR":
            raise of_body(item, line, what=f"watch {self._what}")
        if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            if kind is not None:
                return []  # a kind of event that is newer than we are
            raise unreadable(line, what=f"watch {self._what}")
        self._tries = 0
        if kind == "BOOKMARK":
            self._version = version_of(item) or self._version
            return [Event("bookmark", item)]
        found = self._checked(item)
        changes = book.gone(found) if kind == "DELETED" else book.seen(head_of(found))
        # Materialised before the version moves on: what cannot be read is asked for again.
        events = [
            Event(change, reported, vanished=change == "deleted" and reported is not found)
            for change, reported in changes
        ]
        self._version = version_of(item) or self._version
        return events

    def _head(self, raw: msgspec.Raw) -> Head:
        """Of an object of a list, which stays bytes until it is wanted."""
        try:
            meta = _ITEM.decode(raw).metadata
        except msgspec.DecodeError:
            raise unreadable(bytes(raw), what=f"list {self._what}") from None
        return Head((meta.namespace or "", meta.name), meta.uid, meta.resourceVersion, lambda: self._whole(raw))

    def _whole(self, raw: msgspec.Raw) -> Object:
        try:
            item = decoding.decode(raw)
        except msgspec.DecodeError:
            raise unreadable(bytes(raw), what=f"list {self._what}") from None
        return labelled(self._checked(item), self._resource)

    def _checked(self, item: Any) -> Object:
        if not is_object(item):
            raise unreadable(msgspec.json.encode(item), what=f"watch {self._what}")
        return item

    def _well(self) -> None:
        self._opened = time.monotonic()
        self._granted, self._denied = True, None
        if self._troubled and self._trouble is not None:
            self._trouble(None)
        self._troubled = False

    def _may_be_starting(self, error: Forbidden | CredentialsError) -> bool:
        """Whether a denial may pass: what was granted a moment ago is denied by a server that has just started and not read its roles yet."""
        unknown = isinstance(error, CredentialsError) and not isinstance(error.__cause__, Unauthorized)
        if unknown or not (self._granted or self._pace.doubting):
            return False
        now = time.monotonic()
        if self._denied is None:
            self._denied = now
        return now - self._denied < self._pace.denied

    async def _failed(self, waits: Waits, failure: Unreachable | ApiError | CredentialsError | Gap) -> None:
        """Ride it out: say so, and pause."""
        error = failure.error if isinstance(failure, Gap) else failure
        if isinstance(failure, Gap):
            self._version = None
        elif isinstance(error, Unreachable) and error.tls and not self._listed:
            raise error
        if self._trouble is not None:
            self._trouble(error)
        self._troubled = True
        await self._rest(waits, retry_after=error.retry_after if isinstance(error, ApiError) else None)

    async def _rest(self, waits: Waits, *, retry_after: float | None) -> None:
        """The pause after a connection. One that stood for a while was a good one; one that is closed at once is as good as none."""
        if self._opened is not None and time.monotonic() - self._opened >= self._pace.first:
            self._tries = 0
        self._opened = None
        await waits.pause(self._pace.pause(self._tries, retry_after=retry_after, rng=self._rng))
        self._tries += 1


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
