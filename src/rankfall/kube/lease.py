"""Lock on a coordination.k8s.io Lease for at most one process.

Takeover requires a record unchanged for its whole duration by the observer's clock; its times are only
displayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Conflict, KubeError, ObjectNotFound, Unreachable
from rankfall.kube.resources import LEASES
from rankfall.kube.secret import excerpt

# Default duration in seconds.
_DURATION_S: Final = 30.0
_LONGEST_S: Final = 3600.0


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a Lease.

    Attributes:
        uid, version: UID and resource version of the object.
        holder: Identity of the holder; empty = free.
        acquired, renewed: Times by the holder's clock, for display.
        duration_s: Seconds without renewal until expiry.
        transitions: Number of changes of the holder.
        owners: UIDs of the owner objects.
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
        """Parses a Lease object; missing and invalid fields get defaults."""
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


class HolderIdle:
    """Detects an idle holder, by seconds of any clock that never runs backward.

    ``moved`` is True if the last record differed from the one before: the holder lives.
    """

    def __init__(self) -> None:
        self.moved = False
        self._seen: tuple[str, str, int, str] | None = None
        self._since = 0.0

    def see(self, record: LeaseRecord, *, now: float) -> bool:
        """True if the holder was silent for the lease's duration, or the lease is free."""
        # Without the version: others' label changes do not prove that the holder lives.
        sign = (record.holder, record.renewed, record.transitions, record.uid)
        if sign != self._seen:
            self.moved = self.moved or (self._seen is not None and self._seen[0] == record.holder)
            self._seen, self._since = sign, now
        return not record.holder or now - self._since >= record.duration_s


def stamp(at_ns: int) -> str:
    """Formats a time: microseconds, UTC."""
    whole, rest = divmod(at_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> dict[str, str]:
    return {key: one for key, one in _dict(value).items() if isinstance(one, str)}


DURATION_S: Final = 30
"""Seconds of silence before another process may take the lease."""

RENEW_S: Final = 10.0
"""Seconds between renewals; a third of the duration, so two may fail."""

# Fraction of the duration in which a holder acts, so that its last request precedes any takeover.
_FIRM: Final = 2 / 3
# Fraction of the duration to wait for an answer; leaves time for another renewal.
_ANSWER: Final = 4 / 15
# Attempts with an outdated version.
_TRIES: Final = 3


def boot_clock() -> float:
    """Returns seconds since boot, including time in which the machine slept."""
    # Without CLOCK_BOOTTIME (macOS) the monotonic clock counts sleep.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LeaseLost(KubeError):
    """Another process holds the lease.

    ``record`` is None if the lease was deleted and cannot be created.
    """

    def __init__(self, message: str, *, record: LeaseRecord | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.record = record


class LeaseLock:
    """Handle of one process on one lease.

    ``holder`` is unique to this process. A lease without ``labels`` belongs to another program and stays unchanged.
    ``clock`` returns seconds and includes time in which the machine slept.
    """

    def __init__(
        self,
        name: str,
        *,
        namespace: str,
        holder: str,
        labels: Mapping[str, str],
        notes: Mapping[str, str],
        duration_s: int = DURATION_S,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.name, self.namespace, self.holder = name, namespace, holder
        self._labels, self._notes = dict(labels), dict(notes)
        self._duration_s, self._clock = duration_s, clock
        self._firm_s, self._answer_s = duration_s * _FIRM, duration_s * _ANSWER
        self._owners: list[dict[str, Any]] | None = None
        self._record: LeaseRecord | None = None
        self._firm_until = 0.0
        self._writes = asyncio.Lock()

    @property
    def record(self) -> LeaseRecord | None:
        """The lease as last written here; None if not held."""
        return self._record

    def firm(self) -> bool:
        """True if no other process can hold the lease now, after a recent renewal."""
        return self._record is not None and self._clock() < self._firm_until

    async def look(self, kube: Kube) -> LeaseRecord | None:
        """Returns the current lease; None if it does not exist.

        Raises:
            LeaseLost: The lease has foreign labels.
            KubeError: The lease is unreadable.
        """
        try:
            found = LeaseRecord.of(await self._answered(kube.get(LEASES, self.name, namespace=self.namespace)))
        except ObjectNotFound:
            return None
        if any(found.labels.get(key) != value for key, value in self._labels.items()):
            raise LeaseLost(
                f"{self._label} is not of this run (holder: {excerpt(found.holder) or 'none'})",
                record=found,
                hint="give the job another name; this one was not changed",
            )
        return found

    async def take(self, kube: Kube, found: LeaseRecord | None) -> bool:
        """Takes a free, expired or missing lease; returns True if held now.

        Raises:
            KubeError: The result is unknown; ``look`` shows the holder.
        """
        async with self._writes:
            if found is None:
                return await self._create(kube)
            # With this holder's name, only the earlier answer was lost.
            more = found.holder != self.holder
            return await self._write(kube, found, {**self._hold(), "leaseTransitions": found.transitions + more})

    async def renew(
        self, kube: Kube, *, notes: Mapping[str, str] | None = None, owners: list[dict[str, Any]] | None = None
    ) -> None:
        """Renews the lease and writes annotations and owners; an empty list removes owners.

        Raises:
            LeaseLost: Another process holds the lease.
            KubeError: Not written; held while :meth:`firm` is true.
        """
        async with self._writes:
            self._notes |= notes or {}
            self._owners = self._owners if owners is None else owners
            for _ in range(_TRIES):
                if self._record is None:
                    raise LeaseLost(f"{self._label} is lost: this process no longer has it", record=None)
                if await self._write(kube, self._record, {"renewTime": stamp(time.time_ns())}):
                    return
                await self._see_whose(kube)
            raise Unreachable(f"{self._label} changes faster than it can be renewed", hint="wait; Rankfall tries again")

    async def give_back(self, kube: Kube) -> None:
        """Releases the lease; does nothing if lost.

        Raises:
            KubeError: Not written; the lease expires.
        """
        async with self._writes:
            if self._record is not None:
                await self._write(kube, self._record, {"holderIdentity": None, "renewTime": stamp(time.time_ns())})
                self._record = None

    async def remove(self, kube: Kube) -> None:
        """Deletes the lease if this process holds it.

        Raises:
            KubeError: The deletion failed.
        """
        async with self._writes:
            record, self._record = self._record, None
            if record is None:
                return
            with contextlib.suppress(ObjectNotFound, Conflict):
                await self._answered(
                    kube.delete(
                        LEASES, self.name, namespace=self.namespace, uid=record.uid, resource_version=record.version
                    )
                )

    @property
    def _label(self) -> str:
        return LEASES.label(self.name, self.namespace)

    def _hold(self) -> dict[str, Any]:
        now = stamp(time.time_ns())
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": now,
            "renewTime": now,
        }

    async def _see_whose(self, kube: Kube) -> None:
        """Reads the lease after a refused write and raises LeaseLost if another process holds it."""
        found = await self.look(kube)
        if found is None and await self._create(kube):
            return
        found = found or await self.look(kube)
        if found is not None and found.holder == self.holder:
            self._record = found
            return
        self._record = None
        holder = excerpt(found.holder) if found is not None and found.holder else None
        owned = f"now belongs to {holder}" if holder else "now belongs to no process"
        raise LeaseLost(f"{self._label} {owned}", record=found)

    async def _create(self, kube: Kube) -> bool:
        meta: dict[str, Any] = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": self._labels,
            "annotations": self._notes,
        }
        if self._owners:
            meta["ownerReferences"] = self._owners
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": {**self._hold(), "leaseTransitions": 0},
        }
        # Not found means a missing namespace.
        return await self._written(kube.create(LEASES, body, namespace=self.namespace), refused=(Conflict,))

    async def _write(self, kube: Kube, record: LeaseRecord, spec: dict[str, Any]) -> bool:
        meta: dict[str, Any] = {"annotations": self._notes}
        if self._owners is not None:
            meta["ownerReferences"] = self._owners
        return await self._written(
            kube.patch(
                LEASES,
                self.name,
                {"metadata": meta, "spec": spec},
                kind="merge",
                namespace=self.namespace,
                resource_version=record.version,
            ),
            refused=(Conflict, ObjectNotFound),
        )

    async def _written(self, request: Awaitable[dict[str, Any]], *, refused: tuple[type[ApiError], ...]) -> bool:
        """Returns True if the server accepted the write; False if it answered with an error in ``refused``."""
        # Counts from sending: the server's time of writing is unknown.
        sent = self._clock()
        try:
            self._record = LeaseRecord.of(await self._answered(request))
        except refused:
            return False
        self._firm_until = sent + self._firm_s
        return True

    async def _answered(self, request: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._answer_s):
                return await request
        except TimeoutError:
            raise Unreachable(
                f"{self._label}: no answer for {self._answer_s:g} s", hint="wait; Rankfall tries again", maybe_done=True
            ) from None
