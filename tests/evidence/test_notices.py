"""What a program or a pod survived is no cause: warnings, tries that are repeated, a script's commands, events before later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from rankfall.explain import explain_files

NOTICES: Final = {
    "shell": "./run.sh: line 12: nvcc: command not found",
    "nvidia-smi": "Failed to initialize NVML: Driver/library version mismatch",
    "torch": "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 10010).",
    "c10d bind": "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    "c10d connect": "[W510 12:23:51.395368149 socket.cpp:663] [c10d] The client socket has failed to connect to [gpu-1]:29500 (errno: 111 - Connection refused).",
    "TensorFlow": "2022-07-12 10:11:12.123456: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory",
    "hub": "'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NameResolutionError)\"), '(Request ID: 1)')' thrown while requesting HEAD https://huggingface.co/x/resolve/main/config.json",
    "gcsfuse": "ERROR 2024: gcsfuse: ReadFile: input/output error, retrying",
    "scheduler": "  Warning  FailedScheduling  9m    default-scheduler  0/5 nodes are available: 5 Insufficient nvidia.com/gpu.\n  Normal   Scheduled         8m    default-scheduler  Successfully assigned ml/train-worker-3 to gpu-2",
    "kubelet pull": '  Warning  Failed     3m    kubelet  Failed to pull image "img:1": rpc error: code = Unknown desc = context deadline exceeded\n  Normal   Pulled     1m    kubelet  Successfully pulled image "img:1" in 61s',
    "kubelet mount": '  Warning  FailedMount  9m    kubelet  MountVolume.SetUp failed for volume "kube-api-access" : failed to sync configmap cache: timed out waiting for the condition\n  Normal   Started      8m    kubelet  Started container pytorch',
    "triton": "A matching Triton is not available, some optimizations will not be enabled.\nError caught was: No module named 'triton'",
    "pip": "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.",
    "rm": "rm: cannot remove 'out/last.ckpt': No such file or directory",
    "ld.so": "ERROR: ld.so: object '/usr/lib/libtcmalloc.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
}
TRACEBACK: Final = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 207, in main\n    out = step(batch)\n{}'
)
ENDS: Final = {
    "user_code_exception": TRACEBACK.format("RuntimeError: shape mismatch: value tensor of shape [3]"),
    "checkpoint_corrupt": TRACEBACK.format("_pickle.UnpicklingError: pickle data was truncated"),
    "peer_lost": TRACEBACK.format(
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:52184"
    ),
    "segfault": "Segmentation fault (core dumped)",
    "gpu_oom": "Fatal error: CUDA out of memory (GROMACS)",
    "nan_loss": "NaN loss encountered at step 300. Stopping.",
    "disk_full": "Fatal: write failed: disk quota exceeded",
    "cancelled": "slurmstepd: error: *** JOB 42 ON n0 CANCELLED AT 2025-01-01T10:00:01 ***",
}


@pytest.mark.parametrize("cause", ENDS)
@pytest.mark.parametrize("notice", NOTICES)
def test_i23_p8_what_a_job_survived_is_not_the_cause_of_its_end(notice: str, cause: str, tmp_path: Path) -> None:
    verdict = explained(f"{NOTICES[notice]}\nloading model\n{ENDS[cause]}\n", tmp_path)
    assert verdict == cause


@pytest.mark.parametrize(
    ("notice", "cause"),
    [
        ("shell", "command_not_found"),
        ("nvidia-smi", "driver_too_old"),
        ("torch", "driver_too_old"),
        ("c10d bind", "address_in_use"),
        ("c10d connect", "rdzv_unreachable"),
        ("gcsfuse", "shared_fs_error"),
    ],
)
def test_i23_p8_a_notice_is_the_cause_if_only_its_consequences_follow(notice: str, cause: str, tmp_path: Path) -> None:
    after = {
        "command_not_found": "srun: error: n1: task 0: Exited with exit code 127",
        "driver_too_old": TRACEBACK.format("RuntimeError: No CUDA GPUs are available"),
        "address_in_use": TRACEBACK.format(
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)."
        ),
        "rdzv_unreachable": "",
        "shared_fs_error": "",
    }
    assert explained(f"{NOTICES[notice]}\n{after[cause]}\n", tmp_path) == cause


@pytest.mark.parametrize("event", ["scheduler", "kubelet pull", "kubelet mount"])
def test_i23_p8_an_event_of_a_pod_after_which_nothing_went_on_is_the_cause(event: str, tmp_path: Path) -> None:
    causes = {"scheduler": "unschedulable", "kubelet pull": "image_pull", "kubelet mount": "volume_mount"}
    first, passed = NOTICES[event].split("\n")
    assert explained(f"{first}\n", tmp_path) == causes[event]
    assert explained(f"{passed}\n{first}\n", tmp_path) == causes[event]
    assert explained(f"{first}\n{passed}\n", tmp_path) == "unknown"


def explained(text: str, folder: Path) -> str:
    path = folder / "job.log"
    path.write_text(text, encoding="utf-8")
    return explain_files([path]).verdict.cause.slug


FRAME: Final = '  File "/opt/lib/python3.10/{}", line 53, in {}\n    call()'
# What helpers of a process, scripts and observers print after its end.
AFTER: Final = {
    "pin_memory": "Exception in thread Thread-4 (_pin_memory_loop):\nTraceback (most recent call last):\n"
    + FRAME.format("threading.py", "_bootstrap_inner")
    + "\n"
    + FRAME.format("site-packages/torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop")
    + "\n"
    + FRAME.format("multiprocessing/connection.py", "Client")
    + "\nFileNotFoundError: [Errno 2] No such file or directory",
    "wandb": "Exception in thread IntMsgThr:\nTraceback (most recent call last):\n"
    + FRAME.format("threading.py", "_bootstrap_inner")
    + "\n"
    + FRAME.format("site-packages/wandb/sdk/wandb_run.py", "check_internal_messages")
    + "\nwandb.sdk.lib.mailbox.MailboxError: transport failed",
    "tracker": "Traceback (most recent call last):\n"
    + FRAME.format("multiprocessing/resource_tracker.py", "main")
    + "\nKeyError: '/psm_8a5d1f2c'",
    "notify": "curl: (6) Could not resolve host: hooks.slack.com",
    "clean": "cp: cannot stat 'out/model.pt': No such file or directory",
    "raylet": "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 2203 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
    "agent": "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1234 got signal: 15",
}


@pytest.mark.parametrize("cause", ["user_code_exception", "checkpoint_corrupt", "peer_lost"])
@pytest.mark.parametrize("after", AFTER)
def test_i23_p9_what_follows_the_end_of_a_process_is_not_its_cause(after: str, cause: str, tmp_path: Path) -> None:
    assert explained(f"loading model\n{ENDS[cause]}\n{AFTER[after]}\n", tmp_path) == cause


def test_i23_p9_an_error_of_a_helper_is_the_cause_if_nothing_else_failed(tmp_path: Path) -> None:
    assert explained(f"loading model\n{AFTER['wandb']}\n", tmp_path) == "hub_unreachable"
    assert explained(f"loading model\n{AFTER['notify']}\n", tmp_path) == "hostname_resolution"
