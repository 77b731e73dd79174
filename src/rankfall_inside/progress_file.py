"""The progress file of a rank: its last step, stored at most once a second and once more at its end."""

from __future__ import annotations

import os
import time

from rankfall_inside import private
from rankfall_inside.becoming import claim_quietly
from rankfall_inside.rank_state import state

# Between two writes of the progress file.
_EVERY_S = 1.0


def flush() -> None:
    """Store the last progress now, when there is some that is not stored."""
    if state.step is not None:
        store()


def store() -> None:
    """Write how far this rank is, if it is one."""
    state.progress_due = time.monotonic() + _EVERY_S
    if not claim_quietly() or os.getpid() != state.pid:
        return
    from rankfall_inside import tinyjson

    path = os.path.join(state.slot_dir, "progress", f"{state.ordinal}.json")
    try:
        # foreign-text: the job's own number, in the job's own process
        data = {"step": int(state.step or 0), "phase": state.phase, "at_ns": state.step_ns, "pid": state.pid}
        fd = private.open_file(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(fd, tinyjson.dumps(data).encode("ascii"))
        finally:
            os.close(fd)
        os.rename(path + ".tmp", path)
    except (OSError, TypeError, ValueError):
        return
