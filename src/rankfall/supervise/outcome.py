"""How a run ended, as its exit code and whose code that is (DESIGN, "Surfaces")."""

from __future__ import annotations

import msgspec

from rankfall.diagnose import not_begun
from rankfall.model import Diagnosis, Outcome, RunState
from rankfall.model.exit_codes import CANCELLED, EVIDENCE_LOST, INFRASTRUCTURE, SUCCESS
from rankfall.store import RunDir
from rankfall.store.queries import Queries


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
