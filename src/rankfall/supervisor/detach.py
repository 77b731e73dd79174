"""Starts a detached supervisor: own session, own log file, independent of this process and terminal."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from rankfall.model import EvidenceLost, LockHeld, numbers
from rankfall.rundir import RunDir

LOG_NAME: Final = "supervisor.log"
# From the start of Python to the lease, on a slow machine.
_START_S: Final = 60.0
# Exit code of a supervisor that found the run held by another (EX_TEMPFAIL).
HELD: Final = 75


def spawn_detached(run_dir: RunDir, *, wait: float = 5.0) -> int:
    """Start a detached supervisor; returns when it holds the run.

    Args:
        run_dir: the run.
        wait: seconds it may wait for another supervisor to let go.

    Returns:
        Its pid.

    Raises:
        LockHeld: another supervisor holds the run and did not let go.
        EvidenceLost: it did not start; the message has its last words.
    """
    # -P: a folder named rankfall where the user stands must not be imported.
    command = [sys.executable, "-P", "-m", "rankfall.supervisor", "--detach", "--wait", f"{wait:g}", str(run_dir.path)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_S + wait, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EvidenceLost(
            f"the supervisor of {run_dir.id} did not start: {error}", hint=f"rankfall attach {run_dir.id}"
        ) from error
    said = done.stdout.decode("utf-8", "replace").strip()
    pid = numbers.whole(said)
    if done.returncode == 0 and pid is not None:
        return pid
    words = done.stderr.decode("utf-8", "replace").strip()[-1000:] or said
    if done.returncode == HELD:
        raise LockHeld(words, hint=f"rankfall attach {run_dir.id}")
    raise EvidenceLost(f"the supervisor of {run_dir.id} did not start: {words}", hint=f"see {run_dir.path / LOG_NAME}")
