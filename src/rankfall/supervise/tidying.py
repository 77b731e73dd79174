"""What is done when a run is over and told: its large streams are compressed, and so are those of runs whose process was killed over it.

It comes last, when nothing of the run writes any more. What fails here changes nothing of the run: the raw streams stay.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rankfall.model import FINAL_STATES, RankfallError
from rankfall.store import RunDir
from rankfall.store.compress import compress_run, left_halfway
from rankfall.supervise.events import EventLog


def tidy(run_dir: RunDir) -> None:
    """Compress the streams of a run that this process holds, then what other runs left halfway."""
    for problem in compress_run(run_dir):
        EventLog(run_dir.path, None).say("raw", problem, at=time.time_ns())
    for path in left_halfway(run_dir.path.parent.parent, but=run_dir):
        _finish(path)


def _finish(path: Path) -> None:
    """Take up a run that was left halfway, where nobody holds it."""
    other = RunDir(path)
    # Held by somebody else, damaged, or not writable for us: it is theirs.
    with contextlib.suppress(RankfallError, OSError), other.lease() as writer:
        if writer.run().state in FINAL_STATES:
            compress_run(other)
