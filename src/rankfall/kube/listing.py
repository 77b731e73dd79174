"""Lists of objects, page by page: all that fit, at one moment. Begun anew when the server has forgotten where we were."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rankfall.kube import answers
from rankfall.kube.bodies import Object
from rankfall.kube.errors import Expired
from rankfall.kube.request import Params, Request
from rankfall.kube.resources import Resource
from rankfall.kube.retry import Risk
from rankfall.kube.transport import Transport
from rankfall.model import decoding

# A page may expire while the next one is asked for; twice is a server that forgets faster than we read.
_PAGED_TRIES: Final = 2


class Listing(msgspec.Struct, frozen=True):
    """All objects of a list at one moment.

    Attributes:
        items: whole objects, ``kind`` and ``apiVersion`` filled in.
        resource_version: from which a watch goes on.
    """

    items: list[Object]
    resource_version: str


class RawListing(msgspec.Struct, frozen=True):
    """A list whose objects are still bytes: a thousand pods are six MiB so, and a hundred as Python's objects.

    Attributes:
        items: JSON of each, as the server wrote it: without ``kind`` and ``apiVersion``.
        resource_version: from which a watch goes on.
    """

    items: list[msgspec.Raw]
    resource_version: str


class _Page(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None = None


_PAGE: Final = decoding.decoder(_Page)


async def read_list(
    transport: Transport, resource: Resource, *, space: str | None, params: Params, page: int
) -> RawListing:
    """All objects of a list.

    Args:
        transport: sends the requests.
        resource: their kind.
        space: their namespace; None = all of them.
        params: what they are chosen by.
        page: objects a request.
    """
    for _ in range(_PAGED_TRIES):
        try:
            return await _pages(transport, resource, space=space, params=[*params, ("limit", str(page))])
        except Expired:
            continue
    # In one piece nothing can expire in between.
    return await _pages(transport, resource, space=space, params=params)


async def _pages(transport: Transport, resource: Resource, *, space: str | None, params: Params) -> RawListing:
    items: list[msgspec.Raw] = []
    following: Params = ()
    while True:
        request = Request(
            "GET",
            resource.path(space),
            verb="list",
            what=resource.shown(None, space),
            risk=Risk.READ,
            params=[*params, *following],
        )
        body = await transport.call(request)
        try:
            found = _PAGE.decode(body)
        except msgspec.ValidationError:
            raise answers.unreadable(200, b"an object that is no list", what=request.what) from None
        except msgspec.DecodeError:
            raise answers.unreadable(200, body, what=request.what, secrets=transport.secrets) from None
        items += found.items or ()
        if not found.metadata.get("continue"):
            return RawListing(items, str(found.metadata.get("resourceVersion", "")))
        following = [("continue", str(found.metadata["continue"]))]
