"""One failure of a job of eight ranks in the styles of launchers, loggers and collectors: cause and rank do not change."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import pytest

from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.explain import explain_files

LIBRARY = "/opt/conda/lib/python3.11/site-packages/torch/distributed/"


def traceback(*frames: str, error: str) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "{frame}", line 33, in step', "    loss = call(batch)"]
    return [*lines, *error.split("\n")]


CAUSES = {
    "user_code_exception": traceback("/app/train.py", "/app/data.py", error="KeyError: 'labels'"),
    "gpu_oom": traceback(
        "/app/train.py",
        error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.06 GiB is free.",
    ),
    "disk_full": traceback("/app/train.py", "/app/ckpt.py", error="OSError: [Errno 28] No space left on device"),
    "cuda_device_assert": traceback(
        "/app/train.py",
        error="RuntimeError: CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
    ),
}
VICTIMS = (
    traceback(
        "/app/train.py",
        f"{LIBRARY}c10d_logger.py",
        error="RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:22188",
    ),
    traceback(
        "/app/train.py",
        f"{LIBRARY}c10d_logger.py",
        error="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ),
)
Style = Callable[[int, int, str], str]
# Rank, number of the line (for times), text.
STYLES: dict[str, Style] = {
    "torch": lambda r, _, text: f"[rank{r}]: {text}",
    "torchrun": lambda r, _, text: f"[default{r % 4}]:[rank{r}]: {text}",
    "torchx": lambda r, _, text: f"job/{r // 4} [default{r % 4}]:[rank{r}]: {text}",
    "kubectl": lambda r, _, text: f"[pod/j-{r // 4}-abcde/main] [rank{r}]: {text}",
    "short": lambda r, _, text: f"R{r}| {text}",
    "srun": lambda r, _, text: f"{r}: {text}",
    "srun-torch": lambda r, _, text: f"{r // 4}: [rank{r}]: {text}",
    "mpirun": lambda r, _, text: f"[1,{r}]<stderr>:{text}",
    "mpirun-timestamps": lambda r, n, text: f"Sun Oct  1 15:01:{n % 60:02} 2017[1,{r}]<stderr>:{text}",
    "sagemaker": lambda r, _, text: f"[1,mpirank:{r},algo-{r // 4 + 1}]<stderr>:{text}",
    "vllm": lambda r, n, text: f"(VllmWorker rank={r} pid={4000 + r}) ERROR 01-01 10:00:{n % 60:02} [x.py:1] {text}",
    "lightning": lambda r, _, text: f"[rank: {r}] {text}",
    "words": lambda r, _, text: f"Rank {r}: {text}",
    "template": lambda r, _, text: f"[{r}]: {text}",
    "node": lambda r, _, text: f"[node{r // 4}:{r}] {text}",
    "hydra": lambda r, n, text: f"[2026-01-01 00:00:{n % 60:02},123][mod][ERROR] - [rank={r}] {text}",
    "iso": lambda r, n, text: f"2026-01-01T10:00:{n % 60:02}.{n:06}Z [rank{r}]: {text}",
    "cri": lambda r, n, text: f"2026-01-01T10:00:{n % 60:02}.{n:09}Z stderr F [rank{r}]: {text}",
    "color": lambda r, _, text: f"\x1b[3{r}m[rank{r}]:\x1b[0m {text}",
    "loguru": lambda r, n, text: f"2026-01-01 10:00:{n % 60:02}.123 | ERROR    | __main__:main:12 - [Rank {r}] {text}",
    "worker": lambda r, _, text: f"worker-{r} | {text}",
    "stern": lambda r, _, text: f"job-worker-{r} main {text}",
    "ddp": lambda r, _, text: f"[DDP rank {r}] {text}",
    "three": lambda r, _, text: f"[host1][rank {r}][pid 42] {text}",
    "equals": lambda r, _, text: f"rank={r} {text}",
    "dash": lambda r, _, text: f"rank-{r}: {text}",
    "json": lambda r, n, text: json.dumps({"ts": f"2026-01-01T10:00:{n % 60:02}", "rank": r, "message": text}),
    "process": lambda r, _, text: f"process {r}: {text}",
    "bar": lambda r, _, text: f"{r}| {text}",
    "of": lambda r, _, text: f"[{r}/8] {text}",
    "of-words": lambda r, _, text: f"Rank {r} of 8: {text}",
    "both": lambda r, _, text: f"[rank {r}, local_rank {r % 4}] {text}",
    "letters": lambda r, _, text: f"[gr={r} lr={r % 4}] {text}",
    "parallel": lambda r, _, text: f"[dp{r // 2} tp{r % 2} pp0 rank{r}] {text}",
    "composer": lambda r, n, text: f"2026-01-01 10:00:{n % 60:02},123: rank{r}[{4000 + r}][MainThread]: ERROR: {text}",
    "dashes": lambda r, n, text: f"2026-01-01 10:00:{n % 60:02},123 - ERROR - rank {r} - {text}",
    "prte": lambda r, _, text: f"[prterun-host1-4242@1,{r}]<stderr>: {text}",
    "libfabric": lambda r, _, text: f"node{r // 4}:rank{r}.python: {text}",
    "vllm-tensor": lambda r, _, text: f"(Worker_TP{r} pid={4000 + r}) ERROR 01-01 10:00:00 [x.py:1] {text}",
    "sglang": lambda r, n, text: f"[2026-01-01 10:00:{n % 60:02} TP{r}] {text}",
}
# Styles that show no rank.
NO_RANK: dict[str, Style] = {
    "ray": lambda r, _, text: f"(RayTrainWorker pid={4000 + r}, ip=10.0.0.{r}) {text}",
    "compose": lambda r, _, text: f"trainer-{r + 1}-1  | {text}",
    "gpu": lambda r, _, text: f"[GPU {r}] {text}",
    "pid": lambda r, _, text: f"[pid {40 + r}] {text}",
    "pipeline": lambda r, _, text: f"(Worker_PP{r // 4}_TP{r % 4} pid={4000 + r}) {text}",
    # It counts nodes, and calls them ranks.
    "skypilot": lambda r, _, text: f"(worker{r}, rank={r}, pid={4000 + r}, ip=10.0.0.{r}) {text}",
}


def stories() -> Iterator[tuple[str, int, list[tuple[int, str]]]]:
    """Cause, rank, and the lines of all ranks in order; half of them with mixed tracebacks."""
    draw = random.Random(3)
    for slug, lines in CAUSES.items():
        for victim in VICTIMS:
            for mixed in (False, True):
                culprit = draw.randrange(8)
                work = [(rank, f"step {step} loss {1 / (step + 1):.3f}") for step in range(12) for rank in range(8)]
                first = [(culprit, line) for line in lines]
                rest = [[(rank, line) for line in victim] for rank in [r for r in range(8) if r != culprit][:3]]
                if mixed:
                    work += first[:3]
                    rest.append(first[3:])
                    while any(rest):
                        work.append(draw.choice([one for one in rest if one]).pop(0))
                else:
                    work += [*first, *(line for one in rest for line in one)]
                yield slug, culprit, work


@pytest.mark.parametrize("style", [*STYLES, *NO_RANK])
def test_i23_p1_cause_and_rank_are_those_of_every_other_style(style, tmp_path):
    write = (STYLES | NO_RANK)[style]
    for slug, culprit, lines in stories():
        (tmp_path / "job.log").write_text(
            "\n".join(write(rank, n, text) for n, (rank, text) in enumerate(lines)) + "\n"
        )
        verdict = explain_files([tmp_path / "job.log"]).verdict
        assert (verdict.cause.slug, verdict.rank) == (slug, culprit if style in STYLES else None)


# Numbers before a line that count something else than ranks.
COUNTS = [
    "[trial 3] ",
    "[fold 3] ",
    "[seed=3] ",
    "[session 3] ",
    "[layer 3] ",
    "[batch 3] ",
    "[shard 3] ",
    "[run 3] ",
    "[actor 3] ",
    "[agent 3] ",
    "[replica 3] ",
    "[group 3] ",
    "[dp 3] ",
    "[tp 3] ",
    "[pp 1 tp 3] ",
    "[pp_rank 3] ",
    "[dp_rank=3] ",
    "[tp_rank: 3] ",
    "[node_rank 3] ",
    "(node_rank=3) ",
    "NODE_RANK=3 ",
    "[machine_rank 3] ",
    "[group_rank=3] ",
    "[role rank 3] ",
    "[data parallel rank 3] ",
    "[tensor_parallel_rank 3] ",
    "[expert rank 3] ",
    "[rank -1] ",
    "[rank None] ",
    "[ranks=0,3] ",
    "[nranks=3] ",
    "world_size=3 ",
    "[world 3] ",
    "[num_ranks: 3] ",
    "trial 3: ",
    "[cuda:3] ",
    "[NPU 3] ",
    "device 3: ",
    "<3>",
    "[MainThread:3] ",
    "it 3 ",
    "train_loss=3 ",
    "lr=0.003 ",
    "n=3 ",
    "[step 1/3] ",
    "[retry 1/3] ",
    "(attempt 1/3) ",
    "python[3]: ",
    "v3: ",
    "3% ",
    "00:03 ",
    "fatal: [gpu07]: ",
    "[node3]: ",
]


@pytest.mark.parametrize("prefix", COUNTS)
def test_i23_p1_a_number_that_counts_something_else_is_no_rank(prefix, why):
    lines = ["begin of the job", "step 10 loss 2.0", *CAUSES["user_code_exception"]]
    verdict = why("".join(f"{prefix}{line}\n" for line in lines))
    assert (verdict.cause.slug, verdict.rank, verdict.local_rank) == ("user_code_exception", None, None)


def test_words_in_an_object_of_json_are_no_tag_of_a_worker():
    assert parse_prefix(b'{"plan": "TP3", "error": "CUDA out of memory"}').rank is None


def test_a_message_behind_a_slots_prefix_names_its_rank(tmp_path):
    (tmp_path / "job.log").write_text(
        "[slot 7] RuntimeError: [Rank 3]: CUDA error: an illegal memory access was encountered\n"
    )
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("cuda_illegal_access", 3)
