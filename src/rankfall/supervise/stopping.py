"""Brings slots to their end: asked first, through their wrapper; by force when the wrapper itself is deaf."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.supervise.followed import FOLLOWED_S

# How long after the grace time a wrapper may take to end what does not die at once. It then kills nobody any more: we do.
DEAF_S: Final = 5.0


class Stopping:
    """One stop of one attempt; ``step`` is called until nothing runs. Monotonic seconds.

    Args:
        grace: between SIGTERM and SIGKILL.
        reason: goes into the wrapper's marks of its own kills.
        followed: whether the logs of the slots are open. What goes with a pod nobody can read afterwards, so for a while that is waited for.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        *,
        grace: float,
        reason: str,
        now: float,
        followed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._backend = backend
        self._plan = plan
        self._grace = grace
        self._reason = reason
        self._followed = followed
        self._told: set[int] = set()
        self._asked: float | None = None
        self.began = now

    @property
    def asked(self) -> bool:
        """Whether the slots have been asked to stop."""
        return self._asked is not None

    def step(self, running: Collection[int], *, now: float) -> None:
        """Tell those that were not told yet; a wrapper that is only starting is told as soon as it listens."""
        if self._asked is None:
            if now - self.began < FOLLOWED_S and not self._followed():
                return
            self._asked = now
        left = set(running)
        untold = left - self._told
        if untold:
            self._told.update(self._backend.stop(self._plan, untold, grace=self._grace, reason=self._reason))
        if left and now - self._asked > self._grace + DEAF_S:
            self._backend.end(self._plan, left, grace=0.0)
