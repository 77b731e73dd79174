"""Exit codes that say the cause: the table is the model's, only what is sure has one, the rest keeps the command's own code."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model.exit_codes import CAUSE_CODES
from rankfall_inside import exit_codes, procfs
from rankfall_inside.wrapper.outcome import RankFailures
from support.helpers import wait_until
from support.patience import scaled

CAUSE = ("--exit-code", "cause")


def test_the_table_is_that_of_the_model() -> None:
    assert dict(CAUSE_CODES) == exit_codes.CODES


@pytest.mark.parametrize(
    ("error", "group"),
    [
        ({"types": ["ValueError"]}, "user"),
        ({"types": ["KeyError", "__main__.Mine"]}, "user"),
        ({"types": ["ModuleNotFoundError"]}, "import_error"),
        ({"types": ["SyntaxError"]}, "import_error"),
        ({"types": ["__main__.Mine"], "mark": "retryable"}, "user_retryable"),
        ({"types": ["__main__.Mine"], "mark": "final"}, "user"),
        ({"types": ["torch.OutOfMemoryError"]}, "gpu_oom"),
        ({"types": ["RuntimeError"], "message": "CUDA out of memory. Tried to allocate 2 GiB"}, "gpu_oom"),
        ({"types": ["RuntimeError", "OSError"], "chain": ["x", "[Errno 28] No space left on device"]}, "disk_full"),
        ({"types": ["MemoryError"]}, "memory"),
        ({"types": ["numpy.core._exceptions._ArrayMemoryError"]}, "memory"),
        # What may be another's fault, or is known too little, says nothing.
        ({"types": ["RuntimeError"], "message": "Connection closed by peer"}, None),
        ({"types": ["torch.distributed.DistBackendError"], "message": "NCCL error"}, None),
        ({"types": ["ValueError", "torch.distributed.DistNetworkError"]}, None),
        ({"types": ["ValueError", "ConnectionResetError"]}, None),
        ({"types": ["FileNotFoundError"], "message": "[Errno 2]"}, None),
        ({"types": ["SystemExit"], "exit_code": 3}, None),
        ({"types": ["KeyboardInterrupt"]}, None),
        ({"types": []}, None),
        ({"types": "ValueError", "chain": 5, "message": [1], "mark": {}}, None),
    ],
)
def test_only_errors_whose_cause_is_sure_have_one(error, group) -> None:
    assert exit_codes.of_error(error) == group


def test_errors_s38_a_bus_error_of_a_data_worker_is_memory() -> None:
    text = "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."
    error = {"types": ["RuntimeError", "RuntimeError"], "message": "DataLoader worker exited", "chain": ["x", text]}
    assert exit_codes.of_error(error) == "memory"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from(["types", "chain", "message", "mark", "exit_code", "raised_ns"]), JSON), JSON)
def test_whatever_a_job_records_is_no_obstacle(error, ordinal) -> None:
    falls = RankFailures()
    falls.error({"error": error, "ordinal": ordinal, "at_ns": ordinal})
    falls.ended(0, code=1, signum=None, oom_kills=None, ours=False)
    assert falls.code() in {None, *exit_codes.CODES.values()}
    falls.first_error()


def fall(falls: RankFailures, ordinal: int, kind: str, at: int, code: int = 1, *, ours: bool = False) -> None:
    falls.error({"error": {"types": [kind], "raised_ns": at}, "ordinal": ordinal})
    falls.ended(ordinal, code=code, signum=None, oom_kills=None, ours=ours)


def test_the_earliest_fall_decides_and_an_unsure_one_hides_what_follows() -> None:
    falls = RankFailures()
    fall(falls, 0, "RuntimeError", 20)
    fall(falls, 1, "ImportError", 10)
    assert falls.code() == 201
    assert falls.first_error()["ordinal"] == 1
    fall(falls, 2, "RuntimeError", 5)
    assert falls.code() is None


def test_an_error_that_its_rank_survived_is_none() -> None:
    falls = RankFailures()
    fall(falls, 0, "ValueError", 1, code=0)
    assert falls.first_error() is None
    fall(falls, 1, "ImportError", 2)
    assert falls.code() == 201
    falls = RankFailures()
    falls.error({"error": {"types": ["ValueError"], "exit_code": 3}, "ordinal": 0})
    falls.ended(0, code=4, signum=None, oom_kills=None, ours=False)
    assert falls.first_error() is None


def test_a_crash_after_an_error_of_the_same_rank_is_its_teardown() -> None:
    falls = RankFailures()
    falls.error({"error": {"types": ["RuntimeError"], "raised_ns": 1}, "ordinal": 0})
    falls.ended(0, code=None, signum=signal.SIGSEGV, oom_kills=None, ours=False)
    assert falls.code() is None


def test_the_oom_counter_is_proof_whatever_the_rank_said() -> None:
    falls = RankFailures()
    falls.error({"error": {"types": ["RuntimeError"], "raised_ns": 1}, "ordinal": 0})
    falls.ended(0, code=1, signum=None, oom_kills=1, ours=False)
    assert falls.code() == 204


RANK = "RANK=0 LOCAL_RANK=0"
# The end of a killed process is known only to the wrapper that opened its pidfd before the shell reaped it.
WHEN_SEEN = """
import glob, os, time
wrapper = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
def is_seen(path):
    try:
        return f"Pid:\\t{os.getpid()}\\n" in open(path).read()
    except OSError:
        return False
while not any(map(is_seen, glob.glob(f"/proc/{wrapper}/fdinfo/*"))):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise ValueError('x')", 200),
        ("import no_such_module", 201),
        ("from rankfall_inside import Retryable\nraise Retryable('x')", 202),
        ("from rankfall_inside import Final\nraise Final('x')", 200),
        ("raise SystemExit(138)", 202),
        pytest.param(WHEN_SEEN + "os.kill(os.getpid(), 9)", 217, id="killed"),
        pytest.param(WHEN_SEEN + "os.kill(os.getpid(), 11)", 216, id="segfault"),
        ("raise OSError(28, 'No space left on device')", 210),
        ("raise RuntimeError('Connection closed by peer')", 77),
        ("raise SystemExit(3)", 77),
        ("import os; os.abort()", 77),
        ("print('fine')", 77),
    ],
)
def test_a_launcher_that_always_ends_with_one_code_says_the_cause(pod, text: str, code: int) -> None:
    script = pod.script(text)
    command = f"{RANK} {sys.executable} {script}; exit 77"
    assert pod.run("sh", "-c", command, options=CAUSE).returncode == code


def test_success_is_success_and_without_the_option_the_code_is_the_commands(pod) -> None:
    script = pod.script("raise ValueError('x')")
    assert pod.run("sh", "-c", f"{RANK} {sys.executable} {script}; exit 0", options=CAUSE).returncode == 0
    assert pod.run("sh", "-c", f"{RANK} {sys.executable} {script}; exit 77").returncode == 77


def test_a_signal_from_outside_is_control(pod) -> None:
    text = "import signal, sys\nsignal.signal(15, lambda *a: sys.exit(1))\nprint('ready', flush=True)\nwhile True: signal.pause()"
    process = pod.start(sys.executable, pod.script(text), options=CAUSE, RANK="0", LOCAL_RANK="0")
    assert process.stdout is not None
    while b"ready" not in process.stdout.readline():
        pass
    process.terminate()
    process.communicate(timeout=scaled(20))
    assert process.returncode == 213


def test_a_command_that_was_killed_by_somebody_unknown_says_so(pod) -> None:
    process = pod.start("sleep", "1000", options=CAUSE)
    wait_until(lambda: pod.records("slot_start") and (pod.dir / "ctl").exists(), timeout=20, what="the wrapper")
    found = wait_until(
        lambda: [p for p in procfs.descendants(process.pid) if p.comm == "sleep"], timeout=20, what="the command"
    )
    os.kill(found[0].pid, signal.SIGKILL)
    process.communicate(timeout=scaled(20))
    assert process.returncode == 217


def test_a_stop_of_ours_keeps_the_commands_code(pod) -> None:
    process = pod.start("sh", "-c", "echo ready; sleep 1000", options=CAUSE)
    assert process.stdout is not None
    while b"ready" not in process.stdout.readline():
        pass
    pod.control("stop 0 another slot failed")
    process.communicate(timeout=scaled(20))
    assert process.returncode in {137, 143}
