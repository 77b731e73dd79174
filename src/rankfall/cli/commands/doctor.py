"""``doctor``: checks if this machine, and the cluster of its kubeconfig, can run jobs; exits with 69 if not.

Each check tries the real thing and leaves no traces.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
import msgspec

from rankfall.backends.command import Interpreter, find_interpreter
from rankfall.backends.kubernetes.rights import BACKENDS
from rankfall.backends.local.processes import SYSTEM, Reservation
from rankfall.backends.payload import unpack
from rankfall.cli import console
from rankfall.cli.cluster_checks import cluster_checks
from rankfall.cli.console import Output
from rankfall.cli.options import cluster_options, output_option
from rankfall.cli.target import Where
from rankfall.model import JobSpec, RankfallError, Record, SpecError, StoreError, UsageError, decoding
from rankfall.model.run_status import Check, CheckState, DoctorDocument
from rankfall.render.escape import clean
from rankfall.render.formatting import Paint
from rankfall.rundir import default_home, home
from rankfall.rundir.lease import file_system, has_proc
from rankfall_inside import procfs


def worst(checks: tuple[Check, ...]) -> CheckState:
    """Worst state."""
    states = {check.state for check in checks}
    return "fail" if "fail" in states else "warn" if "warn" in states else "pass"


_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_LITTLE: Final = 5 * _GIB
_NOTHING: Final = 200 * _MIB
_FEW_FILES: Final = 10_000
_SMALL_SHM: Final = 256 * _MIB
_SHM: Final = "/dev/shm"  # noqa: S108 - only queried


def home_folder() -> Check:
    """Checks that Rankfall's home folder is writable."""
    path = default_home()
    try:
        home()
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"rankfall")
            file.flush()
            os.fsync(file.fileno())
    except StoreError as error:
        return Check(name="home", state="fail", text=error.message, next=error.hint)
    except OSError as error:
        return Check(
            name="home",
            state="fail",
            text=f"{path} cannot be written: {error.strerror or error}",
            next="set RANKFALL_HOME to a folder that you can write to",
        )
    return Check(name="home", state="pass", text=f"runs are stored in {path}")


def modes() -> Check:
    """Checks that other users cannot access the runs in the home folder."""
    folder = default_home() / "runs"
    try:
        others = folder.stat().st_mode & 0o077
    except OSError:
        others = 0
    if not others:
        return Check(name="modes", state="pass", text="only this user can read the runs")
    return Check(
        name="modes",
        state="warn",
        text=f"other users can open {folder}, and this user may not change its mode",
        next=f"its owner must run: chmod -R go= {folder}",
    )


def journal() -> Check:
    """Checks if the home folder is on a network file system, which needs a slower lock and sqlite journal."""
    kind = file_system(_existing(default_home()))
    text = f"file system {kind.name or 'unknown'}: sqlite journal {kind.journal}, lock {kind.lock}"
    if not kind.network:
        return Check(name="journal", state="pass", text=text)
    return Check(
        name="journal",
        state="warn",
        text=f"{text}; a network file system, which is slower",
        next="set RANKFALL_HOME to a local disk if only this machine reads the runs",
    )


def space() -> Check:
    """Checks free space for runs."""
    path = _existing(default_home())
    try:
        free = shutil.disk_usage(path).free
        stat = os.statvfs(path)
    except OSError as error:
        return Check(name="space", state="warn", text=f"cannot read the free space: {error.strerror or error}")
    text = f"{free / _GIB:.1f} GiB free for runs"
    hint = f"free space in {path}, or set RANKFALL_HOME to a folder on a larger disk"
    if free < _NOTHING:
        return Check(name="space", state="fail", text=text, next=hint)
    if stat.f_files and stat.f_favail < _FEW_FILES:
        return Check(name="space", state="warn", text=f"{text}, but only {stat.f_favail} more files", next=hint)
    return Check(
        name="space", state="warn" if free < _LITTLE else "pass", text=text, next=hint if free < _LITTLE else None
    )


def shared_memory() -> Check:
    """Checks the size of shared memory, for data workers and NCCL."""
    try:
        total = shutil.disk_usage(_SHM).total
    except OSError as error:
        return Check(name="shm", state="warn", text=f"{_SHM}: {error.strerror or error}", next="mount a tmpfs there")
    text = f"{_SHM} has {total / _GIB:.1f} GiB" if total >= _GIB else f"{_SHM} has {total // _MIB} MiB"
    if total < _SMALL_SHM:
        return Check(
            name="shm",
            state="warn",
            text=f"{text}: little for data workers",
            next="enlarge it (--shm-size in containers)",
        )
    return Check(name="shm", state="pass", text=text)


def signatures() -> list[Check]:
    """Checks the user's signatures; none without a file."""
    if not any((default_home() / "signatures").glob("*.toml")):
        return []
    from rankfall.rundir.user_signatures import catalogue_of  # noqa: PLC0415

    try:
        catalogue_of(default_home())
    except RankfallError as error:
        return [Check(name="signatures", state="warn", text=f"{error.message}; `why FILE` fails", next=error.hint)]
    return [Check(name="signatures", state="pass", text="your signatures are valid")]


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


# Without real-time signals (macOS) there are no local runs either.
_STACKS: Final = getattr(signal, "SIGRTMIN", 0) + 7
_FEW_FDS: Final = 1024
_FEW_PROCESSES: Final = 512


def system(backend: str | None) -> Check:
    """Returns the check of a system that is not Linux; ``backend``: the only one that matters, None = all."""
    return Check(
        name="system",
        state="fail" if backend == "local" else "warn" if backend is None else "note",
        text=f"{SYSTEM} runs no local jobs: the local backend needs Linux",
        next="start jobs on a cluster or on a Linux machine; files and cluster jobs can be explained here",
    )


def proc() -> Check:
    """Checks that /proc and pidfd work, which show ranks and their exit codes."""
    if not has_proc():
        return Check(
            name="proc", state="fail", text="/proc is not mounted", next="mount it: Rankfall finds ranks there"
        )
    if not hasattr(os, "pidfd_open"):
        return Check(
            name="proc", state="warn", text="/proc is mounted, but this Python has no pidfd", next="use Linux >= 5.3"
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Check(
            name="proc",
            state="warn",
            text=f"/proc is mounted, but pidfd_open fails: {error.strerror}",
            next="allow the system call; without it /proc shows the ends of processes, but not every exit code",
        )
    return Check(name="proc", state="pass", text="/proc and pidfd work")


def oom_counter() -> Check:
    """Checks the cgroup's OOM counter, which proves a memory kill."""
    version = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    path = procfs.oom_counter_path()
    if path is None:
        return Check(
            name="oom-counter",
            state="warn",
            text=f"cgroup v{version}: no OOM counter of this group can be read",
            next="make the kernel log readable: without the counter only it proves that a rank was killed for memory",
        )
    return Check(name="oom-counter", state="pass", text=f"cgroup v{version}: OOM counter {path}")


def kernel_log() -> Check:
    """Checks /dev/kmsg, which names OOM-killed processes and device faults."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return Check(
            name="kernel-log",
            state="warn",
            text=f"/dev/kmsg cannot be read: {error.strerror}",
            next="as root: sysctl kernel.dmesg_restrict=0; without the kernel log Rankfall sees no device faults",
        )
    return Check(name="kernel-log", state="pass", text="/dev/kmsg can be read")


def stack_signal() -> Check:
    """Checks the signal that requests Python stacks."""
    blocked = _STACKS in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if blocked or signal.getsignal(_STACKS) != signal.SIG_DFL:
        what = "blocked" if blocked else "ignored or handled"
        return Check(
            name="stack-signal",
            state="warn",
            text=f"SIGRTMIN+7 is {what} here, and processes inherit that",
            next="start Rankfall from a shell that does not change it, else hangs have no Python stacks",
        )
    return Check(name="stack-signal", state="pass", text="SIGRTMIN+7 is free: hung ranks can show their stacks")


def ports() -> Check:
    """Checks that a rendezvous port can be reserved and this host's name has an address."""
    try:
        with Reservation() as kept, socket.create_server(("127.0.0.1", kept.port)):
            port = kept.port
    except OSError as error:
        return Check(
            name="ports",
            state="fail",
            text=f"cannot reserve a port on 127.0.0.1: {error.strerror or error}",
            next="bring the loopback interface up; allow processes to bind unprivileged ports",
        )
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        return Check(
            name="ports",
            state="warn",
            text=f"ports are free, but this host's own name has no address: {error.strerror or error}",
            next="add the host's name to /etc/hosts; libraries resolve it at start",
        )
    return Check(name="ports", state="pass", text=f"ports can be reserved (tried {port})")


def limits() -> Check:
    """Checks limits of open files and processes."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    text = f"{_limit(files)} open files, {_limit(processes)} processes"
    few_files = files != resource.RLIM_INFINITY and files < _FEW_FDS
    few = processes != resource.RLIM_INFINITY and processes < _FEW_PROCESSES
    if few_files or few:
        return Check(
            name="limits",
            state="warn",
            text=f"{text}: little for many ranks",
            next="raise the limits: ulimit -n 65536; ulimit -u 65536",
        )
    return Check(name="limits", state="pass", text=text)


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


_HOOK_LIMIT_S: Final = 30.0
_OLDEST_JOB_PYTHON: Final = (3, 8)


def own_python() -> Check:
    """Returns a passed check that names Rankfall's interpreter."""
    return Check(name="python", state="pass", text=f"Rankfall runs under Python {platform.python_version()}")


def job_python(python: str | None) -> tuple[Check, Interpreter | None]:
    """Checks the job's interpreter; also returns it, None if there is none."""
    try:
        found = find_interpreter(JobSpec(command=("true",), python=python), cwd=Path.cwd())
    except SpecError as error:
        return Check(name="job-python", state="fail", text=error.message, next=error.hint), None
    version = ".".join(str(part) for part in found.version)
    text = f"the job's Python is {version} ({found.path})"
    if found.version < _OLDEST_JOB_PYTHON:
        return Check(
            name="job-python", state="warn", text=f"{text}: too old for the hook", next="use Python >= 3.8 in the job"
        ), found
    return Check(name="job-python", state="pass", text=text), found


def torch(found: Interpreter) -> Check:
    """Checks if torchrun is usable."""
    if found.torch is None:
        return Check(
            name="torch",
            state="warn",
            text="the job's Python has no torch: Rankfall's own launcher starts the ranks",
            next="install torch there if the job needs it, or name another Python with --python",
        )
    return Check(name="torch", state="pass", text=f"torch {found.torch}: torchrun starts the ranks")


def hook(found: Interpreter) -> Check:
    """Starts one rank and checks its hook's record."""
    try:
        with tempfile.TemporaryDirectory(prefix="rankfall-doctor-") as name:
            return _hook(found, Path(name))
    except (OSError, subprocess.SubprocessError) as error:
        return Check(
            name="hook",
            state="fail",
            text=f"the wrapper did not run: {error}",
            next="run RANKFALL_DEBUG=1 rankfall doctor",
        )


def _hook(found: Interpreter, folder: Path) -> Check:
    for part in ("slot", "records", "streams/0"):
        (folder / part).mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RANKFALL_", "TORCHELASTIC_"))}
    env |= {
        "RANKFALL_RUN": "doctor-000000",
        "RANKFALL_ATTEMPT": "1",
        "RANKFALL_ROLE": "worker",
        "RANKFALL_SLOT": "0",
        "RANKFALL_SLOT_DIR": str(folder / "slot"),
        "RANKFALL_RECORD_DIR": str(folder / "records"),
        "RANKFALL_NODE": "node0",
    }
    command = [found.path, str(unpack(_unpack_home(folder))), "wrap", "--stream-dir", str(folder / "streams" / "0")]
    command += ["--launcher", "plain", "--nproc", "1", "--grace", "1", "--", found.path, "-c", "print('here')"]
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_HOOK_LIMIT_S, check=False, cwd=folder
    )
    starts = [r for r in _records(folder / "records") if r.kind == "start" and r.writer == "hook" and r.rank == 0]
    if starts:
        streams = (
            "its streams are stored separately" if starts[0].streams else "its streams are part of the slot's stream"
        )
        state: CheckState = "pass" if starts[0].streams else "warn"
        return Check(name="hook", state=state, text=f"the hook is loaded in a rank; {streams}")
    text = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    return Check(
        name="hook",
        state="warn" if done.returncode == 0 else "fail",
        text=f"a rank started without the hook{f': {text}' if text else ''}",
        next="check whether the job's Python ignores PYTHONPATH (python -I, -E) or replaces sitecustomize",
    )


def _unpack_home(folder: Path) -> Path:
    """Returns Rankfall's home folder, whose files jobs share; ``folder`` if the home is not writable."""
    home = default_home()
    return home if os.access(home, os.W_OK) else folder


def _records(folder: Path) -> list[Record]:
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append(decoding.decode(path.read_bytes(), kind=Record))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


_INFRASTRUCTURE: Final = 69
_WIDTH: Final = 14


@click.command("doctor")
@click.option("--python", help="Path of the job's Python; default: the Python that runs Rankfall.")
@click.option(
    "--backend",
    metavar="local|job|jobset|trainjob",
    type=click.Choice(("local", *BACKENDS)),
    help="Fail if this backend cannot run jobs; local checks no cluster. Default: check both, report limits.",
)
@click.option("-n", "--namespace", metavar="NAME", help="Namespace in the cluster; default: that of the context.")
@cluster_options
@output_option()
def doctor(*, python: str | None, backend: str | None, namespace: str | None, where: Where, output: Output) -> int:
    """Check this machine and the cluster of the kubeconfig for Rankfall, with remedies."""
    place = msgspec.structs.replace(where, namespace=namespace)
    if backend == "local" and place.given:
        raise UsageError(
            "--backend local checks no cluster", hint="leave out --backend, or -n, --context and --kubeconfig"
        )
    checks = run_checks(python, backend)
    if backend != "local":
        with console.notice_if_slow("rankfall: still waiting for the API server"):
            checks += cluster_checks(place, backend=backend)
    found = worst(checks)
    if output is Output.TABLE:
        _print(checks, found)
    else:
        sys.stdout.write(console.document(DoctorDocument(state=found, checks=checks), output))
    return _INFRASTRUCTURE if found == "fail" else 0


def run_checks(python: str | None, backend: str | None = None) -> tuple[Check, ...]:
    """Runs all checks of this machine, in order of display; ``backend``: the only one that matters, None = all."""
    job, interpreter = job_python(python)
    of_python = [own_python(), job]
    of_home = [home_folder(), modes(), journal(), space(), *signatures()]
    if sys.platform != "linux":
        return (*of_python, *of_home, system(backend))
    if interpreter is not None:
        of_python += [torch(interpreter), hook(interpreter)]
    return (
        *of_python,
        *of_home,
        shared_memory(),
        proc(),
        oom_counter(),
        kernel_log(),
        stack_signal(),
        ports(),
        limits(),
    )


def _print(checks: tuple[Check, ...], found: CheckState) -> None:
    paint = Paint(color=console.color_on())
    style = {"pass": paint.good, "note": paint.dim, "warn": paint.warn, "fail": paint.bad}
    for check in checks:
        console.out(f"{style[check.state](check.state)}  {check.name:<{_WIDTH}}{clean(check.text)}")
        if check.next and check.state != "pass":
            console.out(f"{'':<{_WIDTH + 6}}{paint.dim(f'next: {clean(check.next)}')}")
    words = {
        "pass": "Everything works here.",
        "warn": "Jobs run here, within the limits that each warn names.",
        "fail": "Jobs do not run here until each fail is repaired.",
    }
    console.out()
    console.out(words[found])
