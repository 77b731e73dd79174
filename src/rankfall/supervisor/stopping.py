"""Stops slots: waits until their logs are open, asks the wrappers, then kills; waits until they have left.

A kubelet forgets a log with its pod, so a stop waits up to 30 s for the mark that the recorder has all logs
open. The stop that a JobSet makes by itself, when one role has failed, is written down as a stop and is no
cause.
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

# How long a stop waits for that at most, seconds: a log that cannot be opened must not keep a job running.
LOGS_OPEN_TIMEOUT_S: Final = 30.0
_STEP_S: Final = 0.05


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Whose logs are open, and for whom."""

    attempt: int
    by: Holder


def mark_logs_open(run_dir: RunDir, attempt: int) -> None:
    """Say that this process, which holds the run's lease, has the logs of the attempt's pods open. Where it cannot be written, a stop waits in vain."""
    holder = run_dir.lease_holder()
    if holder is None:
        return
    path = _path(run_dir)
    with contextlib.suppress(OSError, StoreError):
        make_folder(path.parent)
        replace_file(path, msgspec.json.encode(Followed(attempt=attempt, by=holder)))


def logs_are_open(run_dir: RunDir) -> bool:
    """Whether somebody records the run's newest attempt, and has its logs open."""
    try:
        mark = decoding.decode(_path(run_dir).read_bytes(), kind=Followed)
    except (OSError, msgspec.MsgspecError):
        return False
    with run_dir.reader() as reader:
        newest = reader.newest_attempt()
    return (mark.attempt, mark.by) == (newest, run_dir.lease_holder())


def wait_until_logs_open(run_dir: RunDir) -> bool:
    """Wait for that; whether it came to be so in time."""
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
    """Write the set's own stop down, where there was one and no stop is written down yet.

    Args:
        folder: of the run.
        plan: of the attempt.
        slots: all of it, as they are now.
    """
    stop = jobset_stop(plan, slots)
    if stop is not None and read_stop(folder, plan.attempt) is None:
        mark_stop(folder, plan.attempt, stop)


def jobset_stop(plan: Plan, slots: Iterable[SlotFacts]) -> Stop | None:
    """The set's own stop, from the last end of the role that failed on; None where there was none.

    Args:
        plan: of the attempt.
        slots: all of it, as they are now.
    """
    roles: dict[str, list[SlotFacts]] = {}
    for facts in slots:
        roles.setdefault(facts.role or "", []).append(facts)
    if plan.cluster is None or plan.cluster.backend == "job" or len(roles) == 1:
        return None
    found = [at for own in roles.values() if (at := _failed_at(own)) is not None]
    return Stop(at_ns=min(found), reason=REASON) if found else None


def _failed_at(slots: list[SlotFacts]) -> int | None:
    """When the last slot of a role ended, if all have and one badly; nanoseconds since the epoch by its own clock."""
    ends = [facts.ended_at for facts in slots if facts.ended_at is not None]
    over = all(facts.state in {"ended", "lost"} for facts in slots)
    fell = any(
        facts.state == "lost" or facts.exit_code or (facts.signal is not None and facts.killed_by != "wrapper")
        for facts in slots
    )
    return max(ends) if over and fell and ends else None


# How long after the grace time a wrapper may take to end what does not die at once. It then kills nobody any more: we do.
FORCE_AFTER_S: Final = 5.0


class Stopping:
    """One stop of one attempt; ``step`` is called until nothing runs. Monotonic seconds.

    Args:
        grace: between SIGTERM and SIGKILL.
        reason: goes into the wrapper's marks of its own kills.
        followed: whether the logs of the slots are open. What goes with a pod nobody can read afterwards, so for a while that is waited for.
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
        """Whether the slots have been asked to stop."""
        return self._asked is not None

    def step(self, running: Collection[int], *, now: float) -> None:
        """Tell those that were not told yet; a wrapper that is only starting is told as soon as it listens."""
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


# For a wrapper to write its end and leave, on a busy disk; and between two looks.
_LEAVE_S: Final = 5.0
_DRAIN_STEP_S: Final = 0.01
# How long the kubelet may take to say how a container ended; likewise.
_LAST_STATE_S: Final = 10.0
_POD_STEP_S: Final = 0.05
_MAX_NAMED: Final = 8
# What takes less is not reported as a wait.
_WORTH_S: Final = 0.5


class Wait(Protocol):
    """Takes what is waited for: its kind, and a text for people."""

    def __call__(self, what: str, text: str, *, now: int) -> None:
        """Report it."""


def wait_until_left(plan: Plan, slots: Collection[int], *, backend: Backend, control: Control, wait: Wait) -> None:
    """Wait until these slots have left.

    Args:
        plan: of the attempt, with the newest start of each slot.
        slots: that have ended.
        backend: sees whether they are there.
        control: wakes the wait.
        wait: takes what is waited for.
    """
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
    """Slots in a text for people: the first few of many."""
    first = ", ".join(map(str, sorted(slots)[:_MAX_NAMED]))
    more = f" and {len(slots) - _MAX_NAMED} more" if len(slots) > _MAX_NAMED else ""
    return f"slot{'s' if len(slots) > 1 else ''} {first}{more}"
