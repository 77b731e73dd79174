"""The end of a run, or of its supervision by this process: its final state, its outcome, the files made for reading, and who removes what it leaves in its platform.

Once the final state is stored the run is over: what fails after that is said, and changes nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from rankfall.model import InfrastructureError, Outcome, RunState
from rankfall.store import RunDir
from rankfall.supervise.attempts import Attempts
from rankfall.supervise.control import Control, read_cancel
from rankfall.supervise.decisions import Decisions
from rankfall.supervise.events import EventLog
from rankfall.supervise.expiry import needed, spawn
from rankfall.supervise.last_words import last_words
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.left_over import begin, left_over, write_files
from rankfall.supervise.outcome import released
from rankfall.supervise.planning import Planner

FinalState = Literal["succeeded", "failed", "cancelled", "deleted"]


class Closing:
    """The end of one run.

    Args:
        run_dir: the run.
        ledger: stores what is new.
        events: for viewers.
        control: knows whether this process cancelled the run.
        attempts: of the run.
        decisions: of the run; its end carries out the last one.
        planner: removes what a cancelled run left.
        say: tells people.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        ledger: Ledger,
        events: EventLog,
        control: Control,
        attempts: Attempts,
        decisions: Decisions,
        planner: Planner,
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._ledger = ledger
        self._events = events
        self._control = control
        self._attempts = attempts
        self._decisions = decisions
        self._planner = planner
        self._say = say

    def after(self, number: int) -> Outcome:
        """The run ends with this attempt, which no other one follows."""
        state = self._attempts.known(number).state
        if state == "succeeded":
            return self.end("succeeded", None)
        if state == "cancelled":
            request = read_cancel(self._run_dir.path)
            if request is None and self._control.cancelled is None:
                found = self._attempts.diagnosis(number)
                said = found.verdict.decisive if found is not None else None
                return self.end("deleted", said.line if said is not None else "somebody deleted it in the cluster")
            return self.end("cancelled", request.text if request else "cancelled")
        decision = self._decisions.about(number)
        return self.end("failed", decision.because if decision else "no verdict was reached")

    def withdrawn(self, number: int, text: str) -> Outcome:
        """Somebody deleted the workload of the newest attempt, after its verdict and before another one: none follows, and the verdict stands."""
        return self.end("failed" if self._attempts.known(number).state == "failed" else "deleted", text)

    def between(self, *, cancelled: bool) -> Outcome:
        """No attempt runs and a wish came: the run's end, or that this process lets go of it."""
        if not cancelled:
            return self.let_go("supervision let go of the run between two attempts")
        request = read_cancel(self._run_dir.path)
        reason = request.text if request else f"cancelled: {self._control.cancelled}".rstrip(": ")
        return self.end("cancelled", reason)

    def let_go(self, words: str) -> Outcome:
        """The run goes on without this process; ``words``: where nobody else took it from here."""
        self._events.say("released", self._control.lost or words, at=time.time_ns())
        return released(self._run_dir, attempts=self._attempts.newest)

    def end(self, final: FinalState, reason: str | None) -> Outcome:
        """The run is over, for this reason in words."""
        now = time.time_ns()
        begin(self._run_dir)
        self._ledger.set_run(final, reason=reason, at=now)
        self._decisions.end(because=reason)
        newest = self._attempts.newest
        outcome = last_words(
            self._run_dir,
            ledger=self._ledger,
            events=self._events,
            state=final,
            at=now,
            diagnosis=self._attempts.diagnosis(newest) if newest else None,
        )
        self._leave(final)
        return outcome

    def again(self, final: RunState) -> None:
        """Do what the process that stored this final state was killed over."""
        self._decisions.end(because=self._ledger.writer.run().reason)
        left = left_over(self._run_dir)
        if left == "files":
            write_files(self._run_dir, self._ledger)
        if left is not None:
            self._leave(final)
        self._ledger.flush()

    def _leave(self, final: RunState) -> None:
        """Remove what the run has in its platform, where nothing else does."""
        newest = self._attempts.newest
        if final in {"cancelled", "deleted"} and newest:
            self._planner.remove(self._attempts.known(newest))
        elif newest and needed(self._run_dir):
            self._expire()

    def _expire(self) -> None:
        """Leave somebody behind who removes what the platform does not."""
        try:
            spawn(self._run_dir)
        except InfrastructureError as error:
            self._ledger.note(error.message)
            self._say(f"{error.message}; {error.hint}")
            self._ledger.flush()
