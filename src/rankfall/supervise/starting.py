"""Why a slot could not be started, as evidence: the supervisor saw it, no job can have said it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from rankfall.model import Evidence

# Less than the few files that a slot needs before it starts its command.
FULL_BYTES: Final = 64 << 10


def free_bytes(folder: Path) -> int:
    """Room for this user on the file system of ``folder``; very much where nobody can tell."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize


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
