"""At most so many requests a second: a token bucket, one for each client, first come first served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Limiter:
    """Lets ``burst`` requests through at once and ``rate`` a second in the long run.

    Args:
        rate: requests a second; above zero.
        burst: requests that may follow one another without a pause; at least one.
        clock: seconds that never run backward.
    """

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("a limiter needs a rate above zero and a burst of at least one")
        self._rate, self._burst, self._clock = rate, burst, clock
        # The moment at which the bucket is full again. It lies in the future by what was taken and has not flowed back.
        self._full_at = clock()

    def reserve(self) -> float:
        """Take a place; how many seconds to wait until it is ours. Places are given in the order in which they are asked for."""
        now = self._clock()
        # By spans, not by moments: rounding must not make the first one of a burst wait.
        ahead = max(0.0, self._full_at - now) + 1 / self._rate
        self._full_at = now + ahead
        return max(0.0, ahead - self._burst / self._rate)

    async def wait(self) -> None:
        """Return when the next request may be sent. Whoever is cancelled meanwhile leaves its place unused."""
        delay = self.reserve()
        if delay > 0:
            await asyncio.sleep(delay)
