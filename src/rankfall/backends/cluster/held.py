"""Whether a workload is suspended, since when, and whose queue releases it: from the object alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rankfall.backends.cluster.ownership import deleting, finished, label, suspended, uid_of
from rankfall.backends.cluster.refusals import QUEUE_LABEL
from rankfall.backends.protocol import HeldBack
from rankfall.kube.secret import excerpt


def held_back(item: dict[str, Any], *, uid: str | None) -> HeldBack:
    """What a workload says of itself.

    Args:
        item: the object, with its kind.
        uid: of the one that was launched; another one of its name means that it is gone. None = not known.
    """
    if uid not in {None, uid_of(item)} or deleting(item):
        return HeldBack(state="gone")
    queue = excerpt(label(item, QUEUE_LABEL))
    if finished(item) or not suspended(item):
        return HeldBack(state="free", queue=queue)
    return HeldBack(state="held", since=_since(item), queue=queue)


def _since(item: Mapping[str, Any]) -> int | None:
    """When its controller carried the suspension out."""
    status = item.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and one.get("type") == "Suspended" and one.get("status") == "True":
            try:
                return round(datetime.fromisoformat(str(one.get("lastTransitionTime"))).timestamp()) * 1_000_000_000
            except (ValueError, OverflowError):
                return None
    return None
