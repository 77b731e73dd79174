"""When a run that is alive makes no progress for ``hang_timeout_s``: the rule.

* Signs of progress are output of any rank, a new record, and a step that a rank reports and had not reported before.
* CPU time alone is no sign of progress once a rank has ever reported a step: a rank that spins inside a collective burns CPU too,
  and a job that reports steps would report the next one.
* Before the first reported step (a long import, compilation, a job that never reports), ranks that all burn CPU count as working;
  the observer bounds how long, so that a spin is found in the end.

* A rank that is inside of an import has not begun: from a slow file system, or on a busy machine, that takes long without a line or CPU time.
  So before the first reported step a standstill is believed only when a later look finds each such rank at the same place, or after
  ``IMPORT_LIMIT_S``. The looks come ever more seldom.
* While a slot that the gang needs has not begun (a pod without a node or an image), or torchrun has not started all ranks, nothing hangs:
  waiting has no limit of its own.

What was already quiet when this supervisor took over counts from the take-over: nobody watched before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rankfall.model import RankFacts

# How long imports that go on may take before that counts as standing still too, seconds.
IMPORT_LIMIT_S: Final = 3600.0
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
        # Imports at the look before, since when they are looked at, and how many times as long the next look waits.
        self._imports: dict[Any, str] = {}
        self._importing_since: int | None = None
        self._seldom = 1

    def see(self, now: int, *, fresh: bool, ranks: Iterable[RankFacts], activity: int) -> None:
        """Take one look.

        Args:
            now: nanoseconds since the epoch.
            fresh: whether output or records came since the last look.
            ranks: their facts, with the last step each has reported.
            activity: the observer's last activity, which includes work of all ranks (CPU time).
        """
        if fresh:
            self._progress, self._seldom = now, 1
        for facts in ranks:
            key = (facts.rank, facts.pid)
            if facts.step is not None and facts.step > self._steps.get(key, -1):
                self._steps[key] = facts.step
                self._progress, self._seldom = now, 1
        self._busy = max(self._busy, min(activity, now))

    def hold(self, now: int) -> None:
        """Take one look at a gang that is not complete yet; ``now`` in nanoseconds since the epoch."""
        self._progress = max(self._progress, now)

    def goes_on(self, now: int, imports: Mapping[Any, str]) -> bool:
        """Whether what looks like a standstill is the import of something, which goes on; time is given then.

        Args:
            now: nanoseconds since the epoch.
            imports: by process, where those stand that are inside of an import.
        """
        if self._steps or not imports:
            return False
        since = self._importing_since = now if self._importing_since is None else self._importing_since
        moved = any(self._imports.get(process) != where for process, where in imports.items())
        if not moved or now - since >= IMPORT_LIMIT_S * _NS:
            return False
        self._seldom *= 2 if self._imports else 1
        self._imports = dict(imports)
        self._progress = now
        return True

    def quiet_for(self, now: int) -> float:
        """Seconds since the last sign of progress."""
        last = self._progress if self._steps else max(self._progress, self._busy)
        return max(0, now - last) / _NS

    def hung(self, now: int) -> bool:
        """Whether the time is over."""
        return self._timeout is not None and self.quiet_for(now) * _NS >= self._timeout * self._seldom
