"""The outcome of a run, its final output, and the mark of unfinished cleanup.

The mark exists until cleanup is complete; the next command completes a killed process's cleanup.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import msgspec

from rankfall.model import FINAL_STATES, Diagnosis, Outcome, RankfallError, RunState, StoreError
from rankfall.model.exit_codes import CANCELLED, EVIDENCE_LOST, INFRASTRUCTURE, SUCCESS
from rankfall.rundir import RunDir
from rankfall.rundir.database import Queries
from rankfall.rundir.lease import write_file
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.run_events import EventLog
from rankfall.verdict.diagnose import not_begun


def outcome_of(
    run_dir: RunDir, tables: Queries, *, state: RunState | None = None, diagnosis: Diagnosis | None = None
) -> Outcome:
    """Returns a finished run's outcome; ``state`` and ``diagnosis`` replace stored ones (full disk)."""
    state = state or tables.run().state
    attempts = tables.newest_attempt() or 0
    if state == "succeeded":
        return Outcome(run=run_dir.id, state=state, code=SUCCESS, exit_origin="rankfall", attempts=attempts)
    diagnosis = _decided(tables, attempts, diagnosis) if diagnosis else tables.diagnosis()
    if diagnosis is None and not attempts and state == "failed":
        diagnosis = not_begun(tables.run().reason or "no reason is stored", run=run_dir.id)
    verdict = diagnosis.verdict if diagnosis else None
    code, origin = INFRASTRUCTURE, "rankfall"
    if state in {"cancelled", "deleted"}:
        code = CANCELLED
    elif state != "failed":
        code = EVIDENCE_LOST
    elif diagnosis is not None and diagnosis.exit_code:
        code, origin = diagnosis.exit_code, "rank"
    return Outcome(
        run=run_dir.id,
        state=state,
        code=code,
        exit_origin="rank" if origin == "rank" else "rankfall",
        attempts=attempts,
        verdict=verdict,
    )


def released(run_dir: RunDir, *, attempts: int) -> Outcome:
    """Returns the outcome of a supervisor that released a continuing run."""
    return Outcome(run=run_dir.id, state="running", code=SUCCESS, exit_origin="rankfall", attempts=attempts)


def _decided(tables: Queries, attempt: int, diagnosis: Diagnosis) -> Diagnosis:
    rows = tables.decisions(attempt)
    if not rows:
        return diagnosis
    verdict = msgspec.structs.replace(diagnosis.verdict, decision=rows[-1].decision)
    return msgspec.structs.replace(diagnosis, verdict=verdict)


Left = Literal["files", "rest"]


def pending_cleanup(run_dir: RunDir) -> Left | None:
    """Returns the next cleanup step; None if none remains."""
    try:
        with run_dir.end_lock_path.open("rb") as file:
            return "rest" if file.read(16).startswith(b"rest") else "files"
    except OSError:
        return None


def begin(run_dir: RunDir) -> None:
    """Marks that a final state is stored next."""
    # On a full disk the run ends nevertheless.
    with contextlib.suppress(OSError):
        write_file(run_dir.end_lock_path, b"files\n")


def done(run_dir: RunDir) -> None:
    """Removes the mark, unless files could not be written."""
    if pending_cleanup(run_dir) == "rest":
        with contextlib.suppress(OSError):
            run_dir.end_lock_path.unlink()


def write_files(run_dir: RunDir, run_store: BestEffortStore) -> None:
    """Writes the derived files and notes failures; none for a foreign job."""
    if run_dir.foreign is None:
        from rankfall.rundir.lines.derived_files import write_derived  # noqa: PLC0415

        try:
            write_derived(run_dir)
        except (OSError, StoreError) as error:
            run_store.note(f"the files per rank could not be written: {error}"[:500])
            return
    folder = run_dir.spec.log_dir
    if folder is not None:
        from rankfall.rundir.lines.log_dir import LogDir  # noqa: PLC0415

        problem = LogDir(run_dir, Path(folder)).finish()
        if problem is not None:
            run_store.note(f"log_dir: {problem}; the same files are in {run_dir.path}"[:500])
    if pending_cleanup(run_dir) is not None:
        with contextlib.suppress(OSError):
            half = run_dir.end_lock_path.with_suffix(".half")
            write_file(half, b"rest\n")
            half.replace(run_dir.end_lock_path)


def finish_files(run_dir: RunDir) -> None:
    """Writes a killed process's files; skips failures."""
    if pending_cleanup(run_dir) != "files":
        return
    # Its owner handles a held, damaged or unwritable run.
    with contextlib.suppress(RankfallError, OSError), run_dir.lease() as writer:
        if writer.run().state in FINAL_STATES and pending_cleanup(run_dir) == "files":
            run_store = BestEffortStore(writer, on_gap=lambda _: None)
            write_files(run_dir, run_store)
            run_store.flush()


def last_words(
    run_dir: RunDir,
    *,
    run_store: BestEffortStore,
    events: EventLog,
    state: RunState,
    at: int,
    diagnosis: Diagnosis | None = None,
) -> Outcome:
    """Reports the end of a run whose final state is stored, and writes its derived files."""
    run_store.flush()
    outcome = outcome_of(run_dir, run_store.writer, state=state, diagnosis=diagnosis)
    events.say("ended", f"run {run_dir.id} {state}", at=at, state=state, code=outcome.code, origin=outcome.exit_origin)
    write_files(run_dir, run_store)
    run_store.flush()
    return outcome
