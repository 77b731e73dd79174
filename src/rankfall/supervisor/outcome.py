"""The outcome of a run as exit code, its final output, and the mark of cleanup that is still to be done.

A mark in the run directory is written before the final state is stored and removed when all is done. The
next command that opens the run finishes what a killed process left: files by any command, the rest by one
that waits or attaches. Each step may be repeated.
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
    """The outcome of a finished run.

    Args:
        run_dir: the run.
        tables: its writer or a reader.
        state: where the caller knows better than the tables (a full disk).
        diagnosis: the newest attempt's, likewise.
    """
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
    """What a supervisor returns that let go of a run: the run goes on."""
    return Outcome(run=run_dir.id, state="running", code=SUCCESS, exit_origin="rankfall", attempts=attempts)


def _decided(tables: Queries, attempt: int, diagnosis: Diagnosis) -> Diagnosis:
    """The same diagnosis with the decision about its attempt in it."""
    rows = tables.decisions(attempt)
    if not rows:
        return diagnosis
    verdict = msgspec.structs.replace(diagnosis.verdict, decision=rows[-1].decision)
    return msgspec.structs.replace(diagnosis, verdict=verdict)


Left = Literal["files", "rest"]


def pending_cleanup(run_dir: RunDir) -> Left | None:
    """What is still to be done first; None when nothing is."""
    try:
        with run_dir.end_lock_path.open("rb") as file:
            return "rest" if file.read(16).startswith(b"rest") else "files"
    except OSError:
        return None


def begin(run_dir: RunDir) -> None:
    """Say that a final state is stored next."""
    # On a full disk the run ends all the same.
    with contextlib.suppress(OSError):
        write_file(run_dir.end_lock_path, b"files\n")


def done(run_dir: RunDir) -> None:
    """Say that nothing is left to do. Whose files could not be written keeps the mark: there may be room later."""
    if pending_cleanup(run_dir) == "rest":
        with contextlib.suppress(OSError):
            run_dir.end_lock_path.unlink()


def write_files(run_dir: RunDir, run_store: BestEffortStore) -> None:
    """Write the files made for reading; the run does not depend on them. What fails is noted.

    Of a foreign job there are none: its record is made for who looks at it, and holds each line once.
    """
    if run_dir.foreign is None:
        from rankfall.rundir.lines.derived_files import write_derived  # noqa: PLC0415 - only at the end of a run

        try:
            write_derived(run_dir)
        except (OSError, StoreError) as error:
            run_store.note(f"the files per rank could not be written: {error}"[:500])
            return
    folder = run_dir.spec.log_dir
    if folder is not None:
        from rankfall.rundir.lines.log_dir import LogDir  # noqa: PLC0415 - as above

        problem = LogDir(run_dir, Path(folder)).finish()
        if problem is not None:
            run_store.note(f"log_dir: {problem}; the same files are in {run_dir.path}"[:500])
    if pending_cleanup(run_dir) is not None:
        with contextlib.suppress(OSError):
            half = run_dir.end_lock_path.with_suffix(".half")
            write_file(half, b"rest\n")
            half.replace(run_dir.end_lock_path)


def finish_files(run_dir: RunDir) -> None:
    """Write the files that somebody was killed over, where nobody holds the run; what cannot be done is left to the next one."""
    if pending_cleanup(run_dir) != "files":
        return
    # Held by somebody, damaged, or not writable for us: it is theirs.
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
    """Tell how a run ended, whose final state is stored, and write its derived files.

    Args:
        run_dir: the run.
        run_store: of its lease.
        events: for viewers.
        state: the final one.
        at: when it was reached, nanoseconds since the epoch.
        diagnosis: the newest attempt's, where the caller knows better than the tables (a full disk).
    """
    run_store.flush()
    outcome = outcome_of(run_dir, run_store.writer, state=state, diagnosis=diagnosis)
    events.say("ended", f"run {run_dir.id} {state}", at=at, state=state, code=outcome.code, origin=outcome.exit_origin)
    write_files(run_dir, run_store)
    run_store.flush()
    return outcome
