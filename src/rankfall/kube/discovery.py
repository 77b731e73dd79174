"""What a server offers: its version, API groups, resources, and which fields of a manifest it would drop.

Everything comes from the version, the OpenAPI v3 index and one document for each group version in question;
documents are cached on disk by the hash that the server gives them, and a cached one is checked before use. A
server without OpenAPI v3 (before 1.24) is asked by plain discovery; its dropped fields are then an error, not
an empty list.
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

# Counted up when ``Schemas`` changes its form: what lies in caches is then not found.
_FORM: Final = 1
# Files kept: the group versions of a dozen clusters.
_MOST: Final = 64


class Cache:
    """One folder.

    Args:
        folder: made when the first schema is kept; None = keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, name: str, digest: str) -> Schemas | None:
        """The schemas of a group version in one state; None when they are not here.

        Args:
            name: ``batch/v1``.
            digest: of the server.
        """
        if self._folder is None:
            return None
        try:
            return decoding.decode(self._path(self._folder, name, digest).read_bytes(), kind=Schemas)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, name: str, digest: str, schemas: Schemas) -> None:
        """Keep them; a reader never sees half of them."""
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
        # What a server calls its hash is no name of a file.
        return folder / f"{hashlib.sha256(f'{_FORM} {name} {digest}'.encode()).hexdigest()}.json"

    def _prune(self, folder: Path) -> None:
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_MOST:]:
            path.unlink(missing_ok=True)


_INDEX: Final = "/openapi/v3"
_GROUP_VERSION: Final = anchored(r"api/(v[a-z0-9]+)|apis/([a-z0-9.-]+/v[a-z0-9]+)", limit=512)
_STABILITY: Final = anchored(r"v(\d+)(?:(alpha|beta)(\d+))?", limit=512)
# A document may change between the index and its fetching; a server that changes that often is not ready yet.
_TRIES: Final = 3
_MOVED: Final = range(300, 400)


class Served:
    """What one server offered when it was asked.

    Args:
        version: major and minor, as (1, 34).
        group_versions: served, as ``batch/v1``; the core group is ``v1``.
        schemas: of the group versions that were asked for.
        resources: of these, where the server has no schemas; None = it has.
    """

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
        """Whether the server is Kubernetes 1.``minor`` or newer."""
        return self.version >= (1, minor)

    def versions(self, group: str) -> tuple[str, ...]:
        """Versions of a group that are served, the most stable and newest first; empty = the group is not there."""
        pairs = (name.rpartition("/")[::2] for name in self.group_versions)
        return tuple(sorted((version for found, version in pairs if found == group), key=_order))

    def serves(self, resource: Resource) -> bool:
        """Whether the server has this resource in this version.

        Raises:
            KubeError: its group version is served, and was not asked for.
        """
        if resource.api_version not in self.group_versions:
            return False
        found = self._asked(self._resources, resource.api_version).get(resource.plural)
        return found is not None and found.kind == resource.kind

    def offers(self, resource: Resource, *fields: str) -> bool:
        """Whether the schema of a kind names a field; lists on the way are stepped into: ``offers(TRAINJOBS, "spec", "podSpecOverrides")``.

        Raises:
            KubeError: the schema is not known.
        """
        if not self.serves(resource):
            return False
        schemas, root = self._root(resource.api_version, resource.kind)
        return schemas.names(root, fields)

    def pruned(self, manifest: Mapping[str, Any]) -> list[str]:
        """Fields of a manifest that the server would drop without a word; of a part that is dropped whole its top.

        Returns:
            Paths, as ``$.spec.template.spec.containers[0].imge``.

        Raises:
            KubeError: the server does not serve this kind, or its schema is not known.
        """
        schemas, root = self._root(str(manifest.get("apiVersion", "")), str(manifest.get("kind", "")))
        return schemas.dropped(manifest, root)

    def _root(self, api_version: str, kind: str) -> tuple[Schemas, Node]:
        if api_version not in self.group_versions:
            raise KubeError(
                f"the server does not serve {api_version}, which {kind or 'the manifest'} needs",
                hint="its controller may not be installed in this cluster, or in another version",
            )
        if self._plain:
            raise KubeError(
                f"this server ({_label(self.version)}) does not say which fields of {kind} it knows",
                hint="Kubernetes 1.24 and later do",
            )
        schemas = self._asked(self._schemas, api_version)
        group, _, version = api_version.rpartition("/")
        root = schemas.root(group, version, kind)
        if root is None:
            raise KubeError(f"the server knows no kind {kind!r} in {api_version}", hint="correct the manifest")
        return schemas, root

    def _asked(self, found: Mapping[str, Any], api_version: str) -> Any:
        if api_version not in found:
            raise KubeError(f"nobody asked the server about {api_version}", hint="name a resource of it to discover()")
        return found[api_version]


async def discover(kube: Kube, resources: Iterable[Resource], *, cache: Path | None = None) -> Served:
    """Ask a server what it offers.

    Sends one request for the version, one for the index, and one for each group version of ``resources`` that is served and not in the cache.

    Args:
        kube: an open client.
        resources: their group versions are looked at closely.
        cache: folder for schemas, by their hash; None = keep nothing.

    Raises:
        ApiError: the server refuses; every user may ask for these as a rule (role ``system:discovery``).
        Unreachable: no answer.
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
                hint="it is starting, or a controller is being installed; try again",
            )
    return Served(version, index, schemas=schemas)


async def _index(kube: Kube) -> dict[str, str | None]:
    """Hash of the document of each group version; None where the server gives none."""
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
    """The schemas of a group version; None when they have another hash by now."""
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
    """Discovery without OpenAPI v3: what there is, and nothing about fields."""
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
    """Kubernetes's own order: stable before beta before alpha, newer before older, others last by name."""
    match = _STABILITY.fullmatch(version)
    if match is None:
        return (3, 0, 0, version)
    rank = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (rank, -numbers.matched(match[1]), -numbers.matched(match[3]), version)


def _label(version: tuple[int, int]) -> str:
    return f"Kubernetes {version[0]}.{version[1]}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
