"""Errors that were survived, rule by rule: in text, in cases, and what is decided about a job whose work was done."""

from __future__ import annotations

import io

import msgspec
import pytest

from rankfall.explain import explain_files, explain_stream
from rankfall.model import JobSpec
from rankfall.verdict.decide import decide
from rankfall.verdict.diagnose import diagnose
from support.cases import at, case, died, left, piece

STALE = "OSError: [Errno 116] Stale file handle: '/data/shard_17'"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
SUSPECT = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def trace(final, *, file="/app/train.py", prefix=""):
    lines = ["Traceback (most recent call last):", f'  File "{file}", line 8, in main', "    step(batch)", final]
    return "".join(f"{prefix}{line}\n" for line in lines)


def steps(first, last, *, prefix=""):
    return "".join(f"{prefix}step {n} loss {9 / (n + 1):.4f}\n" for n in range(first, last))


def why(text):
    return explain_stream(io.BytesIO(text.encode())).verdict


def roles(verdict, slug):
    return {e.role for e in verdict.evidence if e.slug == slug}


WORK = {
    "steps": steps(10, 14),
    "epochs": "".join(f"Epoch [1/3] Iter [{n}/900] loss: 0.5\n" for n in range(10, 14)),
    "bar": "".join(f"\r Training: 1%|# | {n}/1000 [00:01<01:00,  4.4it/s]" for n in range(10, 14)) + "\n",
    "losses": "".join(f"loss={n / 100}\n" for n in range(10, 14)),
    "megatron": "".join(f" iteration {n:8d}/  100000 | lm loss: 1.0E-1\n" for n in range(10, 14)),
    "keras": "".join(f"{n}/900 [===>......] - ETA: 1:02 - loss: 0.5\n" for n in range(10, 14)),
    "trainer": "".join(f"{{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': {n / 100}}}\n" for n in range(10, 14)),
    "retry": "retry succeeded after 2 attempts\n",
    "resumed": "resumed training from step 900\nstep 901 loss 0.1\nstep 902 loss 0.1\n",
    "talk": "".join(f"wrote part {chr(97 + n % 26)}{n} of the table\n" for n in range(60)),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("text", [f"retry 1/5: {STALE}", f"caught {OOM}; batch halved", SUSPECT])
def test_i18_p8_what_a_rank_printed_before_its_own_progress_is_context(name, text, tmp_path):
    (tmp_path / "rank-3.log").write_text(f"{steps(0, 3)}{text}\n{WORK[name]}")
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.cause.slug, verdict.retry, verdict.node_action) == ("unknown", "once", "none")
    assert {e.role for e in verdict.evidence} == {"context"}


@pytest.mark.parametrize(
    "prefix", ["[rank{n}]: ", "[rank {n}] ", "{n}: ", "[1,{n}]<stdout>: ", "2026-11-21 09:00:00.5 [rank {n}] "]
)
def test_i18_p8_of_a_mixed_stream_each_speaker_has_progress_of_its_own(prefix):
    one, two = prefix.format(n=1), prefix.format(n=2)
    # Rank 1 goes on, rank 2 says no more.
    text = f"{steps(0, 3, prefix=one)}{one}retry 1/5: {STALE}\n{two}{OOM}\n{steps(3, 9, prefix=one)}"
    verdict = why(text)
    assert (verdict.rank, verdict.cause.slug) == (2, "gpu_oom")
    assert roles(verdict, "shared_fs_error") == {"context"}


def test_i18_p8_an_exception_that_nobody_caught_beats_earlier_lines_of_its_speaker():
    text = f"{SUSPECT}\n{trace(KEY)}"
    verdict = why(text)
    assert (verdict.cause.slug, verdict.retry, verdict.node_action) == ("user_code_exception", "no", "none")


KEY = "KeyError: 'token_type_ids'"


def test_i18_p8_a_line_of_the_exceptions_own_chain_keeps_its_cause():
    text = (
        trace(STALE).rstrip()
        + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + trace("RuntimeError: no data")
    )
    assert why(text).cause.slug == "shared_fs_error"
    # The detail that a library prints before an exception that says less.
    detail = "node5:240:240 [6] misc/ibvwrap.cc:277 NCCL WARN Call to ibv_modify_qp failed with error No such device"
    both = why(
        f"[rank0]: {detail}\n"
        + trace(
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1691, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
            prefix="[rank0]: ",
        )
    )
    assert both.cause.slug == "nccl_ib_error"


MESSAGE = "argument --precision: invalid choice: 'int3' (choose from 'fp32', 'bf16')"


@pytest.mark.parametrize(
    ("slug", "line", "message", "whole"),
    [
        # A program that prints the exception's message before it exits.
        ("bad_arguments", f"train.py: error: {MESSAGE}", f"argparse.ArgumentError: {MESSAGE}", False),
        # The exception of a data worker, which the recorded one brought along.
        ("shm_exhausted", "RuntimeError: unable to allocate shared memory(shm)", "RuntimeError: Caught RuntimeError in DataLoader worker process 0.", True),
    ],
)  # fmt: skip
def test_i18_p8_what_a_process_printed_of_its_recorded_exception_keeps_its_cause(slug, line, message, whole):
    recorded = piece("user_code_exception", 0, line=message)
    printed = {"source": "log", "trust": "job", "uncertainty": 0.05, "whole": whole}
    said = piece(slug, 0, seconds=1.002, line=line, **printed)
    ends = [left(0, 1, seconds=2), left(1, 0, seconds=3)]
    assert diagnose(case(ends, [recorded, said])).verdict.cause.slug == slug
    # One of another exception, which the process survived, keeps nothing.
    other = piece(slug, 0, seconds=0.5, line="train.py: error: no such shard", **printed)
    assert diagnose(case(ends, [recorded, other])).verdict.cause.slug == "user_code_exception"


def test_i18_p8_a_logged_traceback_before_further_work_is_context():
    text = f"{steps(0, 3)}{trace(STALE, file='/app/data.py')}{steps(3, 40)}{trace(KEY)}{trace('ValueError: x')}"
    verdict = why("".join(f"[rank 4] {line}\n" for line in text.splitlines()))
    assert verdict.rank == 4
    assert verdict.cause.slug == "user_code_exception"
    assert roles(verdict, "shared_fs_error") == {"context"}


def test_i18_p8_the_rest_of_what_a_program_had_printed_comes_after_its_traceback():
    verdict = why("".join(f"[rank 4] {line}\n" for line in f"{steps(0, 3)}{trace(OOM)}{steps(3, 40)}".splitlines()))
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (4, "gpu_oom", "likely")


def test_i18_p8_a_traceback_long_before_the_end_is_suspected_where_nothing_else_is_said():
    text = "".join(f"[rank 4] {line}\n" for line in f"{trace(STALE)}{steps(3, 4000)}".splitlines())
    verdict = why(text)
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (4, "shared_fs_error", "suspected")
    assert (verdict.retry, verdict.node_action) == ("once", "none")


@pytest.mark.parametrize("text", [f"retry 1/5: {STALE}", SUSPECT])
def test_i18_p8_a_line_of_another_rank_never_beats_a_rank_that_failed(text):
    """Also where that other rank printed no more: only rank 0 shows how far the job is."""
    head = f"[rank1]: {text}\n" + steps(0, 17, prefix="[rank0]: ")
    verdict = why(head + trace(KEY, prefix="[rank2]: "))
    assert (verdict.rank, verdict.cause.slug, verdict.retry, verdict.node_action) == (
        2,
        "user_code_exception",
        "no",
        "none",
    )


def test_i18_p8_a_rank_that_was_stopped_did_not_fail():
    words = piece("gpu_oom", 1, seconds=1, source="log", trust="job", line="caught CUDA out of memory, batch halved")
    ranks = [left(0, 3, seconds=2), died(1, 15, by="wrapper", seconds=3)]
    verdict = diagnose(case(ranks, [words])).verdict
    assert (verdict.rank, verdict.cause.slug) == (0, "user_exit")
    assert any(a.rank == 1 and "stopped" in a.rejected for a in verdict.alternatives)


def test_i18_p8_what_a_rank_printed_that_ended_well_is_no_cause():
    words = piece("gpu_oom", 1, seconds=1, source="log", trust="job")
    verdict = diagnose(case([left(0, 3, seconds=2), left(1, 0, seconds=3)], [words])).verdict
    assert (verdict.rank, verdict.cause.slug) == (0, "user_exit")


def test_i18_p8_a_later_step_shows_that_a_line_was_survived():
    words = piece("shared_fs_error", 0, seconds=1, source="log", trust="job")
    on = left(0, 3, seconds=3, phase="step", step=40, step_at=at(2))
    assert diagnose(case([on], [words])).verdict.cause.slug == "user_exit"
    # A step that was done before says nothing.
    before = msgspec.structs.replace(on, step_at=at(0.5))
    assert diagnose(case([before], [words])).verdict.cause.slug == "shared_fs_error"


@pytest.mark.parametrize(
    "noise",
    [
        "Exception ignored in: <function Pool.__del__ at 0x7f66>\n" + trace("OSError: [Errno 28] No space left on device"),
        "Error in atexit._run_exitfuncs:\n" + trace("OSError: [Errno 28] No space left on device"),
        trace("FileNotFoundError: [Errno 2] No such file or directory: '/psm_1'", file="/usr/lib/python3.11/multiprocessing/util.py").replace("in main", "in _run_finalizers"),
        trace("OSError: [Errno 28] No space left on device", file="/app/cache.py").replace("in main", "in __del__"),
    ],
)  # fmt: skip
def test_i18_p8_an_exception_while_cleaning_up_never_beats_the_one_before(noise):
    verdict = why(trace(KEY) + noise)
    assert verdict.cause.slug == "user_code_exception"
    assert "KeyError" in verdict.decisive.line


NOISE = (
    "",
    " 45%|####5     | 12/100 [00:10<00:12,  4.4it/s]\n",
    "wandb: Run summary:\nwandb:   loss 0.12\nwandb:   step 12\nwandb:   loss 0.13\n",
    "[rank0]:[E1121 09:41:50.1 ProcessGroupNCCL.cpp:616] heartbeat monitor is alive 17\n" * 60,
    "DataLoader worker 1: batch 118 loaded\nDataLoader worker 1: batch 119 loaded\n" * 40,
    "heartbeat 18\nheartbeat 19\nheartbeat 20\n",
    "last step 11, final loss 0.2\ntraining failed at step 12\n",
)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("whole", [False, True])
def test_i18_p8_noise_after_an_error_that_ended_its_rank_takes_nothing_from_it(noise, whole, tmp_path):
    (tmp_path / "rank-3.log").write_text(f"{steps(0, 12)}{trace(OOM) if whole else OOM}\n{noise}")
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (3, "gpu_oom", "likely")


@pytest.mark.parametrize("phase", ["teardown", "done"])
@pytest.mark.parametrize(
    ("slug", "role"), [("user_code_exception", "primary"), ("disk_full", "primary"), ("dataloader_died", "secondary")]
)
def test_i18_p8_an_error_after_the_work_was_done_is_of_the_teardown_and_starts_nothing_again(phase, slug, role):
    ranks = [left(0, 0, seconds=1), left(1, 1, seconds=2, phase=phase, step=9, step_at=at(1))]
    diagnosis = diagnose(case(ranks, [piece(slug, 1, role=role, seconds=1.5, teardown=True)]))
    verdict = diagnosis.verdict
    assert (verdict.state, verdict.cause.slug, verdict.rank) == ("failed", slug, 1)
    assert (verdict.phase, verdict.retry, diagnosis.exit_code) == ("teardown", "no", 1)
    assert msgspec.json.decode(msgspec.json.encode(verdict))["phase"] == "teardown"
    decision = decide(diagnosis, spec=JobSpec(command=("t.py",)), history=())
    assert (decision.action, decision.rule) == ("stop", "work_done")


def test_i18_p8_a_traceback_in_text_after_the_work_was_done_is_of_the_teardown():
    ranks = [left(0, 0, seconds=1), left(1, 1, seconds=2, phase="done", step=9, step_at=at(1))]
    words = piece("shared_fs_error", 1, seconds=1.5, source="log", trust="job", whole=True)
    verdict = diagnose(case(ranks, [words])).verdict
    assert (verdict.cause.slug, verdict.phase, verdict.retry) == ("shared_fs_error", "teardown", "no")


def test_i18_p8_a_code_after_all_ranks_said_that_they_are_done_is_of_the_teardown():
    ranks = [left(0, 0, seconds=1), left(1, 1, seconds=2, finished=True), left(2, 1, seconds=2, finished=True)]
    verdict = diagnose(case(ranks, [])).verdict
    assert (verdict.phase, verdict.retry) == ("teardown", "no")
    # One that was still at work had not done it.
    at_work = [*ranks[:2], died(2, 15, by="wrapper", seconds=3)]
    assert diagnose(case(at_work, [])).verdict.phase is msgspec.UNSET


def test_i18_p8_an_error_of_the_work_beats_one_of_the_teardown():
    ranks = [left(0, 1, seconds=2), left(1, 1, seconds=1, phase="done", step=9, step_at=at(0.5))]
    pieces = [piece("user_code_exception", 0, seconds=2), piece("disk_full", 1, seconds=1, teardown=True)]
    verdict = diagnose(case(ranks, pieces)).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.phase) == (0, "user_code_exception", msgspec.UNSET)
    assert any(a.rank == 1 and a.rejected == "its rank had finished its work" for a in verdict.alternatives)


# -- a traceback that a rank printed and caught, seen on the test bed: its last words are of a lost partner, or it was stopped


def printed(number, **fields):
    line = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    said = {"source": "log", "trust": "job", "whole": True, "stream": f"r{number}", "order": 90, "uncertainty": 0.05}
    return piece("gpu_oom", number, **(said | {"seconds": 9.95, "line": line} | fields))


def lost(number, **fields):
    line = "ConnectionResetError: Connection closed by peer"
    return piece("peer_lost", number, role="secondary", seconds=10.1, line=line, **fields)


def test_i19_a_caught_traceback_is_no_cause_where_its_rank_was_ended_by_a_lost_partner():
    raised = piece("user_code_exception", 2, seconds=10, line="KeyError: 'token_type_ids'")
    for own, ended, slug in (
        ([raised], left(2, 1, seconds=10), "user_code_exception"),
        ([], died(2, 9), "killed_unknown"),
    ):
        ranks = [left(0, 1, seconds=10.2), left(1, 1, seconds=10.2), ended, left(3, 1, seconds=10.2)]
        verdict = diagnose(case(ranks, [printed(0), lost(0), lost(1), *own, lost(3)])).verdict
        assert (verdict.cause.slug, verdict.rank) == (slug, 2)
        assert ("gpu_oom", "the rank caught it: something else ended that rank") in {
            (one.slug, one.rejected) for one in verdict.alternatives
        }


def test_i19_a_caught_traceback_is_no_cause_of_a_hang():
    ranks = [died(n, 15, by="wrapper", seconds=70) for n in range(4)]
    stuck = piece("rank_stuck", 2, source="recorder", trust="supervisor", seconds=70)
    assert diagnose(case(ranks, [printed(0), stuck], hung=True)).verdict.cause.slug == "rank_stuck"
    assert diagnose(case(ranks, [printed(0)], hung=True)).verdict.cause.slug != "gpu_oom"


@pytest.mark.parametrize(
    ("said", "extra"),
    [
        (printed(0), []),  # nothing else is known
        (printed(0, whole=False), [lost(0)]),  # a line of a library, before an exception that says less
        (printed(0, seconds=12), [lost(0)]),  # after the record
        (printed(0, line="gpu: ConnectionResetError: Connection closed by peer"), [lost(0)]),  # the record's own text
        (printed(0), [lost(0)]),
    ],
)
def test_i19_a_printed_traceback_stays_the_cause_where_nothing_speaks_against_it(said, extra):
    ranks = [left(0, 1, seconds=12.2), left(1, 1, seconds=12.2)]
    assert diagnose(case(ranks, [said, *extra, lost(1)])).verdict.cause.slug == "gpu_oom"


@pytest.mark.parametrize("crash", [11, 7, 4])
def test_a_rank_that_crashed_had_caught_the_traceback_that_it_printed(crash):
    caught = piece("import_error", 1, source="log", trust="job", whole=True, line="No module named 'xformers'")
    verdict = diagnose(case([left(0, 1, seconds=3), died(1, crash, seconds=2)], [caught, LOST])).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, {11: "segfault", 7: "shm_exhausted", 4: "native_abort"}[crash])


def test_a_traceback_before_an_abort_or_without_a_hook_may_be_the_reason():
    printed = piece("import_error", 1, source="log", trust="job", whole=True)
    for end in (died(1, 6, seconds=2), died(1, 11, seconds=2, hook="absent")):
        assert diagnose(case([left(0, 1, seconds=3), end], [printed, LOST])).verdict.cause.slug == "import_error"


LOST = piece("peer_lost", 0, role="secondary", seconds=2.5)


@pytest.mark.parametrize("slug", ["user_code_exception", "nan_loss", "dataset_missing"])
def test_a_line_of_a_rank_that_then_lost_its_peer_yields_to_the_exception_of_another(slug):
    line = piece("gpu_oom", 0, source="log", trust="job", seconds=0.5, line="CUDA out of memory; falling back to CPU")
    raised = piece(slug, 1, seconds=2, line="KeyError: 'rope_theta'")
    verdict = diagnose(case([left(0, 1, seconds=3), left(1, 1, seconds=2)], [line, LOST, raised])).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (1, slug, "proven")
    assert [one.rank for one in verdict.consequences] == [0]
    # Without a hook the traceback says the same.
    printed = piece("peer_lost", 0, role="secondary", seconds=2.5, source="log", trust="job", whole=True)
    ranks = [left(0, 1, seconds=3, hook="absent"), left(1, 1, seconds=2)]
    assert diagnose(case(ranks, [line, printed, raised])).verdict.rank == 1


def test_a_line_stays_the_cause_where_its_rank_recorded_no_lost_peer_or_nobody_raised():
    line = piece("gpu_oom", 0, source="log", trust="job", seconds=0.5)
    ranks = [left(0, 1, seconds=3), left(1, 1, seconds=2)]
    raised = piece("user_code_exception", 1, seconds=2, line="KeyError: 'rope_theta'")
    assert diagnose(case(ranks, [line, raised])).verdict.rank == 0
    other = piece("peer_lost", 1, role="secondary", seconds=2)
    assert diagnose(case(ranks, [line, LOST, other])).verdict.cause.slug == "gpu_oom"


def test_a_rank_that_was_stopped_after_its_exception_ends_the_run_with_pythons_code():
    ranks = [died(0, 15, by="agent", seconds=3), left(1, 1, seconds=3.5)]
    diagnosis = diagnose(case(ranks, [piece("checkpoint_corrupt", 0), piece("peer_lost", 1, role="secondary")]))
    assert (diagnosis.verdict.rank, diagnosis.exit_code) == (0, 1)
