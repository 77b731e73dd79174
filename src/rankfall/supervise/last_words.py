"""What every run says at its end, whoever decided it: its outcome, told to viewers, and the files made for reading."""

from __future__ import annotations

from rankfall.model import Diagnosis, Outcome, RunState
from rankfall.store import RunDir
from rankfall.supervise.events import EventLog
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.left_over import write_files
from rankfall.supervise.outcome import outcome_of


def last_words(
    run_dir: RunDir, *, ledger: Ledger, events: EventLog, state: RunState, at: int, diagnosis: Diagnosis | None = None
) -> Outcome:
    """Tell how a run ended, whose final state is stored, and write its derived files.

    Args:
        run_dir: the run.
        ledger: of its lease.
        events: for viewers.
        state: the final one.
        at: when it was reached, nanoseconds since the epoch.
        diagnosis: the newest attempt's, where the caller knows better than the tables (a full disk).
    """
    ledger.flush()
    outcome = outcome_of(run_dir, ledger.writer, state=state, diagnosis=diagnosis)
    events.say("ended", f"run {run_dir.id} {state}", at=at, state=state, code=outcome.code, origin=outcome.exit_origin)
    write_files(run_dir, ledger)
    ledger.flush()
    return outcome
