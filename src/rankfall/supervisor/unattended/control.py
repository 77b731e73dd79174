"""Cancels, suspends and resumes an unattended run in the cluster.

The request is recorded first, so its SIGTERM is not external. The answer ``unknown`` does not mean gone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal

from rankfall.backends.kubernetes.workload import Workload
from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.backends.registry import backend_for, native_of
from rankfall.kube.errors import KubeError
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import Stop, mark_stop
from rankfall.supervisor.requests import request_cancel, request_suspension
from rankfall.supervisor.stopping import wait_until_logs_open

Answer = Literal["gone", "going", "unknown"]
# Seconds for a run's objects to disappear, beyond the grace time.
_CLEAR_S: Final = 300.0
_MARGIN_S: Final = 60.0
_STEP_S: Final = 0.5
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def cancel(run_dir: RunDir, *, reason: str, say: Callable[[str], None], backend: Backend | None = None) -> Answer:
    """Removes an unattended run's objects from the cluster and waits for their end.

    Raises:
        KubeError: The server refuses.
        StoreError: The request cannot be written.
    """
    asked = request_cancel(run_dir.path, reason=reason)
    with _workload(run_dir, backend) as (workload, attempt):
        if workload is None:
            return "gone"
        wait_until_logs_open(run_dir)
        mark_stop(run_dir.path, attempt, Stop(at_ns=time.time_ns(), reason=asked.text))
        return workload.remove(wait_s=_CLEAR_S, say=say)


def suspend(run_dir: RunDir, *, reason: str, backend: Backend | None = None) -> Answer:
    """Suspends an unattended run and waits until none of its pods runs.

    Raises:
        KubeError: The server refuses.
        StoreError: The request cannot be written.
    """
    with _workload(run_dir, backend) as (workload, attempt):
        if workload is None:
            return "unknown"
        wait_until_logs_open(run_dir)
        asked = request_suspension(run_dir.path, "suspend", reason=reason)
        mark_stop(run_dir.path, attempt, Stop(at_ns=time.time_ns(), reason=asked.text))
        if not workload.hold(suspend=True):
            return "gone"
        return _until_still(workload, until=time.monotonic() + run_dir.spec.policies.grace_s + _MARGIN_S)


def resume(run_dir: RunDir, *, reason: str, backend: Backend | None = None) -> bool:
    """Resumes an unattended run; False if its workload no longer exists.

    Raises:
        KubeError: The server refuses.
        StoreError: The request cannot be written.
    """
    with _workload(run_dir, backend) as (workload, _):
        if workload is None:
            return False
        request_suspension(run_dir.path, "resume", reason=reason)
        return workload.hold(suspend=False)


@contextlib.contextmanager
def _workload(run_dir: RunDir, backend: Backend | None) -> Iterator[tuple[Workload | None, int]]:
    """Yields the newest attempt's workload (None without one) and number; then releases the backend."""
    chosen = backend or backend_for(run_dir.spec)
    try:
        with run_dir.reader() as reader:
            rows = reader.attempts()
        if rows:
            yield native_of(chosen).workload(Plan.of_row(rows[-1].plan, run_dir.spec)), rows[-1].attempt
        else:
            yield None, 0
    finally:
        chosen.release()


def _until_still(workload: Workload, *, until: float) -> Answer:
    while True:
        try:
            running = [uid for uid, phase in workload.pods(workload.selector).items() if phase not in _ENDED]
        except KubeError:
            if time.monotonic() >= until:
                return "unknown"
        else:
            if not running:
                return "gone"
            if time.monotonic() >= until:
                return "going"
        time.sleep(_STEP_S)
