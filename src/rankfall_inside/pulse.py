"""Signs of life of the ranks on the log channel: step, phase and CPU time, for a supervisor that sees neither /proc nor progress files.

Log files of a container are small and rotate, so a sign is short and seldom: at most one a rank in ten seconds, one a minute while nothing
changes. It is worth nothing later, so no file is written.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from rankfall_inside.procfs import Stat
    from rankfall_inside.ranks import Ranks

EVERY_S, QUIET_S = 10.0, 60.0
# A reader joins the slot's other facts from its start records.
_PLACE = ("run", "attempt", "role", "slot", "instance")


class Pulse:
    """Tells of all living ranks of one wrapper.

    Args:
        ranks: of the slot.
        place: of the slot, as fields of a record.
        tell: called as ``tell("progress", fields)``.
    """

    def __init__(
        self, ranks: Ranks, *, place: Mapping[str, Any], tell: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self._ranks = ranks
        self._place = {name: place[name] for name in _PLACE if name in place}
        self._tell = tell
        # By ordinal: when it was told of last, and what.
        self._told: dict[int, tuple[float, tuple[Any, ...]]] = {}

    def beat(self, processes: Mapping[int, Stat]) -> None:
        """Tell of each rank whose turn it is; ``processes`` is what /proc says now."""
        now = time.monotonic()
        living = self._ranks.live()
        for rank in living:
            at, before = self._told.get(rank.ordinal, (0.0, ()))
            if before and now - at < EVERY_S:
                continue
            seen = processes.get(rank.pid)
            cpu_s = round(seen.cpu_s, 2) if seen is not None and seen.start == rank.start else None
            last = self._ranks.last_progress(rank.ordinal)
            state = (cpu_s, *last.values())
            if state == before and now - at < QUIET_S:
                continue
            self._told[rank.ordinal] = (now, state)
            self._tell(
                "progress",
                dict(
                    self._place,
                    ordinal=rank.ordinal,
                    rank=rank.identity.get("rank"),
                    pid=rank.pid,
                    cpu_s=cpu_s,
                    **last,
                ),
            )
        if len(self._told) > len(living):
            self._told = {rank.ordinal: self._told[rank.ordinal] for rank in living if rank.ordinal in self._told}
