"""A failure among the messages of ranks that waited, were stopped or ended by a signal keeps its cause and rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rankfall.explain import explain_files
from rankfall.model import Verdict

FRAMES: Final = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 310, in <module>',
    "    main()",
    '  File "/app/train.py", line 207, in main',
    "    out = step(batch)",
)
AGENT: Final = (
    "Traceback (most recent call last):",
    '  File "/usr/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
)
WAIT: Final = (
    "WorkNCCL(SeqNum=4217, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) "
    "ran for 600019 milliseconds before timing out."
)
# Lines of programs, and exceptions with their tracebacks.
LINES: Final = {
    "gpu_oom": "Fatal error: CUDA out of memory (GROMACS)",
    "nan_loss": "NaN loss encountered at step 300. Stopping.",
    "bad_parallel_config": "ERROR: number of processors does not match grid: 7 vs 8",
    "disk_full": "Fatal: write failed: disk quota exceeded",
    "dataset_missing": "ERROR: File /x/y.nc does not exist",
    "import_error": "ModuleNotFoundError: No module named 'flash_attn'",
    "checkpoint_corrupt": "_pickle.UnpicklingError: pickle data was truncated",
    "user_code_exception": "RuntimeError: shape mismatch: value tensor of shape [3]",
    "bad_sample": "soundfile.LibsndfileError: <exception str() failed>",
    "dataloader_died": "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed.",
}
EXCEPTIONS: Final = frozenset(
    {"import_error", "checkpoint_corrupt", "user_code_exception", "bad_sample", "dataloader_died"}
)


def printed(cause: str, prefix: str = "") -> list[str]:
    """What rank 3 prints."""
    return [prefix + line for line in ((*FRAMES, LINES[cause]) if cause in EXCEPTIONS else (LINES[cause],))]


def row(rank: int, code: int) -> list[str]:
    reason = f"Signal 6 (SIGABRT) received by PID 220{rank}" if code < 0 else "To enable traceback see: docs"
    return [
        "  time      : 2024-10-12_08:24:20",
        "  host      : gpu-1",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 220{rank})",
        "  error_file: <N/A>",
        f"  traceback : {reason}",
    ]


def watchdogs_abort(cause: str) -> list[str]:
    """The others wait ten minutes, and torchrun's first failure is one of them."""
    lines = printed(cause, "[rank3]: ")
    for rank in range(3):
        late = f"[Rank {rank}] Watchdog caught collective operation timeout: {WAIT}"
        lines += [
            f"[rank{rank}]:[E1012 08:14:3{rank}.540310917 ProcessGroupNCCL.cpp:616] {late}",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {late}",
        ]
    rows = [line for number in (1, 2, 3) for line in (f"[{number}]:", *row(number, 1 if number == 3 else -6))]
    return [*lines, *AGENT, "=" * 60, "Failures:", *rows, "Root Cause (first observed failure):", "[0]:", *row(0, -6)]


def srun_ends_the_rest(cause: str) -> list[str]:
    return [
        *printed(cause, "3: "),
        "srun: error: gpu-2: task 3: Exited with exit code 1",
        "slurmstepd: error: *** STEP 1234.0 ON gpu-1 CANCELLED AT 2024-10-12T08:14:22 ***",
        "srun: error: gpu-1: tasks 0-1: Terminated",
        "srun: error: gpu-2: task 2: Killed",
    ]


def others_lose_the_connection(cause: str) -> list[str]:
    lost = [
        *FRAMES[:3],
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:52184",
    ]
    own = printed(cause, "[rank3]: ")
    return [*(f"[rank0]: {line}" for line in lost), *own, *(f"[rank1]: {line}" for line in lost)]


def others_are_interrupted(cause: str) -> list[str]:
    stopped = [f"[rank{rank}]: {line}" for rank in (0, 1) for line in (*FRAMES, "KeyboardInterrupt")]
    return [*printed(cause, "[rank3]: "), *stopped]


def a_barrier_names_it(cause: str) -> list[str]:
    text = "Rank 0 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 3."
    return [
        *printed(cause, "[rank3]: "),
        f"[rank0]:[E1012 08:44:20.120 ProcessGroupGloo.cpp:143] {text} Please check rank 3 logs for faulty rank.",
        *(f"[rank0]: {line}" for line in (*FRAMES, f"RuntimeError: {text}", " Original exception: ")),
    ]


@pytest.mark.parametrize("cause", LINES)
@pytest.mark.parametrize(
    "text",
    [watchdogs_abort, srun_ends_the_rest, others_lose_the_connection, others_are_interrupted, a_barrier_names_it],
)
def test_i23_p1_a_failure_beside_those_who_waited_keeps_cause_and_rank(
    text: Callable[[str], list[str]], cause: str, tmp_path: Path
) -> None:
    verdict = explained(text(cause), tmp_path)
    assert (verdict.cause.slug, verdict.rank) == (cause, 3)


def explained(lines: list[str], folder: Path) -> Verdict:
    path = folder / "job.log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return explain_files([path]).verdict


TRY: Final = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [gpu-1]:29500 (errno: 111 - Connection refused)."
STEPS: Final = ("step 10 loss 2.301", "step 20 loss 2.120")


def test_i23_p8_a_failed_try_to_join_is_the_cause_only_if_nothing_followed(tmp_path: Path) -> None:
    killed = "./run.sh: line 12: 12345 Killed                  python train.py"
    assert explained([TRY, TRY], tmp_path).cause.slug == "rdzv_unreachable"
    assert explained([TRY, TRY, killed], tmp_path).cause.slug == "rdzv_unreachable"
    assert explained([TRY, *STEPS, killed], tmp_path).cause.slug == "killed_unknown"
    assert explained([TRY, *printed("import_error")], tmp_path).cause.slug == "import_error"
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:52184"
    assert explained([TRY, *FRAMES, lost], tmp_path).cause.slug == "peer_lost"


def test_i23_p8_an_error_before_steady_work_is_no_reason_for_a_later_end(tmp_path: Path) -> None:
    notice = "E external/xla/xla/service/rendezvous.cc:38] This thread has been waiting for `clique` and may be stuck."
    steps = [f"step {number}/100 loss 2.{number}" for number in range(20)]
    assert explained([notice, *steps], tmp_path).cause.slug == "unknown"


@pytest.mark.parametrize(
    "end",
    [
        ("terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error: driver shutting down"),
        ("terminate called without an active exception", "Aborted (core dumped)"),
        ("Fatal Python error: Aborted",),
    ],
)
def test_i23_p2_an_abort_directly_after_an_exception_is_of_the_processs_exit(
    end: tuple[str, ...], tmp_path: Path
) -> None:
    for cause in ("user_code_exception", "checkpoint_corrupt", "import_error"):
        verdict = explained([*printed(cause), *end], tmp_path)
        assert verdict.cause.slug == cause
        assert verdict.decisive is not None
        assert "what()" not in verdict.decisive.line


@pytest.mark.parametrize(
    "kind", ["_pickle.PicklingError: Can't pickle x", "jax.errors.ConcretizationTypeError: Abstract"]
)
def test_i23_p3_the_exception_of_a_remote_task_is_read_below_rays_line(kind: str, tmp_path: Path) -> None:
    name = kind.partition(":")[0].rpartition(".")[2]
    lines = [
        *FRAMES[:2],
        f"ray.exceptions.RayTaskError({name}): ray::Trainer.fit() (pid=2203, ip=10.0.0.3, actor_id=1f3a)",
        '  File "/app/trainer.py", line 33, in fit',
        "    raise skipped from exception_cause(skipped)",
        f"ray.exceptions.RayTaskError({name}): ray::Worker.step() (pid=2204, ip=10.0.0.4, actor_id=2b)",
        *FRAMES[1:],
        kind,
    ]
    verdict = explained(lines, tmp_path)
    assert verdict.cause.slug == "user_code_exception"
    assert verdict.decisive is not None
    assert verdict.decisive.line == kind


def test_i23_p3_a_lost_peer_below_rays_line_is_no_exception_of_the_job(tmp_path: Path) -> None:
    lines = [
        *FRAMES[:2],
        "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.step() (pid=2204, ip=10.0.0.4, actor_id=2b)",
        *FRAMES[1:],
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:52184",
    ]
    assert explained(lines, tmp_path).cause.slug == "peer_lost"


def test_i23_p7_a_call_whose_line_is_cut_is_compared_by_its_kind_alone(tmp_path: Path) -> None:
    line = "[rank{0}]:[E131 14:40:16.686699493 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType={1}"
    full = ", NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800004 milliseconds before timing out."
    same = [line.format(1, "BROADCAST") + full, line.format(3, "BROADCAST, NumelI")]
    assert explained(same, tmp_path).cause.slug == "collective_timeout"
    other = [line.format(rank, "BROADCAST") + full for rank in (0, 1)]
    other.append(line.format(3, "ALLREDUCE, NumelI"))
    verdict = explained(other, tmp_path)
    assert (verdict.cause.slug, verdict.rank) == ("collective_mismatch", 3)


def test_i23_p7_parameters_that_never_came_are_a_consequence_of_a_time_out(tmp_path: Path) -> None:
    none = "[rank0]: RuntimeError: DDP expects same model across all ranks, but Rank 0 has 51 params, while rank 1 has inconsistent 0 params."
    late = f"[rank1]:[E606 04:23:08.365393482 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: {WAIT}"
    frames = [f"[rank0]: {line}" for line in FRAMES]
    assert explained([*frames, none], tmp_path).cause.slug == "collective_mismatch"
    assert explained([*frames, none, late], tmp_path).cause.slug == "collective_timeout"


def test_i23_p1_a_line_that_several_ranks_print_names_none(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: Gradient norm is nan" for rank in (2, 0, 3)]
    verdict = explained([*lines, *AGENT], tmp_path)
    assert (verdict.cause.slug, verdict.rank) == ("nan_loss", None)


def test_i23_p2_the_batch_systems_end_after_a_programs_own_abort_is_no_cancellation(tmp_path: Path) -> None:
    lines = [
        "Abort(5) on node 285 (rank 285 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 5) - process 285",
        "slurmstepd: error: *** STEP 4110233.0 ON cn71168 CANCELLED AT 2025-03-22T11:20:42 ***",
    ]
    verdict = explained(lines, tmp_path)
    assert (verdict.cause.slug, verdict.rank) == ("user_exit", 285)


def test_i23_p3_a_type_at_which_the_text_ends_is_no_exception(tmp_path: Path) -> None:
    lines = [
        "W0118 03:41:46.171000 2410085 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGINT death signal, shutting down workers",
        "^CTraceback (most recent call last):",
        '  File "torch/distributed/elastic/multiprocessing/api.py", line 84, in _terminate_process_handler',
        "    raise SignalException(f'Process {os.getpid()} got signal: {sigval}', sigval=sigval)",
        "torch.distributed.elastic.multiprocessing.api.SignalExcep",
    ]
    assert explained(lines, tmp_path).cause.slug in {"cancelled", "external_signal"}


def test_i23_p1_a_file_of_one_rank_keeps_its_lines_beside_prefixes_of_that_rank(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "rank-0.log").write_text(
        "tcp_socket.cc:69: Failed bind on 10.0.0.3:3026 ,errno=98\n[rank0]:[W1121 09:41:49.153 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called\n"
    )
    (folder / "rank-1.log").write_text("step 1 loss 2.0\n")
    verdict = explain_files([folder]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("address_in_use", 0)


def test_i23_p1_the_process_in_rays_line_about_a_remote_task_gives_its_rank(tmp_path: Path) -> None:
    lines = [
        "(TrainWorker pid=2204, ip=10.0.0.4) Setting up process group for: env:// [rank=1, world_size=4]",
        "(TrainWorker pid=99) Setting up process group for: env:// [rank=0, world_size=4]",
        *FRAMES[:2],
        "ray.exceptions.RayTaskError(KeyError): ray::_Inner.train() (pid=90, ip=10.0.0.1, actor_id=1f3a)",
        '  File "/app/trainer.py", line 33, in fit',
        "ray.exceptions.RayTaskError(KeyError): ray::Worker.step() (pid=2204, ip=10.0.0.4, actor_id=2b)",
        *FRAMES[1:],
        "KeyError: 'labels'",
    ]
    verdict = explained(lines, tmp_path)
    assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", 1)


def test_i23_a_line_of_a_collector_is_read_once_whatever_it_adds(tmp_path: Path) -> None:
    dead = (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly "
        "exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer"
    )
    lines = [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in (*["loading"] * 99, dead)]
    assert explained(lines, tmp_path).cause.slug == "killed_unknown"
