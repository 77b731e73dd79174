"""Discovers a server's version, resources, and manifest fields it would drop.

Servers without OpenAPI v3 (before 1.24) get plain discovery; dropped fields are then an error, not an empty
list.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, KubeError, ObjectNotFound
from rankfall.kube.openapi import Node, Schemas, ServedResource, reduce
from rankfall.kube.resources import Resource
from rankfall.model import decoding, numbers
from rankfall.model.patterns import anchored

# Increased with the format of ``Schemas``.
_FORM: Final = 1
# Largest number of cache files.
_MOST: Final = 64


class Cache:
    """Disk cache of schemas in one folder; None = no cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, name: str, digest: str) -> Schemas | None:
        """Cached schemas of a group version, or None."""
        if self._folder is None:
            return None
        try:
            return decoding.decode(self._path(self._folder, name, digest).read_bytes(), kind=Schemas)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, name: str, digest: str, schemas: Schemas) -> None:
        """Stores schemas atomically: a reader never sees a partial file."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, scratch = tempfile.mkstemp(dir=self._folder, suffix=".new")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(schemas))
                Path(scratch).replace(self._path(self._folder, name, digest))
            except OSError:
                Path(scratch).unlink(missing_ok=True)
                raise
            self._prune(self._folder)

    def _path(self, folder: Path, name: str, digest: str) -> Path:
        # The server's hash may be an invalid file name.
        return folder / f"{hashlib.sha256(f'{_FORM} {name} {digest}'.encode()).hexdigest()}.json"

    def _prune(self, folder: Path) -> None:
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_MOST:]:
            path.unlink(missing_ok=True)


_INDEX: Final = "/openapi/v3"
_GROUP_VERSION: Final = anchored(r"api/(v[a-z0-9]+)|apis/([a-z0-9.-]+/v[a-z0-9]+)", limit=512)
_STABILITY: Final = anchored(r"v(\d+)(?:(alpha|beta)(\d+))?", limit=512)
# A document may change between index and download.
_TRIES: Final = 3
_MOVED: Final = range(300, 400)


class Served:
    """Snapshot of a server's version, group versions, and requested schemas or resources."""

    def __init__(
        self,
        version: tuple[int, int],
        group_versions: Iterable[str],
        *,
        schemas: Mapping[str, Schemas],
        resources: Mapping[str, Mapping[str, ServedResource]] | None = None,
    ) -> None:
        self.version = version
        self.group_versions = frozenset(group_versions)
        self._schemas = schemas
        self._plain = resources is not None
        self._resources = resources or {name: found.resources for name, found in schemas.items()}

    def at_least(self, minor: int) -> bool:
        """True if the server is Kubernetes 1.``minor`` or newer."""
        return self.version >= (1, minor)

    def versions(self, group: str) -> tuple[str, ...]:
        """Returns a group's served versions, most stable and newest first; empty if missing."""
        pairs = (name.rpartition("/")[::2] for name in self.group_versions)
        return tuple(sorted((version for found, version in pairs if found == group), key=_order))

    def serves(self, resource: Resource) -> bool:
        """True if the server has this resource in this version.

        Raises:
            KubeError: Group version not requested from ``discover``.
        """
        if resource.api_version not in self.group_versions:
            return False
        found = self._asked(self._resources, resource.api_version).get(resource.plural)
        return found is not None and found.kind == resource.kind

    def offers(self, resource: Resource, *fields: str) -> bool:
        """True if a kind's schema names a field, also in lists.

        Example: ``offers(TRAINJOBS, "spec", "podSpecOverrides")``.


        Raises:
            KubeError: The schema is unknown.
        """
        if not self.serves(resource):
            return False
        schemas, root = self._root(resource.api_version, resource.kind)
        return schemas.names(root, fields)

    def pruned(self, manifest: Mapping[str, Any]) -> list[str]:
        """Lists manifest fields that the server would drop silently; only the top of a dropped part.

        Raises:
            KubeError: Kind not served, or schema unknown.
        """
        schemas, root = self._root(str(manifest.get("apiVersion", "")), str(manifest.get("kind", "")))
        return schemas.dropped(manifest, root)

    def _root(self, api_version: str, kind: str) -> tuple[Schemas, Node]:
        if api_version not in self.group_versions:
            raise KubeError(
                f"the server does not serve {api_version}, which {kind or 'the manifest'} needs",
                hint="check that its controller is installed in this cluster, in a version that serves it",
            )
        if self._plain:
            raise KubeError(
                f"this server ({_label(self.version)}) does not publish the fields of {kind} that it knows",
                hint="use Kubernetes 1.24 or later",
            )
        schemas = self._asked(self._schemas, api_version)
        group, _, version = api_version.rpartition("/")
        root = schemas.root(group, version, kind)
        if root is None:
            raise KubeError(f"the server knows no kind {kind!r} in {api_version}", hint="correct the manifest")
        return schemas, root

    def _asked(self, found: Mapping[str, Any], api_version: str) -> Any:
        if api_version not in found:
            raise KubeError(
                f"the resources of {api_version} were not queried", hint="name a resource of it to discover()"
            )
        return found[api_version]


async def discover(kube: Kube, resources: Iterable[Resource], *, cache: Path | None = None) -> Served:
    """Queries version, index and the uncached group versions of ``resources``.

    Raises:
        ApiError: Refused; every user normally may (``system:discovery``).
        Unreachable: No answer.
    """
    wanted = dict.fromkeys(resource.api_version for resource in resources)
    version = await kube.version()
    try:
        index = await _index(kube)
    except ObjectNotFound:
        return await _plain(kube, version, wanted)
    kept = Cache(cache)
    schemas = {}
    for name in wanted:
        for _ in range(_TRIES):
            if name not in index:
                break
            found = await _schemas(kube, name, index[name], kept)
            if found is not None:
                schemas[name] = found
                break
            index = await _index(kube)
        else:
            raise KubeError(
                f"the server's schema of {name} changes faster than it can be read",
                hint="try again: the server is starting, or a controller is being installed",
            )
    return Served(version, index, schemas=schemas)


async def discover_kinds(kube: Kube, resources: Iterable[Resource]) -> Served:
    """Queries version, groups and the kinds of ``resources``, without their fields: a few small answers.

    Raises:
        KubeError: Refused, or no answer.
    """
    return await _plain(kube, await kube.version(), dict.fromkeys(resource.api_version for resource in resources))


async def _index(kube: Kube) -> dict[str, str | None]:
    document = await kube.raw(_INDEX, what="the index of schemas")
    paths = document.get("paths")
    found: dict[str, str | None] = {}
    for path, item in paths.items() if isinstance(paths, dict) else ():
        match = _GROUP_VERSION.fullmatch(path)
        if match:
            url = item.get("serverRelativeURL") if isinstance(item, dict) else None
            query = parse_qs(urlsplit(url).query) if isinstance(url, str) else {}
            found[match[1] or match[2]] = query.get("hash", [None])[0]
    return found


async def _schemas(kube: Kube, name: str, digest: str | None, cache: Cache) -> Schemas | None:
    """Returns a group version's schemas; None if their hash changed."""
    if digest is not None:
        known = await asyncio.to_thread(cache.get, name, digest)
        if known is not None:
            return known
    params = {} if digest is None else {"hash": digest}
    try:
        document = await kube.raw(f"{_INDEX}{_path(name)}", params=params, what=f"the schema of {name}")
    except ObjectNotFound:
        return None
    except ApiError as error:
        # A redirect to the document's new hash.
        if error.status in _MOVED:
            return None
        raise
    schemas = reduce(document)
    if digest is not None:
        await asyncio.to_thread(cache.put, name, digest, schemas)
    return schemas


async def _plain(kube: Kube, version: tuple[int, int], wanted: Iterable[str]) -> Served:
    core = await kube.raw("/api", what="the core versions")
    groups = await kube.raw("/apis", what="the groups")
    names = [name for name in _list(core.get("versions")) if isinstance(name, str)]
    for group in _list(groups.get("groups")):
        rows = _list(group.get("versions")) if isinstance(group, dict) else []
        names += [
            row["groupVersion"] for row in rows if isinstance(row, dict) and isinstance(row.get("groupVersion"), str)
        ]
    resources = {name: await _resources(kube, name) for name in wanted if name in names}
    return Served(version, names, schemas={}, resources=resources)


async def _resources(kube: Kube, name: str) -> dict[str, ServedResource]:
    document = await kube.raw(_path(name), what=f"the resources of {name}")
    return {
        row["name"]: ServedResource(str(row.get("kind", "")), namespaced=bool(row.get("namespaced")))
        for row in _list(document.get("resources"))
        if isinstance(row, dict) and isinstance(row.get("name"), str) and "/" not in row["name"]
    }


def _path(name: str) -> str:
    return f"/{'apis' if '/' in name else 'api'}/{quote(name)}"


def _order(version: str) -> tuple[int, int, int, str]:
    """Kubernetes's order: stable, beta, alpha; newer first; others by name."""
    match = _STABILITY.fullmatch(version)
    if match is None:
        return (3, 0, 0, version)
    rank = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (rank, -numbers.matched(match[1]), -numbers.matched(match[3]), version)


def _label(version: tuple[int, int]) -> str:
    return f"Kubernetes {version[0]}.{version[1]}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
