"""The Lease that makes one supervisor the only one of a run in a cluster.

The lease of the run directory separates processes of one machine; a copy of the directory on another machine
has its own. So a supervisor holds this Lease before it creates the first object. A Lease of the same
directory is taken over at once; any other only after it has been silent for its whole duration. A copy of the
directory whose last attempt is not the run's is refused.
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
from rankfall.rundir.requests import who

NOTE_PLACE: Final = "rankfall.dev/run-directory"
"""Annotation: a digest of the machine and directory that the run is supervised from."""

NOTE_ATTEMPT: Final = "rankfall.dev/attempt"
"""Annotation: the newest attempt that was begun."""

NOTE_CREATED: Final = "rankfall.dev/created"
"""Annotation: when the run's directory was made; the same in all copies of it, another one for a run that was asked for anew."""

_AGAIN_S: Final = 2.0
_BACK_S: Final = 6.0
# How long our credentials may be refused without a break before nobody is believed to log in any more, seconds.
_REFUSED_S: Final = 900.0
_NO_PERMISSION: Final = CredentialsError.exit_code


class RunLease:
    """The lease of one run, as one supervisor sees it. Its methods run in the loop of the portal.

    Args:
        run_dir: the run, whose directory's lease is held.
        namespace: where its objects are.
        lost: told in words that somebody else supervises the run by now.
        clock: seconds, as of :class:`LeaseLock`.
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
        """Whether nobody else can supervise the run now."""
        return self._lock.firm()

    async def step(self, kube: Kube, *, attempts: int) -> HeldBy | None:
        """One try to become the run's supervisor; None = we are.

        Args:
            kube: an open client.
            attempts: the newest attempt that our directory knows.

        Raises:
            EvidenceLost: our directory is an old copy.
            LeaseLost: the lease is not of this run.
            KubeError: it cannot be seen or written.
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
        """Renew it until cancelled; ends when it is lost, or our credentials are for good."""
        rng = random.Random()  # noqa: S311 - of pauses, not of secrets
        pause, refused = RENEW_S, None
        while True:
            await asyncio.sleep(pause * (0.8 + 0.4 * rng.random()))
            try:
                await self._lock.renew(kube)
                pause, refused = RENEW_S, None
            except LeaseLost as error:
                self._lost(f"this run is supervised elsewhere now: {error.message}")
                return
            except KubeError as error:
                # The feed tells what keeps us from the server.
                pause, now = _AGAIN_S, self._clock()
                refused = (now if refused is None else refused) if error.exit_code == _NO_PERMISSION else None
                if refused is not None and now - refused >= _REFUSED_S:
                    self._lost(
                        f"our credentials have been refused for {span(now - refused)}: supervision lets go of the run, which runs on; log in, then "
                        f"rankfall attach {self._run}"
                    )
                    return

    async def write(
        self, kube: Kube, *, notes: Mapping[str, str] | None = None, owners: list[dict[str, Any]] | None = None
    ) -> None:
        """Renew it now, before something is made or removed, and note what that is.

        Raises:
            LeaseLost: somebody else holds it; that is told too.
            KubeError: it could not be renewed; then nothing may be done.
        """
        try:
            await self._lock.renew(kube, notes=notes, owners=owners)
        except LeaseLost as error:
            self._lost(f"this run is supervised elsewhere now: {error.message}")
            raise

    async def write_with_retries(
        self,
        kube: Kube,
        patience: RetryBudget,
        *,
        notes: Mapping[str, str] | None = None,
        owners: list[dict[str, Any]] | None = None,
    ) -> None:
        """As :meth:`write`, and again after a failure that passes: what is not surely ours is not touched.

        Args:
            kube: an open client.
            patience: how long that is tried; its user is told of each pause.
            notes: annotations to set, from now on.
            owners: references to the objects that it goes with, from now on; an empty list = it goes with none.

        Raises:
            LeaseLost: somebody else holds it; that is told too.
            KubeError: it could not be renewed until patience was over, or never will be.
        """
        while True:
            try:
                await self.write(kube, notes=notes, owners=owners)
            except KubeError as error:
                await patience.or_raise(error)
            else:
                return

    async def let_go(self, kube: Kube, *, over: bool) -> None:
        """Hold it no more, as well as that can be done in a few seconds.

        Args:
            kube: an open client.
            over: the run has ended: a lease that goes with no object is removed.
        """
        try:
            async with asyncio.timeout(_BACK_S):
                if over and self._lock.record is not None and not self._lock.record.owners:
                    await self._lock.remove(kube)
                else:
                    await self._lock.give_back(kube)
        except (KubeError, TimeoutError):
            # It runs out by itself.
            return

    def _check_copy(self, found: LeaseRecord, attempts: int) -> None:
        said = found.notes.get(NOTE_ATTEMPT, "")
        newest = int(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0  # noqa: PLR2004 - of attempts
        by = f", by {excerpt(found.holder)}" if found.holder else ""
        if found.notes.get(NOTE_CREATED) == self._created:
            if newest > attempts:
                raise EvidenceLost(
                    f"this directory of run {self._run} is an old copy: it ends with attempt {attempts}, and the run is at attempt {newest}{by}",
                    hint="what it would do next has been done; look at the run where it is supervised, or copy its directory anew",
                )
        elif newest > 1:
            # The launch finds attempt 1 by its name, and would start beside this one.
            raise EvidenceLost(
                f"run {self._run} was asked for before with the same token, from another directory, and is at attempt {newest}{by}",
                hint=f"look at its objects (label {LABEL_RUN}={self._run}) and remove them, or use another request token",
            )


def place_of(path: Path) -> str:
    """A digest of this machine's boot and a directory: equal only for processes that share the directory's lease.

    Where the kernel does not tell its boot it is another one each time: nothing is proven then.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        status = path.stat()
    except OSError:
        boot, status = "", None
    proof = f"{boot} {status.st_dev} {status.st_ino}" if boot and status is not None else secrets.token_hex(16)
    return hashlib.sha256(proof.encode()).hexdigest()[:32]
