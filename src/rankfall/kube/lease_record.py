"""A Lease of coordination.k8s.io as it was read, and whether its holder has fallen silent. Pure.

Times inside a Lease are of its holder's clock: they are shown to people and never compared with ours. That a holder is gone is concluded
from its record alone: it did not change for as long as the lease lasts, by the clock of whoever looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

# What a lease without a duration, or with one that makes no sense, is given.
_DURATION_S: Final = 30.0
_LONGEST_S: Final = 3600.0


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a Lease.

    Attributes:
        uid, version: of the object.
        holder: empty = nobody holds it.
        acquired, renewed: as the holder wrote them; for people.
        duration_s: how long it may be silent.
        transitions: how often the holder changed.
        owners: UIDs of the objects that it goes with.
    """

    uid: str
    version: str
    holder: str = ""
    acquired: str = ""
    renewed: str = ""
    duration_s: float = _DURATION_S
    transitions: int = 0
    deleting: bool = False
    labels: dict[str, str] = {}
    notes: dict[str, str] = {}
    owners: tuple[str, ...] = ()

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> LeaseRecord:
        """The record in an object; what is missing or no text counts as not said."""
        meta, spec = _dict(item.get("metadata")), _dict(item.get("spec"))
        seconds, count = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        owners = meta.get("ownerReferences")
        return cls(
            uid=_text(meta.get("uid")),
            version=_text(meta.get("resourceVersion")),
            holder=_text(spec.get("holderIdentity")),
            acquired=_text(spec.get("acquireTime")),
            renewed=_text(spec.get("renewTime")),
            duration_s=float(min(seconds, _LONGEST_S)) if isinstance(seconds, int) and seconds > 0 else _DURATION_S,
            transitions=count if isinstance(count, int) and count >= 0 else 0,
            deleting=bool(meta.get("deletionTimestamp")),
            labels=_texts(meta.get("labels")),
            notes=_texts(meta.get("annotations")),
            owners=tuple(_text(one.get("uid")) for one in owners if isinstance(one, dict))
            if isinstance(owners, list)
            else (),
        )


class Silence:
    """Watches one lease from outside. Seconds of any clock that never runs backward.

    Attributes:
        moved: the record changed while it was watched: its holder lives.
    """

    def __init__(self) -> None:
        self.moved = False
        self._seen: tuple[str, str, int, str] | None = None
        self._since = 0.0

    def see(self, record: LeaseRecord, *, now: float) -> bool:
        """Whether the holder has been silent for as long as its lease lasts; a lease that nobody holds is free at once."""
        # Not the version: labels that somebody else writes are no sign of life.
        sign = (record.holder, record.renewed, record.transitions, record.uid)
        if sign != self._seen:
            self.moved = self.moved or (self._seen is not None and self._seen[0] == record.holder)
            self._seen, self._since = sign, now
        return not record.holder or now - self._since >= record.duration_s


def stamp(at_ns: int) -> str:
    """A time as a Lease has it: microseconds, UTC."""
    whole, rest = divmod(at_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> dict[str, str]:
    return {key: one for key, one in _dict(value).items() if isinstance(one, str)}
