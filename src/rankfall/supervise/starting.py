"""Why a slot could not be started, as evidence: the supervisor saw it, no job can have said it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankfall.model import Evidence
from rankfall.store.incomplete import disk_trouble

# Between two looks at a disk, and between two messages while it takes nothing, seconds.
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 15.0


# Causes that keep slots from running and end nothing by themselves: whoever deletes the workload meanwhile has ended the attempt.
WAITS: Final = frozenset({"unschedulable", "image_pull", "container_config"})


class StorageWatch:
    """Says that the disk of a run takes nothing, again and again while it lasts: what its slots print meanwhile is lost.

    Args:
        folder: the run directory.
        clock: monotonic, seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._looked = 0.0
        # Since when, and when it was said last.
        self._since: tuple[float, float] | None = None

    def news(self) -> str | None:
        """What is to be said now; looks at the disk once a second at most."""
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        trouble = disk_trouble(self._folder)
        if trouble is None:
            full, self._since = self._since, None
            if full is None:
                return None
            return f"storing goes on after {now - full[0]:.0f} s; what was printed meanwhile is lost"
        if self._since is not None and now - self._since[1] < _AGAIN_S:
            return None
        began = now if self._since is None else self._since[0]
        self._since = (began, now)
        lasts = f" for {now - began:.0f} s now" if now > began else ""
        return f"{trouble}{lasts}: what ranks print is lost until there is room"


def start_failure(text: str, *, attempt: int) -> Evidence:
    """Evidence that a slot could not be started, as the supervisor saw it."""
    slug = "disk_full" if "No space left" in text else "container_config"
    return Evidence(
        id=f"start:{attempt}",
        source="recorder",
        slug=slug,
        role="primary",
        trust="supervisor",
        at=time.time_ns(),
        uncertainty=0.0,
        where=f"attempt {attempt}",
        line=text[:2000],
        specificity=50,
        attempt=attempt,
        fingerprint=f"start:{slug}",
    )
