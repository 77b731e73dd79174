"""Supervises one run: starts attempts, detects failures, carries out decisions.

Resumes from the run directory alone. Exported names load no observer and no backend. Never imports ``nodes``,
``client``, ``render`` or ``cli``.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from rankfall.model import EvidenceLost, LockHeld, numbers
from rankfall.rundir import RunDir
from rankfall.rundir.directory import MAKE_ROOM
from rankfall.supervisor.requests import (
    CancelRequest,
    Control,
    Suspension,
    read_cancel,
    read_suspension,
    request_cancel,
    request_resize,
    request_suspension,
)
from rankfall.supervisor.run_events import Event, read_events

__all__ = [
    "HELD",
    "LOG_NAME",
    "CancelRequest",
    "Control",
    "Event",
    "Suspension",
    "read_cancel",
    "read_events",
    "read_suspension",
    "request_cancel",
    "request_resize",
    "request_suspension",
    "spawn_detached",
]

LOG_NAME: Final = "supervisor.log"
# Seconds until the lease, on a slow machine.
_START_S: Final = 60.0
# Exit code if another supervisor holds the run (EX_TEMPFAIL).
HELD: Final = 75


def spawn_detached(run_dir: RunDir, *, wait: float = 5.0) -> int:
    """Starts a detached supervisor; returns its pid when it holds the run.

    ``wait``: seconds for another supervisor's release.

    Raises:
        LockHeld: Another supervisor did not release the run.
        EvidenceLost: Start failed; includes its last output.
    """
    # -P: a folder named rankfall must not be imported.
    command = [sys.executable, "-P", "-m", "rankfall.supervisor", "--detach", "--wait", f"{wait:g}", str(run_dir.path)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_S + wait, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EvidenceLost(
            f"the supervisor of {run_dir.id} did not start: {error}", hint=f"rankfall attach {run_dir.id}"
        ) from error
    output = done.stdout.decode("utf-8", "replace").strip()
    pid = numbers.whole(output)
    if done.returncode == 0 and pid is not None:
        return pid
    words = done.stderr.decode("utf-8", "replace").strip()[-1000:] or output
    if done.returncode == HELD:
        raise LockHeld(words, hint=f"rankfall attach {run_dir.id}")
    # A run without room for its database is deleted.
    hint = f"see {run_dir.path / LOG_NAME}" if run_dir.path.exists() else MAKE_ROOM
    raise EvidenceLost(f"the supervisor of {run_dir.id} did not start: {words}", hint=hint)
