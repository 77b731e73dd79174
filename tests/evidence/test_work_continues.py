"""What a job survived: its later work is known although lines of several ranks lie between, or many errors precede."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files


def steps(first, last, ranks=4):
    return "".join(f"{r}: step {n} loss {9 - n / 100:.2f}\n" for n in range(first, last, 10) for r in range(ranks))


LIMIT = "slurmstepd: error: *** JOB 8 ON gpu-01 CANCELLED AT 2026-11-30T05:00:00 DUE TO TIME LIMIT ***\n"
FAULTS = [
    "2: gpu-02:88:99 [0] net_ib.cc:200 NCCL WARN NET/IB : mlx5_2:1 Got async fatal event: port error\n",
    "[8812.1] NVRM: Xid (PCI:0000:3b:00): 74, pid=4412, NVLink: fatal error detected on link 3\n",
    "[8812.1] mlx5_core 0000:4b:00.0 ib2: Link down\n",
    "[8812.1] watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [kworker:4412]\n",
    "[8812.1] INFO: task kworker/u8:1:44 blocked for more than 120 seconds.\n",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_all_ranks_survived_is_no_cause(why, fault):
    assert why(steps(0, 50) + fault + steps(50, 500) + LIMIT).cause.slug == "walltime_or_requeue"
    assert why(steps(0, 50) + fault + steps(50, 500) + "0: Training complete\n").cause.slug == "unknown"
    assert why(steps(0, 50) + fault + LIMIT).cause.slug not in {"walltime_or_requeue", "unknown"}


RAISED = "3: Traceback (most recent call last):\n3:   File \"/app/train.py\", line 212, in <module>\n3:     main()\n3: KeyError: 'wandb'\n"


@pytest.mark.parametrize("end", [LIMIT, LIMIT.replace(" DUE TO TIME LIMIT", "")])
def test_the_steps_of_another_rank_show_that_a_traceback_was_survived(why, end):
    """The end by a signal flushes no old lines; synchronous ranks do not step without one."""
    assert why(steps(0, 50) + RAISED + steps(50, 400, ranks=1) + end).cause.slug in {
        "walltime_or_requeue",
        "cancelled",
    }
    assert why(steps(0, 50) + RAISED + end).cause.slug == "user_code_exception"


def test_of_several_runs_in_one_file_the_last_one_counts(why):
    """Much text, many errors: what follows each traceback is read."""
    run = "".join(f"\titers: {n}, epoch: 1 | loss: {1 / n:.7f}\n" for n in range(100, 60_000, 100))
    raised = 'Traceback (most recent call last):\n  File "run.py", line 9, in <module>\n    main()\n{}\n'
    oom = "RuntimeError: CUDA out of memory. Tried to allocate {} GiB (GPU 0; 31.73 GiB total capacity)"
    text = "".join(run * 8 + raised.format(oom.format(n)) for n in range(12))
    assert len(text) > 2 << 20
    assert why(f"{text}{run}{run}Killed\n").cause.slug == "killed_unknown"


def test_workers_beside_a_master_are_no_ranks_by_their_numbers(tmp_path):
    for name, last in (("train-master-0", "step 9"), ("train-worker-0", "KeyError: 'x'"), ("train-worker-1", "step 9")):
        raised = (
            'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\n'
            if "Error" in last
            else ""
        )
        (tmp_path / f"{name}.log").write_text(f"step 1\nstep 2\n{raised}{last}\n")
    found = explain_files([tmp_path]).verdict
    assert (found.cause.slug, found.rank) == ("user_code_exception", None)


def test_an_error_without_a_known_cause_is_shown_before_its_launcher_s(why):
    found = why(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/app/train.py", line 180, in main\n[rank1]:     work()\n'
        "[rank1]: RuntimeError: CUDA error: unknown error\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-30_03:12:43\n  host      : gpu-01\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 4101)\n  error_file: <N/A>\n"
    )
    assert (found.cause.slug, found.rank, found.node) == ("unknown", 1, "gpu-01")
    assert "CUDA error: unknown error" in found.decisive.line


@pytest.mark.parametrize("what", ["Running tokenizer on dataset", "Epoch 1"])
def test_a_rank_that_prepares_data_does_not_show_that_the_waiting_ones_live(why, what):
    """The watchdogs of ranks 1 to 3 end their processes; the bar of rank 0, without a prefix, goes on until torchrun stops it."""
    waited = "[E ProcessGroupNCCL.cpp:821] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1808321 milliseconds before timing out.\n"
    bars = "".join(f"{what}:   {n}%|▏         | {9 * n}/814 [00:{10 + n}<21:46,  1.63s/ba]\n" for n in range(1, 20))
    failed = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 3 (pid: 171687) of binary: /venv/bin/python3\n"
    found = why("".join(map(waited.format, (1, 2, 3))) + bars + failed)
    assert (found.cause.slug == "native_abort") == (what == "Epoch 1")
