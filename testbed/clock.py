"""One node whose clock is wrong, by two means that act together, because all nodes share this machine's clock.

Programs in pods load a small library (``clock.c``) that shifts the wall clock; it moves Python and C but not Go programs such as the kubelet.
What the kubelet and containerd stamp (log lines, pod statuses, leases) is shifted by the fault proxy on its way to the client.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import preload
from testbed.bed import Bed
from testbed.client import Kubectl, Object
from testbed.proxy import Proxy, ShiftTimes, before

_FOLDER = "/testbed-clock"


@dataclass(frozen=True)
class WrongClock:
    """A node as it is seen when its clock is off.

    Attributes:
        node: its name.
        seconds: that it is ahead (or, negative, behind).
        kubectl: the administrator, whose answers have the node's wrong stamps.
        proxy: that shifts them; other clients may go through it too.
        folder: with the library that shifts the clock of programs.
    """

    node: str
    seconds: float
    kubectl: Kubectl
    proxy: Proxy

    folder: Path

    def wear(self, spec: Object) -> Object:
        """The spec of a pod whose containers see the wrong clock; the pod has to be put on the node by who makes it."""
        mount = {"name": "testbed-clock", "mountPath": _FOLDER, "readOnly": True}
        env = [
            {"name": "LD_PRELOAD", "value": f"{_FOLDER}/clock.so"},
            {"name": "CLOCK_SECONDS", "value": str(round(self.seconds))},
        ]
        containers = [
            one | {"env": [*one.get("env", ()), *env], "volumeMounts": [*one.get("volumeMounts", ()), mount]}
            for one in spec["containers"]
        ]
        volume = {"name": "testbed-clock", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        return {**spec, "containers": containers, "volumes": [*spec.get("volumes", ()), volume]}


class _Places:
    """Which node each pod is on, kept up to date by a watch: the proxy asks in its own loop and must not wait."""

    def __init__(self, kubectl: Kubectl) -> None:
        columns = "custom-columns=:metadata.namespace,:metadata.name,:spec.nodeName"
        self._known: dict[tuple[str, str], str] = {}
        self._watch = subprocess.Popen(
            kubectl.command("get", "pods", "--all-namespaces", "--watch", "--no-headers", "-o", columns),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def node_of(self, namespace: str, pod: str) -> str | None:
        return self._known.get((namespace, pod))

    def close(self) -> None:
        self._watch.terminate()
        self._watch.wait()
        self._thread.join()
        if self._watch.stdout:
            self._watch.stdout.close()

    def _read(self) -> None:
        for line in self._watch.stdout or ():
            words = line.split()
            if len(words) == 3:  # noqa: PLR2004 - namespace, pod, node
                self._known[words[0], words[1]] = words[2]


@contextmanager
def shifted(bed: Bed, index: int, *, seconds: float) -> Iterator[WrongClock]:
    """Node ``index``'s clock is off by so many seconds for whoever looks through ``kubectl`` or ``proxy`` of the result."""
    node = bed.layout.node_name(index)
    folders = bed.layout.folder / "clock"
    folders.mkdir(exist_ok=True)
    # Of its own: several may be wrong at once, and a library that is loaded is not written anew.
    folder = Path(tempfile.mkdtemp(dir=folders))
    folder.chmod(0o755)
    preload.compile_clock(folder)
    path = folder / "kubeconfig"
    places = _Places(bed.kubectl)
    try:
        with Proxy(before.settings(bed.layout)) as proxy:
            proxy.nodes(places.node_of)
            proxy.add("clock", ShiftTimes(node=node, seconds=seconds))
            before.through(proxy.url, bed.kubectl.kubeconfig, path)
            yield WrongClock(node, seconds, Kubectl(bed.kubectl.program, path), proxy, folder)
    finally:
        places.close()
        shutil.rmtree(folder)
