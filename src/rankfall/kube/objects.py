"""Calls on API objects that are answered at once: get, list by pages, create, apply, patch, delete.

A list is begun anew when the server has forgotten its position (410). Refused: deleting a collection without
a selector, and sending a create twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from rankfall.kube.auth.access import Access
from rankfall.kube.errors import ApiError, Expired, KubeError
from rankfall.kube.http import responses
from rankfall.kube.http.transport import Transport
from rankfall.kube.request import Object, Params, Request, Risk, at_version, delete_options, labelled, pairs, selectors
from rankfall.kube.resources import Resource
from rankfall.model import decoding, numbers

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
            what=resource.label(None, space),
            risk=Risk.READ,
            params=[*params, *following],
        )
        body = await transport.call(request)
        try:
            found = _PAGE.decode(body)
        except msgspec.ValidationError:
            raise responses.unreadable(200, b"an object that is no list", what=request.what) from None
        except msgspec.DecodeError:
            raise responses.unreadable(200, body, what=request.what, secrets=transport.secrets) from None
        items += found.items or ()
        if not found.metadata.get("continue"):
            return RawListing(items, str(found.metadata.get("resourceVersion", "")))
        following = [("continue", str(found.metadata["continue"]))]


ALL_NAMESPACES: Final = ""
"""For ``list``: every namespace."""

MANAGER: Final = "rankfall"
"""Field manager of what is created and patched."""

Propagation = Literal["Background", "Foreground", "Orphan"]

_PATCHES: Final = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
_APPLY: Final = "application/apply-patch+yaml"


class Objects:
    """Reads and writes objects of one API server, as one user. The part of ``Kube`` that needs no open connection.

    Args:
        access: which server and user.
        transport: that sends the requests.
    """

    def __init__(self, access: Access, transport: Transport) -> None:
        self.access = access
        self.namespace = access.namespace
        self._transport = transport

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """One object.

        Args:
            resource: its kind.
            name: its name.
            namespace: None = the client's.
            subresource: as ``status`` or ``scale``.
        """
        return await self._object(
            "get", "GET", resource, name, namespace=namespace, subresource=subresource, risk=Risk.READ
        )

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        page: int = 500,
    ) -> Listing:
        """All objects that fit; pages are followed, and begun anew when the server has forgotten where we were.

        Args:
            resource: their kind.
            namespace: None = the client's, ``ALL_NAMESPACES`` = every one.
            labels: selector, as ``rankfall.dev/run=train-1``.
            fields: selector, as ``spec.nodeName=n1``.
            page: objects a request.
        """
        found = await self.raw_list(resource, namespace=namespace, labels=labels, fields=fields, page=page)
        what = resource.label(None, self._space(resource, namespace) or None)
        items = (self._decoded(bytes(row), what=what) for row in found.items)
        return Listing([labelled(item, resource) for item in items if isinstance(item, dict)], found.resource_version)

    async def raw_list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        page: int = 500,
    ) -> RawListing:
        """As :meth:`list`, for who wants few of the objects at a time."""
        space = self._space(resource, namespace) or None
        return await read_list(self._transport, resource, space=space, params=selectors(labels, fields), page=page)

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        """Make an object; fields that the server does not know are refused.

        Not repeated once the server may have seen it: then ``Unreachable`` or ``ServerError`` has ``maybe_done`` and the caller asks.

        Args:
            resource: its kind.
            body: its manifest.
            namespace: None = the manifest's, else the client's.
            dry_run: let the server check and say no, and keep nothing.
        """
        meta = body.get("metadata") or {}
        place = namespace if namespace is not None else meta.get("namespace")
        params = [("fieldManager", MANAGER), ("fieldValidation", "Strict")]
        params += [("dryRun", "All")] if dry_run else []
        space = self._space(resource, place)
        name = meta.get("name") or f"{meta.get('generateName', '')}…"
        return await self._json(
            Request(
                "POST",
                resource.path(space),
                verb="create",
                what=resource.label(name, space),
                risk=Risk.READ if dry_run else Risk.TWICE,
                params=params,
                body=msgspec.json.encode(body),
            )
        )

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str | None = None,
        force: bool = False,
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply: make it so, whether it is there or not.

        Args:
            resource: its kind.
            name: its name.
            body: the fields that ``manager`` owns from now on; with ``apiVersion`` and ``kind``.
            manager: who owns them.
            namespace: None = the client's.
            force: take over fields that another manager owns; without it that is a ``Conflict``.
            subresource: as ``status``.
        """
        params = [("fieldManager", manager), ("fieldValidation", "Strict"), ("force", "true" if force else "false")]
        return await self._object(
            "apply",
            "PATCH",
            resource,
            name,
            namespace=namespace,
            subresource=subresource,
            risk=Risk.SAME,
            params=params,
            body=body,
            kind=_APPLY,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: Literal["merge", "json", "strategic"],
        namespace: str | None = None,
        subresource: str | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """Change an object.

        Args:
            resource: its kind.
            name: its name.
            body: the patch: a list of operations for ``json``, else an object.
            kind: of patch; ``strategic`` is not known for custom resources.
            namespace: None = the client's.
            subresource: as ``status``.
            resource_version: only when the object still has this one; else ``Conflict``.
        """
        params = [("fieldManager", MANAGER), ("fieldValidation", "Strict")]
        return await self._object(
            "patch",
            "PATCH",
            resource,
            name,
            namespace=namespace,
            subresource=subresource,
            risk=Risk.TWICE,
            params=params,
            body=body if resource_version is None else at_version(body, resource_version),
            kind=_PATCHES[kind],
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace: int | None = None,
    ) -> Object:
        """Delete one object.

        Args:
            resource: its kind.
            name: its name.
            namespace: None = the client's.
            uid: only the object with this UID, else ``Conflict``; with it a lost request may be repeated.
            resource_version: only in this version, else ``Conflict``.
            propagation: what happens to what it owns.
            grace: seconds that pods have to end; None = their own.
        """
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        return await self._object(
            "delete",
            "DELETE",
            resource,
            name,
            namespace=namespace,
            risk=Risk.TWICE if uid is None else Risk.SAME,
            body=delete_options(propagation, grace, preconditions),
        )

    async def delete_collection(
        self,
        resource: Resource,
        *,
        labels: str,
        namespace: str | None = None,
        propagation: Propagation = "Background",
        grace: int | None = None,
    ) -> Object:
        """Delete all objects with these labels.

        Args:
            resource: their kind.
            labels: selector; an empty one is refused.
            namespace: None = the client's; never all of them.
            propagation: what happens to what they own.
            grace: seconds that pods have to end; None = their own.
        """
        if not labels.strip() or namespace == ALL_NAMESPACES:
            raise KubeError(
                f"refused to delete all {resource.plural}", hint="name labels, and one namespace, that only ours have"
            )
        space = self._space(resource, namespace)
        return await self._json(
            Request(
                "DELETE",
                resource.path(space),
                verb="deletecollection",
                what=f"{resource.label(None, space)} with {labels}",
                risk=Risk.TWICE,
                params=[("labelSelector", labels)],
                body=msgspec.json.encode(delete_options(propagation, grace, {})),
            )
        )

    async def version(self) -> tuple[int, int]:
        """Major and minor version of the server."""
        found = await self.raw("/version", what="the server's version")
        major, minor = (numbers.whole("".join(filter(str.isdigit, str(found.get(key))))) for key in ("major", "minor"))
        if major is None or minor is None:
            raise ApiError(
                "cannot get the server's version: it says none", status=200, hint="is this a Kubernetes API server?"
            )
        return major, minor

    async def raw(
        self, path: str, *, params: Mapping[str, str] | Params | None = None, what: str | None = None
    ) -> Object:
        """Any path that answers a JSON object: discovery, OpenAPI."""
        return await self._json(
            Request("GET", path, verb="get", what=what or path, risk=Risk.READ, params=pairs(params))
        )

    async def _object(
        self,
        verb: str,
        method: str,
        resource: Resource,
        name: str,
        *,
        namespace: str | None,
        risk: Risk,
        subresource: str | None = None,
        params: Params = (),
        body: object = None,
        kind: str = "application/json",
    ) -> Object:
        space = self._space(resource, namespace)
        what = resource.label(name, space)
        return await self._json(
            Request(
                method,
                resource.path(space, name, subresource),
                verb=verb,
                what=f"{subresource} of {what}" if subresource else what,
                risk=risk,
                params=params,
                body=None if body is None else msgspec.json.encode(body),
                kind=kind,
            )
        )

    async def _json(self, request: Request) -> Object:
        body = await self._transport.call(request)
        found = self._decoded(body, what=request.what)
        if not isinstance(found, dict):
            raise responses.unreadable(200, body, what=request.what, secrets=self._transport.secrets)
        return found

    def _decoded(self, body: bytes, *, what: str) -> Any:
        try:
            return decoding.decode(body)
        except msgspec.DecodeError:
            raise responses.unreadable(200, body, what=what, secrets=self._transport.secrets) from None

    def _space(self, resource: Resource, namespace: str | None) -> str | None:
        if not resource.namespaced:
            return None
        return self.namespace if namespace is None else namespace
