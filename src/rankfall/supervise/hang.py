"""When a run that is alive makes no progress for ``hang_timeout_s``: the rule.

* Signs of progress are output of any rank, a new record, and a step that a rank reports and had not reported before.
* CPU time alone is no sign of progress once a rank has ever reported a step: a rank that spins inside a collective burns CPU too,
  and a job that reports steps would report the next one.
* Before the first reported step (a long import, compilation, a job that never reports), ranks that all burn CPU count as working;
  the observer bounds how long, so that a spin is found in the end.

* While a slot that the gang needs has not begun (a pod without a node or an image), nothing hangs: waiting has no limit of its own.

What was already quiet when this supervisor took over counts from the take-over: nobody watched before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rankfall.model import RankFacts

_NS: Final = 1_000_000_000


class HangWatch:
    """Time of the last sign of progress of one attempt.

    Args:
        timeout_s: no progress for so long is a hang; None = never.
        start: nanoseconds since the epoch, when watching begins.
    """

    def __init__(self, timeout_s: float | None, *, start: int) -> None:
        self._timeout = None if timeout_s is None else round(timeout_s * _NS)
        self._progress = start
        self._busy = start
        self._steps: dict[tuple[int, int | None], int] = {}

    def see(self, now: int, *, fresh: bool, ranks: Iterable[RankFacts], activity: int) -> None:
        """Take one look.

        Args:
            now: nanoseconds since the epoch.
            fresh: whether output or records came since the last look.
            ranks: their facts, with the last step each has reported.
            activity: the observer's last activity, which includes work of all ranks (CPU time).
        """
        if fresh:
            self._progress = now
        for facts in ranks:
            key = (facts.rank, facts.pid)
            if facts.step is not None and facts.step > self._steps.get(key, -1):
                self._steps[key] = facts.step
                self._progress = now
        self._busy = max(self._busy, min(activity, now))

    def hold(self, now: int) -> None:
        """Take one look at a gang that is not complete yet; ``now`` in nanoseconds since the epoch."""
        self._progress = max(self._progress, now)

    def quiet_for(self, now: int) -> float:
        """Seconds since the last sign of progress."""
        last = self._progress if self._steps else max(self._progress, self._busy)
        return max(0, now - last) / _NS

    def hung(self, now: int) -> bool:
        """Whether the time is over."""
        return self._timeout is not None and self.quiet_for(now) * _NS >= self._timeout
