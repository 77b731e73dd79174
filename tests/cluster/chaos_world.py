"""Runs of the product over a line that misbehaves: ranks that count aloud, and what of it has to be in the run directory afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster.run_world import RULES, World
from rankfall.rundir import list_runs
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Proxy, before
from testbed.workloads import PYTHON_IMAGE, SCRIPT_FOLDER

OURS = "^rankfall/"
KINDS = {"job": "jobs", "jobset": "jobsets", "trainjob": "trainjobs"}
COUNT = """
import os, time

lines = os.environ.get("LINES_OF_" + os.environ["RANKFALL_ATTEMPT"], os.environ["LINES"])
for number in range(int(lines)):
    print("line", number, flush=True)
    time.sleep(float(os.environ["PAUSE"]))
"""

# An exec plug-in that gives the token in the file beside it.
PLUGIN = """#!/bin/sh
echo started >> "$0.starts"
printf '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "%s"}}' "$(cat "$0.token")"
"""


def counting(*, backend: str, namespace: str, lines: int = 60, pause_s: float = 0.1, **fields: Any) -> dict[str, Any]:
    """A job file: one rank on each of two slots, each says so many lines. It needs no torch, so that it starts at once."""
    return {
        "name": "count",
        "backend": backend,
        "command": [f"{SCRIPT_FOLDER}/train.py"],
        "launcher": "plain",
        "nnodes": 2,
        "env": {"LINES": str(lines), "PAUSE": str(pause_s)},
        "policies": {"max_restarts": 0, "grace_s": 2},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "volumes": [{"name": "script", "configMap": {"name": "program"}}],
            "volume_mounts": [{"name": "script", "mountPath": SCRIPT_FOLDER}],
            "pod": {"spec": {"automountServiceAccountToken": False}},
        },
        **fields,
    }


class Going:
    """A run that goes on.

    Args:
        world: where.
        process: that supervises it.
    """

    def __init__(self, world: World, process: subprocess.Popen[bytes]) -> None:
        self._world = world
        self.process = process

    @property
    def id(self) -> str:
        """Of the run."""
        return self._world.only_run().name

    def hear(self, line: str) -> None:
        """Wait until a rank has said this."""

        def said() -> bool:
            assert self.process.poll() is None, (self._world.home.parent / "stderr").read_text()
            # A run that is being made has a name with a dot, and is renamed at any moment.
            return any(heard(run, line) for run in (self._world.home / "runs").glob("[!.]*"))

        wait_until(said, timeout=90, what=f"{line!r}")


def heard(folder: Path, line: str) -> bool:
    """Whether a rank of a run below this folder has said this in its first attempt."""
    return any(f"{line}\n".encode() in path.read_bytes() for path in folder.rglob("logs/attempt-1/*/*/r*.out.log"))


class Chaos(World):
    """A user of the product whose requests all go through the proxy.

    Args:
        bed: with the API server.
        proxy: before it.
        home: of the runs.
        kubectl: of the administrator, straight to the server.
        namespace: of the jobs.
    """

    def __init__(self, bed: Bed, proxy: Proxy, *, home: Path, kubectl: Kubectl, namespace: str) -> None:
        direct = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
        home.mkdir()
        path = before.through(proxy.url, direct, home.parent / "kubeconfig")
        super().__init__(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=COUNT)
        self.proxy = proxy
        self.direct = direct

    def close(self) -> None:
        """End the supervisors of runs that a failed test left behind."""
        for run in list_runs(self.home):
            holder = run.lease_holder()
            if holder is not None and holder.alive():
                os.kill(holder.pid, signal.SIGKILL)

    def log_in_by(self, plugin: Path) -> None:
        """From now on the account's token comes from this program."""
        path = self.home.parent / "kubeconfig"
        document = yaml.safe_load(path.read_text())
        login = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
        for user in document["users"]:
            user["user"] = {"exec": login}
        path.write_text(yaml.safe_dump(document))

    def requests(self, since: int = 0) -> int:
        """How many the product has sent, from the proxy's own log, after the one of this number."""
        return sum(1 for one in self.proxy.log() if one.number > since and one.user_agent.startswith("rankfall/"))

    def said(self, run: str, rank: int) -> list[str]:
        """The lines that are kept of a rank."""
        return self.cli("logs", run, "--rank", str(rank), "--no-prefix").stdout.splitlines()

    def whole(self, run: str, *, backend: str, lines: int) -> None:
        """The run succeeded in one attempt, with one workload, and every line of each rank is kept once."""
        status = self.document("status", run)
        assert (status["state"], status["attempts"]) == ("succeeded", 1)
        for rank in (0, 1):
            assert self.said(run, rank) == [f"line {number}" for number in range(lines)]
        found = self.kubectl.get(KINDS[backend], "-n", self.namespace)["items"]
        assert [item["metadata"]["name"] for item in found] == [f"{run}-a1"]

    @contextmanager
    def started(self, spec: Mapping[str, Any]) -> Iterator[Going]:
        """``rankfall run`` in a process of its own, until it has ended by itself."""
        command = (sys.executable, "-m", "rankfall", "run", "--file", str(self.file(spec)))
        errors = self.home.parent / "stderr"
        with errors.open("wb") as file:
            process = subprocess.Popen(command, env=self.environment(), stdout=subprocess.DEVNULL, stderr=file)
        try:
            yield Going(self, process)
            assert process.wait(120) == 0, errors.read_text()
        finally:
            process.kill()
            process.wait()
