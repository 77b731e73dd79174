"""Derives a verdict from evidence (errors.md section 5). Pure.

Evidence in any order, with duplicates, gives the same verdict. A job's strategy cannot change scope or "no
failure".
"""

from __future__ import annotations

from rankfall.model import Case, Diagnosis
from rankfall.verdict.diagnose.no_failure import no_failure, not_begun, stopped_on_request
from rankfall.verdict.diagnose.strategies import BUILT_IN, CAUSAL, EARLIEST, FIRST_LISTED, Pick, Strategy, ask
from rankfall.verdict.diagnose.subjects import Subjects

__all__ = [
    "BUILT_IN",
    "CAUSAL",
    "EARLIEST",
    "FIRST_LISTED",
    "Pick",
    "Strategy",
    "diagnose",
    "not_begun",
    "stopped_on_request",
]


def diagnose(case: Case, *, strategy: Strategy = CAUSAL) -> Diagnosis:
    """Verdict of a case; ``unknown`` is one and lists the missing evidence.

    ``missing`` names a strategy other than ``causal``.
    """
    if case.cancelled or case.succeeded:
        return no_failure(case)
    if not case.ended and not case.hung and not Subjects(case).anything_wrong():
        return no_failure(case)
    return ask(strategy, case)
