"""Plans of attempts and what is left of ended ones. A run that has begun outlasts a cluster that cannot be reached for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from rankfall.backends.protocol import Backend, Plan
from rankfall.model import InfrastructureError, RankfallError
from rankfall.store import AttemptRow, RunDir
from rankfall.supervise.control import Control
from rankfall.supervise.ledger import Ledger

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

    Attributes:
        refusal: why there could be no plan, in words.
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
    ) -> None:
        self.refusal = ""
        self._run_dir = run_dir
        self._backend = backend
        self._ledger = ledger
        self._say = say
        self._control = control
        self._over = over

    def plan(self, number: int, *, before: AttemptRow | None, exclude: Collection[str]) -> Plan | None:
        """The plan of an attempt, when nothing is left of the one before; None where there can be none.

        Args:
            number: counted from 1.
            before: the attempt before, which has ended.
            exclude: nodes to keep off.
        """
        said = ""
        while True:
            try:
                if before is not None:
                    self._backend.clear(Plan.of_row(before.plan, self._run_dir.spec))
                return self._backend.plan(self._run_dir.spec, self._run_dir, number, exclude=exclude)
            except RankfallError as error:
                self.refusal = error.message
                if not error.passing or number == 1 or self._over():
                    return None
                if error.message != said:
                    said = error.message
                    self._say(f"attempt {number} waits: {said}")
                    self._ledger.set_run("restarting", reason=said, at=time.time_ns())
                self._control.wait(_AGAIN_S)

    def remove(self, row: AttemptRow) -> None:
        """What a cancelled run left outside its directory; where it does not go, that is said and the run is cancelled all the same."""
        try:
            self._backend.clear(Plan.of_row(row.plan, self._run_dir.spec))
        except InfrastructureError as error:
            self._ledger.note(error.message)
            self._say(error.message)
            self._ledger.flush()
