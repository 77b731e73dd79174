"""One job of the fault matrix on the bed: its job file, its pods, and when its worker has come to where it is to be struck.

The worker, its plan and its marks lie in a folder of this machine that all pods see under the same path.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

from faults.cluster_table import Cell
from faults.run import WORKER
from faults.supervised import Supervised
from rankfall.backends.kubernetes.manifests.pod_overrides import merged
from rankfall.rundir import list_runs
from support.helpers import wait_until
from testbed import faults, images
from testbed.bed import Bed
from testbed.client import Kubectl, Object
from testbed.proxy import Proxy
from testbed.workloads import PYTHON_IMAGE

LABEL = "rankfall.test/case"
INDEX = "batch.kubernetes.io/job-completion-index"
PYTHON = "/usr/bin/python3"


class Stage:
    """Where one cell is played.

    Args:
        cell: of the matrix.
        folder: of this run, seen by its pods.
        plan: of the worker.
        bed, kubectl, namespace: of the cluster.
        kubeconfig: of the product's account.
        case: value of the label that its pods bear.

    Attributes:
        job: the job file; injectors add to it.
        kubeconfig: of the product's account; injectors may lead it another way.
        stack: what is undone at the end.
        kept: what is undone when the run's directory has been read.
        proxy: that the product's requests go through; None = straight to the server.
        errors: of threads.
    """

    def __init__(
        self,
        cell: Cell,
        *,
        folder: Path,
        plan: Path,
        bed: Bed,
        kubectl: Kubectl,
        namespace: str,
        kubeconfig: Path,
        case: str,
    ) -> None:
        self.cell = cell
        self.folder = folder
        self.plan = plan
        self.bed = bed
        self.kubectl = kubectl
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self.case = case
        self.stack = ExitStack()
        self.kept = ExitStack()
        self.proxy: Proxy | None = None
        self.stop = threading.Event()
        self.errors: list[Exception] = []
        self.job = self._job()

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the injector."""
        return self.cell.fault.arguments

    # -- the job

    @property
    def container(self) -> str:
        """Name of the one that trains."""
        return "node" if self.cell.backend == "trainjob" else "main"

    def _job(self) -> dict[str, Any]:
        cell, fault = self.cell, self.cell.fault
        mounts = [(self.folder, False), (WORKER.parent, True)]
        heavy = cell.torch or cell.launcher == "torchrun"
        mounts += [(path, True) for path in images.torch_mounts()] if heavy else []
        apart = {"labelSelector": {"matchLabels": {LABEL: self.case}}, "topologyKey": "kubernetes.io/hostname"}
        python = sys.executable if heavy else PYTHON
        bare = fault.fields.get("inside") == "off"
        job: dict[str, Any] = {
            "name": "job",
            "backend": cell.backend,
            "command": list(fault.command or ((python, str(WORKER)) if bare else (str(WORKER),))),
            "module": fault.module,
            "launcher": cell.launcher,
            "nnodes": 2,
            "nproc_per_node": 2,
            "python": python,
            "env": {"PLAN": str(self.plan), "OMP_NUM_THREADS": "1"} | fault.env,
            "policies": {"max_restarts": 0, "grace_s": 3.0, "backoff_s": 0.1, "hang_timeout_s": 60.0} | fault.policies,
            "kubernetes": {
                "image": PYTHON_IMAGE,
                "image_pull_policy": "Never",
                "namespace": self.namespace,
                "labels": {LABEL: self.case},
                "volumes": [
                    {"name": f"host-{number}", "hostPath": {"path": str(path), "type": "Directory"}}
                    for number, (path, _) in enumerate(mounts)
                ],
                "volume_mounts": [
                    {"name": f"host-{number}", "mountPath": str(path), "readOnly": locked}
                    for number, (path, locked) in enumerate(mounts)
                ],
                "pod": {
                    "spec": {
                        "automountServiceAccountToken": False,
                        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
                    }
                },
            },
        }
        found: dict[str, Any] = merged(job, fault.fields)
        return found

    def add(self, **fields: Any) -> None:
        """Merge into the section ``kubernetes`` of the job file; lists are added to."""
        section = self.job["kubernetes"]
        for name, value in fields.items():
            if isinstance(value, list):
                section[name] = [*section.get(name, []), *value]
            else:
                section[name] = merged(section.get(name, {}), value) if isinstance(value, dict) else value

    def mount(self, path: str, **volume: Any) -> None:
        """One more volume."""
        name = f"extra{len(self.job['kubernetes']['volumes'])}"
        self.add(volumes=[{"name": name, **volume}], volume_mounts=[{"name": name, "mountPath": path}])

    # -- the product's command line

    @property
    def home(self) -> Path:
        """Of its runs."""
        return self.folder / "home"

    def cli(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run it, by the account of the job's owner."""
        return self.supervised.cli(*words, timeout=timeout)

    @cached_property
    def supervised(self) -> Supervised:
        """The command line of the job's owner; made when its kubeconfig is what it stays."""
        return Supervised(self.home, env={"KUBECONFIG": str(self.kubeconfig)})

    def run(self) -> str:
        """Id of the one run there is."""
        (found,) = list_runs(self.home)
        return found.id

    def state(self) -> str:
        """Of the run."""
        done = self.cli("status", self.run(), "-o", "json")
        return str(json.loads(done.stdout)["state"]) if done.returncode == 0 else ""

    # -- what happens

    def meanwhile(self, work: Callable[[], object]) -> None:
        """Do this in a thread while the job runs; :meth:`close` waits for it."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - told by the test
                if not self.stop.is_set():
                    self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()

        def end() -> None:
            self.stop.set()
            thread.join(60)

        self.stack.callback(end)

    def here(self, rank: int = 2) -> dict[str, Any]:
        """Wait until this rank is where it is to be struck; its note."""
        path = self.plan.with_suffix(f".{rank}.here")
        self.until(path.exists, f"rank {rank} at its step")
        note: dict[str, Any] = json.loads(path.read_text())
        return note

    def until(self, holds: Callable[[], Any], what: str, *, timeout: float = 150) -> Any:
        """Wait for something, or for the end of the job."""
        found = wait_until(lambda: self.stop.is_set() or holds(), timeout=timeout, what=what)
        if self.stop.is_set():
            raise RuntimeError(f"the job ended before: {what}")
        return found

    def pods(self) -> list[Object]:
        """The job's pods, as they are now."""
        found: list[Object] = self.kubectl.get("pods", "-n", self.namespace, "-l", f"{LABEL}={self.case}")["items"]
        return found

    def pod(self, slot: int = 1) -> Object:
        """The pod of a slot; waits for it."""

        def one() -> Object | None:
            return next((pod for pod in self.pods() if pod["metadata"]["labels"].get(INDEX) == str(slot)), None)

        found: Object = self.until(one, f"the pod of slot {slot}")
        return found

    def node_index(self, slot: int = 1) -> int:
        """Number of the bed's node that a slot is on."""
        return int(self.pod(slot)["spec"]["nodeName"].removeprefix("n"))

    def workload(self) -> str:
        """Kind and name of the job's object."""
        kind = self.cell.backend
        name = self.kubectl("get", kind, "-n", self.namespace, "-l", f"{LABEL}={self.case}", "-o", "name").split()
        return str(name[0])

    def process(self, inner: int, *, slot: int = 1) -> int:
        """Number on this machine of a process that its pod numbers ``inner``."""
        pod = self.pod(slot)["metadata"]["name"]
        for pid in faults.processes_of(self.bed, self.namespace, pod, container=self.container):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                # It has ended since it was listed.
                continue
            row = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if int(row.split()[-1]) == inner:
                return pid
        raise ProcessLookupError(f"slot {slot} has no process {inner}")

    def close(self) -> None:
        """The job is over: undo everything."""
        self.stop.set()
        self.stack.close()
