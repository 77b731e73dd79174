"""A stand-in for Slurm's commands, for tests that need no real one: an allocation of three nodes that are all this machine.

``install`` writes scontrol, squeue, scancel and srun into a folder; all are this file under four names. Steps are real processes. What a
test wants Slurm to say stands in files of the state folder: ``nodes`` (as ``n2 DOWN``), ``job`` (fields of ``scontrol show job``).
Standard library only: the commands start often.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

NODES = ("n1", "n2", "n3")
JOB = "77"
_PR_SET_PDEATHSIG = 1
_COMMANDS = ("scontrol", "squeue", "scancel", "srun")


def install(folder: Path, *, nodes: int = 3) -> dict[str, str]:
    """Environment of a process in an allocation of ``nodes`` nodes, on none of them."""
    programs, state = folder / "bin", folder / "state"
    for made in (programs, state / "steps"):
        made.mkdir(parents=True, exist_ok=True)
    for name in _COMMANDS:
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} {name} "$@"\n')
        path.chmod(0o755)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FAKE_SLURM": str(state),
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NODELIST": ",".join(NODES[:nodes]),
        "SLURM_JOB_NUM_NODES": str(nodes),
    }


def _state() -> Path:
    return Path(os.environ["FAKE_SLURM"])


def _text(name: str) -> str:
    try:
        return (_state() / name).read_text()
    except OSError:
        return ""


def _scontrol(words: list[str]) -> int:
    if words[:2] == ["show", "hostnames"]:
        print("\n".join(words[2].split(",")))
        return 0
    if words[:3] == ["--oneliner", "show", "node"]:
        states = dict(line.split(None, 1) for line in _text("nodes").splitlines())
        if states.get("all") == "HIDDEN":
            print("Access/permission denied", file=sys.stderr)
            return 1
        for name in reversed(words[3].split(",")):
            print(
                f"NodeName={name} Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=vm State={states.get(name, 'ALLOCATED')} Reason=a b [root@now]"
            )
        return 0
    if words[:3] == ["--oneliner", "show", "job"]:
        print(
            f"JobId={words[3]} JobName=wrap {_text('job').strip() or 'JobState=RUNNING Reason=None TimeLimit=UNLIMITED'}"
        )
        return 0
    return 2


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _live() -> dict[str, tuple[int, str]]:
    found = {}
    for path in (_state() / "steps").iterdir():
        words = path.read_text().split()
        if len(words) == 2 and _alive(int(words[0])):
            found[path.name] = (int(words[0]), words[1])
    return found


def _squeue(words: list[str]) -> int:
    over = "JobState=COMPLETED" in _text("job")
    if over:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    if "--steps" in words:
        for step, (_, name) in sorted(_live().items()):
            print(step, name)
    else:
        print("RUNNING")
    return 0


def _below(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += parents.get(one, [])
    return found


def _scancel(words: list[str]) -> int:
    number = getattr(signal, "SIG" + words[0].partition("=")[2])
    held = _live().get(words[1])
    if held is None:
        print("scancel: error: Kill job error on job step id: Invalid job id specified", file=sys.stderr)
        return 1
    for pid in _below(held[0]):
        try:
            os.kill(pid, number)
        except OSError:
            continue
    return 0


def _srun(words: list[str]) -> int:
    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    command = words[next(at for at, word in enumerate(words) if not word.startswith("--")) :]
    node = options["nodelist"]
    environ = {name: value for name, value in os.environ.items() if name != "SLURMD_NODENAME"}
    environ |= {
        "SLURMD_NODENAME": node,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_NODEID": "0",
    }
    # Slurm ends a step whose srun is gone.
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)),  # noqa: PLW1509 - it has no threads
    )
    step = _state() / "steps" / f"{options['jobid']}.{os.getpid()}"
    step.write_text(f"{child.pid} {options['job-name']}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    step.unlink(missing_ok=True)
    if code:
        how = signal.Signals(-code).name if code < 0 else f"Exited with exit code {code}"
        print(f"srun: error: {node}: task 0: {how}", file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    _name, *_words = sys.argv[1:]
    sys.exit({"scontrol": _scontrol, "squeue": _squeue, "scancel": _scancel, "srun": _srun}[_name](_words))
