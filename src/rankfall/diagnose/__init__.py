"""From evidence to a verdict: pure, so that a finished run can be diagnosed again and the rules can be tested by properties.

The steps are those of the facts, errors.md section 5: scope, one subject a rank, own candidates by kind of evidence, merging of the
same fault on many ranks, clocks only between what they can tell apart, consequences only when nothing else speaks.
"""

from __future__ import annotations

from rankfall.diagnose.assemble import assemble, no_failure
from rankfall.diagnose.roots import find_root
from rankfall.diagnose.subjects import Subjects
from rankfall.model import Case, Diagnosis

__all__ = ["diagnose"]


def diagnose(case: Case) -> Diagnosis:
    """The verdict of a case, with its fingerprint and the root rank's exit code.

    The same evidence in any order, with duplicates, gives the same verdict. ``unknown`` is a verdict; it lists what is missing.
    """
    if case.cancelled or case.succeeded:
        return no_failure(case)
    subjects = Subjects(case)
    if not case.ended and not case.hung and not subjects.anything_wrong():
        return no_failure(case)
    return assemble(case, subjects, find_root(case, subjects))
