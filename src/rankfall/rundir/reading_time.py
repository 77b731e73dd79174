"""How much time readers of job text may take, so that no text keeps a supervisor from its signals, its deadlines or its end.

Two bounds work together. One poll reads for at most ``POLL_S`` seconds and ``POLL_BYTES`` bytes, whatever is there; the rest comes with the next
polls, in turns. And the reader of one stream takes no more CPU time than an ``Allowance``: ``LIVE`` while a job is supervised, where ordinary text
takes a fraction of it, and ``AFTERWARDS`` where a person waits for the answer. A reader that is over it is set aside: all but the last ``TAIL``
bytes that the stream has by then stay stored and are not classified.
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
        burst_s: seconds in any case.
        rate: bytes of the stream for which it gets one second more.
        share: of the time since the stream was seen first.
    """

    burst_s: float
    rate: int
    share: float


#: While a job is supervised: reading hostile text costs the run at most a tenth of its time.
LIVE: Final = Allowance(burst_s=0.3, rate=256 << 20, share=0.1)
#: For an explanation. Honest tracebacks take about 0.1 s a MiB, ordinary text a hundredth of a second: both are read whole up to 100 MiB.
AFTERWARDS: Final = Allowance(burst_s=5.0, rate=16 << 20, share=0.0)
# The newest bytes of a stream, which say how it ended, are classified whatever its reader took before.
TAIL: Final = 256 << 10
# Seconds of CPU time for reading after all slots have ended, beside one for each ``LIVE.rate`` bytes; what is left then is classified by its last bytes alone.
END_S: Final = 0.5
# Seconds of CPU time for these last bytes of all streams together.
TAILS_S: Final = 10.0

Clock = Callable[[], float]


class Budget:
    """Seconds and bytes that some reading may take together.

    Args:
        seconds: from now on by ``clock``.
        size: bytes; None = no bound.
        clock: monotonic seconds, or CPU time of this thread.
        interrupted: whether somebody waits for this reading to end.
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
        """Count bytes that were read."""
        if self._left is not None:
            self._left -= size

    @property
    def spent(self) -> bool:
        """Whether nothing more may be read."""
        return (self._left is not None and self._left <= 0) or self._clock() >= self._until or self._interrupted()


class ReadingTime:
    """CPU time that the reader of one stream has taken, against what it may take.

    Args:
        allowance: what it may take.
        cpu: CPU time of this thread, seconds.
        clock: monotonic seconds.
    """

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
        """Count what is done inside."""
        before = self._cpu()
        try:
            yield
        finally:
            self.used += self._cpu() - before

    def over(self, size: int) -> bool:
        """Whether it has taken more than it may for a stream of this size, bytes."""
        allowed = self._allowance
        return self.used > allowed.burst_s + size / allowed.rate + allowed.share * (self._clock() - self._began)
