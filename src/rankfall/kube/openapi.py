"""Field names out of an OpenAPI v3 document, and the fields of a manifest that a server would prune. Pure.

A field that the schema does not name is removed silently, so a job would run without what its user asked for.
The walk is that of ``prune`` in apiextensions-apiserver: a map keeps what ``properties`` or
``additionalProperties`` name, or everything under ``x-kubernetes-preserve-unknown-fields``. Types and values
are left to the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from rankfall.model.patterns import anchored

_REF: Final = "#/components/schemas/"
_META: Final = frozenset({"apiVersion", "kind", "metadata"})
_PLAIN: Final = anchored(r"[A-Za-z_][A-Za-z0-9_-]*", limit=4_096)
_LISTS: Final = anchored(
    r"/(?:api/[^/]+|apis/[^/]+/[^/]+)(?P<space>/namespaces/\{namespace\})?/(?P<plural>[a-z0-9.-]+)", limit=4_096
)
# References to references do not occur; a circle of them must not hang us.
_MAX_HOPS: Final = 16


class Node(msgspec.Struct, omit_defaults=True):
    """The fields of one place in a manifest.

    Attributes:
        properties: fields with a name.
        values: of fields with any name; None = there are none.
        items: of a list.
        ref: name of the component that says all this instead.
        open: fields that are not named are kept, as they are.
        embedded: a whole object with ``apiVersion``, ``kind`` and ``metadata`` of its own.
    """

    properties: dict[str, Node] = {}
    values: Node | None = None
    items: Node | None = None
    ref: str | None = None
    open: bool = False
    embedded: bool = False


class ServedResource(msgspec.Struct, frozen=True):
    """A resource of a group version.

    Attributes:
        kind: of its objects.
        namespaced: whether they live in a namespace.
    """

    kind: str
    namespaced: bool


class Schemas(msgspec.Struct):
    """The schemas of one group version.

    Attributes:
        components: by name.
        kinds: name of the component of each kind, by ``group/version/Kind``.
        resources: by plural name.
    """

    components: dict[str, Node]
    kinds: dict[str, str]
    resources: dict[str, ServedResource]

    def root(self, group: str, version: str, kind: str) -> Node | None:
        """The schema of a kind's whole manifest."""
        return self.components.get(self.kinds.get(f"{group}/{version}/{kind}", ""))

    def dropped(self, manifest: Mapping[str, Any], root: Node) -> list[str]:
        """Paths of the fields that would not be kept, as ``$.spec.template``; of a part that is dropped whole only its top."""
        found: list[str] = []
        # A stack instead of recursion: a manifest may be nested as deeply as its author likes.
        waiting: list[tuple[Any, Node | None, str, bool]] = [(manifest, root, "$", False)]
        while waiting:
            value, node, path, inherited = waiting.pop()
            if node is _NOTHING:
                found.append(path)
                continue
            node = self._resolved(node)
            # Below a list that keeps everything its maps do too; below a map they do not.
            keeps = node is not None and (node.open or inherited)
            if isinstance(value, Mapping):
                inner: list[tuple[Any, Node | None, str, bool]] = []
                for key, item in value.items():
                    below, known = _field(node, key)
                    if known or not keeps:
                        # What is dropped waits its turn too, so that all is told in the manifest's order.
                        inner.append((item, below if known else _NOTHING, path + _step(key), False))
                waiting += reversed(inner)
            elif isinstance(value, list | tuple):
                below = node.items if node else None
                if keeps and below is None:
                    continue
                waiting += [(item, below, f"{path}[{at}]", keeps) for at, item in reversed(list(enumerate(value)))]
        return found

    def names(self, root: Node, fields: tuple[str, ...]) -> bool:
        """Whether the schema itself names a field; a list on the way is stepped into."""
        node = self._resolved(root)
        for name in fields:
            while node is not None and node.items is not None and not node.properties:
                node = self._resolved(node.items)
            if node is None or name not in node.properties:
                return False
            node = self._resolved(node.properties[name])
        return True

    def _resolved(self, node: Node | None) -> Node | None:
        for _ in range(_MAX_HOPS):
            if node is None or node.ref is None:
                return node
            component = self.components.get(node.ref)
            # A component that is not there: the document is cut short. What nobody describes is not said to be dropped.
            node = _ANYTHING if component is None else component
        return _ANYTHING


_ANYTHING: Final = Node(open=True)
_NOTHING: Final = Node()


def reduce(document: Mapping[str, Any]) -> Schemas:
    """The names of fields out of an OpenAPI v3 document.

    Args:
        document: as the server gives it; parts that are no schemas are passed over.
    """
    components: dict[str, Node] = {}
    kinds: dict[str, str] = {}
    for name, schema in _mapping(_mapping(document.get("components")).get("schemas")).items():
        if not isinstance(schema, dict):
            continue
        node = _node(schema)
        # Kubernetes's own free-form types (FieldsV1, RawExtension, JSON) are components of their own without fields;
        # written in place, as in a custom resource, the same words mean an object that keeps nothing.
        if node == Node():
            node.open = True
        components[name] = node
        for key in _kinds(schema):
            kinds.setdefault(key, name)
    return Schemas(components=components, kinds=kinds, resources=_resources(_mapping(document.get("paths"))))


def _resources(paths: Mapping[str, Any]) -> dict[str, ServedResource]:
    """The resources that can be listed: their plural is the last part of a path, their kind stands beside the operation."""
    found: dict[str, ServedResource] = {}
    for path in paths:
        match = _LISTS.fullmatch(path)
        operation = _mapping(_mapping(paths[path]).get("get"))
        kind = _mapping(operation.get("x-kubernetes-group-version-kind")).get("kind")
        if match is None or operation.get("x-kubernetes-action") != "list" or not isinstance(kind, str):
            continue
        plural = match["plural"]
        # A namespaced resource can be listed over all namespaces too; either path may come first.
        known = found.get(plural)
        found[plural] = ServedResource(
            kind, namespaced=bool(match["space"]) or (known is not None and known.namespaced)
        )
    return found


def _node(schema: Mapping[str, Any]) -> Node:
    ref = schema.get("$ref")
    if ref is None:
        # A reference with a default beside it is wrapped, because nothing may stand beside $ref.
        wrapped = [part.get("$ref") for part in _list(schema.get("allOf")) if isinstance(part, dict)]
        ref = next((item for item in wrapped if item), None)
    if isinstance(ref, str):
        return Node(ref=ref.removeprefix(_REF))
    more = schema.get("additionalProperties")
    items = schema.get("items")
    return Node(
        properties={
            str(name): _node(inner)
            for name, inner in _mapping(schema.get("properties")).items()
            if isinstance(inner, dict)
        },
        # `true` lets any name in, and says nothing of what is below it: nothing below it is kept.
        values=_node(more) if isinstance(more, dict) else Node() if more is True else None,
        items=_node(items) if isinstance(items, dict) else None,
        open=schema.get("x-kubernetes-preserve-unknown-fields") is True,
        embedded=schema.get("x-kubernetes-embedded-resource") is True,
    )


def _field(node: Node | None, key: Any) -> tuple[Node | None, bool]:
    """The schema of a field and whether there is one."""
    if node is None:
        return None, False
    if key in node.properties:
        return node.properties[key], True
    if node.embedded and key in _META:
        return _ANYTHING, True
    return node.values, node.values is not None


def _step(key: Any) -> str:
    text = str(key)
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f".{text}" if _PLAIN.fullmatch(text) else f'["{quoted}"]'


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    for kind in _list(schema.get("x-kubernetes-group-version-kind")):
        if isinstance(kind, dict):
            yield f"{kind.get('group', '')}/{kind.get('version', '')}/{kind.get('kind', '')}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
