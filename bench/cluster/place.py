"""Where the benches on a cluster work: a namespace, a proxy that counts every request, a home for the runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Proxy, Record, before
from testbed.workloads import PYTHON_IMAGE

NOWHERE = {"rankfall.test/node": "there-is-none"}


@dataclass(frozen=True)
class Place:
    """Where the bench works: a namespace of its own, a client through the proxy.

    Attributes:
        kubectl: of the administrator, straight to the server.
        config: kubeconfig that leads through the proxy.
        home: of the runs.
    """

    bed: Bed
    kubectl: Kubectl
    proxy: Proxy
    config: Path
    namespace: str
    home: Path

    def requests(self, since: int) -> Counter[str]:
        """The product's requests after the one of this number, by what they ask for."""
        return verbs(self.proxy.log(), since=since)

    def run(self, *words: str) -> None:
        """A command, whatever becomes of it."""
        argv = [sys.executable, "-m", "rankfall", *words]
        subprocess.run(argv, check=False, capture_output=True, env=self.environment())

    @property
    def last(self) -> int:
        """Number of the newest request."""
        return self.proxy.counters().requests

    def environment(self) -> dict[str, str]:
        """Of the product's processes."""
        return os.environ | {"RANKFALL_HOME": str(self.home), "KUBECONFIG": str(self.config), "NO_COLOR": "1"}

    def cli(self, *words: str) -> str:
        """What a command of the product says."""
        argv = [sys.executable, "-m", "rankfall", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=self.environment()).stdout.strip()

    def end(self) -> None:
        """End all runs."""
        from rankfall.model import FINAL_STATES
        from rankfall.rundir import list_runs

        for run in list_runs(self.home):
            with run.reader() as reader:
                over = reader.summary().state in FINAL_STATES
            if not over and run.lease_holder() is not None:
                self.run("cancel", run.id, "-y")


@contextmanager
def place(bed: Bed) -> Iterator[Place]:
    """A namespace, a proxy and a home; gone afterwards."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    bed.kubectl.create_namespace(namespace)
    with tempfile.TemporaryDirectory() as name, Proxy(before.settings(bed.layout)) as proxy:
        folder = Path(name)
        config = before.through(proxy.url, bed.kubectl.kubeconfig, folder / "kubeconfig")
        made = Place(bed, bed.kubectl, proxy, config, namespace, folder / "home")
        try:
            yield made
        finally:
            made.end()
            bed.kubectl.run("delete", "namespace", namespace, "--wait=false")


def job(where: Place, *, backend: str = "job", slots: int = 1, **section: Any) -> dict[str, Any]:
    """A job file whose pods no node takes, unless the section says otherwise."""
    return {
        "name": "bench",
        "backend": backend,
        "command": ["train.py"],
        "nnodes": slots,
        "launcher": "plain",
        "policies": {"max_restarts": 0, "grace_s": 1},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": where.namespace,
            "kubeconfig": str(where.config),
            "node_selector": NOWHERE,
            **section,
        },
    }


def verbs(log: Sequence[Record], *, since: int) -> Counter[str]:
    """The product's requests in a proxy's log, after the one of this number, by what they ask for."""
    ours = [one for one in log if one.number > since and one.user_agent.startswith("rankfall/")]
    return Counter(_verb(one.method, one.path, one.query) for one in ours)


def _verb(method: str, path: str, query: str) -> str:
    kind = path.rsplit("/", 1)[-1]
    if kind == "log" or "/leases" in path:
        return "log" if kind == "log" else "lease"
    if "watch=1" in query:
        return "watch"
    if kind == "version" or path.startswith("/openapi"):
        return "discovery"
    return {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, method)
