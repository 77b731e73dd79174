"""When the next attempt may begin: after its back-off, not while the run is suspended, and never after the total deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal

from rankfall.store import RunDir
from rankfall.supervise.attempts import Attempts
from rankfall.supervise.control import Control
from rankfall.supervise.deadlines import total_end
from rankfall.supervise.events import EventLog
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.outside import OutsideRelease
from rankfall.supervise.suspension import Suspension, read_suspension

_NS: Final = 1_000_000_000
# Between two looks: for the end of a suspension, and for a wish during a back-off.
_HELD_S: Final = 0.2
_STEP_S: Final = 0.1


class Turns:
    """The waits of one run.

    Args:
        run_dir: the run.
        attempts: of the run.
        ledger: takes the state that is waited in.
        events: for viewers.
        control: wakes a wait.
        wished: whether the run is to end or to be let go of.
        outside: sees the end of a suspension that somebody in the cluster began.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempts: Attempts,
        ledger: Ledger,
        events: EventLog,
        control: Control,
        wished: Callable[[], object],
        outside: OutsideRelease,
    ) -> None:
        self._run_dir = run_dir
        self._attempts = attempts
        self._spec = run_dir.spec
        self._ledger = ledger
        self._events = events
        self._control = control
        self._wished = wished
        self._outside = outside

    def hold(self) -> Suspension:
        """Whether the run is suspended now, and was when."""
        return read_suspension(self._run_dir.path, initially=self._spec.suspend)

    def total_at(self) -> int | None:
        """When the total deadline is over, as far as the suspensions until now tell, nanoseconds since the epoch.

        None without one, or before the first attempt.
        """
        first = self._attempts.first_at
        if first is None or self._spec.deadlines.total_s is None:
            return None
        return total_end(self._spec.deadlines, first=first, paused=self.hold().paused(first, time.time_ns()))

    def wait(self, after: int, *, delay_s: float) -> Literal["now", "wished", "late", "gone"]:
        """Wait until the next attempt may begin, something is wished, the total is over, or somebody removed what is suspended.

        Args:
            after: the attempt before; 0 before the first.
            delay_s: the back-off since its end.
        """
        ended = (self._attempts.known(after).ended or time.time_ns()) if after else 0
        due = ended + round(delay_s * _NS)
        before = self._attempts.plan(after) if after else None
        shown = ""
        while not self._wished():
            for signal in self._control.take_signals():
                self._events.say("signal", f"signal {signal}", at=time.time_ns(), signal=signal)
            hold, total_at, now = self.hold(), self.total_at(), time.time_ns()
            if hold.suspended:
                if shown != "suspended":
                    self._ledger.set_run("suspended", reason=hold.text, at=now)
                    self._events.say("suspended", f"{hold.text}; rankfall resume {self._run_dir.id} goes on", at=now)
                shown = "suspended"
                if hold.outside and before is not None and self._outside.ended(before) == "gone":
                    return "gone"
                self._control.wait(_HELD_S)
            elif total_at is not None and now >= total_at:
                return "late"
            elif now >= due:
                return "now"
            else:
                if shown != "restarting":
                    self._ledger.set_run("restarting", reason=f"back-off before attempt {after + 1}", at=now)
                shown = "restarting"
                self._control.wait(min(_STEP_S, (due - now) / _NS))
        return "wished"
