"""Pods that count aloud: an unattended run, so that nothing of the product runs until a client is measured on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

# Burst first, then paced lines once they may begin; the time of each line where it is asked for; then silence until the pod is removed, or the end.
WRITER = """
import os, sys, time
writer = int(os.environ["RANK"])
out = sys.stdout.buffer
burst, paced, pause = int(os.environ["BURST"]), int(os.environ["PACED"]), float(os.environ["PAUSE"])
length = int(os.environ["LENGTH"])
for number in range(burst):
    out.write(f"count {writer} {number}|".ljust(length, ".").encode() + b"\\n")
out.flush()
while paced and not os.path.exists("/tmp/go"):
    time.sleep(0.05)
due = time.monotonic()
for number in range(burst, burst + paced):
    out.write(f"count {writer} {number}|{time.time_ns()}|".ljust(length, ".").encode() + b"\\n")
    out.flush()
    due += pause
    time.sleep(max(0.0, due - time.monotonic()))
if os.environ["STAY"] == "1":
    time.sleep(100_000)
"""
# With its stamp, the wrapper's prefix and what the runtime puts before it, 60,000 lines stay below the 10 MiB at which a kubelet rotates.
LENGTH = 110
_WAIT_S = 180.0


@dataclass(frozen=True)
class Scene:
    """One run whose pods write.

    Attributes:
        run: its id.
        config: kubeconfig that its clients use.
        home: of the run as it was submitted; who records it gets a copy.
        pods: how many.
        job: name of its Job.
    """

    run: str
    kubectl: Kubectl
    config: Path
    namespace: str
    home: Path
    pods: int
    job: str = ""

    def go(self) -> None:
        """Let the writers begin with their paced lines."""
        for pod in self.names():
            self.kubectl("exec", "-n", self.namespace, pod, "--", "touch", "/tmp/go")  # noqa: S108 - in the pod

    @property
    def selector(self) -> str:
        """Of its pods."""
        return f"rankfall.dev/run={self.run}"

    def names(self) -> list[str]:
        """Names of its pods."""
        found = self.kubectl.get("pods", "-n", self.namespace, "-l", self.selector)
        return sorted(item["metadata"]["name"] for item in found["items"])

    def disown(self) -> Scene:
        """Take the run's label off the Job; ``rankfall logs job/NAME`` refuses jobs of Rankfall and reads this one as foreign."""
        job = self.kubectl("get", "jobs", "-n", self.namespace, "-l", self.selector, "-o", "name").strip()
        self.kubectl("label", "-n", self.namespace, job, "rankfall.dev/run-")
        return replace(self, job=job.rpartition("/")[2])

    def copy(self, to: Path) -> Path:
        """A home with the run as nobody has recorded it yet; the run's directory in it."""
        shutil.copytree(self.home, to)
        return to / "runs" / self.run

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """Of a client."""
        return os.environ | {"RANKFALL_HOME": str(home or self.home), "KUBECONFIG": str(self.config), "NO_COLOR": "1"}


@contextmanager
def scene(
    kubectl: Kubectl,
    *,
    config: Path,
    namespace: str,
    folder: Path,
    pods: int,
    burst: int = 0,
    paced: int = 0,
    pause_s: float = 0.0,
    stay: bool = True,
    length: int = LENGTH,
    section: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Iterator[Scene]:
    """Pods that run; removed afterwards.

    Args:
        kubectl: of the administrator.
        config: kubeconfig of the clients; may lead through a proxy.
        namespace: that exists.
        folder: for what is made.
        pods: how many.
        burst: lines at once, in the beginning.
        paced: lines one by one after that, from ``go`` on.
        pause_s: between two of these, seconds.
        stay: pods do not end by themselves.
        length: of a line without its newline.
        section: fields of the job file's ``kubernetes``.
        spec: other fields of the job file.
    """
    variables = {"BURST": burst, "PACED": paced, "PAUSE": pause_s, "STAY": int(stay), "LENGTH": length}
    document = {
        "name": "bench-logs",
        "backend": "job",
        "command": ["python3", "-c", WRITER],
        "nnodes": pods,
        "launcher": "plain",
        "unattended": True,
        "env": {name: str(value) for name, value in variables.items()},
        "policies": {"max_restarts": 0, "grace_s": 1},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "kubeconfig": str(config),
            "pod": {"spec": {"automountServiceAccountToken": False}},
            **(section or {}),
        },
        **(spec or {}),
    }
    path, home = folder / "job.yaml", folder / "home"
    path.write_text(yaml.safe_dump(document))
    made = Scene("", kubectl, config, namespace, home, pods)
    argv = [sys.executable, "-m", "rankfall", "submit", "--file", str(path)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=made.environment())
    made = Scene(done.stdout.strip(), kubectl, config, namespace, home, pods)
    try:
        words = (
            "get",
            "pods",
            "-n",
            namespace,
            "-l",
            made.selector,
            "--field-selector=status.phase!=Pending",
            "-o",
            "name",
        )
        until(lambda: len(kubectl(*words).split()) == pods, f"{pods} running pods")
        made = made.disown()
        yield made
    finally:
        if made.job:
            kubectl.run("delete", "job", "-n", namespace, made.job, "--cascade=background", "--wait=false")
        # One request for all of a kind: a thousand one by one take kubectl minutes.
        for kind, how in (
            ("apis/batch/v1", "jobs?propagationPolicy=Background"),
            ("api/v1", "pods?gracePeriodSeconds=1"),
        ):
            kubectl.run("delete", "--raw", f"/{kind}/namespaces/{namespace}/{how}&labelSelector={quote(made.selector)}")
        until(lambda: not made.names(), "the pods' end")


def until(true: Callable[[], bool], what: str, *, limit_s: float = _WAIT_S, pause_s: float = 0.5) -> None:
    """Wait.

    Raises:
        RuntimeError: it never came.
    """
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"never came: {what}")
        time.sleep(pause_s)
