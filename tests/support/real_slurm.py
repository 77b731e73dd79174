"""A Slurm of the machine's own packages in a folder: a controller and three daemons, each a node, two of them with processes of their own.

Debian: ``apt-get install slurmctld slurmd slurm-client``. Needs root, as slurmd does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.helpers import not_installed, wait_until

NODES = ("n1", "n2", "n3")


def missing() -> str:
    """Why it cannot start here; empty when it can."""
    return not_installed("slurmctld", "slurmd", "srun", "unshare") or ("" if os.geteuid() == 0 else "needs root")


def _ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found


class RealSlurm:
    """A running cluster; ``env`` lets commands find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, *words: str, timeout: float = 60) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(
            words,
            env=os.environ | self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def states(self) -> list[str]:
        """State of each node."""
        return self.call("sinfo", "--noheader", "--Node", "--format", "%t").split()

    def settle(self) -> None:
        """Wait until no job holds a node: a daemon that ends sooner leaves the processes of its steps."""
        wait_until(lambda: self.states() == ["idle"] * len(NODES), timeout=60, what="idle nodes")

    def script(self, text: str, *options: str) -> str:
        """Id of a batch job of this script."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        return self.call("sbatch", "--parsable", f"--output={self.folder}/%j.out", *options, str(path)).strip()

    def output(self, job: str) -> str:
        """What a job has printed."""
        path = self.folder / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @contextlib.contextmanager
    def allocation(self) -> Iterator[dict[str, str]]:
        """Environment of a process in an allocation of all nodes, as below ``salloc``."""
        job = self.script("exec sleep 3600", "--nodes=3", "--ntasks-per-node=1")
        wait_until(
            lambda: self.call("squeue", "--noheader", "--jobs", job, "--format", "%T").strip() == "RUNNING",
            timeout=30,
            what="job",
        )
        try:
            yield self.env | {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}
        finally:
            self.call("scancel", job)
            self.settle()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[RealSlurm]:
    """A cluster that lives as long as the body."""
    folder.mkdir(parents=True, exist_ok=True)
    controller, *daemons = _ports(1 + len(NODES))
    host = socket.gethostname()
    rows = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=2000 State=UNKNOWN"
        for name, port in zip(NODES, daemons, strict=True)
    ]
    (folder / "slurm.conf").write_text(
        "\n".join(
            [
                f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root",
                "AuthType=auth/none\nCredType=cred/none\nMpiDefault=none\nSwitchType=switch/none",
                "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core",
                f"SlurmctldPort={controller}\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n",
                f"SlurmctldPidFile={folder}/controller.pid\nSlurmdPidFile={folder}/%n.pid",
                f"SlurmctldLogFile={folder}/controller.log\nSlurmdLogFile={folder}/%n.log",
                "SchedulerType=sched/builtin\nAccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none",
                "ReturnToService=2\nKillWait=5\nMessageTimeout=10\nSlurmdParameters=config_overrides",
                *rows,
                "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8",
                "",
            ]
        )
    )
    slurm = RealSlurm(folder)
    env = os.environ | slurm.env
    # A daemon with its own process numbers stands for another machine: nothing of its steps is seen from here but their files.
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    commands = [
        ("slurmctld", "-D"),
        *(((*apart,) if name != NODES[0] else ()) + ("slurmd", "-D", "-N", name) for name in NODES),
    ]
    with contextlib.ExitStack() as stack:
        for name in ("state", *NODES):
            (folder / name).mkdir(exist_ok=True)
        for command in commands:
            log = stack.enter_context((folder / "daemons.log").open("ab"))
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(process.wait)
            # unshare ignores SIGTERM while its child lives, and takes it along.
            stack.callback(process.kill)
        slurm.settle()
        yield slurm
        slurm.settle()
