"""How long a recorder that decides nothing need not look: what is shown is read from the record by the viewer itself.

Each look costs as much as some hundred lines.
"""

from __future__ import annotations

import math
import time
from typing import Final

from rankfall.observe.attempt import Delta

#: Between two looks while there is more than lines, seconds.
CALM_S: Final = 0.5
# When for so long there was nothing but lines, and not so many of them (bytes) that looking might fall behind, looks are seldom.
QUIET_S: Final = 10.0
MANY: Final = 4 << 20
# A look at a thousand slots takes longer: looking takes a sixtieth of the process's time, but is done every two seconds at least.
SELDOM_S: Final = 2.0
PAUSES: Final = 60
# What stirs is answered sooner: while new streams or pods come without an end, looking takes a tenth of the time.
STIRS: Final = 10


class Calm:
    """Pauses between looks at one attempt."""

    def __init__(self) -> None:
        # When a look found more than lines, by the monotonic clock; in the beginning there is much to find.
        self._moved = time.monotonic()
        self._took = math.inf

    def pause(self, delta: Delta, *, took: float) -> float:
        """How long not to look, seconds.

        Args:
            delta: what the last look brought.
            took: seconds of CPU that it took.
        """
        clock = time.monotonic()
        if delta.changed or delta.new_streams or delta.bytes >= MANY:
            self._moved = clock
        least = SELDOM_S if clock - self._moved >= QUIET_S else CALM_S
        return min(SELDOM_S, max(least, PAUSES * took))

    def unstirred(self, *, took: float) -> float:
        """How long not to look although something stirs, seconds. Asked after each look.

        A look that is dear only once (the first line of all makes it compile the signatures) says nothing of the next: the cheaper one of the
        last two counts.

        Args:
            took: seconds of CPU that the last look took.
        """
        usual, self._took = min(took, self._took), took
        return STIRS * usual
