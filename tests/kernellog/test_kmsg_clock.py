"""Stamps of the kernel's own clock become times, and how sure they are is said."""

from __future__ import annotations

from rankfall.kernellog.reader import SECOND, KernelClock


class Times:
    """The true clock, and a kernel's clock that is late by ``behind`` nanoseconds."""

    def __init__(self, behind: int) -> None:
        self.now, self.behind = 1_000 * SECOND, behind

    def clock(self) -> KernelClock:
        return KernelClock(real=lambda: 5_000 * SECOND + self.now, steady=lambda: self.now)

    def stamp(self, *, ago: int = 0) -> int:
        return (self.now - ago - self.behind) // 1_000


def test_a_live_record_tells_when_the_kernels_clock_began():
    times = Times(21 * SECOND)
    clock = times.clock()
    assert clock.ring_start().uncertainty == 1.5
    clock.read(times.stamp(ago=300 * SECOND), live=False)
    assert clock.ring_start().uncertainty == 1.5
    clock.read(times.stamp(ago=2_000_000), live=True)
    assert clock.ring_start() == (5_000 * SECOND + 21 * SECOND + 2_000_000, 1.0)


def test_a_record_read_late_moves_nothing():
    times = Times(0)
    clock = times.clock()
    clock.read(times.stamp(), live=True)
    before = clock.ring_start()
    times.now += 10 * SECOND
    clock.read(times.stamp(ago=9 * SECOND), live=True)
    assert clock.ring_start() == before


def test_no_record_is_from_the_future():
    times = Times(-7 * SECOND)
    clock = times.clock()
    clock.read(times.stamp(), live=False)
    assert clock.ring_start().at == 5_000 * SECOND - 7 * SECOND


def test_what_was_learnt_follows_a_clock_that_drifts_and_outlives_silence():
    times = Times(SECOND)
    clock = times.clock()
    clock.read(times.stamp(), live=True)
    times.now, times.behind = times.now + 700 * SECOND, 2 * SECOND
    clock.read(times.stamp(), live=True)
    assert clock.ring_start().at == 5_001 * SECOND
    times.now += 700 * SECOND
    clock.read(times.stamp(), live=True)
    assert clock.ring_start() == (5_002 * SECOND, 1.0)
