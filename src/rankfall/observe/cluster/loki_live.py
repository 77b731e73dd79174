"""Follows an attempt's lines out of Loki while the job goes on: look after look, until the last word of every pod is stored.

Most looks begin a minute behind the newest line, every fifth minute one begins an hour behind it, for lines that a collector brought late.
That Loki does not answer is never the end and never "no lines": it is said once, and asked again for as long as the job may go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rankfall.observe.cluster.loki_take import LokiTake
from rankfall.observe.loki.cursor import SECOND
from rankfall.observe.loki.errors import LokiError

# Between two looks, seconds.
POLL_S: Final = 2.0
# Between two thorough ones, nanoseconds.
THOROUGH_NS: Final = 300 * SECOND
# After the end a collector may still hold lines: so long it is waited for the last look, nanoseconds.
SETTLE_NS: Final = 10 * SECOND
# After an answer that waiting may not heal, or a full disk, seconds.
REFUSED_S: Final = 10.0
# How long after the end a Loki that does not answer is asked for the last look, nanoseconds.
PATIENCE_NS: Final = 60 * SECOND


class LokiLive:
    """One or more attempts, followed.

    Args:
        takes: theirs, made for a live follow.
        ended: whether nothing more is to come; asked after each look.
        say: takes lines for people.
        clock: nanoseconds since the epoch.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        takes: Sequence[LokiTake],
        *,
        ended: Callable[[], bool],
        say: Callable[[str], None],
        clock: Callable[[], int] = time.time_ns,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._takes = takes
        self._ended = ended
        self._say = say
        self._clock = clock
        self._pause = pause

    async def run(self) -> None:
        """Look until the end.

        Raises:
            LokiError: it never answered and waiting will not heal that, or it does not answer any more after the end.
            OSError: as above, of the run directory.
        """
        try:
            await self._run()
        finally:
            self._forget()

    async def _run(self) -> None:
        answered = full = False
        thorough_at: int | None = None
        ended_at: int | None = None
        while True:
            now = self._clock()
            last = ended_at is not None and now >= ended_at + SETTLE_NS
            quick = not last and thorough_at is not None and now < thorough_at + THOROUGH_NS
            try:
                for take in self._takes:
                    await take.look(now, quick=quick)
            except LokiError as error:
                given_up = ended_at is not None and now >= ended_at + SETTLE_NS + PATIENCE_NS
                if given_up or not (answered or error.passing):
                    raise
                self._takes[0].trouble(error)
                await self._pause(max(REFUSED_S, error.retry_after or 0.0))
                continue
            except OSError as error:
                # What the files hold is known from them; what is held in memory may be ahead of it.
                self._forget()
                thorough_at = None
                if ended_at is not None:
                    raise
                if not full:
                    full = True
                    self._say(f"lines of Loki cannot be stored: {error.strerror or error}; tried again")
                await self._pause(REFUSED_S)
                continue
            answered, full = True, False
            if last:
                return
            thorough_at = thorough_at if quick else now
            if ended_at is None and self._ended():
                ended_at = now
            await self._pause(POLL_S)

    def _forget(self) -> None:
        for take in self._takes:
            take.forget()
