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


def test_a_rank_in_an_earlier_call_of_another_kind_is_suspected_where_three_agree(told):
    others = [(rank, 5, "ALLREDUCE", 9) for rank in (1, 2, 3)]
    assert told((0, 4, "BROADCAST", 1), *others) == ("collective_mismatch", "suspected", 0, "once")
    assert told((0, 4, "ALLREDUCE", 1), *others)[::2] == ("collective_timeout", None)
    assert told((0, 6, "BROADCAST", 1), *others)[::2] == ("collective_timeout", None)


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


LOST = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:28048"
LATE = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"


def stack(rank, line, call, error=LATE):
    library = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    text = f"""Traceback (most recent call last):
  File "/app/train.py", line {line}, in step
    dist.{call}(x)
  File "{library}", line 2800, in {call}
    work.wait()
{error}"""
    return "".join(f"[rank{rank}]: {one}\n" for one in text.splitlines())


@pytest.fixture
def explained(tmp_path):
    def explain(*stacks):
        (tmp_path / "job.log").write_text("".join(stacks))
        return explain_files([tmp_path / "job.log"]).verdict

    return explain


def test_i23_p7_the_rank_that_timed_out_in_another_collective_is_named(explained):
    verdict = explained(stack(1, 230, "all_reduce"), stack(0, 224, "barrier"), stack(2, 230, "all_reduce"))
    assert (verdict.cause.slug, verdict.rank) == ("collective_mismatch", 0)
    assert [one.rank for one in verdict.consequences] == [1, 2]


@pytest.mark.parametrize(
    "stacks",
    [
        # One collective at several places, as in a loop over layers.
        [stack(0, 224, "all_reduce"), stack(1, 230, "all_reduce"), stack(2, 230, "all_reduce")],
        # Pairs of ranks wait at different places in a healthy pipeline.
        [stack(0, 224, "recv"), stack(1, 230, "send"), stack(2, 230, "send")],
    ],
)
def test_i23_p7_other_places_alone_are_no_mismatch(explained, stacks):
    assert explained(*stacks).cause.slug == "collective_timeout"


def test_i23_p7_ranks_that_lost_a_peer_may_stand_anywhere(explained):
    stacks = [stack(0, 224, "barrier", LOST), stack(1, 230, "all_reduce", LOST), stack(2, 230, "all_reduce", LOST)]
    assert explained(*stacks).cause.slug == "peer_lost"


def test_i23_p7_a_rank_that_raised_and_others_that_timed_out_elsewhere_is_the_exception(explained):
    """Two troubles: the ranks differ, and one has its own exception."""
    own = stack(3, 99, "load", "KeyError: 'label'")
    verdict = explained(stack(0, 224, "barrier"), stack(1, 230, "all_reduce"), stack(2, 230, "all_reduce"), own)
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", 3)


def test_i23_p5_of_equal_consequences_the_first_in_the_file_is_decisive(explained):
    later = LATE.replace("1800000", "1700000")
    verdict = explained(*(stack(0, 224, "barrier", error).replace("[rank0]: ", "") for error in (LATE, later)))
    assert verdict.decisive.line.endswith(LATE)


REPORT = (
    "[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=7, OpType=BROADCAST), but Rank {peer} is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE).\n"
)


def test_i23_p7_one_report_that_compares_two_ranks_names_neither(explained):
    verdict = explained(REPORT.format(rank=1, peer=0))
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("collective_mismatch", "likely", None)
    most = explained(stack(0, 9, "barrier"), *(REPORT.format(rank=rank, peer=0) for rank in (1, 2, 3)))
    assert (most.cause.slug, most.rank) == ("collective_mismatch", 0)


ABORTED = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {code}) local_rank: 3 (pid: 74211) of binary: /opt/bin/python\n"


@pytest.mark.parametrize("code", [-6, -11])
@pytest.mark.parametrize("reported", ["after", "before"])
def test_an_abort_that_is_reported_after_the_time_outs_is_the_watchdogs(tmp_path, reported, code):
    """A segmentation fault, or an abort that the launcher reported before, made the others wait."""
    waited = [LINE.format(rank=rank, number=5, kind="ALLREDUCE", size=9) for rank in (0, 1)]
    end = [ABORTED.format(code=code)]
    (tmp_path / "job.log").write_text("".join(waited + end if reported == "after" else end + waited))
    verdict = explain_files([tmp_path / "job.log"]).verdict
    watchdog = reported == "after" and code == -6
    assert verdict.cause.slug == ("collective_timeout" if watchdog else "segfault" if code == -11 else "native_abort")
    assert {item.slug for item in verdict.consequences} == {"collective_timeout"}
