"""When the kernel's clock began: learnt from records that were read in the moment in which they were printed.

Records are stamped by a clock of the kernel's own that nothing disciplines. After weeks, or in a virtual machine that was copied while it ran, it
differs from every other clock by seconds to minutes (21 s seen), and nothing that can be asked tells by how much. But no record is read before it was
printed, and one that woke its reader was printed just then. So each record bounds the beginning from above, and the live ones tell it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

SECOND: Final = 1_000_000_000
# A bound is forgotten after one to two of these, because the clocks drift: at 500 parts in a million by 0.3 s.
_EPOCH_NS: Final = 600 * SECOND
_DRIFT: Final = 500e-6
_LEARNT_S: Final = 1.0


class Beginning(NamedTuple):
    """When the kernel's clock was 0, in nanoseconds since the epoch, and seconds on each side of it."""

    at: int
    uncertainty: float


class KernelClock:
    """Turns stamps into times, better with each record that comes live.

    Args:
        real: nanoseconds since the epoch.
        steady: nanoseconds since the boot on a clock that never jumps.
    """

    def __init__(
        self,
        *,
        real: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC),
    ) -> None:
        self._real, self._steady = real, steady
        self._epoch = 0
        self._before: int | None = None
        self._now: int | None = None
        self._live = False

    def read(self, stamp_us: int, *, live: bool) -> None:
        """Learn from a record.

        Args:
            stamp_us: of it.
            live: its reader had taken everything before it and waited for it.
        """
        now = self._steady()
        if now // _EPOCH_NS != self._epoch:
            self._epoch, self._before, self._now = now // _EPOCH_NS, self._now, None
        ahead = now - stamp_us * 1_000
        self._live = self._live or live
        self._now = ahead if self._now is None else min(self._now, ahead)

    def beginning(self) -> Beginning:
        """As far as it is known now."""
        steady = self._steady()
        zero = self._real() - steady
        known = [each for each in (self._before, self._now) if each is not None]
        ahead = min(known, default=0)
        if self._live and known:
            return Beginning(max(0, zero + ahead), _LEARNT_S)
        # Nothing live yet: the two clocks began together, and how far they drifted since is not known.
        return Beginning(max(0, zero + min(0, ahead)), _LEARNT_S + _DRIFT * steady / SECOND)
