"""Stops slots: waits for open logs, signals the wrappers, kills, waits.

A kubelet forgets a log with its pod. A JobSet's own stop is recorded and is no cause.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.model import SlotFacts, StoreError, decoding
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import Stop, mark_stop, read_stop
from rankfall.rundir.layout import replace_file
from rankfall.rundir.lease import Holder, make_folder
from rankfall.supervisor.requests import Control

# Longest wait in seconds.
LOGS_OPEN_TIMEOUT_S: Final = 30.0
_STEP_S: Final = 0.05


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, and the process that has all its pod logs open."""

    attempt: int
    by: Holder


def mark_logs_open(run_dir: RunDir, attempt: int) -> None:
    """Records that the lease holder has all pod logs open; never fails."""
    holder = run_dir.lease_holder()
    if holder is None:
        return
    path = _path(run_dir)
    with contextlib.suppress(OSError, StoreError):
        make_folder(path.parent)
        replace_file(path, msgspec.json.encode(Followed(attempt=attempt, by=holder)))


def logs_are_open(run_dir: RunDir) -> bool:
    """True if a process records the run's newest attempt and has its logs open."""
    try:
        mark = decoding.decode(_path(run_dir).read_bytes(), kind=Followed)
    except (OSError, msgspec.MsgspecError):
        return False
    with run_dir.reader() as reader:
        newest = reader.newest_attempt()
    return (mark.attempt, mark.by) == (newest, run_dir.lease_holder())


def wait_until_logs_open(run_dir: RunDir) -> bool:
    """Waits for open logs; False after the time-out."""
    until = time.monotonic() + LOGS_OPEN_TIMEOUT_S
    while not logs_are_open(run_dir):
        if time.monotonic() >= until:
            return False
        time.sleep(_STEP_S)
    return True


def _path(run_dir: RunDir) -> Path:
    return run_dir.path / "kube" / "followed.json"


REASON = "a JobSet ends its other roles when one has failed"


def mark_jobset_stop(folder: Path, plan: Plan, slots: Iterable[SlotFacts]) -> None:
    """Records that the JobSet itself stops its pods, unless a stop is recorded already."""
    stop = jobset_stop(plan, slots)
    if stop is not None and read_stop(folder, plan.attempt) is None:
        # The next poll retries on a full disk.
        with contextlib.suppress(OSError):
            mark_stop(folder, plan.attempt, stop)


def jobset_stop(plan: Plan, slots: Iterable[SlotFacts]) -> Stop | None:
    """Returns the set's own stop, from the last end of the failed role; None without one."""
    roles: dict[str, list[SlotFacts]] = {}
    for facts in slots:
        roles.setdefault(facts.role or "", []).append(facts)
    if plan.cluster is None or plan.cluster.backend == "job" or len(roles) == 1:
        return None
    found = [at for own in roles.values() if (at := _failed_at(own)) is not None]
    return Stop(at_ns=min(found), reason=REASON) if found else None


def _failed_at(slots: list[SlotFacts]) -> int | None:
    """Last end of a role that failed and ended completely, or None.

    Nanoseconds since the epoch by the slot's clock.
    """
    ends = [facts.ended_at for facts in slots if facts.ended_at is not None]
    over = all(facts.state in {"ended", "lost"} for facts in slots)
    failed = any(
        facts.state == "lost" or facts.exit_code or (facts.signal is not None and facts.killed_by != "wrapper")
        for facts in slots
    )
    return max(ends) if over and failed and ends else None


# Seconds after the grace time until this process kills.
FORCE_AFTER_S: Final = 5.0


class Stopping:
    """One stop of one attempt; call ``step`` until nothing runs. Times in monotonic seconds.

    ``followed``: True if all pod logs are open; a log disappears with its pod.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        *,
        grace: float,
        reason: str,
        now: float,
        followed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._backend = backend
        self._plan = plan
        self._grace = grace
        self._reason = reason
        self._followed = followed
        self._requested: set[int] = set()
        self._asked: float | None = None
        self.began = now

    @property
    def asked(self) -> bool:
        """True if the slots have been signaled to stop."""
        return self._asked is not None

    def step(self, running: Collection[int], *, now: float) -> None:
        """Signals slots as soon as their wrappers listen."""
        if self._asked is None:
            if now - self.began < LOGS_OPEN_TIMEOUT_S and not self._followed():
                return
            self._asked = now
        left = set(running)
        untold = left - self._requested
        if untold:
            self._requested.update(self._backend.stop(self._plan, untold, grace=self._grace, reason=self._reason))
        if left and now - self._asked > self._grace + FORCE_AFTER_S:
            self._backend.end(self._plan, left, grace=0.0)


# Seconds for a wrapper to exit; between checks.
_LEAVE_S: Final = 5.0
_DRAIN_STEP_S: Final = 0.01
# Seconds for the kubelet to report an end; between checks.
_LAST_STATE_S: Final = 10.0
_POD_STEP_S: Final = 0.05
_MAX_NAMED: Final = 8
# Shorter waits are not reported.
_WORTH_S: Final = 0.5


class Wait(Protocol):
    """Receives the kind of a wait and a text for users."""

    def __call__(self, what: str, text: str, *, now: int) -> None:
        """Reports a wait: its kind ``what``, and its text."""


def wait_until_left(plan: Plan, slots: Collection[int], *, backend: Backend, control: Control, wait: Wait) -> None:
    """Waits until these slots have exited."""
    most, step = (_LEAVE_S, _DRAIN_STEP_S) if plan.cluster is None else (_LAST_STATE_S, _POD_STEP_S)
    begun = time.monotonic()
    while time.monotonic() - begun < most and (left := [slot for slot in slots if backend.alive(plan, slot)]):
        if time.monotonic() - begun >= _WORTH_S:
            what = "wrapper" if plan.cluster is None else "kubelet"
            wait(
                "last_states",
                f"waits for the {what}'s last report on {slots_text(left)}, at most {most:g} s",
                now=time.time_ns(),
            )
        control.wait(step)


def slots_text(slots: Collection[int]) -> str:
    """Returns slots as user text: the first of many."""
    first = ", ".join(map(str, sorted(slots)[:_MAX_NAMED]))
    more = f" and {len(slots) - _MAX_NAMED} more" if len(slots) > _MAX_NAMED else ""
    return f"slot{'s' if len(slots) > 1 else ''} {first}{more}"
