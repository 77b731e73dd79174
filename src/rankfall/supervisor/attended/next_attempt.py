"""Prepares the next attempt: waits, removes the last one's objects, makes the plan.

The plan omits finished roles. A run that has begun outlasts an unreachable cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend, Cancellation
from rankfall.model import InfrastructureError, JobSpec, RankfallError, SlotFacts
from rankfall.model.jobspec.sizes import first_sizes, sized
from rankfall.rundir import AttemptRow, RunDir
from rankfall.rundir.requests import planned_sizes, requested_sizes
from rankfall.supervisor.attempt_table import Attempts
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.deadlines import total_end
from rankfall.supervisor.external_suspension import ExternalRelease
from rankfall.supervisor.requests import Control, Suspension, changes, read_suspension
from rankfall.supervisor.run_events import EventLog, sparing


def finished_roles(spec: JobSpec, slots: Iterable[SlotFacts], *, left_out: Collection[str]) -> tuple[str, ...]:
    """Returns the roles that the next attempt leaves out, including earlier ones."""
    if spec.success.policy == "fraction" and spec.success.role is None:
        # Here finished slots count too.
        return ()
    well: dict[int, bool] = {facts.slot: _ended_well(facts) for facts in slots}
    found = []
    for part in spec.parts:
        alone = spec.several_roles and all(map(spec.restarts_alone, part.slots))
        if alone and (part.name in left_out or all(well.get(slot, False) for slot in part.slots)):
            found.append(part.name)
    return tuple(found)


def _ended_well(facts: SlotFacts) -> bool:
    """True if the slot ended by itself: a stopped process may exit with 0."""
    untouched = facts.signal is None and facts.killed_by is None and not facts.signalled
    return facts.state == "ended" and facts.exit_code == 0 and untouched


# Seconds between retries without answer.
_AGAIN_S: Final = 5.0


class Planner:
    """Makes the plans of one run.

    ``refusal`` is why there is no plan; ``deleted_externally`` if the last workload was deleted.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        backend: Backend,
        run_store: BestEffortStore,
        say: Callable[[str], None],
        control: Control,
        over: Callable[[], bool],
        cancellation: Cancellation | None = None,
    ) -> None:
        self.refusal = ""
        self.deleted_externally: str | None = None
        self._run_dir = run_dir
        self._backend = backend
        self._run_store = run_store
        self._say = say
        self._control = control
        self._over = over
        self._cancellation = cancellation

    def plan(self, number: int, *, before: AttemptRow | None, exclude: Callable[[], Collection[str]]) -> Plan | None:
        """Plans an attempt after the previous objects are removed; None if impossible.

        ``before``: the previous attempt, or None. ``exclude`` is called after the possibly long removal.
        """
        reported = ""
        while True:
            try:
                if before is not None:
                    ended = Plan.of_row(before.plan, self._run_dir.spec)
                    self.deleted_externally = self._backend.deleted_externally(ended, surely=True)
                    if self.deleted_externally is not None:
                        # A user who deletes a job does not expect it back.
                        return None
                    self._backend.clear(ended, cancellation=self._cancellation)
                return self._sized_plan(number, before=before, exclude=exclude())
            except RankfallError as error:
                self.refusal = error.in_one_line
                if not error.passing or number == 1 or self._over():
                    return None
                if error.message != reported:
                    reported = error.message
                    self._say(f"attempt {number} waits: {reported}")
                    self._run_store.set_run("restarting", reason=reported, at=time.time_ns())
                self._control.wait(_AGAIN_S)

    def _sized_plan(self, number: int, *, before: AttemptRow | None, exclude: Collection[str]) -> Plan:
        """Plans with the currently requested number of nodes."""
        # Includes secret values: the manifests are sent.
        spec = self._run_dir.whole_spec()
        sizes = requested_sizes(self._run_dir.path, spec)
        now = planned_sizes(before.plan, spec) if before is not None else first_sizes(spec)
        plan = self._backend.plan(
            sized(spec, sizes), self._run_dir, number, nnodes=within_bounds(spec, sizes), exclude=exclude
        )
        if before is not None and spec.several_roles:
            done = finished_roles(
                spec, self._run_store.writer.slots(before.attempt), left_out=before.plan.get("left_out", ())
            )
            plan = plan.without(done) if done else plan
        return msgspec.structs.replace(
            plan, sizes=sizes, changes=changes(self._run_dir, before=now, after=sizes, done_at=time.time_ns())
        )

    def remove(self, row: AttemptRow) -> None:
        """Removes a canceled run's objects; a failure is only reported."""
        try:
            # A cancel waits for the removal; only a release does not.
            cancellation = Cancellation(say=sparing(self._say), over=lambda: self._control.release_request is not None)
            self._backend.clear(Plan.of_row(row.plan, self._run_dir.spec), cancellation=cancellation)
        except InfrastructureError as error:
            self._run_store.note(error.message)
            self._say(error.in_one_line)
            self._run_store.flush()


def within_bounds(spec: JobSpec, sizes: Mapping[str, int]) -> int | None:
    """Returns the initial slots for ``MIN:MAX`` nodes; None if fixed."""
    return sizes[spec.role] if spec.elastic else None


_NS: Final = 1_000_000_000
# Seconds between checks of a suspension or request.
_SUSPENDED_POLL_S: Final = 0.2
_STEP_S: Final = 0.1


class RestartSchedule:
    """The waits of one run."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempts: Attempts,
        run_store: BestEffortStore,
        events: EventLog,
        control: Control,
        requested: Callable[[], object],
        outside: ExternalRelease,
    ) -> None:
        self._run_dir = run_dir
        self._attempts = attempts
        self._spec = run_dir.spec
        self._run_store = run_store
        self._events = events
        self._control = control
        self._requested = requested
        self._outside = outside

    def hold(self) -> Suspension:
        """Returns the run's current and past suspension."""
        return read_suspension(self._run_dir.path, initially=self._spec.suspend)

    def total_at(self) -> int | None:
        """Returns the total deadline in nanoseconds since the epoch, given the suspensions so far.

        None without one, or before the first attempt.
        """
        first = self._attempts.first_at
        if first is None or self._spec.deadlines.total_s is None:
            return None
        return total_end(self._spec.deadlines, first=first, paused=self.hold().paused(first, time.time_ns()))

    def wait(self, after: int, *, delay_s: float) -> Literal["now", "requested", "late", "gone"]:
        """Waits before the attempt after ``after``.

        Returns ``now``: it may begin; ``requested``: a request came; ``late``: the total deadline is over; ``gone``: the
        suspended workload was removed.
        """
        ended = (self._attempts.known(after).ended or time.time_ns()) if after else 0
        due = ended + round(delay_s * _NS)
        before = self._attempts.plan(after) if after else None
        state = ""
        while not self._requested():
            for signal in self._control.take_signals():
                self._events.say("signal", f"signal {signal}", at=time.time_ns(), signal=signal)
            hold, total_at, now = self.hold(), self.total_at(), time.time_ns()
            if hold.suspended:
                if state != "suspended":
                    self._run_store.set_run("suspended", reason=hold.text, at=now)
                    self._events.say(
                        "suspended", f"{hold.text}; to continue: rankfall resume {self._run_dir.id}", at=now
                    )
                state = "suspended"
                if hold.outside and before is not None and self._outside.ended(before) == "gone":
                    return "gone"
                self._control.wait(_SUSPENDED_POLL_S)
            elif total_at is not None and now >= total_at:
                return "late"
            elif now >= due:
                return "now"
            else:
                if state != "restarting":
                    self._run_store.set_run("restarting", reason=f"back-off before attempt {after + 1}", at=now)
                state = "restarting"
                self._control.wait(min(_STEP_S, (due - now) / _NS))
        return "requested"
