"""Bounds the time of readers of job text, so that none delays a supervisor.

A reader over its ``Allowance`` stops: the stream remains stored, only its last ``TAIL`` bytes are classified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

POLL_S: Final = 0.4
POLL_BYTES: Final = 64 << 20


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time that the reader of one stream may take.

    Attributes:
        burst_s: Seconds in any case.
        rate: Stream bytes per additional second.
        share: Share of the time since the stream's appearance.
    """

    burst_s: float
    rate: int
    share: float


#: During supervision: hostile text costs a tenth of the time.
LIVE: Final = Allowance(burst_s=0.3, rate=256 << 20, share=0.1)
#: For an explanation. Genuine tracebacks take 0.1 s per MiB, ordinary text 0.01 s: complete up to 100 MiB.
AFTERWARDS: Final = Allowance(burst_s=5.0, rate=16 << 20, share=0.0)
# A stream's newest bytes, classified in any case.
TAIL: Final = 256 << 10
# CPU seconds after all slots ended, plus one per ``LIVE.rate`` bytes.
END_S: Final = 0.5
# CPU seconds for the last bytes of all streams.
TAILS_S: Final = 10.0

Clock = Callable[[], float]


class Budget:
    """Seconds and bytes that several reads may take in total.

    ``clock``: monotonic or CPU time. ``interrupted`` returns True if a caller waits; the budget is then spent.
    """

    def __init__(
        self,
        seconds: float,
        size: int | None = None,
        *,
        clock: Clock = time.monotonic,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._left = size
        self._interrupted = interrupted

    def take(self, size: int) -> None:
        """Counts bytes that were read."""
        if self._left is not None:
            self._left -= size

    @property
    def spent(self) -> bool:
        """True if nothing more may be read."""
        return (self._left is not None and self._left <= 0) or self._clock() >= self._until or self._interrupted()


class ReadingTime:
    """CPU time that the reader of one stream has taken, against its allowance."""

    def __init__(
        self, allowance: Allowance = LIVE, *, cpu: Clock = time.thread_time, clock: Clock = time.monotonic
    ) -> None:
        self._allowance = allowance
        self._cpu = cpu
        self._clock = clock
        self._began = clock()
        self.used = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Counts the CPU time of the context."""
        before = self._cpu()
        try:
            yield
        finally:
            self.used += self._cpu() - before

    def over(self, size: int) -> bool:
        """True if the reader has taken more than its allowance for a stream of ``size`` bytes."""
        allowed = self._allowance
        return self.used > allowed.burst_s + size / allowed.rate + allowed.share * (self._clock() - self._began)
