"""Merges the user's pod fields over the generated pod by name and protects required parts.

Volumes, mounts and variables are replaced singly; tolerations are appended.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from rankfall.model import SpecError
from rankfall.model.jobspec.check_kubernetes import OWN_MOUNTS

Object = dict[str, Any]

OWN_VOLUMES: Final = ("rankfall-inside", "rankfall-run")
WORKSPACE: Final = "rankfall-workspace"
# Kubernetes's list-map keys. A mixture of other entries is invalid.
_MERGED: Final = MappingProxyType({"containers": "name", "initContainers": "name"})
_REPLACED: Final = MappingProxyType(
    {
        "volumes": "name",
        "volumeMounts": "mountPath",
        "volumeDevices": "devicePath",
        "env": "name",
        "ports": "containerPort",
        "imagePullSecrets": "name",
        "hostAliases": "ip",
        "resourceClaims": "name",
        "schedulingGates": "name",
    }
)
_APPENDED: Final = frozenset({"tolerations", "envFrom", "topologySpreadConstraints", "readinessGates", "finalizers"})
_RESERVED_SPEC: Final = MappingProxyType(
    {
        "hostname": "Rankfall finds pods by the names that Kubernetes gives them",
        "subdomain": "it is the name of the service that Rankfall creates",
        "restartPolicy": "Rankfall restarts the gang itself",
        "ephemeralContainers": "they cannot be part of a template",
    }
)
_RESERVED_CONTAINER: Final = MappingProxyType(
    {"command": "$.command", "args": "$.command", "image": "$.kubernetes.image", "workingDir": "$.cwd"}
)
_METADATA: Final = ("labels", "annotations", "finalizers")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """Returns ``over`` merged over ``base``; changes neither."""
    result = {key: copy.deepcopy(value) for key, value in base.items()}
    for key, value in over.items():
        mine = result.get(key)
        if isinstance(mine, dict) and isinstance(value, Mapping):
            result[key] = merged(mine, value)
        elif isinstance(mine, list) and isinstance(value, list | tuple):
            result[key] = _lists(key, mine, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _lists(key: str, mine: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    if key in _APPENDED:
        return [*mine, *(copy.deepcopy(item) for item in theirs if item not in mine)]
    name = _MERGED.get(key) or _REPLACED.get(key)
    if name is None:
        return copy.deepcopy(list(theirs))
    result = list(mine)
    places = {item.get(name): number for number, item in enumerate(mine)}
    for item in theirs:
        place = places.get(item.get(name))
        if place is None:
            places[item.get(name)] = len(result)
            result.append(copy.deepcopy(item))
        else:
            result[place] = merged(result[place], item) if key in _MERGED else copy.deepcopy(item)
    return result


def check_override(pod: Mapping[str, Any], *, container: str, own_env: Collection[str]) -> None:
    """Refuses overrides that would remove a part that a run requires.

    Raises:
        SpecError: Names path and alternative.
    """
    root = "$.kubernetes.pod"
    _check_nulls(pod, root)
    for key in pod.get("metadata", {}):
        if key not in _METADATA:
            raise SpecError(
                f"{root}.metadata.{key}", "is set by Rankfall or Kubernetes", hint=f"allowed: {', '.join(_METADATA)}"
            )
    spec = pod.get("spec", {})
    for key, why in _RESERVED_SPEC.items():
        if key in spec and not (key == "restartPolicy" and spec[key] == "Never"):
            raise SpecError(f"{root}.spec.{key}", f"cannot be set: {why}", hint="leave it out")
    check_volumes(f"{root}.spec.volumes", spec.get("volumes", ()))
    for field in ("containers", "initContainers"):
        for number, item in enumerate(_items(f"{root}.spec.{field}", spec.get(field, ()))):
            path = f"{root}.spec.{field}[{number}]"
            if field == "containers" and item["name"] == container:
                _check_training_container(path, item, own_env=own_env)
            elif item["name"] == container:
                raise SpecError(f"{path}.name", f"{container!r} is the training container's name")
            elif "image" not in item:
                raise SpecError(
                    f"{path}.name",
                    f"there is no container {item['name']!r} to override, and without an image it cannot be a new one",
                    hint=f"the training container is {container!r}; give an additional container an image",
                )


def check_volumes(path: str, volumes: Sequence[Any]) -> None:
    """Refuses volumes with names reserved by Rankfall.

    Raises:
        SpecError: Contains the path.
    """
    for number, item in enumerate(_items(path, volumes)):
        if item["name"] in {*OWN_VOLUMES, WORKSPACE}:
            raise SpecError(f"{path}[{number}].name", f"{item['name']!r} is Rankfall's own volume", hint="rename it")


def _check_training_container(path: str, item: Mapping[str, Any], *, own_env: Collection[str]) -> None:
    for key, instead in _RESERVED_CONTAINER.items():
        if key in item:
            raise SpecError(f"{path}.{key}", "cannot be set here", hint=f"use {instead}")
    for number, variable in enumerate(_items(f"{path}.env", item.get("env", ()))):
        if variable["name"] in own_env or variable["name"].startswith("RANKFALL_"):
            raise SpecError(f"{path}.env[{number}].name", f"{variable['name']} is set by Rankfall itself")
    for number, mount in enumerate(item.get("volumeMounts", ())):
        place = str(mount.get("mountPath", "")) if isinstance(mount, Mapping) else ""
        plain = place.rstrip("/") or "/"
        if any(plain == own or plain.startswith(f"{own}/") for own in OWN_MOUNTS):
            raise SpecError(
                f"{path}.volumeMounts[{number}].mountPath", f"{place!r} is Rankfall's own place in the container"
            )


def _items(path: str, items: Any) -> list[Mapping[str, Any]]:
    if not isinstance(items, list | tuple):
        raise SpecError(path, "is not a list")
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            raise SpecError(f"{path}[{number}].name", "is missing: it names the object")
    return list(items)


def _check_nulls(value: Any, path: str) -> None:
    """Refuses nulls: "remove" or a forgotten value?"""
    if value is None:
        raise SpecError(path, "is null", hint="give a value, or leave the field out")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_nulls(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _check_nulls(inner, f"{path}[{number}]")


def without_nodes(pod: Mapping[str, Any], nodes: Collection[str]) -> Object:
    """Excludes nodes from the pod spec, regardless of its affinity.

    Each node selector term gets the exclusion; an empty term matches no node.
    """
    result = copy.deepcopy(dict(pod))
    if not nodes:
        return result
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted(set(nodes))}
    affinity = result.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{"matchExpressions": [expression]}]
    required["nodeSelectorTerms"] = [_with(term, expression) for term in terms]
    return result


def _with(term: Mapping[str, Any], expression: Object) -> Object:
    expressions = term.get("matchExpressions") or []
    empty = not expressions and not term.get("matchFields")
    if empty or expression in expressions:
        return dict(term)
    return {**term, "matchExpressions": [*expressions, expression]}
