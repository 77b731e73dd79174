"""Detects a suspension by a queue (Kueue) or a person in the cluster, and its end.

A suspension uses no budget and stops the total deadline. An earlier failure stays a failure.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Final, Literal

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend, SuspensionState
from rankfall.model import RankFacts, SlotFacts
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import read_stop
from rankfall.supervisor.attempt_facts import BadEnd
from rankfall.supervisor.requests import SuspensionRequest, append_suspension_request

WHO: Final = "a queue or a user in the cluster"
# Seconds between checks: failing pods, waiting workload.
_FAILING_POLL_S: Final = 1.0
_WAIT_S: Final = 5.0
# API timestamps are whole seconds of another clock.
_SLACK_NS: Final = 3_000_000_000


class ExternalSuspension:
    """Detects an external suspension of one attempt."""

    def __init__(self, run_dir: RunDir, *, plan: Plan, backend: Backend) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._backend = backend
        self._due = 0.0
        self._waits_due = 0.0

    def began(
        self, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd], last: bool
    ) -> SuspensionRequest | None:
        """Stores and returns the suspension that ends the attempt; None if there is none.

        The ``last`` check ignores the poll interval.
        """
        if self._plan.cluster is None or read_stop(self._run_dir.path, self._plan.attempt) is not None:
            return None
        if not last and time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + _FAILING_POLL_S
        held = self._backend.suspension_state(self._plan)
        if held is None or held.state != "held":
            return None
        ends: dict[BadEnd, int | None] = {("slot", s.slot, None): s.ended_at for s in slots}
        ends |= {("rank", r.rank, r.pid): r.ended_at for r in ranks}
        first = min((at for end in bad if (at := ends.get(end)) is not None), default=None)
        if first is not None and held.since is not None and held.since > first + _SLACK_NS:
            return None
        if held.since is None and not last:
            # Its time appears a moment later.
            return None
        at = min(one for one in (held.since, first and first - 1, time.time_ns()) if one is not None)
        made = SuspensionRequest(what="suspend", at=at, by=WHO, outside=True)
        append_suspension_request(self._run_dir.path, made)
        return made

    def waits(self) -> str | None:
        """Returns the queue or party that an attempt without pods waits for; None if unknown or just checked."""
        if self._plan.cluster is None or time.monotonic() < self._waits_due:
            return None
        self._waits_due = time.monotonic() + _WAIT_S
        held = self._backend.suspension_state(self._plan)
        return waiting_for(held) if held is not None and held.state == "held" else None


def waiting_for(held: SuspensionState) -> str:
    """Returns the text about a suspended workload's wait."""
    return f"waits for queue {held.queue} to admit it" if held.queue else f"is suspended by {WHO}"


class ExternalRelease:
    """Detects the end of an external suspension."""

    def __init__(self, run_dir: RunDir, *, backend: Backend) -> None:
        self._run_dir = run_dir
        self._backend = backend
        self._due = 0.0

    def ended(self, plan: Plan) -> Literal["waits", "released", "gone"]:
        """Checks if an ended attempt's suspension continues; stores its end.

        A queue does not reserve the former quota, so it admits the next, suspended workload itself.
        """
        if time.monotonic() < self._due:
            return "waits"
        self._due = time.monotonic() + _WAIT_S
        held = self._backend.suspension_state(plan)
        if held is None:
            return "waits"
        if held.state == "gone":
            return "gone"
        if held.state == "held" and not held.queue:
            return "waits"
        reason = f"the next attempt waits for queue {held.queue} to admit it" if held.queue else "released"
        append_suspension_request(
            self._run_dir.path,
            SuspensionRequest(what="resume", at=time.time_ns(), by=WHO, reason=reason, outside=True),
        )
        return "released"
