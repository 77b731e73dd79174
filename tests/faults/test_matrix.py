"""The fault matrix: real processes, the real torchrun and the plain launcher; the right rank, the right cause, the victims, the retry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.inject import NEEDS_COMPILER, NEEDS_ROOT
from faults.report import Rows
from faults.run import Judged, judge, judge_text, kept_text, run_ours, run_theirs
from faults.table import ALLOWED_LESS, FAULTS, Fault
from faults.variants import Variant, variants
from rankfall.explain import explain_files
from rankfall.model import JobSpec, Policies
from rankfall.verdict.decide import decide

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]


def _marks(inject: str | None, *, full: bool) -> list[pytest.MarkDecorator]:
    return (
        [pytest.mark.full] * full + [pytest.mark.root] * (inject in NEEDS_ROOT) + [NEEDS_COMPILER] * (inject == "clock")
    )


VARIANTS = [pytest.param(item, id=item.id, marks=_marks(item.fault.inject, full=item.full)) for item in variants()]
COMPARED = [pytest.param(item, id=item.name, marks=_marks(item.inject, full=True)) for item in FAULTS]


@pytest.mark.parametrize("variant", VARIANTS)
def test_fault(variant: Variant, tmp_path: Path, rows: Rows) -> None:
    fault = variant.fault
    ours = run_ours(
        fault, tmp_path, launcher=variant.launcher, nnodes=variant.nnodes, hook=variant.hook, torch=variant.torch
    )

    assert ours.state == fault.outcome, ours.stderr
    assert ours.left == ()
    assert "Traceback" not in ours.stderr
    fallen = [verdict for verdict in ours.verdicts if verdict is not None]
    if not fault.slugs:
        assert fallen == []
        rows.add(variant, "no failure", Judged("right"))
        return
    if variant.hook:
        assert [item.cause.slug for item in fallen][: len(fault.causes)] == list(fault.causes)
    last = fallen[-1] if fallen else None
    judged = judge(fault, last, world=variant.nnodes * 2, slot=ours.places.get(2))
    rows.add(variant, f"rank {last.rank if last else None}, {last.cause.slug if last else None}", judged)
    assert judged.grade != "wrong", judged.faults
    if variant.hook:
        allowed = ALLOWED_LESS.get((fault.name, variant.launcher)) or ALLOWED_LESS.get((fault.name, "all"))
        assert judged.grade == "right" or allowed, f"{judged.grade} is not enough: {last}"
    if variant.key == "static":
        _of_text(fault, "kept lines", [kept_text(ours.run, tmp_path)], rows)
    if ours.diagnosis is not None and fault.outcome == "failed":
        _decides_well(fault, ours.diagnosis)


def _decides_well(fault: Fault, diagnosis: object) -> None:
    """What would be done with restarts left; a user's error is never started again, and no node is ever touched."""
    spec = JobSpec(command=("train.py",), policies=Policies(max_restarts=3))
    decision = decide(diagnosis, spec=spec, history=())  # type: ignore[arg-type]
    assert decision.action in {"retry", "retry_elsewhere", "stop"}
    if fault.retry == {"no"}:
        assert decision.action == "stop", decision


def _of_text(fault: Fault, column: str, texts: Sequence[Path], rows: Rows) -> None:
    """Text alone may say less, and nothing that is wrong."""
    verdict = explain_files(texts).verdict
    judged = judge_text(fault, verdict)
    rows.add_text(fault, column, verdict, judged)
    assert judged.grade != "wrong", (column, judged.faults)


@pytest.mark.parametrize("fault", COMPARED)
def test_plain_torchrun_beside(fault: Fault, tmp_path: Path, rows: Rows) -> None:
    theirs = run_theirs(fault, tmp_path)
    rows.compare(fault, theirs)
    assert len(theirs.nodes) == 2
    if fault.slugs and not fault.causes:
        # Plain torchrun makes one attempt.
        _of_text(fault, "torchrun's text", theirs.texts, rows)
