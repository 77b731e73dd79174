"""The allocation of this process: nodes, steps, the words that start a step, and other tasks of the same srun.

Of several tasks that start one run, task 0 supervises and the others wait for its end: a task that leaves early could
make srun end the others (WaitTime). Task 0 publishes a port in the home folder, which all nodes share; the kernel closes
the connections at its end, whatever ends it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends.protocol import PlatformEnd
from rankfall.model import InfrastructureError, Refused, numbers
from rankfall.rundir.lease import make_folder, write_file

_TIMEOUT_S: Final = 30.0
# Before the SIGKILL that follows a SIGTERM after 30 s (KillWait).
_SOON_S: Final = 5.0
# srun takes these as options; those of the allocation do not fit a step of one task.
_OPTIONS: Final = re.compile(
    r"SLURM_(?:GPUS|GPUS_PER_(?:NODE|TASK|SOCKET)|NTASKS_PER_\w+|TRES_PER_TASK|TRES_BIND|MEM_PER_\w+|CPU_BIND\w*|CPUS_PER_(?:TASK|GPU)"
    r"|GPU_BIND|DISTRIBUTION|HINT|EXCLUSIVE|EXACT|OVERCOMMIT|EXPORT_ENV|KILL_BAD_EXIT|WAIT|MPI_TYPE|LABELIO|UNBUFFEREDIO"
    r"|STD(?:IN|OUT|ERR)MODE|MULTI_PROG|THREADS_PER_CORE|CORE_SPEC|STEP_\w+|SRUN_\w+|PROCID|LOCALID|RELATIVE|SPREAD_JOB)"
    r"|SRUN_\w+"
)
# The job may read these.
_RESTORED: Final = re.compile(r"SLURM_(?:GPUS(?:_PER_\w+)?|NTASKS_PER_NODE|MEM_PER_\w+|CPUS_PER_\w+)")
# States of a node that is used only if the others do not suffice.
_TROUBLED: Final = re.compile(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|\*")
_LIVE: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "STAGE_OUT"})


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node of an allocation; ``troubled``: down, drained or failing in Slurm's eyes."""

    name: str
    address: str
    troubled: bool = False


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation; ``nodes`` in Slurm's order."""

    job: str
    nodes: tuple[Node, ...]

    def chosen(self, count: int, *, exclude: Collection[str] = ()) -> tuple[Node, ...]:
        """Returns the nodes of ``count`` slots; ``exclude`` and troubled ones only if the others do not suffice.

        Raises:
            Refused: The allocation is too small.
        """
        if count > len(self.nodes):
            raise Refused(
                f"$.nnodes: the job needs {count} nodes, Slurm job {self.job} has {len(self.nodes)}",
                hint=f"sbatch --nodes {count}, or --nnodes {len(self.nodes)}; --backend local starts all slots on this machine",
            )
        ranked = sorted(self.nodes, key=lambda node: (node.name in exclude, node.troubled))
        picked = {node.name for node in ranked[:count]}
        return tuple(node for node in self.nodes if node.name in picked)


def inside(environ: Mapping[str, str]) -> bool:
    """True if this process runs in an allocation and can start steps."""
    return bool(environ.get("SLURM_JOB_ID")) and shutil.which("srun") is not None


def size(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Returns nodes and ranks per node that the allocation suggests: tasks per node if above one, else GPUs."""
    tasks, gpus = (numbers.whole(environ.get(name)) for name in ("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE"))
    return numbers.whole(environ.get("SLURM_JOB_NUM_NODES")) or None, tasks if tasks and tasks > 1 else gpus or None


def processors(environ: Mapping[str, str], *, word: str) -> int | None:
    """GPUs or CPUs of a node for the word ``gpu``, ``cpu`` or ``auto``; None if no variable of Slurm has them."""
    gpus = numbers.whole(environ.get("SLURM_GPUS_ON_NODE")) if word != "cpu" else None
    return gpus or (numbers.whole(environ.get("SLURM_CPUS_ON_NODE")) if word != "gpu" else None)


def read(environ: Mapping[str, str]) -> Allocation:
    """Returns this process's allocation.

    Raises:
        Refused: There is none.
        InfrastructureError: Slurm does not answer.
    """
    job, listed = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not job or not listed:
        raise Refused(
            "$.backend: slurm needs an allocation, and SLURM_JOB_ID is not set",
            hint="start it in an sbatch script or below salloc",
        )
    names = answer("scontrol", "show", "hostnames", listed).split()
    try:
        found = _nodes_in(answer("scontrol", "--oneliner", "show", "node", listed))
    except InfrastructureError:
        # Some sites hide nodes from users; names resolve all the same.
        found = {}
    return Allocation(job=job, nodes=tuple(found.get(name) or Node(name=name, address=name) for name in names))


def _nodes_in(text: str) -> dict[str, Node]:
    found = {}
    for line in text.splitlines():
        fields = _fields(line)
        name = fields.get("NodeName")
        if name:
            troubled = _TROUBLED.search(fields.get("State", "")) is not None
            found[name] = Node(name=name, address=fields.get("NodeAddr") or name, troubled=troubled)
    return found


def _fields(line: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in line.split() if "=" in word)


def answer(program: str, *words: str, timeout: float = _TIMEOUT_S) -> str:
    """Output of one of Slurm's commands; ``timeout`` in seconds.

    Raises:
        Refused: It is not installed.
        InfrastructureError: It failed or took too long.
    """
    try:
        done = subprocess.run(
            (path_of(program), *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout:g} s"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace")
        why = done.stderr.decode("utf-8", "replace").strip()[:300] or f"exit code {done.returncode}"
    raise InfrastructureError(f"{program} failed: {why}", hint=f"try it by hand: {program} {' '.join(words)}"[:300])


def path_of(program: str) -> str:
    """Absolute path of a command of Slurm.

    Raises:
        Refused: It is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise Refused(f"$.backend: slurm needs {program}, which is not in PATH", hint="add Slurm's commands to PATH")
    return str(Path(found).absolute())


def step_words(job: str, *, node: str, name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Words before the command of a step of one task on one node, which has all that the job has there.

    ``environ``: inherited by the job; what :func:`step_environment` removes and a job may read is set again.
    """
    kept = sorted(f"{key}={value}" for key, value in environ.items() if _RESTORED.fullmatch(key))
    return (
        path_of("srun"),
        *(f"--jobid={job}", f"--job-name={name}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
        # A step of the user, as the one that this process may run in, holds the same resources.
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"),
        *("--kill-on-bad-exit=0", "--wait=0", "--input=none"),
        # slurmstepd sets them for a step of one task; the ranks below it have others.
        *("/usr/bin/env", "-u", "SLURM_PROCID", "-u", "SLURM_LOCALID"),
        *kept,
    )


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment for srun, without the variables that it takes as options."""
    return {name: value for name, value in environ.items() if not _OPTIONS.fullmatch(name)}


def end_reason(job: str) -> PlatformEnd | None:
    """Returns why Slurm ends a job now; None if it does not, a user does, or Slurm does not answer."""
    try:
        fields = _fields(answer("scontrol", "--oneliner", "show", "job", job, timeout=_SOON_S))
    except (InfrastructureError, Refused):
        return None
    words = f"{fields.get('JobState', '')} {fields.get('Reason', '')}"
    if "TIMEOUT" in words or "TimeLimit" in words:
        limit = fields.get("TimeLimit", "")
        return PlatformEnd(slug="walltime_or_requeue", text=f"Slurm ends job {job} at its time limit of {limit}")
    # Times are ISO without a zone; a job that was preempted before and started again has a later start.
    preempted = fields.get("PreemptTime", "None")
    if "PREEMPTED" in words or (preempted[:1].isdecimal() and preempted >= fields.get("StartTime", "")):
        return PlatformEnd(slug="preempted", text=f"Slurm preempts job {job}")
    return None


def runs(job: str) -> bool:
    """True if the job has processes, perhaps; False if it ended."""
    try:
        states = answer("squeue", "--noheader", "--jobs", job, "--format", "%T").split()
    except InfrastructureError as error:
        # squeue forgets jobs a few minutes after their end.
        return "Invalid job id" not in error.message
    return bool(_LIVE & set(states))


def steps(job: str, names: Collection[str]) -> list[str]:
    """Ids of the live steps with these names; none if the job is over.

    Raises:
        InfrastructureError: Slurm does not answer.
    """
    rows = (
        line.split(None, 1)
        for line in answer("squeue", "--noheader", "--steps", "--jobs", job, "--format", "%i %j").splitlines()
    )
    return [row[0] for row in rows if len(row) > 1 and row[1].strip() in names]


def send(signal: str, ids: Sequence[str]) -> None:
    """Sends a signal to all processes of these steps, as far as they live."""
    for one in ids:
        # scancel fails for a step that has just ended, and then sends the others nothing.
        with contextlib.suppress(InfrastructureError):
            answer("scancel", f"--signal={signal}", one)


_FIND_S: Final = 60.0
_LOOK_S: Final = 0.5


def is_other_task(environ: Mapping[str, str]) -> bool:
    """True in all tasks but the first of an srun with several."""
    return _several(environ) and environ.get("SLURM_PROCID") != "0"


@contextlib.contextmanager
def other_tasks_waiting(environ: Mapping[str, str], *, home: Path) -> Iterator[None]:
    """Keeps the other tasks of this srun waiting while the body runs; does nothing without any."""
    if not _several(environ):
        yield
        return
    path = _path(environ, home)
    with socket.create_server(("", 0), backlog=1024) as server:
        make_folder(path.parent)
        path.unlink(missing_ok=True)
        write_file(path, f"{socket.gethostname()} {server.getsockname()[1]}\n".encode(), new=True)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def wait_for_task_0(environ: Mapping[str, str], *, home: Path) -> None:
    """Waits until task 0 ends.

    Raises:
        InfrastructureError: Task 0 is not found within a minute.
    """
    path = _path(environ, home)
    deadline = time.monotonic() + _FIND_S
    while True:
        with contextlib.suppress(OSError, ValueError):
            host, port = path.read_text("ascii").split()
            # The server accepts nothing: the kernel completes the connection, and resets it at the server's end.
            with socket.create_connection((host, numbers.whole(port) or 0), timeout=_FIND_S) as link:
                link.settimeout(None)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                with contextlib.suppress(ConnectionError):
                    link.recv(1)
                return
        if time.monotonic() >= deadline:
            raise InfrastructureError(
                f"task 0 of this srun, which supervises the run, is not found within {_FIND_S:g} s",
                hint="start rankfall once: without srun in the sbatch script, or with srun --ntasks=1",
            )
        time.sleep(_LOOK_S)


def _several(environ: Mapping[str, str]) -> bool:
    return "SLURM_STEP_ID" in environ and (numbers.whole(environ.get("SLURM_STEP_NUM_TASKS")) or 1) > 1


def _path(environ: Mapping[str, str], home: Path) -> Path:
    step = [environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    name = ".".join(word for word in step if word.isalnum())
    return home / "slurm" / f"task0-{name}"
