"""From evidence to a verdict: pure, so that a finished run can be diagnosed again and the rules can be tested by properties.

The steps are those of the facts, errors.md section 5: scope, one subject a rank, own candidates by kind of evidence, merging of the
same fault on many ranks, clocks only between what they can tell apart, consequences only when nothing else speaks. A job may choose
another strategy; what every one has in common (scope, what is no failure at all) stays the same.
"""

from __future__ import annotations

from rankfall.diagnose.standing import no_failure, not_begun, stopped_by_wish
from rankfall.diagnose.strategies import BUILT_IN, CAUSAL, EARLIEST, FIRST_LISTED, Pick, Strategy, ask
from rankfall.diagnose.subjects import Subjects
from rankfall.model import Case, Diagnosis

__all__ = [
    "BUILT_IN",
    "CAUSAL",
    "EARLIEST",
    "FIRST_LISTED",
    "Pick",
    "Strategy",
    "diagnose",
    "not_begun",
    "stopped_by_wish",
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
