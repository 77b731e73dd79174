"""Texts that real launchers left in `make zoo`, shortened: what they name and how."""

from __future__ import annotations

import pytest

from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.torchrun import ReportReader
from rankfall.explain import explain_files
from rankfall.render.summary import summary

GLOO = "RuntimeError: [/w/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:12175: Connection reset by peer"
HEAD = "Traceback (most recent call last):\n"


def lost(before: str) -> str:
    """The traceback of a rank that lost a peer."""
    lines = (HEAD.rstrip(), '  File "/w/train.py", line 8, in main', "    dist.all_reduce(x)", GLOO)
    return "".join(f"{before}{line}\n" for line in lines)


RAY = (
    """(TrainController pid=900) Started training worker group of size 3:
(TrainController pid=900) - (ip=10.0.0.2, pid=901) world_rank=0, local_rank=0, node_rank=0
(TrainController pid=900) - (ip=10.0.0.2, pid=902) world_rank=1, local_rank=1, node_rank=0
(TrainController pid=900) - (ip=10.0.0.2, pid=903) world_rank=2, local_rank=2, node_rank=0
"""
    + lost("(RayTrainWorker pid=901) ")
    + lost("(RayTrainWorker pid=903) ")
)
RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the "
    f"problem, check the logs for the dead worker. Lease ID: {'05' * 28} Worker ID: {'5a' * 28} Node ID: {'e1' * 28} Worker IP "
    "address: 10.0.0.2 Worker port: 44171 Worker PID: 902 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file.\n"
)
DRIVER = """Traceback (most recent call last):
  File "/w/train_ray.py", line 27, in <module>
    ).fit()
ray.train.WorkerGroupError: Training failed due to worker errors:
"""
PRTE = """step 2 loss 0.3
--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 22616 on node gpu-3 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
PRTE_CODE = """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-27255@1,1]
   Exit code:    7
"""
MPICH = "[1] Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1\n"
SHELL = "bash: line 1:  4231 Killed                  TASK=$i python train.py\n"
REMOTE = "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /x/RecvBuf:\n"


@pytest.mark.parametrize(
    ("world", "rank"),
    [
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/3\n", 1),
        ("All distributed processes registered. Starting with 3 processes\n", 1),
        ("[Gloo] Rank 0 is connected to 2 peer ranks. Expected number of connected peer ranks is : 2\n", 1),
        ("(x) Setting up process group for: env:// [rank=0, world_size=3]\n", 1),
        # A size that another rank contradicts, sizes of groups, and pods.
        ("world_size=2\n", None),
        ("dp_world_size=3, data parallel world size: 3\nWORLD_SIZE=3\n", None),
        ("world_size=3\nworld_size=4\n", None),
        ("Starting with 3 epochs\nassert world_size == 3\nself.world_size % 3\nif world_size > 3:\n", None),
        ("{'world_size': 3}\n", 1),
        ("global_world_sizes=[3, 3, 3]\n", 1),
        ("", None),
    ],
)
def test_i23_p6_the_only_rank_that_lost_no_peer_is_named_where_the_text_states_the_number_of_ranks(answer, world, rank):
    assert answer(world + lost("[rank0]: ") + lost("[rank2]: ")) == ("peer_lost", rank)


def test_i23_p1_rays_table_gives_the_ranks_of_its_processes(answer):
    assert answer(RAY + RAYLET) == ("killed_unknown", 1)
    assert answer(RAY + "(RayTrainWorker pid=902) " + HEAD + "(RayTrainWorker pid=902) KeyError: 'x'\n")[1] == 1
    # A process ID on two machines is no rank.
    twice = "(TrainController pid=900) - (ip=10.0.0.3, pid=902) world_rank=5, local_rank=0, node_rank=1\n"
    assert answer(RAY + twice + RAYLET)[1] is None


def test_i23_p2_rays_report_of_failed_ranks_is_no_exception_of_the_driver(answer):
    snippets = "[Rank 0 Error Snippet]:\n" + lost("") + "\n[Rank 1 Error Snippet]:\n" + HEAD
    assert answer(DRIVER + snippets + "  File \"/w/t.py\", line 3, in loop\n    x['a']\nKeyError: 'a'\n") == (
        "user_code_exception",
        1,
    )
    assert answer(DRIVER + "[Rank 0 Error Snippet]:\n" + lost(""))[0] == "peer_lost"


def test_i23_p2_the_rank_of_open_mpi_and_mpich(answer):
    assert answer(PRTE) == ("killed_unknown", 1)
    assert answer(PRTE_CODE) == ("user_exit", 1)
    assert answer(MPICH) == ("user_exit", 1)


@pytest.mark.parametrize("text", [PRTE, PRTE_CODE, MPICH])
def test_i23_p2_a_report_that_is_cut_between_chunks_is_read(text):
    lines = text.encode().splitlines(keepends=True)
    for cut in range(len(lines)):
        reader = ReportReader()
        found = reader.push(b"".join(lines[:cut]), speaks=True) + reader.push(b"".join(lines[cut:]), speaks=True)
        assert [(one.kind, one.rank) for one in found] == [("exit", 1)]


def test_i23_p2_a_process_that_the_shell_saw_killed_is_the_lost_peer(answer):
    assert answer(lost("") + SHELL + lost("")) == ("killed_unknown", None)
    assert answer(SHELL + lost("")) == ("killed_unknown", None)
    assert answer(SHELL + HEAD + "  File \"/w/t.py\", line 3, in f\n    x['a']\nKeyError: 'a'\n")[0] == (
        "user_code_exception"
    )


def test_i23_p2_an_end_before_all_complaints_is_the_cause(answer):
    end = "srun: error: gpu-3: task 1: Exited with exit code 7\n"
    assert answer(end + lost("")) == ("user_exit", 1)


def test_i23_p2_tensorflow_names_the_task_that_it_lost(answer):
    assert answer(REMOTE) == ("peer_lost", 1)


@pytest.mark.parametrize(
    "line",
    [
        b"[vm:25007] *** Process received signal ***",
        b"[vm:57] *** Process received signal ***",
        b"[vm:57] Signal: Segmentation fault (11)",
        b"[vm:57] [ 0] /lib/libc.so.6(+0x3c050)",
        b"[gpu-01:12345] PMIX ERROR: UNREACHABLE",
        b"train.py:123: UserWarning: x",
        b"gpu-07:4711: error: no",
        b"model.cu:77: error: no",
    ],
)
def test_i23_p1_a_process_id_or_a_line_of_a_source_file_is_no_rank(line):
    assert parse_prefix(line).rank is None


TIMED_OUT = "RuntimeError: [/w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
EXITED = "srun: error: vm: tasks 0,2: Exited with exit code 1\n"


def of_ranks(error: str, *ranks: int) -> str:
    """Tracebacks of ranks that end with this error."""
    return "".join(lost(f"[rank{rank}]: ").replace(GLOO, error) for rank in ranks)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The first end by SIGTERM came from outside; after another end, or a stop, srun sent it.
        (of_ranks(GLOO, 0, 2) + "srun: error: vm: task 1: Terminated\n" + EXITED, ("external_signal", 1)),
        (of_ranks(GLOO, 0, 2) + EXITED + "srun: error: vm: task 1: Terminated\n", ("peer_lost", None)),
        (
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: vm: task 1: Terminated\n",
            ("unknown", None),
        ),
        # Ends of several tasks are those of the ranks that complained.
        (of_ranks(GLOO, 0, 2) + EXITED, ("peer_lost", None)),
        (of_ranks(GLOO, 0, 2) + "srun: error: vm: task 1: Killed\n" + EXITED, ("killed_unknown", 1)),
        (of_ranks(GLOO, 0, 2) + EXITED + "srun: error: vm: task 1: Killed\n", ("killed_unknown", 1)),
        # It was alive while the others waited, and srun killed it.
        (of_ranks(TIMED_OUT, 0, 2) + EXITED + "srun: error: vm: task 1: Killed\n", ("rank_stuck", 1)),
        (of_ranks(TIMED_OUT, 0) + "srun: error: vm: task 1: Killed\n", ("collective_timeout", None)),
    ],
)
def test_i23_p2_ends_of_sruns_tasks(answer, text, expected):
    assert answer(text) == expected


def row(rank: int, code: int, pid: int, name: str = "") -> str:
    """A row of torchrun's report."""
    said = (
        f"Signal {-code} ({name}) received by PID {pid}" if code < 0 else "To enable traceback see: https://pytorch.org"
    )
    return (
        f"  time      : 2026-11-26_08:16:05\n  host      : gpu-{rank // 2}\n  rank      : {rank} (local_rank: {rank % 2})\n"
        f"  exitcode  : {code} (pid: {pid}) {name}\n  error_file: <N/A>\n  traceback : {said}\n"
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_i23_p2_the_reports_of_two_agents_in_one_text_keep_the_rank(answer, order):
    agent = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    texts = (
        of_ranks(GLOO, 1, 0)
        + agent
        + row(0, -15, 100, "SIGTERM")
        + "Root Cause (first observed failure):\n"
        + row(1, 1, 101),
        of_ranks(GLOO, 3)
        + agent
        + row(3, -15, 103, "SIGTERM")
        + "Root Cause (first observed failure):\n"
        + row(2, -9, 102, "SIGKILL"),
    )
    assert answer("".join(texts[number] for number in order)) == ("killed_unknown", 2)


def test_i23_p2_a_reported_code_keeps_its_meaning_where_the_report_gives_the_rank(answer):
    report = of_ranks(GLOO, 0) + row(0, -15, 100, "SIGTERM") + "Root Cause (first observed failure):\n[0]:\n"
    assert answer(report + row(1, 2, 101)) == ("bad_arguments", 1)
    assert answer(report + row(1, 127, 101)) == ("command_not_found", 1)
    assert answer(report + row(1, 3, 101)) == ("user_exit", 1)


@pytest.mark.parametrize("root", [0, 1, 3])
def test_i23_p2_of_equal_ends_the_one_that_torchrun_observed_first_is_the_root(answer, root):
    rows = "".join(row(rank, -6, 100 + rank, "SIGABRT") for rank in range(4) if rank != root)
    last = row(root, -6, 100 + root, "SIGABRT").rpartition("  error_file")[0]
    assert answer(rows + "Root Cause (first observed failure):\n[0]:\n" + last) == ("native_abort", root)


def test_i23_p2_the_first_end_that_spawn_or_deepspeed_reports_came_from_outside(answer):
    spawn = HEAD + '  File "/l/torch/multiprocessing/spawn.py", line 221, in join\n    raise ProcessExitedException(\n'
    spawn += "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGTERM\n"
    assert answer(spawn)[0] == "external_signal"
    ended = "[2026-11-26 07:51:01,350] [ERROR] [launch.py:259:sigkill_handler] ['python', '--local_rank=2'] exits with return code = -15\n"
    assert answer("world_size=3\n" + of_ranks(GLOO, 0, 2) + ended) == ("external_signal", 1)


def test_i23_p2_mpichs_exit_string_may_be_that_of_a_process_that_it_stopped(answer):
    # Printed after a bus error of rank 1.
    text = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 1896 RUNNING AT vm\n=   EXIT CODE: 7\n"
    text += "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)\n"
    assert answer(text) == ("unknown", None)


def test_i23_p8_a_silent_rank_went_away_and_a_worker_without_a_signal_died(tmp_path):
    def first_sentence(text: str) -> str:
        (tmp_path / "job.log").write_text(text)
        return summary(explain_files([tmp_path / "job.log"]).verdict)

    assert first_sentence("world_size=3\n" + of_ranks(GLOO, 0, 2)).startswith(
        "Suspected: rank 1 went away without a message"
    )
    assert first_sentence(RAY + RAYLET).startswith("Rank 1 died without a message")
    assert first_sentence(PRTE).startswith("Rank 1 on gpu-3 was killed by SIGKILL")


USAGE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: argument --lr: invalid float value: 'fast'\n"


def test_i23_p6_a_message_without_a_rank_before_all_complaints_is_that_of_the_silent_rank(answer):
    assert answer("world_size=3\n" + USAGE + of_ranks(GLOO, 0, 2)) == ("bad_arguments", 1)
    assert answer("world_size=3\n" + of_ranks(GLOO, 0, 2) + USAGE) == ("bad_arguments", None)
    assert answer("world_size=4\n" + USAGE + of_ranks(GLOO, 0, 2)) == ("bad_arguments", None)
    assert answer(USAGE + of_ranks(GLOO, 0, 2)) == ("bad_arguments", None)


def test_i23_p2_the_only_process_that_a_launcher_reports_printed_the_message(tmp_path):
    end = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 2\n"
    (tmp_path / "job.log").write_text(
        USAGE + HEAD + '  File "/l/torch/multiprocessing/spawn.py", line 221, in join\n' + end
    )
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.rank, verdict.local_rank) == ("bad_arguments", 1, None)


def test_i23_p2_pythons_exit_code_of_an_unknown_process_follows_the_complaint_of_a_rank(answer):
    loader = "[rank1]: " + HEAD + '[rank1]:   File "/w/t.py", line 3, in f\n'
    loader += "[rank1]: RuntimeError: DataLoader worker (pid(s) 23847) exited unexpectedly\n"
    ended = "[2026-11-26 08:20:45,578] [ERROR] [launch.py:259:sigkill_handler] ['python', '--local_rank=2'] exits with return code = {}\n"
    assert answer(loader + ended.format(1)) == ("dataloader_died", 1)
    assert answer(of_ranks(GLOO, 0, 2) + ended.format(3)) == ("user_exit", None)


@pytest.mark.parametrize(
    "abort",
    [
        "*** SIGABRT received at time=1700000000 on cpu 12 ***\n",
        "Fatal Python error: Aborted\n",
        "run.sh: line 3: 77 Aborted (core dumped) python t.py\n",
    ],
)
def test_i23_p2_an_abort_after_a_lost_peer_is_its_consequence(answer, abort):
    assert answer(of_ranks(TIMED_OUT, 0).replace("[rank0]: ", "") + abort)[0] == "collective_timeout"
    assert answer(abort + of_ranks(TIMED_OUT, 0).replace("[rank0]: ", ""))[0] == "native_abort"


def test_i23_p8_a_build_without_cuda_is_the_same_on_every_node(tmp_path):
    (tmp_path / "job.log").write_text(
        HEAD + '  File "/w/t.py", line 3, in f\nAssertionError: Torch not compiled with CUDA enabled\n'
    )
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.retry, verdict.node_action) == ("no_gpu_visible", "no", "none")
