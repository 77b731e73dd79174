"""Where a foreign object stands, by its own words. Job, JobSet and TrainJob say it as those of ours do; the others are read here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rankfall.kube.fields import text, word
from rankfall.observe.cluster.native_state import NativeState, native_state

_OWN: Final = frozenset({"job", "jobset", "trainjob"})
_ENDS: Final = (("Failed", "failed"), ("Succeeded", "succeeded"))


def state_of(kind: str, item: Mapping[str, Any], *, inner: Mapping[str, Any] | None) -> NativeState:
    """One look at a foreign object.

    Args:
        kind: as in a target.
        item: the object, with its ``kind``.
        inner: of a TrainJob its JobSet.
    """
    if kind in _OWN:
        return native_state(item, inner=inner)
    meta = item.get("metadata") or {}
    found = _of_pod(item) if kind == "pod" else _of_conditions(item)
    return msgspec.structs.replace(found, deleting=bool(meta.get("deletionTimestamp")))


def _of_pod(item: Mapping[str, Any]) -> NativeState:
    status = item.get("status") or {}
    phase = status.get("phase")
    if phase not in {"Succeeded", "Failed"}:
        return NativeState(phase="going", start="0/")
    return NativeState(
        phase="failed" if phase == "Failed" else "succeeded",
        start="0/",
        reason=word(status.get("reason")),
        message=text(status.get("message")),
    )


def _of_conditions(item: Mapping[str, Any]) -> NativeState:
    """A job of the training operator: its conditions alone, failure first."""
    said = (item.get("status") or {}).get("conditions")
    held = {one.get("type"): one for one in said if isinstance(one, Mapping)} if isinstance(said, list) else {}
    for name, phase in _ENDS:
        end = held.get(name)
        if end is not None and end.get("status") == "True":
            return NativeState(
                phase="failed" if phase == "failed" else "succeeded",
                start="0/",
                reason=word(end.get("reason")),
                message=text(end.get("message")),
                at=word(end.get("lastTransitionTime")),
            )
    # Pods of a suspended one are deleted; what it does after its release is the same start as far as it says.
    policy = (item.get("spec") or {}).get("runPolicy") or {}
    return NativeState(phase="suspended" if policy.get("suspend") is True else "going", start="0/")
