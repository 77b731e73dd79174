"""Lock on a coordination.k8s.io Lease: at most one process, on whatever machine, believes that it holds it.

Every write carries the version that was read, so of two writers one is refused. A lease is taken over only
after its record did not change for its whole duration, by the observer's own clock; times inside a Lease are
of the holder's clock and are only shown. A holder that cannot renew stops believing well before that, by a
clock that also runs while the machine sleeps. A lease without the expected labels is refused.
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


class HolderIdle:
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


DURATION_S: Final = 30
"""How long a holder may be silent before another one may take its lease, seconds."""

RENEW_S: Final = 10.0
"""Between two renewals, seconds; a third of the duration, so that two may fail."""

# Of its duration, how long after its last renewal a holder still acts: what it sends then arrives before anybody else may take over.
_FIRM: Final = 2 / 3
# Of its duration, the longest wait for an answer: a renewal that hangs must not use up the time of the next ones.
_ANSWER: Final = 4 / 15
# Of a renewal whose version is out of date: somebody else writes labels, or takes it.
_TRIES: Final = 3


def boot_clock() -> float:
    """Seconds since the machine started, those in which it slept too: a lid that was closed for an hour is an hour."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseLost(KubeError):  # noqa: N818 - reads as the answer that it is
    """Somebody else holds the lease by now.

    Args:
        record: who; None = it is gone and could not be made anew.
    """

    def __init__(self, message: str, *, record: LeaseRecord | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.record = record


class LeaseLock:
    """One process's side of one lease.

    Args:
        name, namespace: of the lease.
        holder: names this process for people, and no other one.
        labels: that it bears; one with other values is not ours and left alone.
        notes: annotations of this holder.
        duration_s: how long we may be silent.
        clock: seconds; never runs backward, and goes on while the machine sleeps.
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
        """The lease as we wrote it last; None while we do not hold it."""
        return self._record

    def firm(self) -> bool:
        """Whether nobody else can hold it now: we do, and renewed it a short time ago."""
        return self._record is not None and self._clock() < self._firm_until

    async def look(self, kube: Kube) -> LeaseRecord | None:
        """The lease as it stands; None = there is none.

        Raises:
            LeaseLost: it is not ours: other marks.
            KubeError: it cannot be seen.
        """
        try:
            found = LeaseRecord.of(await self._answered(kube.get(LEASES, self.name, namespace=self.namespace)))
        except ObjectNotFound:
            return None
        if any(found.labels.get(key) != value for key, value in self._labels.items()):
            raise LeaseLost(
                f"{self._label} is not of this run (held by {excerpt(found.holder) or 'nobody'})",
                record=found,
                hint="it was left alone; give the job another name",
            )
        return found

    async def take(self, kube: Kube, found: LeaseRecord | None) -> bool:
        """Take a lease that is free, whose holder is silent, or that was never there; whether we hold it now.

        Args:
            kube: an open client.
            found: the newest look; None = there is none.

        Raises:
            KubeError: whether it was written is not known; the next look tells.
        """
        async with self._writes:
            if found is None:
                return await self._create(kube)
            # With our own name on it the answer to an earlier try was lost.
            more = found.holder != self.holder
            return await self._write(kube, found, {**self._hold(), "leaseTransitions": found.transitions + more})

    async def renew(
        self, kube: Kube, *, notes: Mapping[str, str] | None = None, owners: list[dict[str, Any]] | None = None
    ) -> None:
        """Say that we live, and write what is to stand on the lease.

        Args:
            kube: an open client.
            notes: annotations to set, from now on.
            owners: references to the objects that it goes with, from now on; an empty list = it goes with none.

        Raises:
            LeaseLost: somebody else holds it.
            KubeError: it cannot be written; as long as :meth:`firm` says so it is ours all the same.
        """
        async with self._writes:
            self._notes |= notes or {}
            self._owners = self._owners if owners is None else owners
            for _ in range(_TRIES):
                if self._record is None:
                    raise LeaseLost(f"{self._label} is not held by this process any more", record=None)
                if await self._write(kube, self._record, {"renewTime": stamp(time.time_ns())}):
                    return
                await self._see_whose(kube)
            raise Unreachable(f"{self._label} changes faster than it can be renewed", hint="it is tried again")

    async def give_back(self, kube: Kube) -> None:
        """Hold it no more, so that the next one need not wait. Its having been lost is fine.

        Raises:
            KubeError: it cannot be written; it runs out by itself.
        """
        async with self._writes:
            if self._record is not None:
                await self._write(kube, self._record, {"holderIdentity": None, "renewTime": stamp(time.time_ns())})
                self._record = None

    async def remove(self, kube: Kube) -> None:
        """Delete it, where we hold it.

        Raises:
            KubeError: it cannot be deleted.
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

    # -- inside

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
        """After a write that was refused for its version: another one's labels, another holder, or it is gone and made anew."""
        found = await self.look(kube)
        if found is None and await self._create(kube):
            return
        found = found or await self.look(kube)
        if found is not None and found.holder == self.holder:
            self._record = found
            return
        self._record = None
        holder = excerpt(found.holder) if found is not None and found.holder else "nobody"
        raise LeaseLost(f"{self._label} is held by {holder} now", record=found)

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
        # What is not found here is the namespace.
        return await self._written(kube.create(LEASES, body, namespace=self.namespace), refused=(Conflict,))

    async def _write(self, kube: Kube, record: LeaseRecord, spec: dict[str, Any]) -> bool:
        """Change it, where it still has the version of ``record``."""
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
        """Whether the server took it: not when somebody else was faster, or it is gone."""
        # Ours from the moment at which it was sent: when the server wrote it down is not known.
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
                f"{self._label}: no answer for {self._answer_s:g} s", hint="it is tried again", maybe_done=True
            ) from None
