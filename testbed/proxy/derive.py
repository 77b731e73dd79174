"""Derives a server's discovery from the paths of its OpenAPI document, for versions of which no discovery is written down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_PATH = re.compile(r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)/(?P<rest>.+)$")
_NAMESPACED = "namespaces/{namespace}/"
_METHOD_VERBS = {"get": "get", "post": "create", "put": "update", "patch": "patch", "delete": "delete"}
_VERBS = {"post": "create", "put": "update", "watchlist": "watch"}
# Newest first; stable before beta before alpha.
_STAGE = {"alpha": 0, "beta": 1, "": 2}
_VERSION = re.compile(r"^v(\d+)(?:(alpha|beta)(\d+))?$")

Names = Mapping[tuple[str, str], Mapping[str, Any]]


def discovery(swagger: Mapping[str, Any], known: Names) -> dict[str, Any]:
    """File name -> document, named as Kubernetes names them (``apis__batch__v1.json``).

    Args:
        swagger: OpenAPI v2.
        known: (group, resource) -> short names and the like, which OpenAPI does not hold.
    """
    resources: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for path, item in swagger["paths"].items():
        found = _PATH.match(path)
        if found is not None:
            _add(resources.setdefault((found["group"] or "", found["version"]), {}), found["rest"], item)
    files: dict[str, Any] = {"api.json": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}}
    groups: dict[str, list[str]] = {}
    for (group, version), found_here in resources.items():
        name = f"apis__{group}__{version}.json" if group else f"api__{version}.json"
        files[name] = _resource_list(group, version, found_here, known)
        if group:
            groups.setdefault(group, []).append(version)
    documents = {group: _group(group, versions) for group, versions in groups.items()}
    files |= {f"apis__{group}.json": {"kind": "APIGroup", "apiVersion": "v1"} | it for group, it in documents.items()}
    return files | {"apis.json": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(documents.values())}}


def names(folder: Path) -> Names:
    """Short names, singular names and categories from a server's own discovery."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for file in folder.glob("api*.json"):
        document = msgspec.json.decode(file.read_bytes())
        group = document.get("groupVersion", "").rpartition("/")[0]
        for resource in document.get("resources", ()):
            kept = {key: resource[key] for key in ("shortNames", "categories", "singularName") if key in resource}
            found.setdefault((group, resource["name"]), kept)
    return found


def _add(here: dict[str, dict[str, Any]], rest: str, item: Mapping[str, Any]) -> None:
    watched = rest.startswith("watch/")
    rest = rest.removeprefix("watch/")
    namespaced = rest.startswith(_NAMESPACED)
    parts = rest.removeprefix(_NAMESPACED).split("/") if namespaced else rest.split("/")
    # NAME, NAME/{name}, NAME/{name}/SUB; a proxied path behind that is no resource.
    name = parts[0] if len(parts) <= 2 else f"{parts[0]}/{parts[2]}"  # noqa: PLR2004
    resource = here.setdefault(name, {"namespaced": False, "verbs": set(), "kind": None})
    resource["namespaced"] |= namespaced
    for method, operation in item.items():
        if not isinstance(operation, dict) or "x-kubernetes-action" not in operation:
            continue
        action = operation["x-kubernetes-action"]
        verb = _METHOD_VERBS.get(method) if action == "connect" else _VERBS.get(action, action)
        if verb is not None:
            resource["verbs"].add(verb)
        # A list of all namespaces is of the same kind; where a path serves two kinds, an object's own operations know best.
        if not watched and (resource["kind"] is None or action in {"get", "post", "put"}):
            resource["kind"] = operation["x-kubernetes-group-version-kind"]


def _resource_list(group: str, version: str, here: Mapping[str, dict[str, Any]], known: Names) -> dict[str, Any]:
    listed = []
    for name, found in sorted(here.items()):
        kind = found["kind"]
        if kind is None:
            continue
        resource = {"name": name, "singularName": "", "namespaced": found["namespaced"], "kind": kind["kind"]}
        if (kind["group"], kind["version"]) != (group, version):
            resource |= {"group": kind["group"], "version": kind["version"]}
        listed.append(resource | dict(known.get((group, name), {})) | {"verbs": sorted(found["verbs"])})
    head = {"kind": "APIResourceList"}
    # A server leaves apiVersion out of the core group's list, and nobody knows why.
    head |= {"apiVersion": "v1", "groupVersion": f"{group}/{version}"} if group else {"groupVersion": version}
    return head | {"resources": listed}


def _group(group: str, versions: list[str]) -> dict[str, Any]:
    ordered = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for version in sorted(versions, key=_age, reverse=True)
    ]
    return {"name": group, "versions": ordered, "preferredVersion": ordered[0]}


def _age(version: str) -> tuple[int, int, int]:
    found = _VERSION.match(version)
    if found is None:
        return (-1, 0, 0)
    return _STAGE[found[2] or ""], int(found[1]), int(found[3] or 0)
