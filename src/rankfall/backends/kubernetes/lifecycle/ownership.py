"""Determines an object's owner and its relation to a launch of the same name.

Only labels, annotations and UIDs count.
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
"""Launching user, for display: ``alice@laptop``."""

Standing = Literal["same", "deleting", "finished", "alive", "foreign"]

_RESOURCES: Final = {
    (resource.api_version, resource.kind): resource
    for resource in (CONFIG_MAPS, SECRETS, SERVICES, PVCS, JOBS, JOBSETS, TRAINJOBS, TRAINING_RUNTIMES)
}
_ENDS: Final = {"Job": {"Complete", "Failed"}, "JobSet": {"Completed", "Failed"}, "TrainJob": {"Complete", "Failed"}}
_RUN: Final = re.compile(r"(?P<base>.+)-[0-9a-f]{6}", re.DOTALL)
# Seconds from which a larger unit suffices.
_UNITS: Final = ((2 * 86_400, 86_400, "days"), (2 * 3600, 3600, "h"), (2 * 60, 60, "min"))


def resource_of(manifest: Mapping[str, Any]) -> Resource:
    """Returns the resource of a manifest's kind.

    Raises:
        ValueError: No launch has an object of this kind.
    """
    version, kind = str(manifest.get("apiVersion")), str(manifest.get("kind"))
    found = _RESOURCES.get((version, kind))
    if found is None:
        raise ValueError(f"no attempt has a {kind} of {version}")
    return found


def standing(found: Object, wanted: Object, *, token: str) -> Standing:
    """Returns an object's relation to a launch of its name.

    Returns:
        ``deleting``; ``same`` request; ``foreign``: unmarked or of another run; ``finished`` or ``alive``: of the same
        run.
    """
    if deleting(found):
        return "deleting"
    if token_of(found) == token:
        return "same"
    if not same_identity(found, wanted):
        return "foreign"
    return "finished" if finished(found) else "alive"


def same_identity(found: Object, wanted: Object) -> bool:
    """True if both belong to one run, or to one user's runs of one name."""
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
    """Returns a workload's final condition, or None."""
    names = _ENDS.get(str(item.get("kind")), set())
    for condition in _dict(item.get("status")).get("conditions") or ():
        if isinstance(condition, dict) and condition.get("status") == "True" and condition.get("type") in names:
            return str(condition["type"])
    return None


def suspended(item: Object) -> bool:
    """True if a workload is suspended."""
    return _dict(item.get("spec")).get("suspend") is True


def deleting(item: Object) -> bool:
    """True if the deletion has started."""
    return bool(meta(item).get("deletionTimestamp"))


def meta(item: Mapping[str, Any]) -> Object:
    """Metadata; empty if absent."""
    return _dict(item.get("metadata"))


def uid_of(item: Mapping[str, Any]) -> str:
    """UID; empty if absent."""
    return str(meta(item).get("uid") or "")


def label(item: Mapping[str, Any], key: str) -> str:
    """Returns a label; empty if absent."""
    return str(_dict(meta(item).get("labels")).get(key) or "")


def annotation(item: Mapping[str, Any], key: str) -> str:
    """Returns an annotation; empty if absent."""
    return str(_dict(meta(item).get("annotations")).get(key) or "")


def token_of(item: Mapping[str, Any]) -> str:
    """Request's token; empty if absent."""
    return annotation(item, ANNOTATION_REQUEST)


def owners_of(item: Mapping[str, Any]) -> list[Object]:
    """Owner references."""
    found = meta(item).get("ownerReferences")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def owner_reference(workload: Object) -> Object:
    """Returns companions' owner reference, for deletion with the workload.

    Omits ``blockOwnerDeletion``, which often needs the right to change finalizers.
    """
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": meta(workload)["name"],
        "uid": uid_of(workload),
        "controller": False,
    }


def marked(manifest: Object, *, token: str, owner: str | None = None, reference: Object | None = None) -> Object:
    """Returns a manifest with its request's marks; ``owner`` is for display."""
    marks = {ANNOTATION_REQUEST: token, **({ANNOTATION_OWNER: owner} if owner else {})}
    found = {**meta(manifest), "annotations": {**_dict(meta(manifest).get("annotations")), **marks}}
    if reference is not None:
        found["ownerReferences"] = [reference]
    return {**manifest, "metadata": found}


def described(item: Object, *, now: datetime | None = None) -> str:
    """Describes owner and age of an object, safe to display."""
    words = []
    if label(item, LABEL_RUN):
        words.append(f"run {excerpt(label(item, LABEL_RUN))}")
        words.append(f"attempt {excerpt(label(item, LABEL_ATTEMPT)) or 'unknown'}")
    if annotation(item, ANNOTATION_OWNER):
        words.append(f"launched by {excerpt(annotation(item, ANNOTATION_OWNER))}")
    elif not words:
        words.append(f"created by {_maker(item)}")
    words.append(f"{age(meta(item).get('creationTimestamp'), now=now)} old")
    return ", ".join(words)


def _maker(item: Object) -> str:
    fields = meta(item).get("managedFields")
    first = fields[0] if isinstance(fields, list) and fields else None
    return excerpt(str(_dict(first).get("manager") or "unknown creator"))


def age(stamp: Any, *, now: datetime | None = None) -> str:
    """Time since a server timestamp, by this machine's clock."""
    try:
        moment = datetime.fromisoformat(str(stamp))
        return span(((now or datetime.now(UTC)) - moment).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return "unknown time"


def span(seconds: float) -> str:
    """Formats a duration: ``42 s``, ``5 min``, ``3 h``, ``4 days``."""
    for least, unit, name in _UNITS:
        if seconds >= least:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _dict(value: Any) -> Object:
    return value if isinstance(value, dict) else {}
