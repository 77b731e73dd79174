"""Exceptions of a thread for which the rest of its process then waits."""

from __future__ import annotations

import pytest

from rankfall.verdict.diagnose import diagnose
from support.cases import at, case, piece, rank, slots


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"last_line_at": at(10.2)}, (1, "user_code_exception", "likely", "no")),
        ({"last_line_at": at(10.2), "worked_at": at(10.1)}, (1, "user_code_exception", "likely", "no")),
        # It worked for long without that thread: a stack that was printed at the end is no work.
        ({"last_line_at": at(60.2), "worked_at": at(40.1)}, (1, "rank_stuck", "suspected", "once")),
        ({"last_line_at": at(60.2), "worked_at": at(10.1)}, (1, "user_code_exception", "likely", "no")),
        ({}, (1, "rank_stuck", "suspected", "once")),
    ],
)
def test_a_thread_that_died_explains_the_hang_of_a_rank_that_did_nothing_since(fields, expected):
    """Another rank's thread had died as well, long before; both then wait."""
    ranks = [rank(n, per_node=4, state="running", **(fields if n == 1 else {"worked_at": at(59.0)})) for n in range(3)]
    waits = [
        piece("rank_stuck", n, role="context", seconds=70, slot=0, source="recorder", trust="wrapper") for n in (0, 2)
    ]
    stuck = piece("rank_stuck", 1, seconds=70, slot=0, source="recorder", trust="wrapper", specificity=40)
    raised = [piece("user_code_exception", 1, seconds=10.0, slot=0)]
    verdict = diagnose(case(ranks, [*waits, stuck, *raised], slots=slots(1), hung=True)).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence, verdict.retry) == expected
    assert [item.rank for item in verdict.consequences] == [0, 2]
