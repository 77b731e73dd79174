"""Ends of processes as launchers print them, without any other message: cause, rank, local rank, node."""

from __future__ import annotations

import pytest

from rankfall.evidence.readers.torchrun import ReportReader
from rankfall.explain import explain_files
from rankfall.render.summary import summary

HEAD = "Traceback (most recent call last):\n"
AGENT = """step 10 loss 1.0
W0501 10:00:00.123000 4100 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4123 closing signal SIGTERM
E0501 10:00:00.223000 4100 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: 1 (pid: 4124) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/usr/lib/python3/dist-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
DEEPSPEED = """step 10 loss 1.0
[2024-05-01 10:00:00,123] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4123
[2024-05-01 10:00:00,124] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4124
[2024-05-01 10:00:00,200] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=1'] exits with return code = {code}
"""
LIGHTNING = """Epoch 0: 10%
[rank: 1] Child process with PID 4124 terminated with code {code}. Forcefully terminating all other processes to avoid zombies
"""
ACCELERATE = """step 10 loss 1.0
Traceback (most recent call last):
  File "/usr/local/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/usr/lib/python3/site-packages/accelerate/commands/launch.py", line 763, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' {end}.
"""
SPAWN = """Traceback (most recent call last):
  File "/w/t.py", line 5, in <module>
    mp.spawn(f, nprocs=4)
  File "/usr/lib/python3/site-packages/torch/multiprocessing/spawn.py", line 202, in join
    raise {kind}(
{end}
"""
CODES = [
    (1, "unknown"),
    (-9, "killed_unknown"),
    (137, "killed_unknown"),
    (-11, "segfault"),
    (139, "segfault"),
    (-6, "native_abort"),
    (134, "native_abort"),
]
NAMES = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT"}


@pytest.fixture
def located(why):
    def explain(text):
        verdict = why(text)
        return verdict.cause.slug, verdict.rank, verdict.local_rank, verdict.node

    return explain


@pytest.mark.parametrize(("code", "slug"), CODES)
def test_i23_p2_a_code_means_the_same_whichever_launcher_prints_it(located, code, slug):
    # One launcher of one node.
    assert located(AGENT.format(code=code)) == (slug, 1, 1, None)
    assert located("torchrun --nnodes=2 train.py\n" + AGENT.format(code=code)) == (slug, None, 1, None)
    assert located(DEEPSPEED.format(code=code)) == (slug, None, None, None)
    assert located(LIGHTNING.format(code=code)) == (slug, 1, None, None)
    end = f"died with <Signals.{NAMES[code]}: {-code}>" if code < 0 else f"returned non-zero exit status {code}"
    assert located(ACCELERATE.format(end=end))[:2] == (slug, None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            "mpirun noticed that process rank 3 with PID 0 on node gpu-2 exited on signal 9 (Killed).\n",
            ("killed_unknown", 3, None, "gpu-2"),
        ),
        (
            "prterun noticed that process rank 1 with PID 77 on node n1 exited on signal 6 (Aborted).\n",
            ("native_abort", 1, None, "n1"),
        ),
        ("  Process name: [[41213,1],3]\n  Exit code:    17\n", ("user_exit", 3, None, None)),
        (
            "srun: error: gpu-17: task 6: Out Of Memory\nsrun: Terminating StepId=77.0\n",
            ("host_oom", 6, None, "gpu-17"),
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some step tasks have been OOM Killed.\nsrun: error: gpu-17: task 6: Out Of Memory\n",
            ("host_oom", 6, None, "gpu-17"),
        ),
        (
            SPAWN.format(
                kind="ProcessExitedException",
                end="torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
            ),
            ("killed_unknown", 2, 2, None),
        ),
        (
            SPAWN.format(kind="Exception", end="Exception: process 0 terminated with signal SIGKILL"),
            ("killed_unknown", 0, 0, None),
        ),
        (
            SPAWN.format(
                kind="ProcessExitedException",
                end="torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 3",
            ),
            ("user_exit", 2, 2, None),
        ),
        (
            SPAWN.format(
                kind="ProcessRaisedException",
                end="torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
                "-- Process 2 terminated with the following error:\n"
                f'{HEAD}  File "/w/t.py", line 3, in f\nKeyError: 1',
            ),
            ("user_code_exception", 2, 2, None),
        ),
        (
            f'{HEAD}  File "/w/t.py", line 3, in f\nsrun: error: gpu-17: task 6: Out Of Memory\n',
            ("host_oom", 6, None, "gpu-17"),
        ),
    ],
)
def test_i23_p2_each_launcher_names_what_it_knows(located, text, answer):
    assert located(f"step 1\n{text}") == answer


@pytest.mark.parametrize(
    "sign",
    [
        "node_rank=1",
        "NNODES=4",
        "num_machines: 2",
        "[pod/train-worker-1/main] starting",
        "[rank9]: starting",
        "world_size=64",
        "mpirun --hostfile hosts train.py",
    ],
)
def test_i23_p2_a_local_rank_of_one_of_several_nodes_is_no_rank(located, sign):
    end = SPAWN.format(kind="Exception", end="Exception: process 2 terminated with signal SIGKILL")
    assert located(end)[1:3] == (2, 2)
    assert located(f"{sign}\n{end}")[1:3] == (None, 2)
    # Two launchers in one text.
    two = AGENT.format(code=-9) + AGENT.format(code=-9).replace("pid: ", "pid: 9")
    assert located(two)[1] is None


CANCELLED = "slurmstepd: error: *** STEP 77.0 ON gpu-11 CANCELLED AT 2026-01-01T00:00:00 ***\n"
OTHERS = "srun: error: gpu-11: tasks 0-2: Terminated\n"


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        ("Exited with exit code 3", ("user_exit", 3, None, "gpu-17")),
        ("Segmentation fault (core dumped)", ("segfault", 3, None, "gpu-17")),
    ],
)
def test_i23_p2_slurms_cancelled_step_is_the_end_of_the_others(located, end, answer):
    assert located(f"srun: error: gpu-17: task 3: {end}\nsrun: Terminating StepId=77.0\n{CANCELLED}{OTHERS}") == answer


def test_i23_p2_a_traceback_before_a_cancelled_step_is_the_cause(located):
    lines = f'{HEAD}  File "/w/t.py", line 3, in f\nKeyError: 1\n'.splitlines()
    text = "".join(f"3: {line}\n" for line in lines)
    assert located(f"{text}srun: error: gpu-17: task 3: Exited with exit code 1\n0: {CANCELLED}{OTHERS}")[:2] == (
        "user_code_exception",
        3,
    )


def test_i23_p2_a_step_that_was_cancelled_first_stays_cancelled(located):
    assert located(f"step 1\n{CANCELLED}srun: error: gpu-17: task 3: Killed\n")[0] == "cancelled"


BELOW_SRUN = f"srun: error: gpu-11: task 2: Exited with exit code 1\nsrun: Terminating StepId=77.0\n{CANCELLED}"


def test_i23_p2_sruns_report_of_a_launcher_below_it_is_no_other_failure(located):
    killed = "mpirun noticed that process rank 0 with PID 30211 on node node01 exited on signal 9 (Killed).\n"
    assert located(killed + BELOW_SRUN)[:2] == ("killed_unknown", 0)
    table = """Root Cause (first observed failure):
[0]:
  time      : 2025-08-01_11:36:44
  host      : host-1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11311)
  error_file: <N/A>
"""
    assert located(table + BELOW_SRUN) == ("unknown", 0, 0, "host-1")


def test_i23_p2_a_task_that_exits_after_the_time_outs_of_others_is_no_cause(located):
    watchdog = "[rank{0}]:[E1206 19:21:0{0}.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.\n"
    text = watchdog.format(0) + watchdog.format(3)
    assert located(text + BELOW_SRUN)[:2] == ("collective_timeout", None)
    # Before the time-outs it may be the cause.
    first = "srun: error: gpu-11: task 2: Exited with exit code 1\n"
    assert located(first + text)[:2] == ("unknown", 2)


@pytest.mark.parametrize(("code", "slug"), [(9, "killed_unknown"), (11, "segfault"), (1, "unknown")])
def test_i23_p2_hydra_shows_a_signal_as_a_code(located, code, slug):
    assert located(f"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: {code}\n")[0] == slug


def test_i23_p2_a_time_limit_is_neither_a_kill_nor_a_failure_of_a_task(located):
    limit = "slurmstepd: error: *** STEP 77.0 ON gpu-11 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    assert located(f"step 1\n{limit}{OTHERS}srun: error: gpu-17: task 3: Killed\n")[0] == "walltime_or_requeue"


def test_i23_p2_a_programs_own_child_with_an_ordinary_code_is_an_error_of_the_program(located):
    text = f"{HEAD}  File \"/w/t.py\", line 3, in f\nsubprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.\n"
    assert located(text)[0] == "user_code_exception"


def test_i23_p4_without_a_cause_the_last_error_is_shown(why):
    verdict = why("step 1\n[rank1] MyLib: fatal: no shard 7\nbye\n")
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("unknown", "unknown", 1)
    assert (verdict.decisive.line, verdict.decisive.where.rpartition(":")[2]) == (
        "[rank1] MyLib: fatal: no shard 7",
        "2",
    )
    assert any("no signature recognizes it" in text for text in verdict.missing)


def test_i23_p4_a_warning_of_nccl_is_shown_as_the_last_error(why):
    line = "gpu-07:10:12 [0] proxy.cc:77 NCCL WARN Something of which nothing is known"
    assert why(f"step 1\n{line}\nWARNING: error rate is high\n").decisive.line == line


@pytest.mark.parametrize(
    ("line", "slug", "rank"),
    [
        ("[rank3]: mylib.errors.ShardError: no shard 7", "unknown", 3),
        ("mylib.StorageError: [Errno 28] No space left on device", "disk_full", None),
        ("click.exceptions.NoSuchOption: No such option: --foo", "unknown", None),
        ("service: could not reach the error tracker", "unknown", None),
    ],
)
def test_i23_p3_an_exception_whose_traceback_was_cut_off_is_only_suspected(why, line, slug, rank):
    verdict = why(f"step 1\n{line}\nbye\n")
    assert (verdict.cause.slug, verdict.rank, verdict.decisive.line) == (slug, rank, line)
    assert verdict.cause.confidence in ({"likely"} if slug == "disk_full" else {"suspected", "unknown"})


def test_i23_p4_a_text_without_an_error_shows_none(why):
    assert why("step 1\nstep 2\n").decisive is None


def test_i23_p5_equal_lines_are_in_the_order_of_the_file(why):
    lines = [f"RuntimeError: CUDA error: misaligned address {letter}" for letter in "zya"]
    assert why("".join(f"{line}\n" for line in ["step 1"] * 8 + lines)).decisive.line == lines[0]


RULE = "-" * 74 + "\n"
MPI_EXIT = f"""{RULE}mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[1234,1],2]
  Exit code:    1
{RULE}"""
MPI_ABORT = f"{RULE}MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n{RULE}"
MPI_ABORT_5 = f"{RULE}MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n  Proc: [[1234,1],2]\n  Errorcode: 1\n\n{RULE}"
UNSIGNED = f"{HEAD}  File \"/w/t.py\", line 3, in f\nKeyError: 'x'\n"


@pytest.mark.parametrize("end", [MPI_EXIT, MPI_ABORT, MPI_ABORT_5])
def test_i23_p2_open_mpi_names_the_rank_of_an_unsigned_traceback(located, end):
    # Neither an end with 1 nor an MPI_Abort without a message has a reason.
    assert located(f"step 1\n{end}")[:2] == ("unknown", 2)
    assert located(f"step 1\n{UNSIGNED}{end}")[:2] == ("user_code_exception", 2)
    # Signed lines outweigh the report.
    signed = "".join(f"[1,3]<stderr>:{line}\n" for line in UNSIGNED.splitlines())
    assert located(f"step 1\n{signed}{end}")[:2] == ("user_code_exception", 3)


@pytest.mark.parametrize("end", [MPI_ABORT, MPI_ABORT_5])
def test_i23_p2_the_error_before_an_abort_of_mpi_is_shown_and_has_its_rank(why, end):
    def shown(text):
        verdict = why(text)
        return verdict.cause.slug, verdict.rank, verdict.decisive.line

    error = "ERROR: ran out of space on angle_list: top=1052"
    assert shown(f"step 1\n{error}\n{end}[1]LIB ERROR: -----------\n") == ("user_exit", 2, error)
    # A crash at the end of the others is no failure of its own.
    full = "Error 2 cudaErrorMemoryAllocation: out of memory"
    crash = (
        "[n1:98:0:98] Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address 0x15)\n"
    )
    assert shown(f"step 1\n{full}\n{end}{crash}") == ("gpu_oom", 2, full)


def test_i23_p7_the_line_that_names_a_hanging_rank_is_shown(why):
    waits = "[E ProcessGroupGloo.cpp:138] Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    names = "[E ProcessGroupGloo.cpp:138] [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms"
    verdict = why("\n".join(["world_size 4", waits.format(3), names, waits.format(1), ""]))
    assert (verdict.rank, verdict.decisive.line) == (2, names)


@pytest.mark.parametrize("end", [MPI_EXIT, MPI_ABORT, MPI_ABORT_5])
def test_i23_p2_a_report_of_several_lines_is_read_once_wherever_a_chunk_ends(end):
    data = f"step 1\n{end}step 2\n".encode()
    borders = [at + 1 for at, byte in enumerate(data) if byte == 10]
    for border in borders:
        reader = ReportReader()
        found = [one for part in (data[:border], data[border:]) for one in reader.push(part, speaks=True)]
        assert [(one.kind, one.rank, one.code) for one in found] == [("exit", 2, 1)], border


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4242 RUNNING AT gpu-1\n=   EXIT CODE: 9\n"
                "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
            ),
            "killed_unknown",
        ),
        (
            "=   BAD TERMINATION\n=   RANK 3 PID 42 RUNNING AT gpu-1\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n",
            "segfault",
        ),
    ],
)
def test_i23_p2_mpich_and_intel_mpi_report_signals(located, text, expected):
    assert located(f"step 1\n{text}")[0] == expected


def test_i23_p2_a_batch_systems_line_about_memory_is_that_of_the_task_that_it_names(located):
    text = "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n"
    end = "slurmstepd: error: *** STEP 77.0 ON gpu-11 CANCELLED AT 2026-01-01T00:00:00 ***\n"
    assert located(f"step 1\n{text}srun: error: gpu-17: task 3: Out Of Memory\n{end}") == (
        "host_oom",
        3,
        None,
        "gpu-17",
    )
    # gpu-11 is the first node of the step, whichever task failed.
    assert located(f"step 1\n{text}{end}")[3] is None


CONSOLE = """{wait}
[slot 0] W0501 10:00:00.123000 4100 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4124 closing signal SIGTERM
[slot 0] E0501 10:00:00.223000 4100 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 4123) of binary: /usr/bin/python
[slot 0] Root Cause (first observed failure):
[slot 0] [0]:
[slot 0]   time      : 2026-05-01_10:00:00
[slot 0]   host      : localhost
[slot 0]   rank      : 0 (local_rank: 0)
[slot 0]   exitcode  : 1 (pid: 4123)
"""


def test_a_saved_console_in_which_all_ranks_timed_out_blames_no_slot(tmp_path):
    wait = "\n".join(
        f'[rank {n}] [rank{n}]: Traceback (most recent call last):\n[rank {n}] [rank{n}]:   File "t.py", line {n}, in <module>\n'
        f"[rank {n}] [rank{n}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
        for n in (0, 1)
    )
    (tmp_path / "console.log").write_text(CONSOLE.format(wait=wait))
    verdict = explain_files([tmp_path / "console.log"]).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.slot) == ("collective_timeout", "suspected", None)


def test_a_named_peer_is_no_consequence_of_itself(why):
    named = "[rank0]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms"
    text = CONSOLE.replace("[slot 0] ", "").format(wait=f'[rank0]: {HEAD}[rank0]:   File "t.py", line 2\n{named}')
    verdict = why(text)
    assert (verdict.cause.slug, verdict.rank) == ("collective_timeout", 1)
    assert [one.rank for one in verdict.consequences] == [0]


def test_two_ranks_with_different_models_prove_nothing_about_either(tmp_path):
    words = "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent {} params."
    lines = [words.format(0, 4, 1, 6), words.format(1, 6, 0, 4)]
    (tmp_path / "job.log").write_text(
        "".join(
            f'[rank{n}]: {HEAD}[rank{n}]:   File "t.py", line 2\n[rank{n}]: {line}\n' for n, line in enumerate(lines)
        )
    )
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("collective_mismatch", None)


def test_all_ranks_of_a_torchrun_job_print_one_exception_and_no_rank_is_named(tmp_path):
    row = "  rank      : {0} (local_rank: {0})\n  exitcode  : 1 (pid: 412{0})\n"
    raised = '[rank{0}]: {1}[rank{0}]:   File "t.py", line 2, in <module>\n[rank{0}]: {2}\n'
    final = "RuntimeError: Error(s) in loading state_dict for Linear:"
    end = AGENT.format(code=1) + "".join(row.format(n) for n in (0, 1))
    (tmp_path / "job.log").write_text("".join(raised.format(n, HEAD, final) for n in (0, 1)) + end)
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.scope, verdict.rank) == ("checkpoint_mismatch", "all", None)
    # Rank 1 said something else.
    (tmp_path / "job.log").write_text(
        raised.format(0, HEAD, final)
        + raised.format(1, HEAD, "ConnectionResetError: [Errno 104] Connection reset by peer")
        + end
    )
    assert explain_files([tmp_path / "job.log"]).verdict.rank == 0


def test_a_rank_that_lost_its_data_worker_is_named_in_a_saved_console(tmp_path):
    words = "RuntimeError: DataLoader worker (pid 864) exited unexpectedly with exit code 1. Details are lost due to multiprocessing."
    wait = f'[rank 0] [rank0]: {HEAD}[rank 0] [rank0]:   File "t.py", line 2\n[rank 0] [rank0]: {words}'
    (tmp_path / "console.log").write_text(CONSOLE.format(wait=wait))
    verdict = explain_files([tmp_path / "console.log"]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("dataloader_died", 0)


def test_the_process_whose_traceback_is_cut_off_is_named_beside_ranks_that_only_worked(located):
    cut = 'Traceback (most recent call last):\n  File "/l/torch/multiprocessing/spawn.py", line 59, in _wrap\n    fn(i, *args'
    spawned = (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
    )
    assert located(f"INFO: rank:0, step 40 loss 1.5\n{spawned}{cut}") == ("unknown", 1, None, None)
    whole = cut + ")\nKeyError: 'labels'\n"
    assert located(f"INFO: rank:0, step 40 loss 1.5\n{spawned}{whole}")[:2] == ("user_code_exception", 1)


def test_ranks_that_horovods_stall_check_or_torchs_store_missed_are_the_suspects(answer):
    stall = "[1,0]<stderr>:[2019-10-10 04:21:43.6: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"
    missing = f"{stall}\n[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:6: [horovod_allreduce.0, horovod_allreduce.1]\n"
    assert answer(missing) == ("rank_stuck", 6)
    assert answer(f"{missing}[1,0]<stderr>:7: [horovod_allreduce.0]\n") == ("rank_stuck", None)
    store = "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: "
    trace = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n    dist.barrier()\n'
    assert answer(f"{trace}{store}Socket Timeout\n") == ("rank_stuck", 0)
    assert answer(f"{trace}{store}Connection reset by peer\n")[0] == "peer_lost"
    # Not beside a cause of another rank.
    assert (
        answer(f"[1,3]<stderr>:RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n{missing}")[0] == "gpu_oom"
    )


def test_paddles_launcher_names_the_only_trainer_that_it_saw_end(answer):
    abort = "ERROR 2021-05-24 17:17:14,611 launch_utils.py:545] ABORT!!! Out of all 4 trainers, the trainer process with rank=[{}] was aborted. Please check its log.\n"
    assert answer(abort.format(3)) == ("unknown", 3)
    assert answer(abort.format("1, 2, 3")) == ("unknown", None)


def test_a_worker_that_dasks_nanny_saw_killed_is_suspected_only_where_nothing_else_is_known(answer):
    killed = "distributed.nanny - INFO - Worker process 9001 was killed by signal 9\n"
    assert answer(killed)[0] == "killed_unknown"
    budget = "distributed.nanny - WARNING - Worker exceeded 95% memory budget.  Restarting\n"
    assert answer(budget + killed)[0] == "host_oom"
    trace = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n    fit()\nKeyError: 1\n'
    assert answer(trace + killed)[0] == "user_code_exception"


def test_a_rank_that_flux_or_an_error_stack_of_mpich_names_is_the_verdicts(answer):
    doom = "flux-shell[0]: FATAL: doom: sh: rank {} on host node7 exited and exit-timeout=30s has expired\n"
    assert answer(doom.format(3)) == ("unknown", 3)
    assert answer(doom.format(3) + doom.format(4)) == ("unknown", None)
    head = (
        "Abort(1614479) on node {0} (rank {0} in comm 0): Fatal error in PMPI_Init: Unknown error class, error stack:\n"
    )
    line = "find_provider(2819)..........: OFI fi_getinfo() failed (ofi_init.c:2819:find_provider:No data available)\n"
    assert answer(head.format(3) + line) == ("unknown", 3)
    assert answer(head.format(3) + line + head.format(4) + line) == ("unknown", None)


def test_the_head_of_an_error_of_cann_names_the_rank(answer):
    head = (
        "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
        "[ERROR] 2024-05-22-08:17:12 (PID:614220, Device:{0}, RankID:{0}) ERR02200 DIST call hccl api failed.\n"
    )
    line = "EJ0001: 2024-05-22-08:17:12.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n"
    assert answer(head.format(3) + line) == ("gpu_busy", 3)
    assert answer(head.format(3) + line + head.format(4) + line) == ("gpu_busy", 3)


RAISED = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 202, in <module>\n    main()\n'
    "TypeError: main() got an unexpected keyword argument 'size'\n"
)


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "rank", "scope"),
    [
        (RAISED + of_rank(0, RAISED), 0, "rank"),
        (RAISED + of_rank(3, RAISED) + "E0 api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 7)\n", 3, "rank"),
        # One more line without a rank may be another rank's.
        (RAISED + RAISED + of_rank(0, RAISED), None, "all"),
        (RAISED + RAISED + of_rank(0, RAISED) + of_rank(1, RAISED), None, "all"),
    ],
)
def test_what_torch_prints_again_with_the_rank_is_no_other_ranks(why, text, rank, scope):
    verdict = why(text)
    assert verdict.cause.slug == "user_code_exception"
    assert (verdict.rank, verdict.scope) == (rank, scope)


def test_a_fault_of_a_few_ranks_of_a_large_job_is_not_that_of_all(located):
    fault = "[1,{}]<stderr>:[n{}:42:0] dc_verbs.c:633 UCX  ERROR Send completion with error on qp 0x1: transport retry counter exceeded\n"
    assert located(fault.format(30, 65) + fault.format(7, 12))[:2] == ("nccl_ib_error", 30)
    assert located(fault.format(1, 65) + fault.format(0, 12))[:2] == ("nccl_ib_error", None)


STUCK = (
    "[rank{0}]:[E626 05:14:36.3 ProcessGroupNCCL.cpp:1743] [PG ID {0} PG GUID 0(default_pg) Rank {0}] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"
)


def test_ranks_whose_watchdogs_are_stuck_wait_and_none_of_them_is_named(located):
    assert located(STUCK.format(7))[:2] == ("rank_stuck", 7)
    assert located(STUCK.format(7) + STUCK.format(5))[:2] == ("rank_stuck", None)


def test_errors_n3_the_rank_that_noticed_a_time_out_first_is_not_the_one_that_is_missing(located):
    dump = "[rank{0}]:[E901 05:20:03.1 ProcessGroupNCCL.cpp:1746] [PG ID 0 Rank {0}] Received a dump signal due to a collective timeout from  rank 34 and we will try our best to dump the debug info.\n"
    assert located(dump.format(0) + dump.format(5))[:2] == ("collective_timeout", None)


def test_of_equal_ends_the_first_of_the_text_is_shown(why):
    abort = "application called MPI_Abort(MPI_COMM_WORLD, 1) - process {}\n"
    verdict = why("".join(abort.format(rank) for rank in (15, 1, 7)))
    assert verdict.rank is None
    assert verdict.decisive is not None
    assert verdict.decisive.line.endswith("process 15")


def test_a_programs_own_command_that_failed_is_its_error(answer):
    failed = "subprocess.CalledProcessError: Command '['{}', 'a', 'b']' returned non-zero exit status 1.\n"
    assert answer("    raise CalledProcessError(retcode,\n" + failed.format("gsutil"))[0] == "user_code_exception"
    assert answer("    raise CalledProcessError(retcode,\n" + failed.format("python"))[0] != "user_code_exception"


def test_the_message_of_a_container_counts_before_its_reason(answer):
    reason = "      Reason:       StartError\n"
    start = "      Message:      failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
    assert answer(f'{reason}{start}exec: "nvidia-smi": executable file not found in $PATH: unknown\n')[0] == (
        "command_not_found"
    )
    assert answer(f"{reason}{start}error during container init\n")[0] == "container_config"


CORRUPT = (
    HEAD
    + '  File "/w/train.py", line 31, in main\n    ckpt = torch.load(path)\n'
    + "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
)
MPIRUN_END = "mpirun has exited due to process rank 3 with PID 0 on\nnode n1 exiting improperly.\n"
NAMED = {
    "mpirun": CORRUPT + MPIRUN_END,
    "paddle": CORRUPT + "ABORT!!! Out of all 8 trainers, the trainer process with rank=[3] was aborted.\n",
    "flux": CORRUPT + "0.321s: flux-shell[0]: FATAL: doom: rank 3 on host n1 exited and exit-timeout=30s has expired\n",
    "spawn": "-- Process 3 terminated with the following error:\n" + CORRUPT.splitlines()[-1] + "\n",
    "mpich": "Abort(1090319) on node 3 (rank 3 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n"
    "[1748052571.83] [n1:27:0] ib_mlx5.c:800 UCX  ERROR failed to modify the queue pair\n",
}


@pytest.mark.parametrize("launcher", NAMED)
def test_a_failure_without_a_rank_is_that_of_the_rank_that_the_launcher_names(launcher, located):
    slug = "nccl_ib_error" if launcher == "mpich" else "checkpoint_corrupt"
    assert located(NAMED[launcher])[:2] == (slug, 3)


@pytest.mark.parametrize(
    "other",
    [
        "[rank2]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:22188\n",
        "OSError: [Errno 28] No space left on device\n",
        "mpirun has exited due to process rank 5 with PID 0 on\n",
    ],
)
def test_a_launcher_names_nobody_where_two_failures_or_two_ranks_speak(other, located):
    assert located(CORRUPT + other + MPIRUN_END)[1] is None


def _node_report(time, rank, local, pid, code=1):
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        f"============\ntrain.py FAILED\n------------\nFailures:\n  <NO_OTHER_FAILURES>\n------------\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : {time}\n  host      : gpu-0\n"
        f"  rank      : {rank} (local_rank: {local})\n  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n"
    )


@pytest.mark.parametrize(
    ("times", "ranks", "rank"),
    [
        (("2026-06-03_21:15:52", "2026-06-03_21:15:01"), (2, 12), 12),
        (("2026-06-03_23:59:50", "2026-06-04_00:00:40"), (2, 12), 2),
        # The agents' polls and the clocks allow either order.
        (("2026-06-03_21:15:52", "2026-06-03_21:15:46"), (2, 12), None),
        # Two runs of one node.
        (("2026-06-03_21:15:52", "2026-06-03_21:15:01"), (2, 4), None),
        (("2026-06-03_21:15:52", "2026-13-33_21:15:01"), (2, 12), None),
    ],
)
def test_of_the_reports_of_several_nodes_the_one_that_is_surely_earlier_names_the_rank(located, times, ranks, rank):
    text = "".join(_node_report(time, one, one % 8, 70 + one) for time, one in zip(times, ranks, strict=True))
    assert located(text)[:2] == ("unknown", rank)
    assert located(text.replace("exitcode  : 1", "exitcode  : -9"))[1] == rank


def test_a_report_with_blank_lines_between_its_rows_is_read(located):
    text = _node_report("2026-06-03_21:15:52", 3, 3, 73, code=-7).replace("\n", "\n\n")
    assert located(text) == ("shm_exhausted", 3, 3, "gpu-0")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # The rank that a trainer names of the error of a monitored barrier.
        (
            "[E ProcessGroupGloo.cpp:137] Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.\nINFO Detected uneven workload distribution: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.\n",
            ("uneven_data", 0),
        ),
        # The process that Open MPI's error handler names, by job and rank.
        (
            "[n1:47] *** An error occurred in MPI_Recv\n[n1:47] *** reported by process [1913552897,8]\n[n1:47] *** MPI_ERR_TRUNCATE: message truncated\n",
            ("collective_mismatch", 8),
        ),
        (
            "[n1:47] *** An error occurred in MPI_Send\n[n1:47] *** reported by process [1913552897,8]\n[n1:47] *** MPI_ERR_RANK: invalid rank\n",
            ("user_code_exception", 8),
        ),
        ("FATAL from PE    31:  ==>Error from coupler: Disordered index bound list\n", ("user_code_exception", 31)),
        # The code of an abort is no signal, whatever its sign.
        (
            "MPI_ABORT was invoked on rank 344 in communicator MPI_COMM_WORLD\nwith errorcode -1.\n",
            ("unknown", 344),
        ),
        ("application called MPI_Abort(MPI_COMM_WORLD, -11) - process 3\n", ("user_exit", 3)),
        ("            Exit status of rank 2: killed by signal 9\n", ("killed_unknown", 2)),
        (
            "MPICH ERROR [Rank 63] [job id 7.0] [Wed May  3 02:41:57 2023] [n1] - Abort(874629263) (rank 63 in comm 496): Fatal error in PMPI_Recv: Other MPI error, error stack:\nMPIDI_OFI_handle_cq_error(1062): OFI poll failed (ofi_events.c:1064:MPIDI_OFI_handle_cq_error:Message too long - OK)\n",
            ("unknown", 63),
        ),
        ("[cli_71]: aborting job:\nFatal error in PMPI_Init_thread:\nOther MPI error\n", ("unknown", 71)),
        ("ERROR on proc 3: Bond atoms 12 34 missing on proc 3 at step 2000\n", ("user_exit", 3)),
        ("398: step\n358: FATAL from PE   179:  NetCDF error No such file or directory\n", ("dataset_missing", 358)),
        ("[31]PETSC ERROR: Caught signal number 11 SEGV: Segmentation Violation\n", ("segfault", 31)),
        ('[57] --> FOAM FATAL ERROR:\n[57] Cannot find file "points"\n', ("dataset_missing", 57)),
        ("[57] --> FOAM FATAL ERROR:\n[57] Maximum number of iterations exceeded\n", ("native_abort", 57)),
        ("step 1\namrex::Error::5::unsuccessful burn !!!\nSIGABRT\n", ("native_abort", 5)),
        (
            '{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "metadata": {"global_rank": 6, "group_rank": 1}}\nMemoryError: std::bad_alloc\n',
            ("host_alloc_failed", 6),
        ),
        # mpd's list has no order, and it kills the others itself.
        (
            "  exit status of rank 9: killed by signal 9\n  exit status of rank 3: killed by signal 9\n",
            ("killed_unknown", None),
        ),
        ("  exit status of rank 9: killed by signal 9\n", ("killed_unknown", 9)),
        # A text that ends inside of the only traceback.
        (
            '[rank7]: Traceback (most recent call last):\n[rank7]:   File "/w/t.py", line 403, in f\n[rank7]:     g()\n',
            ("unknown", 7),
        ),
        # MPI_Abort with 0 is no success, and the step is cancelled after it.
        (
            "Rank 5 [Tue Aug  3 11:22:14 2021] [c1] application called MPI_Abort(MPI_COMM_WORLD, 0) - process 5\nslurmstepd: error: *** STEP 31885208.0 ON nid00023 CANCELLED AT 2021-08-03T11:22:55 ***\n",
            ("unknown", 5),
        ),
        (
            "MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\nwith errorcode 0.\n",
            ("unknown", 5),
        ),
        # The numbers of ctest are no ranks.
        (
            "test 3\n3: Test command: /usr/bin/srun -n 2 a.out\n3: Working Directory: /b\n3: Abort(1) on node 1 (rank 1 in comm 0): Fatal error in PMPI_Recv: Message truncated, error stack:\n",
            ("user_code_exception", 1),
        ),
    ],
)
def test_i23_p2_other_programs_name_the_rank_in_their_own_form(located, text, answer):
    assert located(text)[:2] == answer


ROOT = """------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-05-12_16:20:33
  host      : node3
  rank      : 5 (local_rank: 5)
"""


def test_a_report_of_torchrun_that_ends_before_its_code_names_the_rank(why):
    verdict = why(ROOT)
    assert (verdict.cause.slug, verdict.rank, verdict.node) == ("unknown", 5, "node3")
    assert "Rank 5 on node3 failed for an unknown reason" in summary(verdict)
    assert why(f"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n{ROOT}").rank == 5


def test_the_code_of_a_row_that_comes_with_the_next_chunk_is_read():
    text = f"{ROOT}  exitcode  : -9 (pid: 4711)\n".encode()
    reader = ReportReader()
    found = [*reader.push(text[: len(ROOT)], speaks=True), *reader.push(text[len(ROOT) :], speaks=True)]
    assert [(one.rank, one.first, one.code) for one in found][-1] == (5, True, -9)


def test_words_about_a_signal_belong_to_the_only_end_by_it(located):
    box = "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES,\nRANK {} PID 4816 RUNNING AT node9,\nKILLED BY SIGNAL: 9 (Killed).\n"
    assert located(box.format(7))[:2] == ("killed_unknown", 7)
    assert located(box.format(7) + box.format(3))[:2] == ("killed_unknown", None)


def test_an_exception_without_a_rank_is_that_of_the_rank_whose_end_torchrun_saw_first(why):
    rows = "".join(
        f"[{n}]:\n  time      : 2025-06-24_02:14:37\n  host      : node1\n  rank      : {n} (local_rank: {n})\n  exitcode  : 1 (pid: {900 + n})\n"
        for n in (1, 2, 3)
    )
    root = ROOT.replace("rank      : 5 (local_rank: 5)", "rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 900)")
    error = f'{HEAD}  File "/w/t.py", line 7, in main\n    f()\nTypeError: f() missing 1 required positional argument\n'
    verdict = why(f"{error}train.py FAILED\nFailures:\n{rows}{root}")
    assert (verdict.cause.slug, verdict.rank, verdict.node) == ("user_code_exception", 0, "node3")
    # The others may have raised it too.
    assert verdict.consequences == ()
    other = why(f"{error}{HEAD}  File \"/w/t.py\", line 9, in main\n    g()\nKeyError: 'x'\n{rows}{root}")
    assert other.rank is None


ABORT = "MPI_ABORT was invoked on rank 80 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"
EXITED = "mpirun has exited due to process rank 0 with PID 0 on\nnode n1 exiting improperly. There are three reasons this could occur:\n"
CRASH = "[1,73]<stderr>:[node4:10467:0:10467] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))\n"


def test_a_crash_after_another_ranks_abort_followed_it(located):
    assert located(ABORT + CRASH)[:2] == ("unknown", 80)
    assert located(CRASH + ABORT)[:2] == ("segfault", 73)
    assert located(ABORT.replace("rank 80", "rank 73") + CRASH)[:2] == ("segfault", 73)


def test_what_a_launcher_kills_after_a_rank_had_ended_is_no_cause(located):
    killed = "/tmp/run.sh: line 1:  2614 Killed                  python train.py\n"
    assert located(LIGHTNING.format(code=4) + killed)[:2] == ("user_exit", 1)
    assert located(LIGHTNING.format(code=-9) + killed)[:2] == ("killed_unknown", 1)


@pytest.mark.parametrize(
    ("line", "end", "answer"),
    [
        ("can't open file reading /data/LCDM.1004", EXITED, ("dataset_missing", 0)),
        ("## error at pdsyevx function. info=2", EXITED, ("unknown", 0)),
        ("Non-coherent number of processes 4 no equal to 4 X 2 X 2", ABORT, ("bad_parallel_config", 80)),
    ],
)
def test_the_error_before_a_launchers_report_is_shown_with_the_rank_that_it_names(why, line, end, answer):
    verdict = why(f"{line}\n{end}")
    assert (verdict.cause.slug, verdict.rank) == answer
    assert verdict.decisive.line.startswith(line)


def test_without_an_error_the_launchers_report_is_shown(why):
    verdict = why(f"all is well\n{EXITED}")
    assert (verdict.cause.slug, verdict.rank) == ("unknown", 0)
    assert verdict.decisive.line.startswith("mpirun has exited")


def test_the_only_rank_that_speaks_is_named_with_its_error_of_unknown_cause(located):
    error = "[1,290]<stderr>:!!!! kernel execution error.\n"
    assert located(error)[:2] == ("unknown", 290)
    # Each of two may have failed first.
    assert located(f"[1,3]<stderr>:!!!! matrix error.\n{error}")[:2] == ("unknown", None)


def test_an_error_that_mpich_prints_again_without_its_rank_is_that_of_the_rank(located):
    error = "Fatal error in PMPI_Allgatherv: Invalid datatype, error stack:\nPMPI_Allgatherv(421): Datatype for argument sendtype is a null datatype\n"
    head = (
        "MPICH ERROR [Rank 1] [job id 37.5] [Fri Jul  8 04:16:52 2022] [nid2] - Abort(873010691) (rank 1 in comm 0): "
    )
    assert located(f"{head}{error}\naborting job:\n{error}")[:2] == ("user_code_exception", 1)


def test_the_line_that_openfoams_head_announces_is_shown_with_it(why):
    text = "[57] --> FOAM FATAL ERROR: (openfoam-2306)\n[57] Bad size 8192\n[57]\nFOAM parallel run exiting\n"
    assert why(text).decisive.line.endswith("\n[57] Bad size 8192")


def test_a_kernel_log_with_faults_of_applications_alone_shows_one_and_blames_nothing(why):
    line = "[Thu Jan 28 23:42:34 2021] NVRM: Xid (PCI:0000:db:00): 31, pid=12530, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_10 faulted"
    verdict = why(f"{line}\n")
    assert (verdict.cause.slug, verdict.retry, verdict.node_action) == ("unknown", "once", "none")
    assert verdict.decisive.line == line


def test_the_abort_of_mpich_below_its_assertion_names_the_rank(answer):
    """Two ranks abort in turn: the line directly below is that of the first."""
    text = ""
    for rank in (6, 5):
        text += "Assertion failed in file ch3u_connect_sock.c at line 794: vcch->conn == conn\n"
        text += f"internal ABORT - process {rank}\n[cli_{rank}]: aborting job:\ninternal ABORT - process {rank}\n"
    assert answer(text) == ("native_abort", 6)


LOST = f'[rank{{}}]: {HEAD}[rank{{}}]:   File "/w/t.py", line 7, in main\n[rank{{}}]: RuntimeError: [../gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:6029: Connection reset by peer\n'


@pytest.mark.parametrize(("code", "answer"), [(-15, ("external_signal", 1)), (-9, ("killed_unknown", 1))])
def test_a_signal_of_one_node_stays_one_although_a_rank_of_another_failed_later(located, code, answer):
    """Each agent stops the other ranks of its node; two nodes report, and the ranks of both lost their peer."""
    first = _node_report("2026-06-03_21:15:01", 1, 1, 71, code=code)
    second = _node_report("2026-06-03_21:15:02", 2, 0, 72)
    lost = "".join(LOST.format(rank, rank, rank) for rank in (0, 2, 3))
    assert located(lost + first + second)[:2] == answer


@pytest.mark.parametrize("word", ["", "terminate called without an active exception\n"])
def test_an_abort_that_only_the_launcher_reports_followed_the_ranks_exception(located, word):
    error = f'[rank1]: {HEAD}[rank1]:   File "/w/t.py", line 7, in main\n[rank1]:     walk()\n[rank1]: RecursionError: maximum recursion depth exceeded\n'
    report = _node_report("2026-06-03_21:15:01", 1, 1, 71, code=-6)
    report += "  traceback : Signal 6 (SIGABRT) received by PID 71\n"
    assert located(error + word + report)[:2] == ("user_code_exception", 1)
    # A library that aborts prints why.
    aborted = "[rank1]: double free or corruption (out)\n"
    assert located(error + aborted + report)[:2] == ("native_abort", 1)


RULE = "-" * 74
HELP_TEXT = f"""{RULE}
mpirun was unable to find the specified executable file, and therefore
did not launch the job.  This error was first reported for process
rank 3; it may have occurred for other processes as well.

NOTE: A common cause for this error is misspelling a mpirun command
      line parameter option.

Node:       gpu-07
Executable: ./trian
{RULE}
4 total processes failed to start
"""


def test_i23_p2_a_help_text_between_two_rules_is_shown_with_its_rows(why):
    verdict = why(HELP_TEXT)
    assert (verdict.cause.slug, verdict.rank) == ("command_not_found", 3)
    assert verdict.decisive.line.split("\n")[1:] == ["Node:       gpu-07", "Executable: ./trian"]


def test_i23_p2_an_error_stack_of_mpich_is_shown_with_its_deepest_row(why):
    verdict = why(
        "MPICH ERROR [Rank 31] - Abort(269042437) (rank 31 in comm 0):\n"
        "Fatal error in PMPI_Comm_free: Invalid communicator, error stack:\n"
        "PMPI_Comm_free(139): MPI_Comm_free(comm=0x4c844d0) failed\n"
        "PMPI_Comm_free(86).: Null communicator\n"
        "srun: done\n"
    )
    assert verdict.rank == 31
    assert verdict.decisive.line.endswith("error stack:\nPMPI_Comm_free(86).: Null communicator")


CANCELLED = "slurmstepd: error: *** STEP 38011.0 ON gpu-01 CANCELLED AT 2018-11-28T21:04:38 ***\n"
ABORTED = (
    "[gpu-12:171205] *** An error occurred in MPI_Reduce\n"
    "[gpu-12:171205] *** reported by process [2538104278,200]\n"
    "[gpu-12:171205] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n"
)


@pytest.mark.parametrize(
    ("text", "cause"), [(ABORTED + CANCELLED, "unknown"), (CANCELLED + ABORTED, "cancelled"), (CANCELLED, "cancelled")]
)
def test_i23_p2_a_step_that_ended_after_mpis_own_abort_was_not_cancelled(why, text, cause):
    assert why(text).cause.slug == cause


@pytest.mark.parametrize(
    ("line", "answer_"),
    [
        ("ERROR shard-manager: Shard process was signaled to shutdown with signal 4 rank=2", ("native_abort", 2)),
        ("FATAL from PE    31:  ==>Error from coupler_types_mod: Disordered index", ("user_code_exception", 31)),
        ("[n:mpi_rank_44][print_backtrace]   1: /usr/lib/libmpich.so.3(MPIDI_CH3_Abort+0x5f)", ("unknown", 44)),
    ],
)
def test_i23_p1_a_rank_in_a_field_or_head_of_its_own_is_read(why, line, answer_):
    verdict = why(f"step 1\n{line}\n")
    assert (verdict.cause.slug, verdict.rank) == answer_


@pytest.mark.parametrize("field", ["from rank=2", "remote rank=2", "to rank=2", "root rank=2"])
def test_i23_p1_a_trailing_field_about_another_rank_names_none(why, field):
    assert why(f"ERROR store: Segmentation fault (core dumped) {field}\n").rank is None


# Two agents in one text, node after node, as a folder's files or a merged console.
STOPPED = """W1130 14:22:10.108000 2475 torch/distributed/elastic/agent/server/api.py:752] Received 15 death signal, shutting down workers
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate_process_handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 2475 got signal: 15
"""
FAILED_AT = """E1130 14:22:{second}.432000 2473 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 2784) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_14:22:{second}
  host      : gpu-1
  rank      : 2 (local_rank: 0)
  exitcode  : 1 (pid: 2784)
  error_file: <N/A>
"""
LOST = "[rank1]: RuntimeError: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:1\n"
TIMED_OUT = "[rank1]: RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # srun, Kubernetes and Rankfall stop the launchers of the other nodes after a rank's end.
        (LOST + STOPPED + FAILED_AT.format(second="09"), ("unknown", 2)),
        (LOST + FAILED_AT.format(second="09") + STOPPED, ("unknown", 2)),
        # Stopped from outside first: the other node's ranks lost it.
        (LOST + STOPPED + FAILED_AT.format(second="14"), ("external_signal", None)),
        (LOST + FAILED_AT.format(second="14") + STOPPED, ("external_signal", None)),
        (LOST + STOPPED, ("external_signal", None)),
        # Somebody ends what hangs.
        (TIMED_OUT + STOPPED, ("collective_timeout", None)),
        (STOPPED + TIMED_OUT, ("external_signal", None)),
        # The job went on, as after another try.
        (TIMED_OUT + "".join(f"step {i} loss 1.0\n" for i in range(60)) + STOPPED, ("external_signal", None)),
    ],
)
def test_a_launcher_that_was_stopped_after_another_one_failed_is_no_cause(answer, text, found):
    assert answer(text) == found


HYDRA = """==============================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4124 RUNNING AT gpu-1
=   EXIT CODE: {}
=   CLEANING UP REMAINING PROCESSES
==============================================================================
"""


@pytest.mark.parametrize(
    ("signal", "name", "slug", "retry"),
    [
        (1, "Hangup", "external_signal", "yes"),
        (3, "Quit", "external_signal", "yes"),
        (5, "Trace/breakpoint trap", "native_abort", "once"),
        (13, "Broken pipe", "external_signal", "yes"),
        (24, "CPU time limit exceeded", "deadline_exceeded", "no"),
        (25, "File size limit exceeded", "disk_full", "no"),
    ],
)
def test_a_signal_has_its_cause_in_the_words_of_each_launcher(why, signal, name, slug, retry):
    rule = 74 * "-" + "\n"
    text = f"{rule}prterun noticed that process rank 1 with PID 4124 on node gpu-1 exited on\nsignal {signal} ({name}).\n{rule}"
    found = why(text)
    assert (found.cause.slug, found.rank, found.retry) == (slug, 1, retry)
    # The code of a process that a signal ended is that signal.
    found = why(HYDRA.format(signal) + f"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {name} (signal {signal})\n")
    assert found.cause.slug == slug
    # Without the last line it is a code.
    assert why(HYDRA.format(signal)).cause.slug in {"user_exit", "unknown"}


@pytest.mark.parametrize(
    "words",
    [
        "mpirun noticed that process rank 1 with PID 14215 on node\ncompute-0-7.local exited on signal 11 (Segmentation fault).\n",
        "mpirun noticed that process rank 1 with PID 14215 \non node node01 exited on signal 11 (Segmentation fault).\n",
    ],
)
def test_open_mpis_report_is_read_wherever_its_lines_break(why, words):
    """The process that it names printed its own signal, which another one had too."""
    said = "[node01:14215] Signal: Segmentation fault (11)\n[node01:14214] Signal: Segmentation fault (11)\n"
    rule = 74 * "-" + "\n"
    found = why(said + rule + words + rule)
    assert (found.cause.slug, found.rank) == ("segfault", 1)
    assert found.decisive.line.startswith("[node01:14215] Signal")


ROW = "[{index}]:\n  time      : 2026-04-25_20:11:02\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n"
RAISED = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n{}\n'


@pytest.mark.parametrize(
    ("raised", "rank"),
    [
        (["ValueError: no such mode"] * 2, 3),
        # Any of them may be of the first rank.
        (["ValueError: no such mode", "KeyError: 'lr'"], None),
    ],
)
def test_an_exception_of_two_ranks_is_of_the_first_one_although_torchrun_stopped_the_others(why, raised, rank):
    rows = [ROW.format(index=n, rank=n, code=code, pid=30 + n) for n, code in ((0, -15), (7, 1), (3, 1))]
    found = why(
        "".join(RAISED.format(each) for each in raised)
        + "W0425 20:11:02.798000 78 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 30 closing signal SIGTERM\n"
        + RAISED.format("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
        + f"{'=' * 60}\nt.py FAILED\n{'-' * 60}\nFailures:\n{rows[0]}{rows[1]}Root Cause (first observed failure):\n{rows[2]}{'=' * 60}\n"
    )
    assert (found.cause.slug, found.rank) == ("user_code_exception", rank)


BAR = "Epoch 0:   0%|          | 0/356 [00:13<?, ?it/s]"
ENDED = "srun: error: gpu11: task {}: Exited with exit code 1\n"
STOPPED = "srun: launch/slurm: _step_signal: Terminating StepId=88.2\n"


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        (BAR + ENDED.format(0) + STOPPED + ENDED.format(2), 0),
        (ENDED.format(2) + STOPPED + ENDED.format(0), 2),
        # srun reports them in any order until it stops the step.
        (BAR + ENDED.format(0) + ENDED.format(2) + STOPPED, None),
        (STOPPED + ENDED.format(0) + ENDED.format(2), None),
    ],
)
def test_what_ends_after_srun_stopped_the_step_is_a_consequence(why, ends, rank):
    """A bar ends without a newline, so that the first task's line follows it."""
    found = why(RAISED.format("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB") + ends)
    assert (found.cause.slug, found.rank) == ("gpu_oom", rank)


@pytest.mark.parametrize("code", ["10", ""])
def test_a_process_of_torchs_tests_is_a_rank(why, code):
    found = why(f"Process 1 exited with error code {code} and exception:\n" + RAISED.format("KeyError: 'a'"))
    assert (found.cause.slug, found.rank) == ("user_code_exception", 1 if code else None)


STACK = (
    "MPICH ERROR [Rank 10] [job id 1c55] [Fri Sep 13 20:31:03 2024] [n1] - Abort(1009328399) (rank 10 in comm 0): Fatal error in PMPI_Alltoallv: Other MPI error, error stack:\n"
    "PMPI_Alltoallv(386).........: MPI_Alltoallv(sbuf=0x14dc, comm=MPI_COMM_WORLD) failed\n"
    "MPIDI_OFI_send_normal(372)..: OFI tagged senddata failed (ofi_send.h:372:MPIDI_OFI_send_normal:{})\n"
)


@pytest.mark.parametrize(
    ("reason", "slug"),
    [
        ("Input/output error", "nccl_ib_error"),
        # Of the node's resources, of a wrong call or of the network: the provider does not say which.
        ("Resource temporarily unavailable", "unknown"),
        ("Invalid argument", "unknown"),
    ],
)
def test_the_code_of_an_mpi_error_is_no_exit_of_the_program(why, reason, slug):
    found = why(STACK.format(reason) + "n1.cluster.example: rank 10 exited with code 255\n")
    assert (found.cause.slug, found.rank) == (slug, 10)
    assert reason in found.decisive.line


@pytest.mark.parametrize(
    ("said", "slug", "rank"),
    [
        ("[rank1]: {}\n", "user_code_exception", 3),
        # The first one has its own message.
        (
            "[rank1]: {}\n[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
            "cuda_illegal_access",
            3,
        ),
        ("[rank3]: {}\n", "user_code_exception", 3),
    ],
)
def test_torchruns_first_rank_without_words_is_named_by_the_exception_of_another_one(why, said, slug, rank):
    raised = RAISED.format("ValueError: no such mode").strip().splitlines()
    lines = [said.split("\n")[0].format(each) for each in raised] + said.split("\n")[1:]
    row = ROW.format(index=0, rank=3, code=1, pid=33)
    found = why(
        "\n".join(lines)
        + "W0425 20:11:02.798000 78 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 31 closing signal SIGTERM\n"
        + RAISED.format("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
        + f"{'=' * 60}\nt.py FAILED\n{'-' * 60}\nRoot Cause (first observed failure):\n{row}{'=' * 60}\n"
    )
    assert (found.cause.slug, found.rank) == (slug, rank)


TPU_TRACE = (
    "RuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible."
)
XLA_LINE = "2022-04-05 02:11:49.642380: E tensorflow/compiler/xla/xla_client/xla_util.cc:88]   (1) RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible.\n"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("Exception in device=TPU:3: RESOURCE_EXHAUSTED\n" + RAISED.format(TPU_TRACE), 3),
        # An assertion has no words.
        ("    Exception in device=TPU:0:\n" + RAISED.format(TPU_TRACE), 0),
        # The library's own line stands above.
        (XLA_LINE + "Exception in device=TPU:4: RES\n", 4),
        (XLA_LINE + "Exception in device=TPU:4: RES\nException in device=TPU:5: RES\n", None),
    ],
)
def test_the_process_of_torch_xla_is_the_rank_of_its_exception(why, text, rank):
    found = why(text)
    assert (found.cause.slug, found.rank) == ("gpu_oom", rank)


def test_marks_at_the_ends_of_lines_are_no_part_of_them(why):
    rows = [
        "step 1",
        "step 2",
        "pe=00015 FAIL at line=00326    MAPL_CapGridComp.F90  <something impossible happened>",
        "",
    ]
    found = why("".join(f"{row}$\n" for row in rows))
    assert found.rank == 15
    assert not found.decisive.line.endswith("$")
    # Text that only ends with one.
    assert why("user@host $\nValueError: a b$\n").decisive.line.endswith("$")


OPENIB = "[[51307,{}],18][btl_openib_component.c:3224:handle_wc] from n4011 to: n4120 error polling LP CQ with status RETRY EXCEEDED ERROR status number 12 for wr_id 413569408 opcode 11112 vendor error 129 qp_idx 3\n"


@pytest.mark.parametrize(("job", "host", "rank"), [(1, "", 18), (1, "[n4011.local]", 18), (0, "", None)])
def test_open_mpis_name_of_a_process_is_its_rank(why, job, host, rank):
    """Job 0 is that of its daemons."""
    found = why(host + OPENIB.format(job))
    assert (found.cause.slug, found.rank) == ("nccl_ib_error", rank)


def test_words_of_a_reason_outweigh_a_bare_abort(why):
    said = "  what():  MPI_Recv: MPI_ERR_TRUNCATE: message truncated\n"
    found = why(said + "[node12:15876] Signal: Aborted (6)\n")
    assert (found.cause.slug, found.decisive.line.strip()) == ("user_code_exception", said.strip())
    # Of a collective call.
    assert why("[node12:15876] *** MPI_ERR_TRUNCATE: message truncated\n").cause.slug == "collective_mismatch"
