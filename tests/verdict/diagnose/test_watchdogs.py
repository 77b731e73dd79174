"""Time-outs of NCCL's watchdogs: one number, different calls."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files

LINE = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)


@pytest.fixture
def told(tmp_path):
    def explain(*calls, head=""):
        lines = [head + LINE.format(rank=rank, number=n, kind=kind, size=size) for rank, n, kind, size in calls]
        (tmp_path / "job.log").write_text("".join(lines))
        verdict = explain_files([tmp_path / "job.log"]).verdict
        return verdict.cause.slug, verdict.cause.confidence, verdict.rank, verdict.retry

    return explain


def test_i23_p7_the_rank_with_another_kind_of_call_is_named(told):
    calls = [(0, 5, "BROADCAST", 1), (1, 5, "ALLREDUCE", 9), (2, 5, "ALLREDUCE", 9), (3, 5, "ALLREDUCE", 9)]
    assert told(*calls) == ("collective_mismatch", "likely", 0, "no")


def test_i23_p7_the_rank_with_another_size_is_named(told):
    calls = [(0, 5, "ALLREDUCE", 9), (1, 5, "ALLREDUCE", 9), (2, 5, "ALLREDUCE", 7)]
    assert told(*calls)[::2] == ("collective_mismatch", 2)


def test_i23_p7_of_two_that_differ_none_is_named(told):
    assert told((0, 5, "BROADCAST", 1), (1, 5, "ALLREDUCE", 9))[::2] == ("collective_mismatch", None)


@pytest.mark.parametrize(
    "calls",
    [
        [(0, 5, "ALLREDUCE", 9), (1, 5, "ALLREDUCE", 9), (2, 5, "ALLREDUCE", 9)],
        # Other numbers: one rank is behind, and the lines alone do not show why.
        [(0, 4, "BROADCAST", 1), (1, 5, "ALLREDUCE", 9), (2, 5, "ALLREDUCE", 9)],
        # Sizes of an uneven all-to-all differ in a healthy job.
        [(0, 5, "ALLTOALL_BASE", 4), (1, 5, "ALLTOALL_BASE", 9), (2, 5, "ALLTOALL_BASE", 9)],
        [(0, 5, "SEND", 4), (1, 5, "RECV", 4), (2, 5, "RECV", 4)],
    ],
)
def test_i23_p7_equal_calls_and_calls_that_may_differ_are_no_mismatch(told, calls):
    assert told(*calls)[0] == "collective_timeout"


def test_i23_p7_calls_of_two_groups_are_not_compared(tmp_path):
    lines = [
        LINE.format(rank=r, number=5, kind=k, size=9) for r, k in ((0, "BROADCAST"), (1, "ALLREDUCE"), (2, "ALLREDUCE"))
    ]
    lines[0] = lines[0].replace("[Rank 0]", "[PG ID 3 PG GUID 9(tensor) Rank 0]")
    lines[1:] = [line.replace("[Rank ", "[PG ID 0 PG GUID 0(default_pg) Rank ") for line in lines[1:]]
    (tmp_path / "job.log").write_text("".join(lines))
    assert explain_files([tmp_path / "job.log"]).verdict.cause.slug == "collective_timeout"


def test_i23_p7_an_exception_of_a_rank_beats_the_calls_of_the_others(tmp_path):
    lines = [
        LINE.format(rank=r, number=5, kind=k, size=9) for r, k in ((0, "BROADCAST"), (1, "ALLREDUCE"), (2, "ALLREDUCE"))
    ]
    error = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/a.py", line 3, in f\n[rank3]: KeyError: 1\n'
    (tmp_path / "job.log").write_text(error + "".join(lines))
    assert explain_files([tmp_path / "job.log"]).verdict.rank == 3
