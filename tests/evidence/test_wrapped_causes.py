"""Reports that only repeat another process's failure give way to that process's messages; notices of a healthy start are no cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankfall.evidence.readers.classify import exception_meaning
from rankfall.explain import explain_files
from rankfall.verdict.signatures.catalogue import default_catalogue

TIMEOUT = (
    "(WorkerDict pid={pid}, ip=10.0.0.4) [rank3]:[E809 16:10:44.7 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=123, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
REPORT = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. "
    "RayTask ID: ff Worker ID: 39 Node ID: 1f Worker IP address: 10.0.0.4 Worker port: 10005 Worker PID: {pid} Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "Worker unexpectedly exits with a connection error code 2. End of file.\n"
)
CALLED = """Traceback (most recent call last):
  File "launch.py", line 20, in run
    subprocess.check_call(cmd)
  File "/usr/lib/python3.10/subprocess.py", line 369, in check_call
    raise CalledProcessError(retcode, cmd)
subprocess.CalledProcessError: Command '{command}' {end}.
"""
OOM = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)
"""
SHORT_OF_MEMORY = (
    "ERROR: Unexpected BUS error encountered in DataLoader worker. This might be caused by insufficient shared memory (shm), "
    "please check whether use_shared_memory is set and storage space in /dev/shm is enough\n"
)
EMPTY = """Traceback (most recent call last):
  File "{file}", line 482, in _get_data
    data = self._data_queue.get(timeout=self._timeout)
_queue.Empty

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/usr/lib/python3.7/threading.py", line 926, in _bootstrap_inner
    self.run()
"""


@pytest.fixture
def cause(tmp_path: Path) -> Callable[[str], str]:
    def told(text: str) -> str:
        (tmp_path / "job.log").write_text(text)
        return explain_files([tmp_path / "job.log"]).verdict.cause.slug

    return told


def test_a_supervisors_report_of_a_process_gives_way_to_its_messages(cause: Callable[[str], str]) -> None:
    own = TIMEOUT.format(pid=944)
    for text in (own + REPORT.format(pid=944), REPORT.format(pid=944) + own):
        assert cause(text) == "collective_timeout"
    # Another process died silently, and this one waited for it.
    assert cause(own + REPORT.format(pid=955)) == "killed_unknown"
    # The process had continued after its error.
    steps = "".join(f"(WorkerDict pid=944, ip=10.0.0.4) step {n}/100 loss 2.{n}\n" for n in range(50))
    survived = "(WorkerDict pid=944, ip=10.0.0.4) ConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert cause(survived + steps + REPORT.format(pid=944)) == "killed_unknown"


@pytest.mark.parametrize(
    "command",
    [
        "['/usr/bin/python3', '-u', 'train.py']",
        "ssh -p 22 n1 'python3 train.py'",
        "['/opt/bin/torchrun', 'train.py']",
        "mpirun -np 2 python train.py",
    ],
)
def test_a_script_that_started_the_training_reports_its_end(cause: Callable[[str], str], command: str) -> None:
    for end, slug in (
        ("died with <Signals.SIGSEGV: 11>", "segfault"),
        # Python's code of any exception, and one that a program chose.
        ("returned non-zero exit status 1", "unknown"),
        ("returned non-zero exit status 3", "user_exit"),
        ("returned non-zero exit status 137", "killed_unknown"),
    ):
        assert cause(CALLED.format(command=command, end=end)) == slug
    # The end adds nothing to the exception before it.
    assert cause(OOM + CALLED.format(command=command, end="returned non-zero exit status 1")) == "gpu_oom"


def test_a_command_of_the_program_that_fails_is_its_own_error(cause: Callable[[str], str]) -> None:
    for command in ("['git', 'rev-parse', 'HEAD']", "['/usr/bin/python3', '-m', 'pip', 'install', 'x']"):
        assert cause(CALLED.format(command=command, end="returned non-zero exit status 1")) == "user_code_exception", (
            command
        )


def test_an_ssh_command_that_found_no_host_is_no_end_of_the_training(cause: Callable[[str], str]) -> None:
    text = CALLED.format(command="ssh n1 hostname", end="returned non-zero exit status 255")
    assert cause(text) == "ssh_unreachable"


def test_an_empty_queue_of_a_data_loader_is_not_its_own_error(cause: Callable[[str], str]) -> None:
    loader = EMPTY.format(file="/opt/lib/python3.7/site-packages/paddle/fluid/dataloader/dataloader_iter.py")
    assert cause(SHORT_OF_MEMORY + loader) == "shm_exhausted"
    assert cause(loader) == "dataloader_died"
    assert cause(EMPTY.format(file="/w/my_queue.py")) == "user_code_exception"


def test_the_rank_of_a_paddle_container_is_local(tmp_path: Path) -> None:
    text = "LAUNCH ERROR 2022-10-25 16:22:40,176 Container failed !!!\nContainer rank 3 status failed cmd ['/usr/bin/python3', '-u', 'train.py'] code -11 log log/workerlog.3\n"
    (tmp_path / "job.log").write_text(text)
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.local_rank) == ("segfault", 3)


HEALTHY = {
    "oneCCL": """2024:08:21-11:35:37:( 8857) |CCL_WARN| fallback to 'sockets' mode of ze exchange mechanism
2024:08:21-11:35:37:( 8857) |CCL_WARN| did not find MPI-launcher specific variables, switch to ATL/OFI, to force enable ATL/MPI set CCL_ATL_TRANSPORT=mpi
2024:08:21-11:35:37:( 8857) |CCL_INFO| local_proc_idx: 0, local_proc_count: 2
""",
    "JAX": """I0321 19:57:33.402118   31207 tpu_initializer_helper.cc:94] libtpu.so already in use by another process. Not attempting to load libtpu.so in this process.
INFO:jax._src.xla_bridge:Unable to initialize backend 'rocm': NOT_FOUND: Could not find registered platform with name: "rocm". Available platform names are: CUDA
INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory
INFO:2024-01-01 10:00:00,000:jax._src.xla_bridge:927: Unable to initialize backend 'tpu': UNAVAILABLE: No TPU Platform available.
I0000 00:00:1711301822.558010  981991 coordination_service.cc:686] /job:jax_worker/replica:0/task:3 has disconnected from coordination service.
""",
    "NCCL": """n1:565:595 [0] NCCL INFO NET/OFI No eligible providers were found
n1:565:595 [0] NCCL INFO Call to connect returned Connection refused, retrying
n1:565:595 [0] NCCL INFO Connected all rings
""",
    "PaddlePaddle": """I0905 13:55:12.181572 29951 tcp_utils.cc:134] Retry to connect to 10.0.0.3:41000 while the server is not yet listening.
W0905 13:55:12.181572 29951 gen_comm_id_helper.cc:120] connect addr=10.0.0.3:6170 failed 3 times with reason: Connection refused retry after 1.5 seconds
I0905 13:55:15.181572 29951 tcp_utils.cc:107] Successfully connected to 10.0.0.3:41000
""",
    "Ray": """(raylet) [2025-01-01 10:00:00,000 E 4242 4242] (raylet) file_system_monitor.cc:116: /tmp/ray/session_2025 is over 95% full, available space: 2.00 GB; capacity: 69.9 GB. Object creation will fail if spilling is required.
Error executing job with overrides: ['a=1']
""",
    "Ascend": """[W723 10:35:58.297759598 compiler_depend.ts:526] Warning: NPU warning, error code is 507034[Error]:
""",
    "gRPC": """I0320 07:08:40.420663770    4914 subchannel.cc:677]          Connect failed: {"created":"@1521529720.420552965","description":"Failed to connect to remote host: OS Error","errno":111}
I0320 07:08:40.420897480    4914 subchannel.cc:484]          Retry in 998 milliseconds
""",
    "XLA": """2024-07-29 18:26:11.031300: E external/xla/xla/service/rendezvous.cc:38] This thread has been waiting for `initialize clique` for 10 seconds and may be stuck. Expected 8 threads to join the rendezvous, but not all of them arrived on time.
2024-07-29 18:26:21.031300: E external/xla/xla/service/rendezvous.cc:43] Thread is unstuck! Warning above was a false-positive. Perhaps the timeout is too short: initialize clique
""",
}


@pytest.mark.parametrize("library", HEALTHY)
def test_notices_of_a_job_that_then_works_are_no_cause(cause: Callable[[str], str], library: str) -> None:
    steps = "".join(f"step {number}/100 loss 2.{number}\n" for number in range(20))
    assert cause(HEALTHY[library] + steps) == "unknown"


def test_a_rank_whose_own_command_failed_raised_the_exception(cause: Callable[[str], str]) -> None:
    """Its line has a rank, or its hook recorded it; another rank lost its peer."""
    failed = CALLED.format(command="['/usr/bin/python3', 'prepare.py']", end="returned non-zero exit status 3")
    lost = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:545] Connection closed by peer [10.0.0.2]:4242\n"
    ranked = "".join(f"[rank1]: {line}\n" for line in failed.splitlines())
    assert cause(ranked + lost) == "user_code_exception"
    chain = [("subprocess.CalledProcessError", "Command '['python3', 'prepare.py']' returned non-zero exit status 3.")]
    assert exception_meaning(default_catalogue(), chain, frame="train.py:main").slug == "user_code_exception"
