"""What is wished of an attempt that runs: its end, a suspension, another size; by this process, by a file in the run directory, or in the cluster.

A wish that came after it was decided how the attempt ends changes nothing of that; only a cancel always counts.
"""

from __future__ import annotations

import time

from rankfall.model import RankFacts, SlotFacts
from rankfall.store import RunDir
from rankfall.supervise.control import Control, read_cancel
from rankfall.supervise.ending import Ending
from rankfall.supervise.events import EventLog
from rankfall.supervise.news import BadEnd
from rankfall.supervise.outside import OutsideHold
from rankfall.supervise.resizing import unmet
from rankfall.supervise.scene import Scene
from rankfall.supervise.settle import SettleWindow
from rankfall.supervise.success import SuccessWatch
from rankfall.supervise.suspension import before_the_end, read_suspension


class WishWatch:
    """The wishes about one attempt.

    Args:
        scene: what is known of the attempt.
        ending: takes what ends it.
        run_dir: the run, with the wishes of others.
        control: wishes of this process.
        events: for viewers.
        outside: sees a suspension by somebody in the cluster.
        success: whether the job is done.
        window: forgets a fall that was a suspension.
        started: when the attempt began, nanoseconds since the epoch.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        ending: Ending,
        run_dir: RunDir,
        control: Control,
        events: EventLog,
        outside: OutsideHold,
        success: SuccessWatch,
        window: SettleWindow,
        started: int,
    ) -> None:
        self._scene = scene
        self._ending = ending
        self._run_dir = run_dir
        self._control = control
        self._events = events
        self._outside = outside
        self._success = success
        self._window = window
        self._started = started

    def look(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]) -> None:
        """Take one look at what people ask for; ``bad``: ends that count as failures."""
        self.look_for_cancel()
        if not self._ending.open or self._success.reached:
            return
        hold = read_suspension(self._run_dir.path, initially=self._scene.spec.suspend)
        if hold.stops(self._started, slots, ranks, bad=bad):
            self._ending.suspended = hold.text
            self._ending.stop(hold.text)
            return
        self._look_for_size(slots, ranks, bad)

    def look_outside(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd], *, last: bool
    ) -> None:
        """Slots end: whether that is because somebody in the cluster suspended the job; ``last``: asked now or never."""
        if self._ending.decided or self._success.reached:
            return
        found = self._outside.began(slots, ranks, bad=bad, last=last)
        if found is not None:
            self._ending.suspended = found.text
            self._window.close()
            self._ending.stop(found.text)

    def look_for_cancel(self) -> None:
        """Stop all slots where the run's end was asked for."""
        for number in self._control.take_signals():
            self._events.say("signal", f"signal {number}", at=time.time_ns(), signal=number)
        if self._ending.cancelled is not None:
            return
        request = read_cancel(self._run_dir.path)
        if request is not None:
            self._ending.cancelled = request.text
        elif self._control.cancelled is not None:
            self._ending.cancelled = f"cancelled: {self._control.cancelled}".rstrip(": ")
        if self._ending.cancelled is not None:
            self._ending.stop(self._ending.cancelled)

    def _look_for_size(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]
    ) -> None:
        """Another size is taken in place where it can be; else the attempt is stopped for it."""
        members = self._scene.members
        wish = unmet(self._run_dir, members.sizes)
        if wish is None or not before_the_end(wish.at, slots, ranks, bad=bad):
            return
        if members.takes(wish):
            members.begin(wish, now=time.time_ns())
            self._scene.follow_members()
        else:
            self._ending.resized = wish
            attempt = self._scene.plan.attempt
            self._events.say("resize", wish.text, at=time.time_ns(), attempt=attempt, nodes=wish.nodes)
            self._ending.stop(f"another size: {wish.text}")
