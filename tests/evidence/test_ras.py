"""Reports of NCCL's RAS service, retyped from the shapes in NVIDIA's documentation: who is missing, who is behind."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.attempt.ras_reports import ras_evidence
from rankfall.model import Record
from support import ras
from support.cases import rank

# NCCL 2.24 and 2.25; a stopped process, of which the service does not know yet.
STOPPED = ras.report(
    size=32,
    errors="INCOMPLETE",
    took=2.05,
    body="""
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 1021 on node 10.0.0.3 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

""",
)
DEAD = STOPPED.replace(
    "INCOMPLETE\n  Missing communicator data from 1 job process",
    "DEAD\n  1 job process is considered dead (unreachable via the RAS network)",
)
# The form since 2.26.
NAMED = STOPPED.replace("  The missing rank: 21", "  Rank 21 -- GPU 5 managed by process 1021 on node 10.0.0.3")
LAGGING = ras.report(
    size=32,
    errors="MISMATCH",
    body=ras.behind(
        "27a079b828ff1a75",
        what="",
        many="  26 ranks have launched up to operation 6650",
        few="  6 ranks have launched up to operation 6649\n"
        + "\n".join(
            f"  Rank {n} -- GPU {n} managed by process {1000 + n} on node 10.0.0.1" for n in (0, 2, 3, 4, 5, 7)
        ),
    ),
)
ONE = ras.report(
    size=8,
    errors="MISMATCH",
    body=ras.behind(
        "78db921d1c117b4a",
        many="  7 ranks have launched up to operation 64",
        few="  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1007 on node node1",
    ),
)
# Began: two ranks have not joined.
INIT = ras.report(
    size=8,
    groups="    0         1         1         8         8         8      INIT  MISMATCH\n",
    body="""
Warnings
========

#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  6 ranks have status RUNNING
  2 ranks have status INIT
  Rank 3 -- GPU 3 managed by process 1003 on node 10.0.0.1
  Rank 5 -- GPU 5 managed by process 1005 on node 10.0.0.1

""",
)
TEARDOWN = ras.report(
    size=32,
    groups="    0         1         4       1-2        32        32  FINALIZE  MISMATCH\n",
    body="""
#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  26 ranks have status UNKNOWN
  4 ranks have status RUNNING
  Rank 0 -- GPU 0 managed by process 1000 on node 10.0.0.1
  Rank 8 -- GPU 0 managed by process 1008 on node 10.0.0.2
  Rank 16 -- GPU 0 managed by process 1016 on node 10.0.0.3
  Rank 24 -- GPU 0 managed by process 1024 on node 10.0.0.4
  2 ranks have status FINALIZE
  Rank 4 -- GPU 4 managed by process 1004 on node 10.0.0.1
  Rank 20 -- GPU 4 managed by process 1020 on node 10.0.0.3

""",
)
# One rank calls another collective than the others.
OTHER = ras.report(
    size=8,
    errors="MISMATCH",
    body="""
#0-0 (a1) MISMATCH
  Communicator ranks have different AllGather operation counts
  7 ranks have launched up to operation 10
  Rank 2 has launched up to operation 11 -- GPU 2 managed by process 1002 on node 10.0.0.1

  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 2 has launched up to operation 63 -- GPU 2 managed by process 1002 on node 10.0.0.1

""",
)
# Tensor parallel pairs 0-1, 2-3, ... inside of data parallel groups: rank 3 left; rank 2 waits for it, and so their
# groups wait for both.
NESTED = ras.report(
    size=8,
    groups="""    0         2         1         4         4         8   RUNNING  MISMATCH
    1         4         1         2         2         8   RUNNING  MISMATCH
""",
    body="""
#0-0 (d0) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 9
  Rank 1 has launched up to operation 8 -- GPU 2 managed by process 1002 on node 10.0.0.1

#0-1 (d1) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 9
  Rank 1 has launched up to operation 8 -- GPU 3 managed by process 1003 on node 10.0.0.1

#1-1 (b1) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 40 -- GPU 2 managed by process 1002 on node 10.0.0.1
  Rank 1 has launched up to operation 39 -- GPU 3 managed by process 1003 on node 10.0.0.1

""",
)


def found(*texts: str, world: int = 32, slots: int = 1, pids: int = 1000):
    ranks = [rank(n, state="running", pid=pids + n) for n in range(world)]
    records = [
        (f"ras-{slot}-{n}.json", Record(id=f"r{slot}-{n}", kind="ras", slot=slot, ras=text, at_ns=n))
        for slot in range(slots)
        for n, text in enumerate(texts)
    ]
    return [(e.slug, e.rank, e.line) for e in ras_evidence(records, ranks=ranks, attempt=1)]


@pytest.mark.parametrize(
    ("text", "world", "expected"),
    [
        (STOPPED, 32, [("rank_stuck", 21)]),
        (DEAD, 32, [("rank_stuck", 21)]),
        (NAMED, 32, [("rank_stuck", 21)]),
        (LAGGING, 32, [("rank_stuck", n) for n in (0, 2, 3, 4, 5, 7)]),
        (ONE, 8, [("rank_stuck", 7)]),
        (INIT, 8, [("rank_stuck", 3), ("rank_stuck", 5)]),
        (TEARDOWN, 32, [("rank_stuck", n) for n in (0, 8, 16, 24)]),
        (OTHER, 8, [("collective_mismatch", 2)]),
        (NESTED, 8, [("rank_stuck", 3)]),
        (ras.report(size=32), 32, []),
        ("", 32, []),
    ],
)
def test_i32_p7_each_report_of_the_documentation_names_its_ranks(text, world, expected) -> None:
    assert [row[:2] for row in found(text, text, world=world, slots=4)] == expected


def test_i32_p7_the_line_says_what_the_service_said() -> None:
    assert found(ONE, ONE, world=8)[0][2] == (
        "NCCL RAS: rank 7 launched AllReduce operation 60 of communicator 78db921d1c117b4a last, others 64"
    )
    assert found(INIT, INIT, world=8)[0][2] == (
        "NCCL RAS: rank 3 of communicator 9e17999afaa87dbb has status INIT, others RUNNING"
    )
    assert found(STOPPED)[0][2] == "NCCL RAS: rank 21 is missing in communicator cf264af53edbe986"


def test_i32_p7_counts_that_grow_or_were_read_once_name_nobody() -> None:
    later = ONE.replace("operation 64", "operation 66").replace("operation 60", "operation 65")
    assert found(ONE, later, world=8) == []
    assert found(ONE, ONE.replace("operation 60", "operation 61"), world=8) == []
    assert found(ONE, world=8) == []
    # Standing still again, after it went on.
    assert [row[:2] for row in found(ONE, later, later, world=8)] == [("rank_stuck", 7)]


def test_i32_p7_two_troubles_a_missing_rank_counts_before_those_that_wait_for_it() -> None:
    both = ONE + NAMED.partition("Errors\n")[2].replace("Rank 21", "Rank 2").replace("1021", "1002")
    assert [row[:2] for row in found(both, both, world=8)] == [("rank_stuck", 2)]


def test_i32_p7_both_sides_of_a_broken_network_name_nobody() -> None:
    missing = "".join(f"  Process {1000 + n} on node 10.0.0.2 managing GPU {n}\n" for n in range(4, 8))
    others = "".join(f"  Process {1000 + n} on node 10.0.0.1 managing GPU {n}\n" for n in range(4))
    texts = [ras.report(size=8, errors="INCOMPLETE", body=f"\nINCOMPLETE\n{part}\n") for part in (missing, others)]
    ranks = [rank(n, state="running", pid=1000 + n) for n in range(8)]
    records = [(f"{n}", Record(id=f"{n}", kind="ras", slot=n, ras=text)) for n, text in enumerate(texts)]
    assert ras_evidence(records, ranks=ranks, attempt=1) == []
    assert len(ras_evidence(records[:1], ranks=ranks, attempt=1)) == 4


def test_i32_p7_numbers_of_a_communicator_are_no_ranks_of_the_job() -> None:
    # Another job's processes, or a communicator of a part of the job whose process IDs are those of containers.
    assert found(ONE, ONE, world=8, pids=5000) == []
    assert found(ONE, ONE, world=16, pids=5000) == []
    assert found(ONE, ONE, world=16) == [("rank_stuck", 7, found(ONE, ONE, world=8)[0][2])]
    same = [rank(n, state="running", pid=1007) for n in range(8)]
    records = [(f"{n}", Record(id=f"{n}", kind="ras", slot=0, ras=ONE, at_ns=n)) for n in range(2)]
    # All have the same process ID, each in its pod: the number decides, in a communicator of the whole job only.
    assert [e.rank for e in ras_evidence(records, ranks=same, attempt=1)] == [7]
    assert ras_evidence(records, ranks=same[:7] + same[:0], attempt=1) == []


def test_i32_p7_a_row_that_does_not_state_its_blocks_property_counts_for_nothing() -> None:
    row = "Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1007 on node node1"
    text = f"  Communicator ranks have different status\n  6 ranks have launched up to operation 6649\n  {row}"
    assert found(text, text, world=8) == []


LINES = sorted({line for text in (STOPPED, NAMED, LAGGING, ONE, INIT, TEARDOWN, OTHER) for line in text.split("\n")})


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=80), max_size=60), st.randoms(use_true_random=False))
def test_i32_p7_hostile_reports_break_nothing_and_cut_ones_name_no_more(lines: list[str], dice: random.Random) -> None:
    text = "\n".join(lines)
    for slug, number, line in found(text, text, world=8):
        assert slug in {"rank_stuck", "collective_mismatch"}
        assert 0 <= number < 8
        assert "\n" not in line
    whole = {row[1] for row in found(LAGGING, LAGGING)}
    cut = LAGGING[: dice.randrange(len(LAGGING))]
    assert {row[1] for row in found(cut, cut)} <= whole
