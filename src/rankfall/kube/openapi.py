"""Finds manifest fields that a server would prune, by its OpenAPI v3. Pure.

The algorithm is ``prune`` of apiextensions-apiserver; types and values are the server's task.
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
# References are not nested; the bound stops cycles.
_MAX_HOPS: Final = 16


class Node(msgspec.Struct, omit_defaults=True):
    """Fields at one place in a manifest.

    Attributes:
        properties: Named fields.
        values: Schema of arbitrary fields; None = not allowed.
        items: Schema of list items.
        ref: Component that replaces this node.
        open: True if unnamed fields remain.
        embedded: True for a whole object.
    """

    properties: dict[str, Node] = {}
    values: Node | None = None
    items: Node | None = None
    ref: str | None = None
    open: bool = False
    embedded: bool = False


class ServedResource(msgspec.Struct, frozen=True):
    """A resource of a group version."""

    kind: str
    namespaced: bool


class Schemas(msgspec.Struct):
    """Schemas of one group version: components by name, kinds by ``group/version/Kind``, resources by plural."""

    components: dict[str, Node]
    kinds: dict[str, str]
    resources: dict[str, ServedResource]

    def root(self, group: str, version: str, kind: str) -> Node | None:
        """Returns the schema of a kind's whole manifest, or None."""
        return self.components.get(self.kinds.get(f"{group}/{version}/{kind}", ""))

    def dropped(self, manifest: Mapping[str, Any], root: Node) -> list[str]:
        """Returns paths of pruned fields, as ``$.spec.template``; only the top of a dropped part."""
        found: list[str] = []
        # A stack: users choose the nesting depth.
        waiting: list[tuple[Any, Node | None, str, bool]] = [(manifest, root, "$", False)]
        while waiting:
            value, node, path, inherited = waiting.pop()
            if node is _NOTHING:
                found.append(path)
                continue
            node = self._resolved(node)
            # Open lists make their maps open; open maps do not.
            keeps = node is not None and (node.open or inherited)
            if isinstance(value, Mapping):
                inner: list[tuple[Any, Node | None, str, bool]] = []
                for key, item in value.items():
                    below, known = _field(node, key)
                    if known or not keeps:
                        # On the stack too, to preserve the manifest's order.
                        inner.append((item, below if known else _NOTHING, path + _step(key), False))
                waiting += reversed(inner)
            elif isinstance(value, list | tuple):
                below = node.items if node else None
                if keeps and below is None:
                    continue
                waiting += [(item, below, f"{path}[{at}]", keeps) for at, item in reversed(list(enumerate(value)))]
        return found

    def names(self, root: Node, fields: tuple[str, ...]) -> bool:
        """True if the schema names a field, also inside lists."""
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
            # A missing component means a truncated document; no fields count as dropped.
            node = _ANYTHING if component is None else component
        return _ANYTHING


_ANYTHING: Final = Node(open=True)
_NOTHING: Final = Node()


def reduce(document: Mapping[str, Any]) -> Schemas:
    """Extracts the field names from an OpenAPI v3 document."""
    components: dict[str, Node] = {}
    kinds: dict[str, str] = {}
    for name, schema in _mapping(_mapping(document.get("components")).get("schemas")).items():
        if not isinstance(schema, dict):
            continue
        node = _node(schema)
        # Free-form components (FieldsV1, RawExtension, JSON) have no fields; inline this means an object that retains
        # nothing.
        if node == Node():
            node.open = True
        components[name] = node
        for key in _kinds(schema):
            kinds.setdefault(key, name)
    return Schemas(components=components, kinds=kinds, resources=_resources(_mapping(document.get("paths"))))


def _resources(paths: Mapping[str, Any]) -> dict[str, ServedResource]:
    """Returns listable resources: plural from the path, kind from its operation."""
    found: dict[str, ServedResource] = {}
    for path in paths:
        match = _LISTS.fullmatch(path)
        operation = _mapping(_mapping(paths[path]).get("get"))
        kind = _mapping(operation.get("x-kubernetes-group-version-kind")).get("kind")
        if match is None or operation.get("x-kubernetes-action") != "list" or not isinstance(kind, str):
            continue
        plural = match["plural"]
        # The path over all namespaces comes in any order.
        known = found.get(plural)
        found[plural] = ServedResource(
            kind, namespaced=bool(match["space"]) or (known is not None and known.namespaced)
        )
    return found


def _node(schema: Mapping[str, Any]) -> Node:
    ref = schema.get("$ref")
    if ref is None:
        # allOf wraps a reference with a default.
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
        # `true` allows any name, but its content is pruned.
        values=_node(more) if isinstance(more, dict) else Node() if more is True else None,
        items=_node(items) if isinstance(items, dict) else None,
        open=schema.get("x-kubernetes-preserve-unknown-fields") is True,
        embedded=schema.get("x-kubernetes-embedded-resource") is True,
    )


def _field(node: Node | None, key: Any) -> tuple[Node | None, bool]:
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
