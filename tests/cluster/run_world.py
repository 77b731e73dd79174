"""Runs of the product on the bed: its own restricted account, a home of its own, a job whose rank falls when its file says so."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from rankfall.backends.kubernetes.rights import rules
from testbed import accounts, images
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE, SCRIPT_FOLDER, script

PROGRAM = "program"
# Its own pods are spread over the nodes, so that a job is really across two of them.
TRAIN = """
import os, signal, sys, time

rank, attempt = int(os.environ["RANK"]), os.environ["RANKFALL_ATTEMPT"]
print(f"args {sys.argv[1:]} rank {rank} word {os.environ.get('WORD')!r}", flush=True)
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
fall = os.environ.get("FALL", "").split(":")  # how:rank:attempts
value = torch.ones(1)
for step in range(4):
    dist.all_reduce(value)
    print(f"step {step}", flush=True)
    if fall[0] and step == 2 and rank == int(fall[1]) and attempt in fall[2]:
        if fall[0] == "raise":
            raise ValueError("bad sample 17")
        if fall[0] == "exit":
            os._exit(int(fall[3]))
        os.kill(os.getpid(), getattr(signal, fall[0]))
    time.sleep(float(os.environ.get("SLOW", "0.1")))
dist.destroy_process_group()
print("done", flush=True)
"""

# What the product needs in the namespace of its jobs, and nothing else: the table that docs/kubernetes.md is made from.
RULES: list[dict[str, Any]] = rules()


def job(*, backend: str, namespace: str, fall: str = "", **fields: Any) -> dict[str, Any]:
    """A job file: 2 nodes x 2 ranks of torchrun, one restart."""
    folders = images.torch_mounts()
    volumes = [{"name": "script", "configMap": {"name": PROGRAM}}]
    mounts: list[dict[str, Any]] = [{"name": "script", "mountPath": SCRIPT_FOLDER}]
    for number, folder in enumerate(folders):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": str(folder), "type": "Directory"}})  # type: ignore[dict-item]
        mounts.append({"name": f"host-{number}", "mountPath": str(folder), "readOnly": True})
    apart = {
        "labelSelector": {"matchExpressions": [{"key": "rankfall.dev/run", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "name": "train",
        "backend": backend,
        "command": [f"{SCRIPT_FOLDER}/train.py", "--lr", "1e-3"],
        "nnodes": 2,
        "nproc_per_node": 2,
        "python": sys.executable,
        "env": {"OMP_NUM_THREADS": "1", "FALL": fall},
        "policies": {"max_restarts": 1, "grace_s": 3, "backoff_s": 0.2},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "volumes": volumes,
            "volume_mounts": mounts,
            "pod": {
                "spec": {
                    "automountServiceAccountToken": False,
                    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
                }
            },
        },
        **fields,
    }


class World:
    """The command line of the product, as a user of the cluster has it.

    Args:
        home: of its runs.
        kubeconfig: of its account.
        kubectl: of the administrator.
        namespace: of its jobs.
        program: what the ranks of its jobs run.
    """

    def __init__(self, home: Path, *, kubeconfig: Path, kubectl: Kubectl, namespace: str, program: str = TRAIN) -> None:
        self.home = home
        self.namespace = namespace
        self.kubectl = kubectl
        self._kubeconfig = kubeconfig
        kubectl.apply([script(PROGRAM, namespace=namespace, text=program)])

    @classmethod
    def with_account(cls, bed: Bed, kubectl: Kubectl, namespace: str, home: Path, *, program: str = TRAIN) -> Self:
        """With a new home and an account that has the rights of ``RULES``, and no others."""
        path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
        home.mkdir()
        return cls(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=program)

    def environment(self) -> dict[str, str]:
        """Of the product's process."""
        return os.environ | {"RANKFALL_HOME": str(self.home), "KUBECONFIG": str(self._kubeconfig), "NO_COLOR": "1"}

    def file(self, spec: Mapping[str, Any]) -> Path:
        """A job file."""
        path = self.home.parent / "job.yaml"
        path.write_text(yaml.safe_dump(dict(spec)))
        return path

    def cli(self, *words: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        command = (sys.executable, "-m", "rankfall", *words)
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False
        )

    def run(self, spec: Mapping[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
        """``rankfall run -f``, in the foreground."""
        return self.cli("run", "--file", str(self.file(spec)), *words)

    @contextlib.contextmanager
    def killed_after(self, spec: Mapping[str, Any], words: str) -> Iterator[None]:
        """A run in the foreground that has printed these words; its supervisor is killed at the end of the block."""
        command = (sys.executable, "-m", "rankfall", "run", "--file", str(self.file(spec)))
        with subprocess.Popen(
            command, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as first:
            assert first.stdout is not None
            try:
                for line in first.stdout:
                    if words in line:
                        break
                yield
            finally:
                first.kill()

    def attached_whole(self) -> str:
        """Attaches the one run, of ``TRAIN`` on four ranks, to its end; no line is lost or repeated. Returns its name."""
        run = self.only_run().name
        done = self.cli("attach", run)
        assert done.returncode == 0, done.stderr
        for rank in range(4):
            text = self.cli("logs", run, "--rank", str(rank), "--no-prefix").stdout
            assert text.splitlines()[1:] == [*(f"step {step}" for step in range(4)), "done"]
        assert self.document("status", run)["attempts"] == 1
        return run

    def document(self, *words: str) -> Any:
        """What a command says with ``-o json``."""
        done = self.cli(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def only_run(self) -> Path:
        """The directory of the one run there is."""
        (found,) = (path for path in (self.home / "runs").iterdir() if not path.name.startswith("."))
        return found

    def objects(self, kinds: str = "jobs,services,configmaps,pods") -> list[str]:
        """What the product's runs have in the namespace, as ``kind/name``."""
        found = self.kubectl(
            "get", kinds, "--namespace", self.namespace, "--selector", "rankfall.dev/run", "--output", "name"
        )
        return sorted(found.split())
