"""Decides whose an object is and what may be done about one that already has the wanted name.

The answers: same, deleting, finished, alive, foreign. Only labels, annotations and UIDs of the objects are
believed. An object without our marks is not ours, whatever its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from rankfall.backends.kubernetes.manifests.names import ANNOTATION_REQUEST, LABEL_ATTEMPT, LABEL_RUN
from rankfall.kube.resources import (
    CONFIG_MAPS,
    JOBS,
    JOBSETS,
    PVCS,
    SECRETS,
    SERVICES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    Resource,
)
from rankfall.kube.secret import excerpt

Object = dict[str, Any]

ANNOTATION_OWNER: Final = "rankfall.dev/owner"
"""Who launched it, for people: ``alice@laptop``."""

Standing = Literal["same", "deleting", "finished", "alive", "foreign"]

_RESOURCES: Final = {
    (resource.api_version, resource.kind): resource
    for resource in (CONFIG_MAPS, SECRETS, SERVICES, PVCS, JOBS, JOBSETS, TRAINJOBS, TRAINING_RUNTIMES)
}
# Conditions that nothing follows.
_ENDS: Final = {"Job": {"Complete", "Failed"}, "JobSet": {"Completed", "Failed"}, "TrainJob": {"Complete", "Failed"}}
_RUN: Final = re.compile(r"(?P<base>.+)-[0-9a-f]{6}", re.DOTALL)
# Seconds from which on a larger unit says enough.
_UNITS: Final = ((2 * 86_400, 86_400, "days"), (2 * 3600, 3600, "h"), (2 * 60, 60, "min"))


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Where objects of a manifest's kind live.

    Raises:
        ValueError: nothing that is launched is of this kind.
    """
    version, kind = str(manifest.get("apiVersion")), str(manifest.get("kind"))
    found = _RESOURCES.get((version, kind))
    if found is None:
        raise ValueError(f"no attempt has a {kind} of {version}")
    return found


def standing(found: Object, wanted: Object, *, token: str) -> Standing:
    """What an object is to the launch of another one of its name.

    Args:
        found: the object that is there.
        wanted: the manifest of the new one.
        token: of the request that makes the new one.

    Returns:
        ``deleting``: on its way out, whoever made it. ``same``: made by this very request. ``foreign``: without our marks, or of another run.
        ``finished`` and ``alive``: of the same run.
    """
    if deleting(found):
        return "deleting"
    if token_of(found) == token:
        return "same"
    if not same_identity(found, wanted):
        return "foreign"
    return "finished" if finished(found) else "alive"


def same_identity(found: Object, wanted: Object) -> bool:
    """Whether both are of one run, or of runs of one name that one person launched."""
    theirs, ours = label(found, LABEL_RUN), label(wanted, LABEL_RUN)
    if not theirs or not ours:
        return False
    if theirs == ours:
        return True
    owner = annotation(wanted, ANNOTATION_OWNER)
    return bool(owner) and owner == annotation(found, ANNOTATION_OWNER) and _base(theirs) == _base(ours)


def _base(run: str) -> str:
    found = _RUN.fullmatch(run)
    return found["base"] if found else run


def finished(item: Object) -> str | None:
    """The condition that says that a workload has ended; None when it has not."""
    names = _ENDS.get(str(item.get("kind")), set())
    for condition in _dict(item.get("status")).get("conditions") or ():
        if isinstance(condition, dict) and condition.get("status") == "True" and condition.get("type") in names:
            return str(condition["type"])
    return None


def suspended(item: Object) -> bool:
    """Whether a workload is held back."""
    return _dict(item.get("spec")).get("suspend") is True


def deleting(item: Object) -> bool:
    """Whether its deletion has begun."""
    return bool(meta(item).get("deletionTimestamp"))


def meta(item: Mapping[str, Any]) -> Object:
    """Metadata; empty when there are none."""
    return _dict(item.get("metadata"))


def uid_of(item: Mapping[str, Any]) -> str:
    """The UID; empty when there is none."""
    return str(meta(item).get("uid") or "")


def label(item: Mapping[str, Any], key: str) -> str:
    """A label; empty when it is not there."""
    return str(_dict(meta(item).get("labels")).get(key) or "")


def annotation(item: Mapping[str, Any], key: str) -> str:
    """An annotation; empty when it is not there."""
    return str(_dict(meta(item).get("annotations")).get(key) or "")


def token_of(item: Mapping[str, Any]) -> str:
    """Token of the request that made an object; empty when it has none."""
    return annotation(item, ANNOTATION_REQUEST)


def owners_of(item: Mapping[str, Any]) -> list[Object]:
    """Owner references."""
    found = meta(item).get("ownerReferences")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def owner_reference(workload: Object) -> Object:
    """What stands on the companions of a workload, so that they go when it goes.

    Without ``blockOwnerDeletion``: many clusters let only those set it who may change the workload's finalizers.
    """
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": meta(workload)["name"],
        "uid": uid_of(workload),
        "controller": False,
    }


def marked(manifest: Object, *, token: str, owner: str | None = None, reference: Object | None = None) -> Object:
    """A manifest with the marks of the request that sends it.

    Args:
        manifest: stays as it is.
        token: of the request.
        owner: who launches, for people.
        reference: of the workload that owns it.
    """
    marks = {ANNOTATION_REQUEST: token, **({ANNOTATION_OWNER: owner} if owner else {})}
    found = {**meta(manifest), "annotations": {**_dict(meta(manifest).get("annotations")), **marks}}
    if reference is not None:
        found["ownerReferences"] = [reference]
    return {**manifest, "metadata": found}


def described(item: Object, *, now: datetime | None = None) -> str:
    """Whose an object is and how old, in words that are safe to show."""
    words = []
    if label(item, LABEL_RUN):
        words.append(f"run {excerpt(label(item, LABEL_RUN))}")
        words.append(f"attempt {excerpt(label(item, LABEL_ATTEMPT)) or 'unknown'}")
    if annotation(item, ANNOTATION_OWNER):
        words.append(f"launched by {excerpt(annotation(item, ANNOTATION_OWNER))}")
    elif not words:
        words.append(f"made by {_maker(item)}")
    words.append(f"{age(meta(item).get('creationTimestamp'), now=now)} old")
    return ", ".join(words)


def _maker(item: Object) -> str:
    """The program that wrote an object first, as the server noted it."""
    fields = meta(item).get("managedFields")
    first = fields[0] if isinstance(fields, list) and fields else None
    return excerpt(str(_dict(first).get("manager") or "nobody known"))


def age(stamp: Any, *, now: datetime | None = None) -> str:
    """How long ago a time stamp of the server was, by this machine's clock."""
    try:
        moment = datetime.fromisoformat(str(stamp))
        return span(((now or datetime.now(UTC)) - moment).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return "unknown time"


def span(seconds: float) -> str:
    """A duration in words: ``42 s``, ``5 min``, ``3 h``, ``4 days``; clocks that disagree make none negative."""
    for least, unit, name in _UNITS:
        if seconds >= least:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _dict(value: Any) -> Object:
    return value if isinstance(value, dict) else {}
