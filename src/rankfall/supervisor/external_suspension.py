"""Detects a suspension by a queue (Kueue) or a person in the cluster, and its end.

It is stored like a suspension by the user, so it uses no budget and stops the total deadline. Only the
API's word counts, and a failure before the suspension stays a failure.
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

WHO: Final = "a queue or somebody else in the cluster"
# Between two looks: at a workload whose pods fall, and at one that waits.
_FAILING_POLL_S: Final = 1.0
_WAIT_S: Final = 5.0
# The API's stamps are whole seconds of the server's clock, the ends of slots are of their nodes' clocks.
_SLACK_NS: Final = 3_000_000_000


class ExternalSuspension:
    """Sees one attempt's suspension from outside.

    Args:
        run_dir: the run.
        plan: of the attempt.
        backend: asks the cluster.
    """

    def __init__(self, run_dir: RunDir, *, plan: Plan, backend: Backend) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._backend = backend
        self._due = 0.0
        self._waits_due = 0.0

    def began(
        self, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd], last: bool
    ) -> SuspensionRequest | None:
        """The suspension that ends the attempt, written down; None where nothing says so.

        Args:
            slots: of the attempt.
            ranks: of the attempt.
            bad: the ends among them that count as failures.
            last: it is the last moment to ask: do so whenever it was done before.
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
            # Its time comes a moment after its beginning.
            return None
        at = min(one for one in (held.since, first and first - 1, time.time_ns()) if one is not None)
        made = SuspensionRequest(what="suspend", at=at, by=WHO, outside=True)
        append_suspension_request(self._run_dir.path, made)
        return made

    def waits(self) -> str | None:
        """For whom an attempt waits that has no pods; None = for nobody, or it was asked a moment ago."""
        if self._plan.cluster is None or time.monotonic() < self._waits_due:
            return None
        self._waits_due = time.monotonic() + _WAIT_S
        held = self._backend.suspension_state(self._plan)
        return waiting_for(held) if held is not None and held.state == "held" else None


def waiting_for(held: SuspensionState) -> str:
    """What a suspended workload waits for."""
    return f"waits for queue {held.queue} to admit it" if held.queue else f"is held back by {WHO}"


class ExternalRelease:
    """Sees that end.

    Args:
        run_dir: the run.
        backend: asks the cluster.
    """

    def __init__(self, run_dir: RunDir, *, backend: Backend) -> None:
        self._run_dir = run_dir
        self._backend = backend
        self._due = 0.0

    def ended(self, plan: Plan) -> Literal["waits", "released", "gone"]:
        """Whether the suspension of an ended attempt goes on; when it does not, that is written down.

        A queue admits the next attempt's own workload, which is made suspended for it: what it took the room from is not kept for that.

        Args:
            plan: of the attempt.
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
