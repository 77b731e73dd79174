"""Watches objects: one list, then connections from the last version.

After 410 a new list is compared with known objects: nothing is lost. Failures are retried without limit, 401
and 403 briefly.
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

# Objects have up to 1.5 MiB in etcd, their JSON a few times that.
MAX_LINE: Final = 16 << 20


class LineTooLong(ValueError):
    """A line is longer than the bound."""


class Lines:
    """Splits chunks into lines of at most ``limit`` bytes, without LF."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of the incomplete line."""
        return self._held

    def push(self, chunk: bytes) -> list[bytes]:
        """Returns the non-empty lines that end in this chunk, without LF.

        Raises:
            LineTooLong: Above the bound; buffered bytes are dropped.
        """
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        found: list[bytes] = []
        for piece in rest:
            # One join per line: appending would take quadratic time.
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


class Gap(Exception):
    """The next attempt has to begin with a list, because of ``error``."""

    def __init__(self, error: KubeError) -> None:
        super().__init__(error.message)
        self.error = error


def of_answer(error: ApiError) -> ApiError | Gap:
    """Returns a ``Gap`` if the error requires a new list, else the error."""
    return Gap(error) if isinstance(error, Expired) or _version_too_new(error) else error


def of_body(status: Any, line: bytes, *, what: str) -> ApiError | Gap:
    """Returns the error for an ``ERROR`` in the body: a ``Gap`` except for denials or requested waits."""
    code = status.get("code") if isinstance(status, dict) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return unreadable(line, what=what)
    error = responses.refused(responses.Refusal(code, {}, msgspec.json.encode(status)), what=what)
    return error if isinstance(error, TooManyRequests) or code in _DENIED else Gap(error)


def unreadable(line: bytes, *, what: str) -> ServerError:
    """Returns the error for a line that is not JSON, as of a proxy; it may be temporary."""
    error = responses.unreadable(200, line, what=what)
    return ServerError(error.message, status=error.status, hint=error.hint)


def _version_too_new(error: ApiError) -> bool:
    """True if the version is newer than the server's, whose storage was reset."""
    causes = error.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )


Trouble = Callable[[KubeError | None], None]
Type = Literal["listed", "added", "modified", "deleted", "relisted", "bookmark"]

_LISTED: Final[dict[tuple[Change, bool], Type]] = {
    ("added", False): "listed",
    ("added", True): "added",
    ("modified", True): "relisted",
    ("deleted", True): "deleted",
}


class Event(msgspec.Struct, frozen=True):
    """One event of a watch.

    Attributes:
        type: ``listed``: in the first list. ``relisted``: changed during a gap in the server's history.
            ``bookmark``: follows each list; all existing objects are then reported. Others: a change.
        object: Of a bookmark only ``metadata.resourceVersion``.
        vanished: True if ``deleted`` with unknown last state; ``object`` is then ``keep``'s extract.
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
    """One watch; ``trouble`` gets each failed attempt's error, and None after recovery."""

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
        self._rng = random.Random()  # noqa: S311 - for pauses, not for secrets
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
        """Yields all events until the caller requests the stop."""
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
                # Here only the caller's stop causes a time-out.
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
        """Yields the events of one connection; raises an error if the connection broke."""
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
        """Next bytes; empty at the end or on a dead connection."""
        try:
            async with waits.within(self._pace.idle):
                return await response.content.readany()
        except TimeoutError:
            if waits.stopped:
                raise
            return b""
        except (aiohttp.ClientError, OSError) as error:
            lost = broken(error, what=f"watch {self._what}", server=self._kube.access.server)
        # Outside the block: aiohttp's errors contain sent headers and must not be chained.
        raise lost

    def _cut(self, lines: Lines, chunk: bytes) -> list[bytes]:
        try:
            return lines.push(chunk)
        except LineTooLong as error:
            raise KubeError(
                f"cannot watch {self._what}: {error}",
                hint="check that the address is an API server: no object is that large",
            ) from None

    def _events_of(self, line: bytes, book: Book) -> list[Event]:
        try:
            document = decoding.decode(line)
        except msgspec.DecodeError:
            document = None
        kind, item = (document.get("type"), document.get("object")) if isinstance(document, dict) else (None, None)
        if kind == "ERROR":
            raise of_body(item, line, what=f"watch {self._what}")
        if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            if kind is not None:
                return []  # an event type newer than this code
            raise unreadable(line, what=f"watch {self._what}")
        self._tries = 0
        if kind == "BOOKMARK":
            self._version = version_of(item) or self._version
            return [Event("bookmark", item)]
        found = self._checked(item)
        changes = book.gone(found) if kind == "DELETED" else book.seen(head_of(found))
        # Before the version advances: an unreadable object is requested again.
        events = [
            Event(change, reported, vanished=change == "deleted" and reported is not found)
            for change, reported in changes
        ]
        self._version = version_of(item) or self._version
        return events

    def _head(self, raw: msgspec.Raw) -> Head:
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
        """True if a denial may pass: a starting server has not read its roles."""
        unknown = isinstance(error, CredentialsError) and not isinstance(error.__cause__, Unauthorized)
        if unknown or not (self._granted or self._pace.doubting):
            return False
        now = time.monotonic()
        if self._denied is None:
            self._denied = now
        return now - self._denied < self._pace.denied

    async def _failed(self, waits: Waits, failure: Unreachable | ApiError | CredentialsError | Gap) -> None:
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
        """Pauses before the next connection; after a long-lived connection the back-off starts again."""
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
    """Yields all matching objects and every later change.

    Close it early with ``contextlib.aclosing``. A slow consumer makes the server wait.

    ``keep`` extracts what to store; None = the whole object.

    Raises:
        CredentialsError: Refused even when renewed.
        ApiError: 403, 404 (kind not served) and other permanent errors.
        Unreachable: Server certificate refused before the first list.
        KubeError: An object exceeds ``MAX_LINE``.
    """
    watcher = Watcher(kube, resource, namespace=namespace, labels=labels, fields=fields, trouble=trouble, pace=pace)
    async with Waits(stop) as waits, contextlib.aclosing(watcher.events(waits, Book(keep or _whole))) as events:
        async for event in events:
            yield event


def _whole(item: Object) -> Object:
    return item
