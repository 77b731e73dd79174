"""At most one controller acts: a Lease, renewed while this process lives. Who cannot renew stops acting well before anybody else may begin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rankfall.health.controller.state import LABELS
from rankfall.health.controller.telling import LOG
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, ObjectNotFound
from rankfall.kube.lease import LeaseLock, LeaseLost, boot_clock
from rankfall.kube.lease_record import Silence
from rankfall.model.health_answer import LEASE

NAME: Final = LEASE
#: How long a leader may be silent before another one takes over, and the time between its renewals, seconds: two may fail.
DURATION_S: Final = 15
RENEW_S: Final = 5.0
#: Between two looks at a lease that another one holds, seconds. So a kill costs 15 s and two looks at most before another one leads.
LOOK_S: Final = 1.0


class Leading:
    """The lease of controllers.

    Args:
        kube: an open client.
        namespace: of the lease.
        identity: names this process.
        look_s: between two looks at another one's lease.
        renew_s: between two renewals.
    """

    def __init__(
        self, kube: Kube, *, namespace: str, identity: str, look_s: float = LOOK_S, renew_s: float = RENEW_S
    ) -> None:
        self._kube, self._namespace = kube, namespace
        self._look_s, self._renew_s = look_s, renew_s
        self._lock = LeaseLock(
            NAME, namespace=namespace, holder=identity, labels=LABELS, notes={}, duration_s=DURATION_S
        )

    async def sure(self) -> bool:
        """Whether nobody else can be acting now; where that ran out it is renewed first.

        A machine that is short of time lets a renewal come late although nobody has taken the lease: to stop for that alone would let each leader begin
        the same work anew, and none end it.
        """
        if self._lock.firm():
            return True
        try:
            await self._lock.renew(self._kube)
        except KubeError as error:
            LOG.warning("the lease cannot be renewed: %s", error.message)
        return self._lock.firm()

    async def win(self) -> None:
        """Wait until this process holds the lease.

        Raises:
            LeaseLost: the lease of this name is not a controller's.
        """
        silence, told, trouble = Silence(), "", ""
        while True:
            found = None
            try:
                found = await self._lock.look(self._kube)
                free = found is None or silence.see(found, now=boot_clock())
                if free and await self._lock.take(self._kube, found):
                    LOG.info("this controller leads")
                    return
                holder = "" if found is None else found.holder
                if holder and holder != told:
                    LOG.info("%s leads; this one waits", holder)
                    told = holder
                trouble = ""
            except LeaseLost:
                raise
            except KubeError as error:
                # A lease that is not there is no error, so what is missing is the place for a new one.
                nowhere = found is None and isinstance(error, ObjectNotFound)
                step = f"; next: kubectl create namespace {self._namespace}" if nowhere else ""
                trouble = _once(f"{error.message}{step}", trouble)
            await asyncio.sleep(self._look_s)

    async def keep(self) -> None:
        """Renew until it is lost; returns then."""
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self._lock.renew(self._kube)
            except LeaseLost as error:
                LOG.warning("%s", error.message)
                return
            except KubeError as error:
                LOG.warning("the lease cannot be renewed: %s", error.message)
                if not self._lock.firm():
                    return

    @asynccontextmanager
    async def given_back(self) -> AsyncIterator[None]:
        """A block at whose end the lease is free at once for the next one."""
        try:
            yield
        finally:
            with contextlib.suppress(KubeError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._lock.give_back(self._kube)


def _once(message: str, before: str) -> str:
    """Say why the lease cannot be seen, unless that was the last thing said: a look comes every second."""
    if message != before:
        LOG.warning("the lease cannot be seen: %s", message)
    return message
