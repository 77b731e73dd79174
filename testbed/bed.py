"""The whole bed: ``up`` in order, ``down`` leaving nothing, whatever state the last one was left in."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import cgroups, dns, limits, network, process, storage
from testbed.client import Kubectl
from testbed.control import ControlPlane
from testbed.controllers import Controllers
from testbed.errors import TestbedError, UnsupportedError
from testbed.layout import Layout
from testbed.node import Node
from testbed.together import together

Say = Callable[[str], None]
_NODES_READY_S = 60.0
# Written when all is up.
_STATE = "up.json"


def unsupported() -> str | None:
    """Why this machine cannot run a bed; None when it can."""
    if sys.platform != "linux":
        return "the test bed needs Linux"
    if os.geteuid() != 0:
        return "the test bed needs root: it makes network namespaces, mounts and control groups"
    return None


class Bed:
    """One test bed.

    Args:
        layout: its names.
        binaries: name -> path.
        files: component -> folder of its manifests.
        images: archives that every node gets.
        versions: name of the set of versions that the binaries are of; empty: the usual ones.
        say: takes a line of progress.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        binaries: Mapping[str, Path],
        files: Mapping[str, Path],
        images: Sequence[Path],
        versions: str = "",
        say: Say = lambda _: None,
    ) -> None:
        self.layout = layout
        self.binaries = binaries
        self.files = files
        self.images = tuple(images)
        self.versions = versions
        self.say = say
        self.kubectl = Kubectl(binaries["kubectl"], layout.kubeconfig())
        self._control: ControlPlane | None = None

    @property
    def control(self) -> ControlPlane:
        """The control plane; its keys are made when they are first asked for."""
        if self._control is None:
            self._control = ControlPlane(self.layout, self.binaries)
        return self._control

    @property
    def controllers(self) -> Controllers:
        """JobSet and Trainer."""
        return Controllers(self.control, self.kubectl, self.files)

    def node(self, index: int) -> Node:
        """Node ``index``, counted from 1, whether it runs or not."""
        return Node(self.control, index, images=self.images)

    def up(self, *, nodes: int = 2) -> None:
        """Start everything; what an earlier bed of this number left is removed first.

        Raises:
            UnsupportedError: not on this machine.
            TestbedError: a part did not start; the rest is left for a look, and ``down`` removes it.
        """
        reason = unsupported()
        if reason:
            raise UnsupportedError(reason)
        began = time.monotonic()
        with self._alone():
            down(self.layout)
            self._control = None
            self.layout.folder.mkdir(parents=True)
            network.up(self.layout)
            self._start(nodes)
            self._await_nodes(nodes)
            state = {"nodes": nodes, "up_s": round(time.monotonic() - began, 1), "versions": self.versions}
            (self.layout.folder / _STATE).write_text(json.dumps(state))
            self.say(f"ready in {state['up_s']} s: export KUBECONFIG={self.layout.kubeconfig()}")

    def _start(self, nodes: int) -> None:
        control, controllers = self.control, self.controllers
        machines = [self.node(index) for index in range(1, nodes + 1)]
        for node in machines:
            # One by one: each gets routes to those before it.
            node.attach()
        together(
            self._step("API server", control.start_store),
            *(self._step(f"node {node.name}", node.prepare) for node in machines),
        )
        together(
            self._step("controllers and scheduler", control.start_others),
            self._step("JobSet and Kubeflow Trainer", controllers.start),
            self._step("DNS", lambda: dns.start(control)),
            *(self._step(f"kubelet of {node.name}", node.start_kubelet) for node in machines),
        )
        # After the new kinds of JobSet and Trainer: while the API server takes them up, it refuses some requests of others.
        self.kubectl.apply(storage.objects(self.layout, node=self.layout.node_name(1)))

    def _step(self, what: str, work: Callable[[], None]) -> Callable[[], None]:
        def step() -> None:
            began = time.monotonic()
            work()
            self.say(f"{what}: {time.monotonic() - began:.1f} s")

        return step

    def _await_nodes(self, count: int) -> None:
        names = {self.layout.node_name(index) for index in range(1, count + 1)}
        self.kubectl(
            "wait", "--for=condition=Ready", f"--timeout={_NODES_READY_S:.0f}s", *(f"node/{one}" for one in names)
        )

        def leased() -> bool:
            # A kubelet's first lease may come after its node is ready; the node's health hangs on it.
            found = self.kubectl.get("leases", "-n", "kube-node-lease")["items"]
            return names <= {item["metadata"]["name"] for item in found}

        if not process.poll(leased, _NODES_READY_S):
            raise TestbedError("not every node has a lease", hint="kubectl get leases -n kube-node-lease")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two programs never start the same bed at once."""
        folder = self.layout.folder.parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{self.layout.number}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TestbedError(
                    f"test bed {self.layout.number} is being started by another program",
                    hint="wait for it, or choose another number with --bed",
                ) from error
            yield


def is_up(layout: Layout) -> bool:
    """Whether the bed was started whole and its API server still runs."""
    return (layout.folder / _STATE).exists() and process.find(layout, "kube-apiserver") is not None


def check_versions(layout: Layout, versions: str) -> None:
    """Refuse a bed that is up with another set of versions.

    Raises:
        TestbedError: it is.
    """
    running = _state(layout)["versions"] if is_up(layout) else versions
    if running != versions:
        raise TestbedError(
            f"test bed {layout.number} is up with {running or 'the usual versions'}, not {versions or 'the usual ones'}",
            hint=f"end it first: python -m testbed --bed {layout.number} down",
        )


def down(layout: Layout) -> None:
    """End and remove everything of this bed. Safe in any state: after a killed ``up``, after a reboot, twice."""
    # A node's process 1 takes its kubelet, containerd and all pods with it: they live in its process namespace. Nothing is worth a
    # clean shutdown, which takes the API server many seconds.
    process.end(list(process.marked(layout)), how=signal.SIGKILL)
    for namespace in network.namespaces():
        if namespace.startswith(f"{layout.name}-"):
            process.end(network.inhabitants(namespace), how=signal.SIGKILL)
    cgroups.remove(f"{layout.name}-")
    network.down(layout)
    limits.restore(layout)
    shutil.rmtree(layout.folder, ignore_errors=True)


def status(layout: Layout) -> dict[str, Any]:
    """What runs, as plain data."""
    parts = sorted(path.stem for path in layout.logs.glob("*.pid")) if layout.logs.is_dir() else []
    return {
        "bed": layout.number,
        "up": is_up(layout),
        "versions": _state(layout)["versions"] or "usual" if is_up(layout) else None,
        "folder": str(layout.folder),
        "api_server": f"https://{layout.api_address}:443",
        "components": {name: _component(layout, name) for name in parts},
        "shared": "all nodes share one kernel: one boot id, one kernel log",
    }


def _state(layout: Layout) -> dict[str, Any]:
    return dict(json.loads((layout.folder / _STATE).read_text()))


def _component(layout: Layout, name: str) -> dict[str, Any]:
    daemon = process.find(layout, name)
    if daemon is None:
        return {"state": "gone", "pid": None, "memory_mib": None}
    pages = Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]
    return {"state": "running", "pid": daemon.pid, "memory_mib": int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20}
