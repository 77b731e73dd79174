"""Removes an ended TrainJob run's objects after its time to live, in a separate process.

A TrainJob has no TTL. If this machine fails, the objects stay.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.backends.registry import backend_for
from rankfall.model import FINAL_STATES, InfrastructureError, RankfallError
from rankfall.rundir import RunDir
from rankfall.rundir.lease import append_to, make_folder, private
from rankfall.supervisor import LOG_NAME

_NS: Final = 1_000_000_000
# Seconds between checks of the adjustable clock, and between retries.
_STEP_S: Final = 30.0
_AGAIN_S: Final = 60.0
# Seconds of retries before the objects remain.
_PATIENCE_S: Final = 86_400.0
_START_S: Final = 30.0


def needed(run_dir: RunDir) -> bool:
    """True if the objects of this run have a time to live that their platform does not enforce."""
    spec = run_dir.spec
    return spec.backend == "trainjob" and spec.ttl_s is not None and not spec.unattended


def spawn(run_dir: RunDir) -> None:
    """Starts the waiting process; returns when it is independent.

    Raises:
        InfrastructureError: The process does not start.
    """
    # -P: a folder named rankfall must not be imported.
    command = [sys.executable, "-P", "-m", "rankfall.supervisor.attended.ttl", str(run_dir.path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise InfrastructureError(_unkept(run_dir, str(error)), hint=_by_hand(run_dir)) from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise InfrastructureError(_unkept(run_dir, words), hint=_by_hand(run_dir))


def expire(run_dir: RunDir, *, backend: Backend | None = None) -> bool:
    """Waits until the run's time to live is over, then removes the Kubernetes objects of its newest attempt.

    Returns False without removing if the run has not ended, or another process already waits.

    Raises:
        RankfallError: The run directory is unreadable, or the cluster refuses.
    """
    folder = run_dir.path / "kube"
    make_folder(folder)
    with append_to(folder / "expiry.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        with run_dir.reader() as reader:
            row, attempts = reader.run(), reader.attempts()
        if row.state not in FINAL_STATES or row.ended is None or not attempts:
            return False
        _until(row.ended + (run_dir.spec.ttl_s or 0) * _NS)
        return _cleared(backend or backend_for(run_dir.spec), Plan.of_row(attempts[-1].plan, run_dir.spec))


def main(argv: Sequence[str]) -> int:
    """Detaches from the caller and its terminal, waits and removes. Returns the exit code of the detached process."""
    run_dir = RunDir(Path(argv[0]))
    if os.fork():
        # The caller waits only for this process.
        os._exit(0)
    os.setsid()
    log = private(run_dir.path / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        gone = expire(run_dir)
    except RankfallError as error:
        sys.stderr.write(f"time to live: {error}\n")
        return error.exit_code
    sys.stderr.write(f"time to live: {'the objects have been removed' if gone else 'nothing was removed'}\n")
    return 0


def _until(at: int) -> None:
    """Uses the current, adjustable clock."""
    while (left := (at - time.time_ns()) / _NS) > 0:
        time.sleep(min(left, _STEP_S))


def _cleared(backend: Backend, plan: Plan) -> bool:
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            backend.clear(plan)
        except InfrastructureError as error:
            if not error.passing or time.monotonic() >= until:
                raise
            time.sleep(_AGAIN_S)
        else:
            return True
        finally:
            backend.release()


def _unkept(run_dir: RunDir, why: str) -> str:
    return f"the objects of {run_dir.id} will not be removed after their time to live: {why}"


def _by_hand(run_dir: RunDir) -> str:
    return f"remove them by hand: kubectl delete trainjob -l rankfall.dev/run={run_dir.id}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
