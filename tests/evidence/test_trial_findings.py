"""Findings of users' trials: texts in the forms that programs print, each beside one that only looks alike."""

from __future__ import annotations

import json

import pytest

from rankfall.cli.run_output import details_of_files
from rankfall.evidence.readers.classify import exception_meaning
from rankfall.render.summary import advice_text
from rankfall.verdict.signatures.catalogue import default_catalogue

TRACE = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "TORCH_CUDA_ARCH_LIST"),
        ("OSError: [Errno 24] Too many open files: '/data/shard-00012.tar'", "ulimit -n"),
        ("RuntimeError: received 0 items of ancdata", "set_sharing_strategy"),
        (
            (
                "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment"
                " variable or set triton.knobs.build.impl."
            ),
            "gcc",
        ),
        ("RuntimeError: CUDA error: invalid argument", "Fix the line"),
        ("OSError: [Errno 24] opened too often", "Fix the line"),
    ],
)
def test_an_exception_of_a_lack_gets_the_advice_that_ends_it(why, line, advice):
    found = why(f"{TRACE}{line}\n")
    assert found.cause.slug == "user_code_exception"
    assert advice in advice_text(found)


ALLOCATOR = (
    "2026-11-30 03:12:40.123456: W external/local_xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out"
    " of memory trying to allocate 3.81GiB (rounded to 4096000000)requested by op Relu\n"
)
GRAPH = (
    f"{TRACE}tensorflow.python.framework.errors_impl.{{}}Error: Graph execution error:\n\n"
    "Detected at node functional_1/conv/Relu defined at (most recent call last):\n"
)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (ALLOCATOR + GRAPH.format("ResourceExhausted"), "gpu_oom"),
        # Without the allocator's line, anything may be exhausted.
        (GRAPH.format("ResourceExhausted"), "unknown"),
        (ALLOCATOR + GRAPH.format("InvalidArgument"), "user_code_exception"),
    ],
)
def test_tensorflow_s_allocator_explains_what_a_graph_exhausted(why, text, slug):
    assert why(text).cause.slug == slug


@pytest.mark.parametrize(("code", "slug"), [("-9", "killed_unknown"), ("-11", "segfault"), ("1", "unknown")])
def test_sagemaker_states_the_code_of_its_script(why, code, slug):
    toolkit = "2026-11-30 03:12:44,100 sagemaker-training-toolkit ERROR   "
    found = why(
        f"{toolkit} Reporting training FAILURE\n{toolkit} ExecuteUserScriptError:\nExitCode {code}\n"
        f'ErrorMessage ""\nCommand "/opt/conda/bin/python3.10 train.py"\n{toolkit} Encountered exit_code {code}\n'
    )
    assert found.cause.slug == slug


XID = "NVRM: Xid (PCI:0000:07:00): 74, pid=41012, name=python3, NVLink: fatal error detected on link 11(0x10000, 0x0)\n"
KILLED = "Memory cgroup out of memory: Killed process 912311 (python3) total-vm:312345678kB, anon-rss:201234567kB\n"


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (f"Nov 30 03:12:40 dgx-04 kernel: {XID}", "dgx-04"),
        (f"Nov 30 03:12:40 alpha kernel: {XID}", "alpha"),
        (f"2026-11-30T03:12:40.123456+00:00 dgx-04.hpc.example kernel: [ 123.456789] {XID}", "dgx-04.hpc.example"),
        (f"gpu-22 kernel: [123456.789] {XID}", "gpu-22"),
        (f"gpu-22: [Mon Nov 30 03:12:40 2026] {XID}", "gpu-22"),
        # The line of one machine of several.
        (
            f"Nov 30 03:12:38 n1 kernel: mlx5_core 0000:1a:00.0 mlx5_0: Port: 1 Link DOWN\nNov 30 03:12:40 n2 kernel: {KILLED}",
            "n2",
        ),
        # A controller's host is not the node that it reports, and other things than machines have kernels.
        (f"Nov 30 03:12:40 head1 monitor[12]: {XID}", None),
        (f"[123456.789012] {XID}", None),
    ],
)
def test_the_host_of_a_kernel_s_line_is_the_node(why, text, node):
    assert why(text).node == node


@pytest.mark.parametrize(
    "line", ["flash2 kernel: slow path", "Triton kernel: falling back", "the kernel: NVRM is missing"]
)
def test_a_kernel_of_a_library_has_no_host(why, line):
    assert why(f"{line}\n{TRACE}KeyError: 'x'\n").node is None


def test_a_line_without_a_place_names_none_of_several_machines(why):
    text = "".join(f"Nov 30 03:12:4{n} n{n} kernel: mlx5_core 0000:1a:00.0: Port: 1 Link DOWN\n" for n in (1, 2))
    assert why(f"{text}{TRACE}KeyError: 'x'\n").node is None


STEPS = "".join(f"[rank{n}]: step 48210 loss 2.1{n}\n" for n in range(8))
WAIT = (
    "[rank{0}]:[E1130 03:10:07.041926731 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=48213, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=600000) ran for 600013"
    " milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("before", "waits", "after", "rank"),
    [
        (STEPS, {0, 1, 2, 3, 4, 6, 7}, "", 5),
        # Two are silent; a rank is missing in the output; the first node of two; the last rank speaks only at the end.
        (STEPS, {0, 1, 2, 3, 4, 6}, "", None),
        (STEPS.replace("[rank2]", "[rank9]"), {0, 1, 3, 4, 6, 7, 9}, "", None),
        (f"nnodes=2\n{STEPS}", {0, 1, 2, 3, 4, 6, 7}, "", None),
        (STEPS.replace("[rank5]", "[rank4]"), {0, 1, 2, 3, 4, 6, 7}, "[rank5]: step 48210 loss 2.15\n", None),
    ],
)
def test_the_one_rank_without_a_complaint_of_all_that_printed_is_named(why, before, waits, after, rank):
    found = why(before + "".join(map(WAIT.format, sorted(waits))) + after)
    assert (found.rank, found.cause.slug) == (rank, "rank_stuck" if rank is not None else "collective_timeout")


CONTAINED = "{} kernel: [123456.789] NVRM: Xid (PCI:0000:9d:00): 94, pid=41012, name=python3, Contained: SM (0x1). RST: No, D-RST: No\n"
HIT = "{}: [rank{}]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
ABORTED = "gpu-21: [rank8]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 8.\n"


@pytest.mark.parametrize(
    ("text", "rank", "node"),
    [
        (CONTAINED.format("gpu-22") + HIT.format("gpu-22", 17) + ABORTED, 17, "gpu-22"),
        # The driver's line is of another machine, or of one with two such ranks.
        (CONTAINED.format("gpu-23") + HIT.format("gpu-22", 17) + ABORTED, None, "gpu-23"),
        (CONTAINED.format("gpu-22") + HIT.format("gpu-22", 17) + HIT.format("gpu-22", 18), None, "gpu-22"),
    ],
)
def test_a_driver_s_line_is_of_the_one_rank_of_its_node_with_the_fault(why, text, rank, node):
    found = why(text)
    assert (found.rank, found.node, found.cause.family) == (rank, node, "gpu")


WATCHDOG = "watchdog.sh: no progress for 1800 s, killing pid 4100\n"
SHELL = "./run.sh: line 12:  4100 Killed                  python train.py\n"


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (WATCHDOG + SHELL, "rank_stuck"),
        # The process stated why it stopped, or nobody said why it was killed.
        (f"{TRACE}KeyError: 'x'\n{WATCHDOG}{SHELL}", "user_code_exception"),
        (SHELL, "killed_unknown"),
        (f"watchdog.sh: kills what makes no progress\n{SHELL}", "killed_unknown"),
    ],
)
def test_a_watchdog_that_kills_states_the_reason(why, text, slug):
    assert why(f"step 100 loss 2.0\n{text}").cause.slug == slug


def test_a_rank_s_traceback_is_better_than_sagemaker_s_copy_of_its_message(why):
    speaker = "[1,mpirank:5,algo-1]<stderr>:"
    trace = "".join(f"{speaker}{line}\n" for line in f"{TRACE}ZeroDivisionError: division by zero".split("\n"))
    toolkit = '2026-11-30 03:12:44,100 sagemaker-training-toolkit ERROR    ExecuteUserScriptError:\nExitCode 1\nErrorMessage "{}"\n'
    found = why(trace + toolkit.format("ZeroDivisionError: division by zero"))
    assert (found.rank, found.decisive.line) == (5, f"{speaker}ZeroDivisionError: division by zero")
    # Without it, the copy is all there is.
    assert why(toolkit.format("ZeroDivisionError: division by zero")).cause.slug == "user_code_exception"


def test_a_text_without_times_compares_no_clocks(why):
    found = why(f"[rank1]: {CONTAINED.format('n1')}" + HIT.format("gpu-22", 17) + HIT.format("gpu-23", 18))
    assert not any("clocks" in other.rejected for other in found.alternatives)


RAY = (
    "(TorchTrainer pid=812, ip=10.0.1.4) - (node_id=aa11, ip=10.0.1.4, pid=900) world_rank=0, local_rank=0, node_rank=0\n"
    "(TorchTrainer pid=812, ip=10.0.1.4) - (node_id=bb22, ip=10.0.1.5, pid=901) world_rank=1, local_rank=0, node_rank=1\n"
)
RAYLET = "(raylet, ip=10.0.1.5) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed\n"
MEMORY = (
    "Memory on the node (IP: 10.0.1.5, ID: bb22) where the task (actor ID: 5678, name=RayTrainWorker.__init__, pid={},"
    " memory used=181.20GB) was running was 183.11GB / 192.00GB (0.953698), which exceeds the threshold of 0.95.\n"
)
LSF = "Job was executed on host(s) <8*lsf-h12>, in queue <gpu>, as user <kim> in cluster <hpc> at Mon Nov 30 01:00:05 2026\n"
LIMIT = "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n"
HYDRA = (
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 30123 RUNNING AT node17\n=   EXIT CODE: 9\n"
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
)
LOST = "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[12345,0],0] on node node01\n"
DAEMON = "  Remote daemon: [[12345,0],{}] on node node0{}\n"


@pytest.mark.parametrize(
    ("text", "slug", "rank", "node"),
    [
        (RAY + RAYLET + MEMORY.format(901), "host_oom", 1, "10.0.1.5"),
        # A process of no rank.
        (RAY + RAYLET + MEMORY.format(77), "host_oom", None, "10.0.1.5"),
        (LSF + LIMIT, "walltime_or_requeue", None, "lsf-h12"),
        (f"{LSF}{' ' * 28}<8*lsf-h13>\n{LIMIT}", "walltime_or_requeue", None, None),
        (
            (
                "012 (1.0.0) Job was held.\n\tError from slot1_1@gpu44.cluster: Job has gone over cgroup memory limit of 32768"
                " megabytes. Last measured usage: 32768 megabytes.\n"
            ),
            "host_oom",
            None,
            "gpu44.cluster",
        ),
        (HYDRA, "killed_unknown", None, "node17"),
        (HYDRA.replace("PID 30123 RUNNING AT", "started by the daemon at"), "killed_unknown", None, None),
        (LOST + DAEMON.format(3, 4), "peer_lost", None, "node04"),
        # The host that prints the line is not the lost one, and none of two is named.
        (LOST, "peer_lost", None, None),
        (LOST + DAEMON.format(3, 4) + LOST + DAEMON.format(2, 3), "peer_lost", None, None),
    ],
)
def test_the_place_in_a_report_of_a_batch_system_or_launcher_is_read(why, text, slug, rank, node):
    found = why(f"step 100 loss 2.1\n{text}")
    assert (found.cause.slug, found.rank, found.node) == (slug, rank, node)


AIRFLOW = (
    "[2026-11-30, 03:12:41 UTC] {taskinstance.py:3093} ERROR - Received SIGTERM. Terminating subprocesses.\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/lib/python3.11/site-packages/airflow/models/taskinstance.py", line 3094, in signal_handler\n'
    '    raise AirflowTaskTerminated("Task received SIGTERM signal")\n'
    "airflow.exceptions.AirflowTaskTerminated: Task received SIGTERM signal\n"
)
CHANGED = "[2026-11-30, 03:12:41 UTC] {{local_task_job_runner.py:313}} WARNING - State of this instance has been externally set to {}. Terminating instance.\n"


@pytest.mark.parametrize(
    ("before", "slug"),
    [
        (CHANGED.format("failed"), "cancelled"),
        # A time-out of the whole graph skips what still runs.
        (CHANGED.format("skipped"), "external_signal"),
        ("", "external_signal"),
    ],
)
def test_a_task_of_airflow_whose_state_was_changed_is_cancelled(why, before, slug):
    assert why(before + AIRFLOW).cause.slug == slug


def test_an_unknown_cause_refers_to_evidence_only_if_some_is_listed(why):
    found = why("ExitCode 3\n" + AIRFLOW.replace("SIGTERM", "SIG"))
    assert found.cause.slug == "unknown"
    assert ("listed above" in advice_text(found)) is bool(found.missing)


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_lines_before_a_record_of_a_document_are_those_of_other_records(why, newest_first):
    lines = f"step 100\n{TRACE}ZeroDivisionError: division by zero\nExitCode 1".split("\n")
    events = [{"timestamp": 1796000000000 + at, "message": line} for at, line in enumerate(lines)]
    found = why(json.dumps({"events": events[::-1] if newest_first else events}, indent=4), "events.json")
    details = details_of_files(found)
    assert details.before[-3:] == tuple(lines[1:4])
    assert details.frames == ("/w/t.py:3 in <module>",)


def test_the_lines_before_a_line_of_other_json_are_those_of_the_file(why):
    steps = ('{"step": 100}', '{"step": 101}')
    found = why("\n".join((*steps, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.\n")))
    assert (found.cause.slug, details_of_files(found).before) == ("gpu_oom", steps)


def repeated(speaker, ranks, error, *, line="os.mkdir(self, mode)"):
    """What torch.distributed.checkpoint raises in each rank after the errors of some."""
    frame = f'  File "/opt/lib/python3.11/pathlib.py", line 1116, in mkdir\n    {line}\n'
    traces = "".join(f"Traceback (most recent call last): (RANK {rank})\n{frame}{error}\n" for rank in ranks)
    head = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys"
    text = f"{TRACE}{head}([{', '.join(map(str, ranks))}])\n{traces}"
    return "".join(f"[rank{speaker}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("ranks", "error", "rank", "slug"),
    [
        ((6,), "OSError: [Errno 122] Disk quota exceeded: '/ckpt/__6_0.distcp'", 6, "disk_full"),
        ((6,), "FileNotFoundError: [Errno 2] No such file or directory: '/proc/nope'", 6, "user_code_exception"),
        # Several failed, and neither prints.
        ((6, 7), "OSError: [Errno 122] Disk quota exceeded: '/ckpt/__6_0.distcp'", None, "disk_full"),
        ((6,), "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding", 6, "checkpoint_corrupt"),
    ],
)
def test_the_rank_whose_exception_a_checkpoint_s_one_repeats_failed(why, ranks, error, rank, slug):
    found = why("".join(repeated(speaker, ranks, error) for speaker in (0, 1)))
    assert (found.rank, found.cause.slug) == (rank, slug)


def test_another_traceback_after_a_checkpoint_s_exception_is_separate(why):
    text = repeated(0, (), "") + "".join(f"[rank0]: {line}\n" for line in f"{TRACE}KeyError: 'x'".split("\n"))
    assert why(text).rank == 0


@pytest.mark.parametrize(("ranks", "role"), [("1", "secondary"), ("1, 0", "primary"), ("0", "primary")])
def test_a_recorded_exception_of_another_rank_s_checkpoint_is_a_consequence(ranks, role):
    message = (
        f"CheckpointException ranks:dict_keys([{ranks}])\nTraceback (most recent call last): (RANK 1)\n"
        "    local_data = map_fun()\nOSError: [Errno 122] Disk quota exceeded: '/ckpt/__6_0.distcp'\n"
    )
    read = exception_meaning(
        default_catalogue(), [("torch.distributed.checkpoint.api.CheckpointException", message)]
    ).raised_by(0)
    assert (read.role, read.slug) == (role, "disk_full" if role == "primary" else "peer_lost")


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("Slurm Job_id=99112 Name=train Failed, Run time 02:11:01, OUT_OF_MEMORY, ExitCode 0", "host_oom"),
        ("Slurm Job_id=99112 Name=train Failed, Run time 1-00:00:21, TIMEOUT, ExitCode 0", "walltime_or_requeue"),
        ("Job ID: 99112\nState: OUT_OF_MEMORY (exit code 0)", "host_oom"),
        ("Job ID: 99112\nState: TIMEOUT (exit code 0)", "walltime_or_requeue"),
        ("Job ID: 99112\nState: COMPLETED (exit code 0)", "unknown"),
        ("./run.sh: line 3: 411 CPU time limit exceeded (core dumped) python train.py", "deadline_exceeded"),
        ("solver: CPU time limit exceeded for 3 samples, they were left out", "unknown"),
        (
            f"{TRACE}RuntimeError: unable to open shared memory object </torch_1_2_33> in read-write mode: Too many open files (24)",
            "user_code_exception",
        ),
        (
            f"{TRACE}RuntimeError: unable to open shared memory object </torch_1_2_33> in read-write mode: No space left on device (28)",
            "shm_exhausted",
        ),
    ],
)
def test_a_limit_is_named_by_the_state_or_error_that_states_it(why, line, slug):
    assert why(f"step 100 loss 2.1\n{line}\n").cause.slug == slug


LOAD = '  File "/opt/lib/python3.11/site-packages/torch/serialization.py", line 1521, in load\n    return _load(f)\n'
RECEIVED = '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 383, in _recv\n    raise EOFError\n'


@pytest.mark.parametrize(("frames", "slug"), [(LOAD, "checkpoint_corrupt"), (RECEIVED, "peer_lost")])
def test_an_empty_file_that_torch_loads_is_no_lost_peer(why, frames, slug):
    assert why(f"{TRACE}{frames}EOFError\n").cause.slug == slug


@pytest.mark.parametrize(
    ("what", "slug"), [("the configuration", "user_code_exception"), ("the shard of epoch 3", "dataset_missing")]
)
def test_a_missing_file_of_settings_is_no_training_data(why, what, slug):
    missing = f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: '/w/nope'\n"
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert why(f"{missing}{cause}{TRACE}RuntimeError: could not load {what}\n").cause.slug == slug


@pytest.mark.parametrize(("pid", "rank"), [(4211, 1), (4212, None)])
def test_a_killed_worker_is_of_the_rank_that_names_its_process(why, pid, rank):
    worker = f"{TRACE}RuntimeError: DataLoader worker (pid 4211) is killed by signal: Killed. "
    text = "".join(f"[rank1]: {line}\n" for line in worker.splitlines())
    found = why(f"{text}[ 1234.5] Memory cgroup out of memory: Killed process {pid} (pt_data_worker) total-vm:1kB\n")
    assert (found.cause.slug, found.rank) == ("host_oom", rank)


@pytest.mark.parametrize(("victim", "slug"), [("node_exporter", "user_code_exception"), ("python3", "node_oom")])
def test_a_killed_program_that_watches_the_node_explains_no_exception(why, victim, slug):
    kill = f"Nov 30 03:12:45 n1 kernel: Out of memory: Killed process 911 ({victim}) total-vm:1kB, anon-rss:1kB\n"
    assert why(f"{kill}[rank0]: step 100\n[rank0]: KeyError: 'x'\n").cause.slug == slug


@pytest.mark.parametrize(("code", "slug"), [(124, "deadline_exceeded"), (1, "unknown")])
def test_time_shows_the_code_of_a_timeout(why, code, slug):
    text = f"step 5\n+ timeout 3600 python train.py\nCommand exited with non-zero status {code}\n"
    assert why(text).cause.slug == slug


NODE_FAILURE = "0: step 90 loss 2.81\nsrun: error: Node failure on gpu-07\n"


@pytest.mark.parametrize(
    "rest",
    [
        "srun: error: gpu-05: task 5: Exited with exit code 1\n",
        "5: KeyError: 'late'\nsrun: error: gpu-05: task 5: Exited with exit code 1\n",
        "".join(f"5: {line}\n" for line in f"{TRACE}KeyError: 'late'".splitlines()),
    ],
)
def test_a_rank_that_ends_after_the_failure_of_a_node_is_not_lost_with_it(why, rest):
    found = why(NODE_FAILURE + rest)
    assert (found.cause.slug, found.cause.confidence, found.node, found.rank) == ("node_lost", "likely", "gpu-07", None)


def test_an_exception_before_the_failure_of_a_node_is_the_first_one(why):
    text = "".join(f"5: {line}\n" for line in f"{TRACE}KeyError: 'early'".splitlines())
    found = why(f"{text}{NODE_FAILURE}")
    assert (found.cause.slug, found.rank, found.node) == ("user_code_exception", 5, None)


WATCHDOG = (
    "[rank{rank}]:[E1130 03:32:11.001 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=8812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={limit}) ran for {limit} milliseconds"
    " before timing out.\n"
)
STEPS = "".join(f"[rank{rank}]: step 40 loss 2.1\n" for rank in range(4))
SLURM_END = "slurmstepd: error: *** JOB 8 ON gpu-01 CANCELLED AT 2026-11-30T05:00:00{} ***\n"


@pytest.mark.parametrize(
    ("end", "slug"),
    [("", "cancelled"), (" DUE TO TIME LIMIT", "walltime_or_requeue"), (" DUE TO PREEMPTION", "preempted")],
)
@pytest.mark.parametrize(("limit", "late"), [(1800055, False), (20055, False), (1800055, True)])
def test_a_hang_that_a_user_or_limit_ended_is_the_failure(why, end, slug, limit, late):
    waits = "".join(WATCHDOG.format(rank=rank, limit=limit) for rank in (0, 1, 3))
    parts = [SLURM_END.format(end), waits] if late else [waits, SLURM_END.format(end)]
    found = why(STEPS + "".join(parts))
    hang = limit > 100_000 and not late and slug != "preempted"
    assert (found.cause.slug, found.rank) == (("rank_stuck", 2) if hang else (slug, None))


AGENT = "W1130 03:12:52.1 4050 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGTERM death signal, shutting down workers\n"
IN_HANDLER = "".join(f"[rank1]: {line}\n" for line in f"{TRACE}KeyError: 'step'".splitlines())
TABLE = (
    f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-30_03:13:02\n  host      : gpu-02\n"
    f"  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 4101)\n  error_file: <N/A>\n{'=' * 60}\n"
)


@pytest.mark.parametrize(
    ("text", "slug", "retry"),
    [
        (AGENT + IN_HANDLER, "external_signal", "yes"),
        ("[rank1]: Received SIGTERM, saving\n" + IN_HANDLER, "external_signal", "yes"),
        (AGENT + IN_HANDLER + SLURM_END.format(" DUE TO PREEMPTION"), "preempted", "yes"),
        # The exception came first.
        (IN_HANDLER + AGENT, "user_code_exception", "no"),
        # Another rank received the signal, or one after which the program continues.
        ("[rank0]: Received SIGTERM, saving\n" + IN_HANDLER, "user_code_exception", "no"),
        ("[rank1]: Received SIGUSR1, saving\n" + IN_HANDLER, "user_code_exception", "no"),
        # The text of another node or start follows, whose launcher reports the exception.
        (AGENT + IN_HANDLER + TABLE, "user_code_exception", "no"),
    ],
)
def test_an_exception_after_a_stop_from_outside_is_no_first_failure(why, text, slug, retry):
    found = why(STEPS + text)
    assert (found.cause.slug, found.retry) == (slug, retry)


def test_a_disk_that_is_full_after_a_stop_is_a_failure_of_its_own(why):
    found = why(STEPS + AGENT + IN_HANDLER.replace("KeyError: 'step'", "OSError: [Errno 28] No space left on device"))
    assert found.cause.slug == "external_signal"
    assert [fault.slug for fault in found.independent] == ["disk_full"]


EARLYOOM = (
    'Nov 30 03:20:41 gpu-01 earlyoom[700]: sending SIGTERM to process {} uid 1001 "{}": badness 1200, VmRSS 400000 MiB\n'
    "Nov 30 03:20:41 gpu-01 systemd[1]: train.service: Main process exited, code=killed, status=15/TERM\n"
)
TIMEOUT = "step 9\ntimeout: sending signal TERM to command \u2018{}\u2019\nTerminated\n"


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        (EARLYOOM.format(4100, "python"), "node_oom"),
        (TIMEOUT.format("python"), "deadline_exceeded"),
        # A step of a script, which continues.
        (TIMEOUT.format("nvidia-smi"), "external_signal"),
    ],
)
def test_who_ended_the_process_and_why_is_in_the_line(why, text, slug):
    assert why(text).cause.slug == slug


def test_earlyoom_may_end_a_program_that_is_no_process_of_the_job(why):
    assert why(EARLYOOM.format(911, "node_exporter")).cause.slug != "node_oom"


FIRST = 'Traceback (most recent call last):\n  File "/w/t.py", line 9, in main\n    train()\n  File "/w/t.py", line 4, in train\n    step()\n'
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
OUTER = 'Traceback (most recent call last):\n  File "/w/t.py", line 20, in <module>\n    main()\n  File "/w/t.py", line 12, in main\n'
FINISH = '    tracker.finish()\n  File "/w/tracker.py", line 7, in finish\n    self.client.send()\n'
SAVE = '    save_checkpoint("last.pt")\n  File "/w/ckpt.py", line 7, in save_checkpoint\n    f.write(blob)\n'
FULL = "OSError: [Errno 28] No space left on device: '/ckpt/last.pt'\n"


@pytest.mark.parametrize(
    ("text", "slug", "line"),
    [
        # A clean-up fails after the failure.
        (
            f"{FIRST}ValueError: bad shape\n{DURING}{OUTER}{FINISH}{FULL}",
            "user_code_exception",
            "ValueError: bad shape",
        ),
        (f"{FIRST}ValueError: bad shape\n{DURING}{OUTER}{SAVE}{FULL}", "user_code_exception", "ValueError: bad shape"),
        (
            (
                f"{FIRST}RuntimeError: bad shape\n{DURING}{OUTER}    os.remove('/nope/lock')\n"
                "FileNotFoundError: [Errno 2] No such file or directory: '/nope/lock'\n"
            ),
            "user_code_exception",
            "RuntimeError: bad shape",
        ),
        # Two clean-ups, one after the other.
        (
            (
                f"{FIRST}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
                f"{DURING}{OUTER}{SAVE}{FULL}{DURING}{OUTER}{FINISH}KeyError: 'run'\n"
            ),
            "gpu_oom",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        # The program expects the first exception: it does without the file, and the next one ends it.
        (
            (f"{FIRST}FileNotFoundError: [Errno 2] No such file or directory: 'cache.pt'\n{DURING}{OUTER}{SAVE}{FULL}"),
            "disk_full",
            FULL.strip(),
        ),
        # A state that cannot be stored in one way is stored in another.
        (
            (
                f"{FIRST.replace('in train', 'in save_checkpoint')}RuntimeError: cannot pickle\n"
                f"{DURING}{OUTER}{SAVE}{FULL}"
            ),
            "disk_full",
            FULL.strip(),
        ),
        # The function that handles the first exception has the name of a clean-up itself.
        (
            (
                f"{FIRST.replace('in main', 'in stop')}ValueError: bad\n"
                f"{DURING}{OUTER.replace('in main', 'in stop')}    again()\n"
                f'  File "/w/t.py", line 30, in again\n    f.write(b)\n{FULL}'
            ),
            "disk_full",
            FULL.strip(),
        ),
        # The program says itself what the first exception means.
        (f"{FIRST}ValueError: bad\n{DIRECT}{OUTER}{FINISH}{FULL}", "disk_full", FULL.strip()),
    ],
)
def test_an_exception_of_a_clean_up_does_not_hide_the_failure(why, text, slug, line):
    found = why(text)
    assert (found.cause.slug, found.decisive.line.split("\n")[0]) == (slug, line)


PROGRESS = "".join(f"step {n} loss 2.{n} tok/s 12000\n" for n in range(100, 120))
NOTICE = "Spot instance interruption notice received, instance will be terminated in 2 minutes\n"
LATER = "".join(f"2026-11-30 03:{n}:00,000 INFO step {n} loss 2.1\n" for n in range(10, 20))


@pytest.mark.parametrize(
    ("text", "slug", "retry"),
    [
        # The job works until the end that was announced.
        (f"{PROGRESS}{NOTICE}{PROGRESS}Killed\n", "preempted", "yes"),
        (f"{PROGRESS}{NOTICE}{PROGRESS}", "preempted", "yes"),
        # The instance was not taken: the job works for much longer, or is complete.
        (f"{PROGRESS}{NOTICE}{LATER}Killed\n", "killed_unknown", "once"),
        (f"{PROGRESS}{NOTICE}{PROGRESS}Training complete.\n", "unknown", "once"),
    ],
)
def test_work_after_the_notice_of_an_end_does_not_refute_it(why, text, slug, retry):
    found = why(text)
    assert (found.cause.slug, found.retry) == (slug, retry)


UNIT = "Nov 30 03:20:41 gpu-01 systemd[1]: train.service: "
ENDED = f"{UNIT}Main process exited, code=killed, status=9/KILL\n{UNIT}Failed with result 'timeout'.\n"


@pytest.mark.parametrize(
    ("line", "slug", "rank"),
    [
        (f"{UNIT}State 'stop-sigterm' timed out. Killing.\n{ENDED}", "external_signal", None),
        (f"{UNIT}Watchdog timeout (limit 5min)!\n{ENDED}", "rank_stuck", None),
        (f"{UNIT}Service reached runtime time limit. Stopping.\n{ENDED}", "deadline_exceeded", None),
        ("heartbeat: rank 3 has not reported for 600 s, terminating the job\nKilled\n", "rank_stuck", 3),
        (
            "[launcher] timeout: training exceeded 3600 s; sending SIGKILL to pid 4100\nrun.sh: line 8:  4100 Killed    python t.py\n",
            "deadline_exceeded",
            None,
        ),
        ("heartbeat: rank 3 reports every 600 s\nKilled\n", "killed_unknown", None),
        ("[launcher] time-out: 3600 s\nKilled\n", "killed_unknown", None),
    ],
)
def test_who_killed_a_process_is_read_before_the_kill(why, line, slug, rank):
    found = why(f"{PROGRESS}{line}")
    assert (found.cause.slug, found.rank) == (slug, rank)


HANDLER = f"{TRACE}AttributeError: 'Trainer' object has no attribute 'state'\n"


@pytest.mark.parametrize(
    ("stop", "text", "slug"),
    [
        ("Caught signal 15 (SIGTERM), shutting down gracefully\n", HANDLER, "external_signal"),
        ("mpirun: killing job...\n", HANDLER, "external_signal"),
        # Another rank's report of a signal does not stop the rank that raises.
        ("[rank0]: Caught signal 15 (SIGTERM)\n", HANDLER.replace("\n", "\n[rank1]: "), "user_code_exception"),
        ("mpirun: Forwarding signal 18 to job\n", HANDLER, "user_code_exception"),
    ],
)
def test_an_exception_after_a_launcher_s_or_the_only_process_s_stop_is_no_cause(why, stop, text, slug):
    assert why(f"{PROGRESS}{stop}{text}").cause.slug == slug


OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.\n"
LOST_PEER = f"{TRACE}torch.distributed.DistBackendError: NCCL error in: x.cpp:2, remote process exited or there was a network error\n"
DESCRIBED = (
    "Name:             train-worker-{n}\nNamespace:        ml\nPriority:         0\nNode:             gpu-node-{n}/10.0.4.{n}\n"
    "Status:           Failed\nContainers:\n  pytorch:\n    State:          Terminated\n      Reason:       {reason}\n      Exit Code:    {code}\n\n"
)
YAML = (
    "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: train-worker-{n}\n    namespace: ml\n  spec:\n    nodeName: gpu-node-{n}\n"
    "  status:\n    containerStatuses:\n    - state:\n        terminated:\n          exitCode: {code}\n          reason: {reason}\n"
)
ROW = "train-worker-{n}   0/1     {reason}   0             3h    10.1.1.{n}    gpu-node-{n}   <none>           <none>\n"


@pytest.mark.parametrize("form", [DESCRIBED, YAML, ROW])
@pytest.mark.parametrize("killed", [1, 2])
def test_the_node_of_a_killed_pod_is_read_from_the_object_that_kubectl_prints(why, form, killed):
    pods = [(n, "OOMKilled" if n == killed else "Error", 137 if n == killed else 1) for n in range(3)]
    found = why(LOST_PEER + "".join(form.format(n=n, reason=reason, code=code) for n, reason, code in pods))
    assert (found.cause.slug, found.node) == ("host_oom", f"gpu-node-{killed}")


def test_a_log_below_two_described_pods_is_of_neither_node(why):
    pods = "".join(DESCRIBED.format(n=n, reason="Error", code=1) for n in (1, 2))
    found = why(f"{pods}step 1 loss 2.1\n{OOM}")
    assert (found.cause.slug, found.node) == ("host_oom", None)


def test_a_described_node_without_heartbeat_is_the_lost_one(why):
    condition = "  Ready   Unknown   Mon, 30 Nov 2026 03:10:00 +0000   NodeStatusUnknown   Kubelet stopped posting node status.\n"
    found = why(f"Name:               gpu-node-3\nRoles:              <none>\nConditions:\n{condition}")
    assert (found.cause.slug, found.node) == ("node_lost", "gpu-node-3")
    # Without its head the text names no node.
    assert why(condition).node is None


STAMP = "2026-11-30 03:20:40,001 "
BARE = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in step\n    x()\nTypeError: bad\n'
LOGURU = (
    'Traceback (most recent call last):\n\n> File "/app/t.py", line 3, in <module>\n    main()\n    └ <function main at 0x7f1c3e5b2a10>\n\n'
    '  File "/app/t.py", line 9, in main\n    x = ds[i]\n        │  └ 8812\n        └ <Dataset object at 0x7f>\n\nTypeError: bad\n'
)


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (f"{STAMP}[rank 2] ERROR uncaught\n{BARE}", 2),
        (f"{STAMP}[rank 2] ERROR {BARE}", 2),
        (f"[rank2]: {BARE}", 2),
        (f"2026-11-30 03:22:10.412 | ERROR    | loop:run:188 - [rank 3] An error has been caught:\n{LOGURU}", 3),
        # A line that reports no error announces no traceback of its rank.
        (f"{STAMP}[rank 2] INFO step 199\n{BARE}", None),
        (f"{STAMP}[rank 2] ERROR uncaught\nanother line\n{BARE}", None),
    ],
)
def test_a_logger_s_line_names_the_rank_of_the_traceback_below_it(why, text, rank):
    before = "".join(f"{STAMP}[rank {n}] INFO step 1{step}\n" for step in range(3) for n in range(4))
    found = why(before + text)
    assert (found.cause.slug, found.rank) == ("user_code_exception", rank)


SSH_127 = "pdsh@head: gpu-03: ssh exited with exit code 127\n"
NO_SHELL = "gpu-03: /bin/sh: torchrun: command not found\n"
STORE = "gpu-01: [rank0]:[E1130 03:10:15.1 socket.cpp:1011] [c10d] The client socket has timed out after 600000ms while trying to connect to (gpu-01, 29500).\n"


@pytest.mark.parametrize(
    ("text", "slug"),
    [(NO_SHELL + STORE + SSH_127, "command_not_found"), (NO_SHELL + STORE, "rdzv_unreachable")],
)
def test_a_command_whose_code_says_that_it_does_not_exist_keeps_the_others_waiting(why, text, slug):
    assert why(text).cause.slug == slug


KILLED_TASK = "srun: error: gpu-03: task 5: Killed\n"


def test_a_task_that_was_killed_after_time_outs_is_the_one_that_ran_out_of_memory(why):
    waits = "".join(WATCHDOG.format(rank=rank, limit=600055) for rank in range(4))
    found = why(waits + KILLED_TASK + OOM)
    assert (found.cause.slug, found.rank, found.node) == ("host_oom", 5, "gpu-03")
    # Without the batch system's words it was killed because the others had timed out.
    assert why(waits + KILLED_TASK).cause.slug != "killed_unknown"


def test_a_preemption_ends_a_job_that_worked_after_a_caught_exception(why):
    caught = 'Traceback (most recent call last):\n  File "/w/feed.py", line 8, in put\n    q.put(x)\n_pickle.PicklingError: no\n'
    steps = "".join(f"[rank{n % 4}]: step {n} loss 2.1\n" for n in range(120))
    found = why(caught + steps + SLURM_END.format(" DUE TO PREEMPTION"))
    assert (found.cause.slug, found.retry) == ("preempted", "yes")


def test_a_line_that_another_rank_survived_is_no_cause_beside_torchruns_first_rank(why):
    """The rank that failed left only its message; the other one, which worked on, a full disk for metrics."""
    steps = "".join(f"[rank0]: step {n} loss 2.{n}\n" for n in range(10, 150, 10))
    found = why(
        "[rank0]: step 0 loss 3.0\n[rank4]: ERROR:root:could not push metrics: [Errno 28] No space left on device: '/tmp/m/x'\n"
        + steps
        + "[rank1]: RuntimeError: The size of tensor a (128) must match the size of tensor b (64) at non-singleton dimension 1\n"
        + TABLE
    )
    assert (found.cause.slug, found.rank) == ("user_code_exception", 1)
