"""Diagnoses a run, a slot, log files or a stream; never makes a decision.

Returns the stored verdict unless the caller requests a fresh one.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args

import msgspec

from rankfall.collect.pods.lazy_collector import get_context
from rankfall.collect.stores.record_store import record_store_of
from rankfall.evidence.attempt.case import present_case
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.evidence.files.bounded_read import Input
from rankfall.evidence.files.log_files import case_of_files, case_of_stream
from rankfall.model import FINAL_STATES, Decisive, Diagnosis, NotFound, RankfallError, decoding
from rankfall.model.evidence import SlotLauncher
from rankfall.model.jobspec.sizes import sized
from rankfall.rundir import AttemptRow, RunDir, default_home
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.incomplete import as_of_now
from rankfall.rundir.layout import context_path
from rankfall.rundir.lease import write_file
from rankfall.rundir.requests import left_slots, planned_sizes
from rankfall.rundir.user_signatures import catalogue_of
from rankfall.strategy_registry import diagnose_by, find_strategy
from rankfall.verdict.diagnose import diagnose, not_begun, stopped_on_request

# Seconds that the streams of a live run are read for one diagnosis.
_LIVE_S: Final = 10.0
_NO_REASON: Final = "no reason is stored"
# Final attempt states that a user requested, and the reason in the verdict.
_REQUESTED_ENDS: Final[tuple[tuple[Literal["suspended", "resized"], str], ...]] = (
    ("suspended", "the attempt was stopped for a suspension"),
    ("resized", "the attempt was stopped for a new size"),
)
# Argument name in error messages.
_FLAG: Final = "strategy"

__all__ = ["explain_files", "explain_run", "explain_slot_failure", "explain_stream"]


class _Late(NamedTuple):
    """File with evidence from the cluster after the attempt, or the reason why the query failed."""

    context_path: Path | None = None
    problem: str | None = None


def explain_run(
    run_dir: RunDir, *, attempt: int | None = None, fresh: bool = False, strategy: str | None = None, ask: bool = False
) -> Diagnosis:
    """Returns the diagnosis of one attempt.

    Args:
        run_dir: Run directory.
        attempt: Number from 1; default newest.
        fresh: Ignore the stored verdict and use the stored evidence.
        strategy: Strategy of a fresh diagnosis; default the run's.
        ask: Query the cluster about an ended attempt; stores nothing.

    Raises:
        NotFound: No such attempt.
        SpecError: No such strategy.
    """
    found = _stored_or_new(run_dir, attempt=attempt, fresh=fresh, strategy=strategy, ask=ask)
    verdict = as_of_now(found.verdict, run_dir)
    if verdict.state == "failed" and verdict.attempt is not None:
        with run_dir.reader() as reader:
            newest = reader.newest_attempt() or 0
            if newest > verdict.attempt and reader.run().state == "succeeded":
                verdict = msgspec.structs.replace(verdict, succeeded_in=newest)
    return msgspec.structs.replace(found, verdict=verdict)


def _stored_or_new(run_dir: RunDir, *, attempt: int | None, fresh: bool, strategy: str | None, ask: bool) -> Diagnosis:
    if strategy is not None:
        find_strategy(strategy, field=_FLAG)
    with run_dir.reader() as reader:
        rows, whole = reader.attempts(), reader.run()
        numbers = [row.attempt for row in rows]
        stored = reader.diagnosis(attempt) if not fresh and strategy is None else None
        starts = {one: reader.starts(one) for one in numbers}
        decided = {one: reader.decisions(one) for one in numbers}
    if attempt is not None and attempt not in numbers:
        known = "no attempt yet"
        if numbers:
            known = f"attempts 1-{max(numbers)}" if max(numbers) > 1 else "one attempt"
        raise NotFound(f"run {run_dir.id} has no attempt {attempt}", hint=f"it has {known}")
    if stored is not None:
        return stored
    if not rows and whole.state in FINAL_STATES:
        return not_begun(whole.reason or _NO_REASON, run=run_dir.id, state=whole.state)
    number = attempt if attempt is not None else max(numbers, default=1)
    if whole.state == "suspended" and number == max(numbers, default=1) and all(one.ended is None for one in rows):
        # Nothing of it ever ran.
        words = whole.reason or "suspended"
        found = stopped_on_request(words, how="suspended", run=run_dir.id, attempt=number, role=None)
        decisive = Decisive(source="event", where="state of the workload", line=words)
        return msgspec.structs.replace(found, verdict=msgspec.structs.replace(found.verdict, decisive=decisive))
    row = next((one for one in rows if one.attempt == number), AttemptRow(attempt=number))
    with _later_evidence(run_dir, row) if ask else contextlib.nullcontext(_Late()) as late:
        found = _explained(run_dir, row, starts=starts.get(number), strategy=strategy, late=late)
    # A new diagnosis does not change past decisions.
    decisions = decided.get(number, ())
    if not decisions or found.verdict.state != "failed":
        return found
    return msgspec.structs.replace(
        found, verdict=msgspec.structs.replace(found.verdict, decision=decisions[-1].decision)
    )


def _explained(
    run_dir: RunDir, row: AttemptRow, *, starts: Mapping[int, int] | None, strategy: str | None, late: _Late
) -> Diagnosis:
    """Diagnoses an attempt from stored and late evidence."""
    number, plan = row.attempt, row.plan
    spec = sized(run_dir.spec, planned_sizes(plan, run_dir.spec))
    observer = AttemptObserver(
        run_dir,
        spec=spec,
        attempt=number,
        launcher=_launcher(plan),
        starts=starts,
        context_path=late.context_path,
        record_store=record_store_of(run_dir, spec, attempt=number),
    )
    observer.take_time()
    # Each poll reads a bounded part of a stream; a job that still prints is read up to about now.
    until = time.monotonic() + _LIVE_S
    while (delta := observer.poll(time.time_ns())).bytes or delta.behind:
        if not _all_over(observer) and time.monotonic() > until:
            break
    case = observer.case()
    if spec.elastic:
        case = present_case(case, left=left_slots(plan))
    for request, words in _REQUESTED_ENDS:
        if row.state == request:
            return stopped_on_request(words, how=request, run=case.run, attempt=number, role=case.role)
    # A job's policy may accept stopped or failed slots.
    case = msgspec.structs.replace(case, succeeded=case.succeeded or row.state == "succeeded")
    if late.problem is not None:
        case = msgspec.structs.replace(case, missing=(*case.missing, late.problem))
    return diagnose_by(strategy or _strategy(plan) or run_dir.spec.strategy, case)


@contextlib.contextmanager
def _later_evidence(run_dir: RunDir, row: AttemptRow) -> Iterator[_Late]:
    """Queries the cluster about an ended attempt; yields a temporary file with stored and new context."""
    cluster = row.plan.get("cluster")
    if row.ended is None or not cluster:
        yield _Late()
        return
    with tempfile.TemporaryDirectory(prefix="rankfall-") as folder:
        path, held = Path(folder) / "around.jsonl", context_path(run_dir.path, row.attempt)
        problem = None
        try:
            if held.exists():
                write_file(path, held.read_bytes())
            get_context(run_dir.path, row.attempt, decoding.convert(cluster, kind=PodSource), into=path)
        except (RankfallError, OSError, TimeoutError, msgspec.ValidationError) as error:
            problem = (
                f"the current data of the cluster about attempt {row.attempt}: {str(error) or type(error).__name__}"
            )
        yield _Late(path, problem)


def explain_slot_failure(run_dir: RunDir, *, slot: int, attempt: int | None = None) -> Diagnosis:
    """Returns the newest diagnosis of a slot that failed alone.

    Args:
        run_dir: Run directory.
        slot: Slot number.
        attempt: Attempt number; default any.

    Raises:
        NotFound: The slot never failed alone.
    """
    with run_dir.reader() as reader:
        found = reader.slot_failure_of(slot, attempt)
        others = sorted({row.fall.slot for row in reader.falls(attempt)})
    if found is not None:
        return found
    where = f" in attempt {attempt}" if attempt is not None else ""
    did = f"these slots failed alone: {', '.join(map(str, others))}" if others else None
    raise NotFound(
        f"slot {slot} of run {run_dir.id} did not fail alone{where}",
        hint=did or "leave --slot out: a slot fails alone only with restart_scope: replica",
    )


def _strategy(plan: Mapping[str, object]) -> str | None:
    """Plan's strategy; None if the plan is older or damaged."""
    value = plan.get("strategy")
    return value if isinstance(value, str) else None


def _launcher(plan: Mapping[str, object]) -> SlotLauncher | None:
    """Plan's launcher; None if the plan is older or damaged."""
    value = plan.get("launcher")
    for name in get_args(SlotLauncher):
        if value == name:
            return cast("SlotLauncher", name)
    return None


def _all_over(observer: AttemptObserver) -> bool:
    return all(slot.state in {"ended", "lost", "expected"} for slot in observer.slots())


def explain_files(
    paths: Sequence[Path],
    *,
    within: Path = Path(),
    signatures: Sequence[Path] = (),
    strategy: str | None = None,
) -> Diagnosis:
    """Diagnoses log files and folders offline; run and attempt are null.

    Args:
        paths: Files and folders.
        within: Folder of relative paths.
        signatures: Signature files in addition to those of the home folder.
        strategy: Name; default ``causal``.

    Raises:
        NotFound: A path does not exist.
        UsageError: Nothing is readable, a signature file is damaged, or no such strategy.
    """
    chosen = find_strategy(strategy, field=_FLAG)
    case = case_of_files(paths, catalogue=catalogue_of(default_home(), signatures), within=within)
    return diagnose(case, strategy=chosen)


def explain_stream(
    file: Input, *, name: str = "-", signatures: Sequence[Path] = (), strategy: str | None = None
) -> Diagnosis:
    """Diagnoses text from a pipe, read to its end; see :func:`explain_files`."""
    chosen = find_strategy(strategy, field=_FLAG)
    case = case_of_stream(file, name=name, catalogue=catalogue_of(default_home(), signatures))
    return diagnose(case, strategy=chosen)
