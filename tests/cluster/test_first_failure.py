"""Which failure was first where something else goes wrong as well: a node's fault elsewhere, a refused pod, an end after the work was done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import PROGRAM, World, job
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl, Object
from testbed.workloads import PYTHON_IMAGE, script, sleeper

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python, GPU has fallen off the bus."
PLACE = "rankfall.test/place"
# Rank 1 raises once its pod has the file; rank 0 prints until it is stopped.
RAISES = """
import os, time

rank = int(os.environ["RANK"])
print(f"rank {rank} begins", flush=True)
while not (rank == 1 and os.path.exists("/tmp/go")):
    time.sleep(0.2)
raise KeyError("column_17")
"""
# Rank 1 fails after the work is done, while its data workers live: they outlive a rank that leaves by os._exit.
ENDS = """
import atexit, os, time
import torch
import torch.distributed as dist
from rankfall_inside import progress
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
rank, end = dist.get_rank(), os.environ["END"]
batches = iter(DataLoader(list(range(64)), num_workers=2, persistent_workers=True))
for step in range(4):
    dist.all_reduce(next(batches))
    if end == "raise":
        progress(step)
    time.sleep(0.2)
if end == "raise":
    progress(4, "teardown")
print("training finished", flush=True)
if rank == 1:
    if end == "raise":
        time.sleep(1)
        raise RuntimeError("could not close the journal")
    atexit.register(os._exit, 1)
"""


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    """What is undone at the end of a test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home")


def pods(world: World, attempt: int = 1) -> dict[int, Object]:
    """The pods of an attempt that a node has, by slot."""
    selector = f"rankfall.dev/attempt={attempt}"
    items = world.kubectl.get("pods", "--namespace", world.namespace, "--selector", selector)["items"]
    index = "batch.kubernetes.io/job-completion-index"
    return {int(one["metadata"]["labels"][index]): one for one in items}


def running(world: World, *, slots: int) -> dict[int, Object]:
    """Wait until all slots of the first attempt run."""

    def there() -> dict[int, Object] | None:
        found = pods(world)
        ready = len(found) == slots and all(one["status"]["phase"] == "Running" for one in found.values())
        return found if ready else None

    return wait_until(there, timeout=120, what="the pods")


def xid_event(kubectl: Kubectl, node: str) -> str:
    """What a problem detector says of a node; the Event's name."""
    name = f"{node}.first-{time.time_ns()}"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kubectl.apply([
        {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": "XidError", "message": XID, "type": "Warning", "source": {"component": "kernel-monitor"},
            "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
        }
    ])  # fmt: skip
    return name


def plain(world: World, **fields: Any) -> dict[str, Any]:
    spec = job(backend="job", namespace=world.namespace, **fields)
    return spec | {"launcher": "plain", "nproc_per_node": 1, "python": "/usr/bin/python3"}


def test_i19_p5_a_fault_of_a_healthy_node_is_not_the_cause_of_an_exception_elsewhere(
    bed, kubectl, namespace, undo, tmp_path
):
    """The account may see nodes and their Events, as that of a user who is told why a node was left out."""
    home = tmp_path / "home"
    home.mkdir()
    world = World(home, kubeconfig=bed.layout.kubeconfig(), kubectl=kubectl, namespace=namespace, program=RAISES)
    done = world.run(plain(world), "--detach")
    assert done.returncode == 0, done.stderr
    found = running(world, slots=2)
    healthy, raised = (found[slot]["spec"]["nodeName"] for slot in (0, 1))
    undo.callback(kubectl.run, "delete", "event", "-n", "default", xid_event(kubectl, healthy))
    kubectl("exec", "-n", namespace, found[1]["metadata"]["name"], "--", "touch", "/tmp/go")
    run = world.only_run().name
    assert world.cli("wait", run, timeout=120).returncode == 1
    verdict = world.document("why", run, "--attempt", "1")
    assert (verdict["cause"]["slug"], verdict["cause"]["confidence"]) == ("user_code_exception", "proven")
    assert (verdict["rank"], verdict["slot"], verdict["node"], verdict["node_action"]) == (1, 1, raised, "none")
    assert verdict["decision"]["action"] == "stop"
    assert {one["slug"] for one in verdict["consequences"]} == {"peer_teardown"}
    (other,) = verdict["independent"]
    assert (other["slug"], other["node"]) == ("gpu_fallen_off_bus", healthy)


@pytest.mark.parametrize("end", ["atexit", "raise"])
def test_i19_p8_a_failure_after_the_work_was_done_is_not_run_again(world, end):
    world.kubectl.apply([script(PROGRAM, namespace=world.namespace, text=ENDS)])
    spec = job(backend="job", namespace=world.namespace)
    spec["env"]["END"] = end
    done = world.run(spec)
    assert done.returncode == 1, done.stderr
    verdict = world.document("why", world.only_run().name)
    slug = "user_exit" if end == "atexit" else "user_code_exception"
    assert (verdict["attempt"], verdict["cause"]["slug"], verdict["rank"]) == (1, slug, 1)
    assert (verdict["phase"], verdict["retry"], verdict["node_action"]) == ("teardown", "no", "none")
    assert verdict["decision"]["action"] == "stop"


def test_i19_p2_a_pod_that_its_kubelet_refuses_is_started_again_on_another_node(kubectl, namespace, world, nodes, undo):
    """Its scheduler, which is played here, believes in a free place that another pod has taken."""
    full, other = nodes
    place = f"/status/capacity/{PLACE.replace('/', '~1')}"
    for node in nodes:
        words = ("patch", "node", node, "--subresource=status", "--type=json", "--patch")
        kubectl(*words, json.dumps([{"op": "add", "path": place, "value": "1"}]))
        undo.callback(kubectl.run, *words, json.dumps([{"op": "remove", "path": place}]))
    want = {"limits": {PLACE: "1"}, "requests": {PLACE: "1"}}
    holds = {"nodeName": full, "terminationGracePeriodSeconds": 1}
    kubectl.apply([sleeper("first", namespace=namespace, image=PYTHON_IMAGE, container={"resources": want}, **holds)])
    kubectl("wait", "-n", namespace, "pod/first", "--for=condition=Ready", "--timeout=60s")
    spec = plain(world) | {"command": ["echo", "done"], "launcher": "exec", "nnodes": 1}
    spec["kubernetes"]["resources"] = want
    spec["kubernetes"]["pod"]["spec"]["schedulerName"] = "nobody"
    assert world.run(spec, "--detach").returncode == 0
    run = world.only_run().name
    bind(world, attempt=1, node=full)
    second = bind(world, attempt=2, node=other)
    assert full in json.dumps(second["spec"]["affinity"]["nodeAffinity"])
    assert world.cli("wait", run, timeout=120).returncode == 0
    verdict = world.document("why", run, "--attempt", "1")
    assert (verdict["cause"]["slug"], verdict["cause"]["confidence"]) == ("admission_rejected", "proven")
    assert (verdict["slot"], verdict["node"], verdict["retry"]) == (0, full, "elsewhere")
    assert verdict["decision"]["action"] == "retry_elsewhere"
    assert verdict["decisive"]["line"].startswith(f"OutOf{PLACE}: Pod was rejected: ")


def bind(world: World, *, attempt: int, node: str) -> Object:
    """Give the attempt's only pod to a node, whatever that has left."""
    pod = wait_until(lambda: pods(world, attempt).get(0), timeout=60, what=f"the pod of attempt {attempt}")
    name = pod["metadata"]["name"]
    meta = {"name": name, "namespace": world.namespace}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}
    path = f"/api/v1/namespaces/{world.namespace}/pods/{name}/binding"
    world.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(binding))
    return pod
