"""Bodies and queries of requests: selectors, deletion options, patches of one version. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.kube.request import Params
from rankfall.kube.resources import Resource

Object = dict[str, Any]
"""An object of the API, as JSON has it."""


def selectors(labels: str | None, fields: str | None) -> list[tuple[str, str]]:
    """Parameters of a list; what is empty is left out."""
    found = [("labelSelector", labels), ("fieldSelector", fields)]
    return [(name, value) for name, value in found if value]


def pairs(params: Mapping[str, str] | Params | None) -> Params:
    """Parameters in one form; a sequence may have a name more than once."""
    if params is None:
        return ()
    return list(params.items()) if isinstance(params, Mapping) else params


def labelled(item: Object, resource: Resource) -> Object:
    """The items of a list come without kind and apiVersion."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **item}


def delete_options(propagation: str, grace: int | None, preconditions: Mapping[str, str]) -> Object:
    """Body of a deletion.

    Args:
        propagation: what happens to what the object owns.
        grace: seconds that pods have to end; None = their own.
        preconditions: ``uid`` and ``resourceVersion`` that the object must have.
    """
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if preconditions:
        options["preconditions"] = preconditions
    return options


def at_version(body: Mapping[str, Any] | Sequence[Mapping[str, Any]], version: str) -> object:
    """The same patch, refused by the server when the object has another version by now."""
    if isinstance(body, Mapping):
        return {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
    # Setting the version to what it should be is the server's own test for it: its answer is 409, where a failed "test" would be 422.
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *body]
