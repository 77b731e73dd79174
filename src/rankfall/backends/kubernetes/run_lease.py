"""The Lease that makes a supervisor the only one of a run in a cluster.

A Lease of the same directory is free immediately, any other after silence for its duration. An outdated copy of the
directory is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rankfall.backends.kubernetes.lifecycle.errors import RetryBudget
from rankfall.backends.kubernetes.lifecycle.ownership import age, span
from rankfall.backends.kubernetes.manifests.names import LABEL_RUN
from rankfall.backends.kubernetes.manifests.pod import MANAGED_BY
from rankfall.backends.protocol import HeldBy
from rankfall.kube.client import Kube
from rankfall.kube.errors import CredentialsError, KubeError
from rankfall.kube.lease import RENEW_S, HolderIdle, LeaseLock, LeaseLost, LeaseRecord, boot_clock
from rankfall.kube.secret import excerpt
from rankfall.model import EvidenceLost
from rankfall.rundir import RunDir
from rankfall.rundir.lease import boot_id
from rankfall.rundir.requests import who

NOTE_PLACE: Final = "rankfall.dev/run-directory"
"""Annotation: digest of the machine's current boot and the run directory (device and inode)."""

NOTE_ATTEMPT: Final = "rankfall.dev/attempt"
"""Annotation: newest attempt."""

NOTE_CREATED: Final = "rankfall.dev/created"
"""Annotation: creation time of the run directory; the same in every copy of the directory."""

_AGAIN_S: Final = 2.0
_BACK_S: Final = 6.0
# Seconds of refusal before it gives up.
_REFUSED_S: Final = 900.0
_NO_PERMISSION: Final = CredentialsError.exit_code


class RunLease:
    """One supervisor's view of a run's lease; methods run in the client's event loop.

    ``lost`` is called when another process supervises the run.
    """

    def __init__(
        self, run_dir: RunDir, *, namespace: str, lost: Callable[[str], None], clock: Callable[[], float] = boot_clock
    ) -> None:
        self._run = run_dir.id
        self._place = place_of(run_dir.path)
        self._created = str(run_dir.created)
        self._lost, self._clock = lost, clock
        self._holder_idle = HolderIdle()
        self._lock = LeaseLock(
            run_dir.id,
            namespace=namespace,
            holder=f"{who()} pid {os.getpid()} {secrets.token_hex(4)}",
            labels={LABEL_RUN: run_dir.id, **MANAGED_BY},
            notes={NOTE_PLACE: self._place, NOTE_CREATED: self._created},
            clock=clock,
        )

    def firm(self) -> bool:
        """True if no other process can supervise the run now."""
        return self._lock.firm()

    async def step(self, kube: Kube, *, attempts: int) -> HeldBy | None:
        """Tries once to become the run's supervisor; None = success.

        Raises:
            EvidenceLost: This directory is an old copy.
            LeaseLost: The lease belongs to another run.
            KubeError: Unreadable or not writable.
        """
        found = await self._lock.look(kube)
        if found is None:
            return None if await self._lock.take(kube, None) else HeldBy()
        free = self._holder_idle.see(found, now=self._clock())
        ours = found.notes.get(NOTE_PLACE) == self._place
        if not ours:
            self._check_copy(found, attempts)
        if (free or ours) and not found.deleting and await self._lock.take(kube, found):
            return None
        return HeldBy(who=excerpt(found.holder), since=age(found.acquired), alive=self._holder_idle.moved)

    async def keep(self, kube: Kube) -> None:
        """Renews the lease until canceled, lost, or credentials are refused for too long."""
        rng = random.Random()  # noqa: S311 - for pauses, not for secrets
        pause, refused = RENEW_S, None
        while True:
            await asyncio.sleep(pause * (0.8 + 0.4 * rng.random()))
            try:
                await self._lock.renew(kube)
                pause, refused = RENEW_S, None
            except LeaseLost as error:
                self._lost(f"another process supervises this run now: {error.message}")
                return
            except KubeError as error:
                # The pod watch reports the reason.
                pause, now = _AGAIN_S, self._clock()
                refused = (now if refused is None else refused) if error.exit_code == _NO_PERMISSION else None
                if refused is not None and now - refused >= _REFUSED_S:
                    self._lost(
                        f"the cluster has refused the credentials for {span(now - refused)}: the supervisor releases the run, which continues; log in, then run "
                        f"rankfall attach {self._run}"
                    )
                    return

    async def write(
        self, kube: Kube, *, notes: Mapping[str, str] | None = None, owners: list[dict[str, Any]] | None = None
    ) -> None:
        """Renews the lease before an object changes, and notes the change.

        Raises:
            LeaseLost: Another process holds the lease; calls ``lost``.
            KubeError: Failed; the caller must not act.
        """
        try:
            await self._lock.renew(kube, notes=notes, owners=owners)
        except LeaseLost as error:
            self._lost(f"another process supervises this run now: {error.message}")
            raise

    async def write_with_retries(
        self,
        kube: Kube,
        patience: RetryBudget,
        *,
        notes: Mapping[str, str] | None = None,
        owners: list[dict[str, Any]] | None = None,
    ) -> None:
        """Like :meth:`write`, with retries; empty ``owners`` removes the references.

        Raises:
            LeaseLost: Another process holds the lease; calls ``lost``.
            KubeError: Permanent, or until the limit.
        """
        while True:
            try:
                await self.write(kube, notes=notes, owners=owners)
            except KubeError as error:
                await patience.or_raise(error)
            else:
                return

    async def let_go(self, kube: Kube, *, over: bool) -> None:
        """Releases the lease within seconds; ``over`` deletes a lease that no object owns."""
        try:
            async with asyncio.timeout(_BACK_S):
                if over and self._lock.record is not None and not self._lock.record.owners:
                    await self._lock.remove(kube)
                else:
                    await self._lock.give_back(kube)
        except (KubeError, TimeoutError):
            # It expires by itself.
            return

    def _check_copy(self, found: LeaseRecord, attempts: int) -> None:
        noted = found.notes.get(NOTE_ATTEMPT, "")
        newest = int(noted) if noted.isascii() and noted.isdigit() and len(noted) < 10 else 0  # noqa: PLR2004 - of attempts
        by = f", by {excerpt(found.holder)}" if found.holder else ""
        if found.notes.get(NOTE_CREATED) == self._created:
            if newest > attempts:
                raise EvidenceLost(
                    f"this directory of run {self._run} is an old copy: it ends with attempt {attempts}, but the run is at attempt {newest}{by}",
                    hint="use the run where its supervisor is, or copy its directory again; this copy would repeat finished steps",
                )
        elif newest > 1:
            # The launch finds attempt 1 by name and would start a concurrent one.
            raise EvidenceLost(
                f"run {self._run} was requested earlier with the same token, from another directory, and is at attempt {newest}{by}",
                hint=f"check and remove its objects (label {LABEL_RUN}={self._run}), or use another request token",
            )


def place_of(path: Path) -> str:
    """Digest of boot id, device and inode of the directory; a random one if any is unknown."""
    boot = boot_id()
    try:
        status = path.stat()
    except OSError:
        status = None
    proof = f"{boot} {status.st_dev} {status.st_ino}" if boot and status is not None else secrets.token_hex(16)
    return hashlib.sha256(proof.encode()).hexdigest()[:32]
