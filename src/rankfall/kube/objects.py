"""Single calls on API objects.

An expired list (410) starts again. Deleting a collection without a selector and repeating a create are refused.
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

# A page may expire; twice means faster than the client reads.
_PAGED_TRIES: Final = 2


class Listing(msgspec.Struct, frozen=True):
    """Snapshot of all objects of a list.

    Attributes:
        items: Objects with ``kind`` and ``apiVersion``.
        resource_version: Start of a following watch.
    """

    items: list[Object]
    resource_version: str


class RawListing(msgspec.Struct, frozen=True):
    """List of objects as JSON: a thousand pods take six MiB, as Python objects a hundred.

    Attributes:
        items: JSON without ``kind`` and ``apiVersion``.
        resource_version: Start of a following watch.
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
    """Reads all objects of a list, ``page`` per request; ``space`` None = all namespaces."""
    for _ in range(_PAGED_TRIES):
        try:
            return await _pages(transport, resource, space=space, params=[*params, ("limit", str(page))])
        except Expired:
            continue
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
"""All namespaces, for ``list``."""

MANAGER: Final = "rankfall"
"""Field manager of created and patched objects."""

Propagation = Literal["Background", "Foreground", "Orphan"]

_PATCHES: Final = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
_APPLY: Final = "application/apply-patch+yaml"


class Objects:
    """The short-lived calls of ``Kube``.

    ``namespace`` None means the client's namespace, in all methods.
    """

    def __init__(self, access: Access, transport: Transport) -> None:
        self.access = access
        self.namespace = access.namespace
        self._transport = transport

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """Returns one object."""
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
        """Returns all matching objects; reads pages and starts again if the position expired.

        ``namespace`` may be ``ALL_NAMESPACES``.
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
        """Like :meth:`list`, for callers that decode few objects at a time."""
        space = self._space(resource, namespace) or None
        return await read_list(self._transport, resource, space=space, params=selectors(labels, fields), page=page)

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        """Creates an object; the server refuses unknown fields.

        Not retried once the server may have received it: the error has ``maybe_done``, and the caller checks.
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
        """Creates or updates an object by server-side apply.

        ``force`` takes over other managers' fields, else ``Conflict``.
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
        """Changes an object; custom resources refuse ``strategic``.

        Raises ``Conflict`` if the object has another ``resource_version``.
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
        """Deletes one object.

        Raises ``Conflict`` if the object has another ``uid``, which makes retries safe. ``grace`` in seconds; None =
        the pod's.
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
        """Deletes all objects with these labels; an empty selector is refused."""
        if not labels.strip() or namespace == ALL_NAMESPACES:
            raise KubeError(
                f"refused to delete all {resource.plural}",
                hint="name labels, and one namespace, that only Rankfall's objects have",
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
        """Returns the major and minor version of the server."""
        found = await self.raw("/version", what="the server's version")
        major, minor = (numbers.whole("".join(filter(str.isdigit, str(found.get(key))))) for key in ("major", "minor"))
        if major is None or minor is None:
            raise ApiError(
                "cannot get the server's version: its answer has none",
                status=200,
                hint="check that the address in the kubeconfig is that of a Kubernetes API server",
            )
        return major, minor

    async def raw(
        self, path: str, *, params: Mapping[str, str] | Params | None = None, what: str | None = None
    ) -> Object:
        """Reads any path that returns a JSON object: discovery, OpenAPI."""
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
