"""Two faults of one job, in the order that ``faults.pairs_table`` says: the second one is put in place, the first one strikes, the second one is ended.

Pods are bound to nodes here, not by the scheduler: slot 0 to n1, slot 1 to n2, and attempt 2 to what is left. So it is known which node a fault strikes, and a pod that
its kubelet refuses, or whose image is missing, comes when everything else is ready.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from cluster.fault_injectors import RESOURCE, let_go, limit, node_clock, rival
from cluster.fault_stage import INDEX, PYTHON, Stage
from faults.pairs_table import AWAY_S, DISK_FULL_S, STARTS, SUPERVISOR_AWAY_S, Pair
from faults.supervised import fill
from rankfall.backends.kubernetes.manifests.names import LABEL_ATTEMPT
from support.helpers import gone
from testbed import faults
from testbed.client import Object
from testbed.proxy import Cut, Proxy, before

SCHEDULER: Final = "testbed-pairs"
IMAGE: Final = "rankfall.test/only-some:1"
NODES: Final = ("n1", "n2", "n3")
HOSTNAME: Final = "kubernetes.io/hostname"
XID: Final = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python, GPU has fallen off the bus."
DISK: Final = "8m"
_SIDECAR: Final = """
import os, sys, time
if os.path.exists({over!r}):
    sys.exit(0)
while not os.path.exists({go!r}):
    time.sleep(0.05)
print("Traceback (most recent call last):", "  File 'export.py', line 7, in push", "ConnectionError: metrics store is away", sep=chr(10), flush=True)
sys.exit(3)
"""


class Play:
    """One pair on its stage.

    Args:
        stage: its cell is a :class:`~faults.pairs_table.Pair`.
    """

    def __init__(self, stage: Stage, pair: Pair) -> None:
        self.stage = stage
        self.pair = pair
        self.first, self.second = pair.key
        self.starts = self.first in STARTS
        self.home = ("n1", "n3" if self.first == "xid-event" else "n2")
        self.slot_1_may_come = False
        self._rank_2 = 0
        self._both = False
        self._cuts = stage.stack.enter_context(ExitStack())

    def prepare(self) -> None:
        """Make ready what has to be there before the job begins."""
        self.stage.add(pod={"spec": {"schedulerName": SCHEDULER}})
        PREPARED.get(self.first, _nothing)(self)
        PREPARED.get(self.second, _nothing)(self)
        self.stage.stack.callback(self._check)
        self.stage.meanwhile(self._bind)
        self.stage.meanwhile(self._play)

    def _play(self) -> None:
        stage = self.stage
        if self.starts:
            stage.until(lambda: stage.pod(0)["status"]["phase"] == "Running", "slot 0 running")
        else:
            self._rank_2 = stage.process(int(stage.here()["pid"]))
        with SECONDS[self.second](self):
            stage.plan.with_suffix(".second").touch()
            STRIKES[self.first](self)
            if self.starts:
                self.struck()
            self._both = True
        if self.pair.alone:
            # Kubernetes keeps the pods of a node that is away; it comes back when it is decided what follows.
            stage.until(self._decided, "a decision", timeout=300)
            self._cuts.close()

    def cut(self, node: str) -> None:
        """A power cut, until it is decided what follows."""
        self._cuts.enter_context(faults.node_down(self.stage.bed, int(node[1:])))

    def _decided(self) -> bool:
        return any('"kind":"decision"' in path.read_text() for path in self.stage.home.glob("runs/*/events.jsonl"))

    def _check(self) -> None:
        if not self._both:
            self.stage.errors.append(
                RuntimeError(f"the job ended before {self.first} and {self.second} were both there")
            )

    # -- who runs where

    def _bind(self) -> None:
        stage = self.stage
        while not stage.stop.wait(0.1):
            for pod in stage.pods():
                if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                    node = self._node_for(pod)
                    if node is not None:
                        bind(stage, pod, node)

    def _node_for(self, pod: Object) -> str | None:
        labels = pod["metadata"]["labels"]
        slot, attempt = int(labels.get(INDEX, -1)), labels.get(LABEL_ATTEMPT)
        if attempt == "1":
            return None if slot == 1 and self.starts and not self.slot_1_may_come else self.home[slot]
        taken = {
            one["spec"].get("nodeName")
            for one in self.stage.pods()
            if one["metadata"]["labels"].get(LABEL_ATTEMPT) == attempt
        }
        away = excluded(pod) | unready(self.stage)
        return next((node for node in (self.home[slot], *NODES) if node not in taken | away), None)

    # -- what the first fault has done

    def struck(self) -> None:
        """Wait until the first fault is to be seen."""
        if self.starts:
            self.stage.until(lambda: refused(self.stage.pod(1)), "slot 1 not to start")
        elif self.first not in {"hang", "node-down"}:
            self.stage.until(lambda: gone(self._rank_2), "the end of rank 2")
        else:
            self.stage.stop.wait(1.0)

    def kill(self) -> None:
        """SIGKILL for rank 2."""
        os.kill(self._rank_2, signal.SIGKILL)


def bind(stage: Stage, pod: Object, node: str) -> None:
    """What a scheduler does at the end."""
    meta = {"name": pod["metadata"]["name"], "namespace": stage.namespace}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{meta['name']}/binding"
    # A pod that is deleted meanwhile cannot be bound any more.
    stage.kubectl.run("create", "--raw", path, "-f", "-", text=json.dumps({**body, "apiVersion": "v1"}))


def excluded(pod: Object) -> set[str]:
    """Nodes that a pod must not come to, by what it asks for."""
    wants = (
        pod["spec"]
        .get("affinity", {})
        .get("nodeAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    return {
        value
        for term in wants.get("nodeSelectorTerms", ())
        for row in term.get("matchExpressions", ())
        if row["key"] == HOSTNAME and row["operator"] == "NotIn"
        for value in row["values"]
    }


def unready(stage: Stage) -> set[str]:
    """Nodes that a scheduler would not use."""
    nodes = stage.kubectl.get("nodes")["items"]
    return {node["metadata"]["name"] for node in nodes if node["spec"].get("taints")}


def refused(pod: Object) -> bool:
    """Whether a pod has failed before it ran, or waits for an image."""
    status = pod["status"]
    rows = status.get("containerStatuses", ())
    return status["phase"] == "Failed" or any(
        "Image" in row["state"].get("waiting", {}).get("reason", "") for row in rows
    )


def _nothing(_: Play) -> None:
    pass


# -- before the job


def _seats(play: Play) -> None:
    """A resource of which each node has one, and somebody else has that of n2."""
    stage = play.stage
    seat = f"{RESOURCE}-{stage.case}"
    for node in NODES:
        words = ("patch", "node", node, "--subresource=status", "--type=json", "--patch")
        place = f"/status/capacity/{seat.replace('/', '~1')}"
        stage.kubectl(*words, json.dumps([{"op": "add", "path": place, "value": "1"}]))
        stage.stack.callback(stage.kubectl.run, *words, json.dumps([{"op": "remove", "path": place}]))
    other = rival(stage, node="n2", priority="", seat=seat)
    stage.kubectl.apply([other])
    name = other["metadata"]["name"]
    stage.stack.callback(stage.kubectl.run, "delete", "pod", "-n", stage.namespace, name, "--wait=false")
    stage.kubectl("wait", "--for=condition=Ready", "-n", stage.namespace, f"pod/{name}", "--timeout=60s")
    stage.add(resources={"limits": {seat: "1"}, "requests": {seat: "1"}})


def _image(play: Play) -> None:
    """An image that n2 alone has not."""
    for index in (1, 3):
        node = play.stage.bed.node(index)
        words = ("--address", str(node.socket), "--namespace", "k8s.io", "images", "tag", "--force")
        command = node.enter("ctr", *words, play.stage.job["kubernetes"]["image"], IMAGE)
        subprocess.run(command, check=True, capture_output=True)
    play.stage.add(image=IMAGE)


def _away(play: Play) -> None:
    proxy = play.stage.stack.enter_context(Proxy(before.settings(play.stage.bed.layout)))
    play.stage.kubeconfig = before.through(proxy.url, play.stage.kubeconfig, play.stage.folder / "proxy.kubeconfig")
    play.stage.proxy = proxy


def _disk(play: Play) -> None:
    home = play.stage.home
    subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(home)), check=True)
    play.stage.kept.callback(subprocess.run, ("umount", "-l", str(home)), check=True)


def _wrong_clock(play: Play) -> None:
    """Ahead where rank 2 is, or behind where the others are: in turn."""
    index = int(play.home[1][1:])
    ahead = sum(map(ord, play.first)) % 2
    node_clock(play.stage, index if ahead else 1, 90.0 if ahead else -90.0)


def _sidecar(play: Play) -> None:
    stage = play.stage
    code = _SIDECAR.format(go=str(stage.plan.with_suffix(".side")), over=str(stage.plan.with_suffix(".over")))
    section = stage.job["kubernetes"]
    other = {
        "name": "metrics",
        "image": section["image"],
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-c", code],
        "volumeMounts": [section["volume_mounts"][0]],
    }
    stage.add(pod={"spec": {"containers": [other]}})


PREPARED: Final[dict[str, Callable[[Play], None]]] = {
    "oom": lambda play: limit(play.stage),
    "refused-pod": _seats,
    "image-missing": _image,
    "api-away": _away,
    "disk-full": _disk,
    "clock": _wrong_clock,
    "sidecar": _sidecar,
}


# -- the first fault


def _go(play: Play) -> None:
    play.stage.plan.with_suffix(".go").touch()


def _xid(play: Play) -> None:
    """A problem detector's Event, then the rank that used the GPU ends."""
    stage, node = play.stage, play.home[1]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = f"{node}.{stage.case}"
    stage.kubectl.apply([
        {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": "XidError", "message": XID, "type": "Warning", "source": {"component": "kernel-monitor"},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }
    ])  # fmt: skip
    stage.stack.callback(stage.kubectl.run, "delete", "event", "-n", "default", name, "--wait=false")
    play.kill()


def _bind_slot_1(play: Play) -> None:
    play.slot_1_may_come = True


STRIKES: Final[dict[str, Callable[[Play], None]]] = {
    "exception": _go,
    "sigkill": Play.kill,
    "oom": lambda play: let_go(play.stage),
    "hang": _go,
    "node-down": lambda play: play.cut(play.home[1]),
    "xid-event": _xid,
    "refused-pod": _bind_slot_1,
    "image-missing": _bind_slot_1,
}


# -- the second one, around it


@contextmanager
def _api_away(play: Play) -> Iterator[None]:
    proxy = play.stage.proxy
    assert proxy is not None
    proxy.add("away", Cut())
    proxy.cut_all()
    began = time.monotonic()
    yield
    play.stage.stop.wait(AWAY_S - (time.monotonic() - began))
    proxy.clear()


@contextmanager
def _supervisor_killed(play: Play) -> Iterator[None]:
    with play.stage.supervised.killed():
        yield
        play.struck()
        play.stage.stop.wait(SUPERVISOR_AWAY_S)


@contextmanager
def _disk_full(play: Play) -> Iterator[None]:
    filler = play.stage.home / "filler"
    fill(filler)
    yield
    play.struck()
    play.stage.stop.wait(DISK_FULL_S)
    filler.unlink()


@contextmanager
def _deleted(play: Play) -> Iterator[None]:
    workload = play.stage.workload()
    yield
    play.struck()
    play.stage.kubectl("delete", workload, "-n", play.stage.namespace, "--wait=false")


@contextmanager
def _node_elsewhere(play: Play) -> Iterator[None]:
    yield
    play.struck()
    play.cut(play.home[0])


@contextmanager
def _nothing_more(_: Play) -> Iterator[None]:
    yield


@contextmanager
def _side(play: Play) -> Iterator[None]:
    stage = play.stage
    stage.plan.with_suffix(".side").touch()
    slot = 0 if play.starts else 1

    def gone() -> bool:
        rows = {row["name"]: row for row in stage.pod(slot)["status"].get("containerStatuses", ())}
        return "terminated" in rows["metrics"]["state"]

    stage.until(gone, "the end of the sidecar")
    stage.plan.with_suffix(".over").touch()
    yield


SECONDS: Final[dict[str, Any]] = {
    "api-away": _api_away,
    "supervisor-killed": _supervisor_killed,
    "disk-full": _disk_full,
    "deleted": _deleted,
    "node-elsewhere": _node_elsewhere,
    "clock": _nothing_more,
    "survived": _nothing_more,
    "sidecar": _side,
}
