"""What every run says at its end, whoever decided it: its outcome, told to viewers, and the files made for reading."""

from __future__ import annotations

from pathlib import Path

from rankfall.model import Diagnosis, Outcome, RunState, StoreError
from rankfall.store import RunDir
from rankfall.supervise.events import EventLog
from rankfall.supervise.ledger import Ledger
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
    _derive(run_dir, ledger)
    ledger.flush()
    return outcome


def _derive(run_dir: RunDir, ledger: Ledger) -> None:
    """Files made for reading; the run does not depend on them."""
    from rankfall.store.derived import write_derived  # noqa: PLC0415 - only at the end of a run

    try:
        write_derived(run_dir)
    except (OSError, StoreError) as error:
        ledger.note(f"the files per rank could not be written: {error}"[:500])
        return
    folder = run_dir.spec.log_dir
    if folder is None:
        return
    from rankfall.store.log_dir import place  # noqa: PLC0415 - as above

    problem = place(run_dir, Path(folder))
    if problem is not None:
        ledger.note(f"log_dir: {problem}; the same files are in {run_dir.path}"[:500])
