"""Plans of attempts and what is left of ended ones. A run that has begun outlasts a cluster that cannot be reached for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend, Company
from rankfall.model import InfrastructureError, JobSpec, RankfallError
from rankfall.model.sizes import first_sizes, sized
from rankfall.store import AttemptRow, RunDir
from rankfall.store.resizes import planned_sizes, wished_sizes
from rankfall.supervise.control import Control
from rankfall.supervise.events import sparing
from rankfall.supervise.finished import finished_roles
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.resizing import changes

# Between two tries while the cluster does not answer, seconds.
_AGAIN_S: Final = 5.0


class Planner:
    """The plans of one run.

    Args:
        run_dir: the run.
        backend: makes them.
        ledger: takes the state that is waited in.
        say: tells people.
        control: wakes a wait.
        over: whether there is no use in waiting any more: something is wished, or the total deadline is over.
        company: of the removal of what an attempt left.

    Attributes:
        refusal: why there could be no plan, as text for people.
        withdrawn: there is none because somebody deleted the workload of the attempt before: what happened.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        backend: Backend,
        ledger: Ledger,
        say: Callable[[str], None],
        control: Control,
        over: Callable[[], bool],
        company: Company | None = None,
    ) -> None:
        self.refusal = ""
        self.withdrawn: str | None = None
        self._run_dir = run_dir
        self._backend = backend
        self._ledger = ledger
        self._say = say
        self._control = control
        self._over = over
        self._company = company

    def plan(self, number: int, *, before: AttemptRow | None, exclude: Callable[[], Collection[str]]) -> Plan | None:
        """The plan of an attempt, when nothing is left of the one before; None where there can be none.

        Args:
            number: counted from 1.
            before: the attempt before, which has ended.
            exclude: gives the nodes to keep off; called when nothing is left of the attempt before, which may take long.
        """
        said = ""
        while True:
            try:
                if before is not None:
                    ended = Plan.of_row(before.plan, self._run_dir.spec)
                    self.withdrawn = self._backend.withdrawn(ended, surely=True)
                    if self.withdrawn is not None:
                        # Whoever deletes a job does not want it back.
                        return None
                    self._backend.clear(ended, company=self._company)
                return self._sized_plan(number, before=before, exclude=exclude())
            except RankfallError as error:
                self.refusal = with_hint(error)
                if not error.passing or number == 1 or self._over():
                    return None
                if error.message != said:
                    said = error.message
                    self._say(f"attempt {number} waits: {said}")
                    self._ledger.set_run("restarting", reason=said, at=time.time_ns())
                self._control.wait(_AGAIN_S)

    def _sized_plan(self, number: int, *, before: AttemptRow | None, exclude: Collection[str]) -> Plan:
        """With as many nodes as are wished by now."""
        # With the values of secrets: the manifests of a plan are what is sent.
        spec = self._run_dir.whole_spec()
        sizes = wished_sizes(self._run_dir.path, spec)
        now = planned_sizes(before.plan, spec) if before is not None else first_sizes(spec)
        plan = self._backend.plan(
            sized(spec, sizes), self._run_dir, number, nnodes=within_bounds(spec, sizes), exclude=exclude
        )
        if before is not None and spec.several_roles:
            done = finished_roles(
                spec, self._ledger.writer.slots(before.attempt), left_out=before.plan.get("left_out", ())
            )
            plan = plan.without(done) if done else plan
        return msgspec.structs.replace(
            plan, sizes=sizes, changes=changes(self._run_dir, before=now, after=sizes, done_at=time.time_ns())
        )

    def remove(self, row: AttemptRow) -> None:
        """What a cancelled run left outside its directory; where it does not go, that is said and the run is cancelled all the same."""
        try:
            # Who cancels waits for the end of it; only who leaves does not.
            company = Company(say=sparing(self._say), over=lambda: self._control.wish is not None)
            self._backend.clear(Plan.of_row(row.plan, self._run_dir.spec), company=company)
        except InfrastructureError as error:
            self._ledger.note(error.message)
            self._say(with_hint(error))
            self._ledger.flush()


def with_hint(error: RankfallError) -> str:
    """What happened, and the next step where one is known."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def within_bounds(spec: JobSpec, sizes: Mapping[str, int]) -> int | None:
    """How many slots of ``MIN:MAX`` nodes are begun with; None where the number is fixed and stands in the spec itself."""
    return sizes[spec.role] if spec.elastic else None
