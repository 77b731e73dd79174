"""Whether a folder is as it was when it was listed last, by its time of change: asked of thousands at each look, and hardly ever listed again.

A change within the same tick of the file system's clock as the one before leaves the time as it was. So a time is believed only once it has
stood for a while and the folder was listed after that.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

# More than the ticks of any file system's clock, seconds: FAT has two.
_SETTLED_S: Final = 3.0


class _Seen(NamedTuple):
    changed: int
    since: float
    listed: float


class Standing:
    """Folders by their paths."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def stands(self, folder: str) -> bool:
        """Whether nothing was made, renamed or removed in it since this said no; whoever is told no lists it at once.

        Args:
            folder: need not exist; then it stands until it does.
        """
        try:
            changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - asked of thousands at each look
        except OSError:
            changed = -1
        seen = self._seen.get(folder)
        if seen is not None and seen.changed == changed and seen.listed - seen.since >= _SETTLED_S:
            return True
        now = time.monotonic()
        since = seen.since if seen is not None and seen.changed == changed else now
        self._seen[folder] = _Seen(changed, since, now)
        return False
