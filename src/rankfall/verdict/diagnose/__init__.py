"""From evidence to a verdict. Pure; the same evidence in any order, with duplicates, gives the same verdict.

Steps (errors.md section 5): scope, one subject a rank, candidates by kind of evidence, the same fault on many
ranks is one, clocks only between what they can tell apart, consequences only when nothing else speaks. A job
may choose another strategy; scope and what is no failure stay the same. May import: ``rankfall.model``. Face:
:func:`diagnose`.
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
    """The verdict of a case, with its fingerprint and the root rank's exit code.

    The same evidence in any order, with duplicates, gives the same verdict. ``unknown`` is a verdict; it lists what is missing.

    Args:
        case: everything known of one attempt.
        strategy: how the root is chosen; one other than ``causal`` is named in the verdict's ``missing``.
    """
    if case.cancelled or case.succeeded:
        return no_failure(case)
    if not case.ended and not case.hung and not Subjects(case).anything_wrong():
        return no_failure(case)
    return ask(strategy, case)
