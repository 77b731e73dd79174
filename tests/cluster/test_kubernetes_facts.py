"""What Kubernetes alone knows of a fall, on a real cluster: taken away, refused, not begun, held; each named, with its node where it has one."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import RULES, World
from faults.cluster_table import SOON
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, OpenCause, encode_health
from support.helpers import wait_until
from testbed import accounts, faults
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.errors import StartError
from testbed.workloads import PYTHON_IMAGE, sleeper

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
# Says that it runs, then sleeps; one that is told to ends by itself.
COUNT = """
import os, sys, time

with open("/tmp/pid", "w") as file:
    file.write(str(os.getpid()))
print(f"slot {os.environ['RANK']} begins", flush=True)
time.sleep(float(os.environ.get("SECONDS", "120")))
"""
SPREAD = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchExpressions": [{"key": "rankfall.dev/run", "operator": "Exists"}]},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home", program=COUNT)


def job(
    namespace: str, *, backend: str = "job", spec: dict[str, Any] | None = None, **kubernetes: Any
) -> dict[str, Any]:
    """Two slots on two nodes, one rank each; no retry."""
    pod = {"automountServiceAccountToken": False, "affinity": SPREAD, **(spec or {})}
    return {
        "name": "facts",
        "backend": backend,
        "command": ["python3", "/job/train.py"],
        "nnodes": 2,
        "nproc_per_node": 1,
        "launcher": "plain",
        "policies": {"max_restarts": 0, "grace_s": 2},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "volumes": [{"name": "script", "configMap": {"name": "program"}}],
            "volume_mounts": [{"name": "script", "mountPath": "/job"}],
            "pod": {"spec": pod},
            **kubernetes,
        },
    }


def begun(world: World, spec: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """A submitted run both of whose slots speak, and its pods by index."""
    run = submitted(world, spec)
    wait_until(lambda: len(world.document("status", run)["ranks"]) == 2, timeout=90, what="both ranks")
    return run, pods_of(world)


def submitted(world: World, spec: dict[str, Any]) -> str:
    started = world.cli("submit", "--file", str(world.file(spec)))
    assert started.returncode == 0, started.stderr
    return started.stdout.strip()


def pods_of(world: World) -> list[dict[str, Any]]:
    items = world.kubectl.get("pods", "-n", world.namespace, "-l", "rankfall.dev/run")["items"]
    return sorted(items, key=lambda item: int(item["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))


def ended(world: World, run: str) -> dict[str, Any]:
    """The verdict of a run that came to its end; made anew from the directory alone it is the same."""
    world.cli("wait", run, timeout=60)
    found = world.document("why", run)
    again = world.document("why", run, "--strategy", "causal")
    assert [again["cause"]["slug"], again["node"], again["slot"]] == [
        found["cause"]["slug"],
        found["node"],
        found["slot"],
    ]
    return found


def said(found: dict[str, Any]) -> tuple[Any, ...]:
    return found["cause"]["slug"], found["slot"], found["node"], found["retry"], found["node_action"]


def test_errors_k3_an_eviction_is_named_with_its_pod(world):
    run, pods = begun(world, job(world.namespace))
    faults.evict(world.kubectl, world.namespace, pods[1]["metadata"]["name"])
    found = ended(world, run)
    assert said(found) == ("preempted", 1, pods[1]["spec"]["nodeName"], "yes", "none"), found
    assert found["pod"] == pods[1]["metadata"]["name"]
    assert "EvictionByEvictionAPI" in found["decisive"]["line"]


def test_errors_k1_a_preemption_by_the_scheduler_is_named(world, kubectl):
    run, pods = begun(
        world, job(world.namespace, spec={"containers": [{"name": "main", "resources": {"requests": {"cpu": "600m"}}}]})
    )
    node = pods[0]["spec"]["nodeName"]
    room = kubectl.get("node", node)["status"]["allocatable"]["cpu"]
    first = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "first"},
        "value": 1000,
    }
    kubectl.apply([first])
    greedy = sleeper(
        "greedy",
        namespace=world.namespace,
        container={"command": ["sleep", "60"], "resources": {"requests": {"cpu": most(room)}}},
        priorityClassName="first",
        nodeSelector={"kubernetes.io/hostname": node},
    )

    def made() -> bool:
        """The server knows a new class a moment after it has taken it."""
        try:
            kubectl.apply([greedy])
        except StartError as error:
            if "no PriorityClass with name first" not in str(error):
                raise
            return False
        return True

    wait_until(made, timeout=30, what="a pod of the new class")
    found = ended(world, run)
    assert said(found) == ("preempted", 0, node, "yes", "none"), found
    assert "PreemptionByScheduler" in found["decisive"]["line"]


def most(cpu: str) -> str:
    """Nearly all of a node's CPUs."""
    milli = int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000
    return f"{milli - 300}m"


def gives_up(world: World, run: str, reason: str) -> dict[str, Any]:
    """A run that waits for ``reason``, and then for no longer."""
    wait_until(lambda: reason in (world.document("status", run)["reason"] or ""), timeout=90, what=reason)
    return ended(world, run)


def waiting(namespace: str, **fields: Any) -> dict[str, Any]:
    """A job that gives up after some seconds of waiting."""
    made = job(namespace, **fields)
    made["deadlines"] = {"startup_s": 15}
    return made


def test_errors_k6_a_slot_without_room_is_unschedulable_with_the_schedulers_words(world):
    big = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "64"}}}]}
    found = gives_up(world, submitted(world, waiting(world.namespace, spec=big)), "Insufficient cpu")
    assert said(found) == ("unschedulable", None, None, "yes", "none"), found
    assert found["scope"] == "all"


def test_errors_k6_a_quota_is_named_with_its_words(world, kubectl):
    quota = {"hard": {"pods": "1"}}
    kubectl.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "small", "namespace": world.namespace},
                "spec": quota,
            }
        ]
    )
    found = gives_up(world, submitted(world, waiting(world.namespace)), "exceeded quota")
    assert (found["cause"]["slug"], found["node"], found["retry"]) == ("unschedulable", None, "yes"), found
    assert found["decisive"]["source"] == "event"
    assert "exceeded quota: small" in found["decisive"]["line"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_errors_k8_an_image_that_is_missing_is_the_nodes_where_another_has_it(world, bed, nodes):
    image = "only.example/one:1"
    if nodes == 1:
        bed.node(1)._ctr("images", "tag", "--force", PYTHON_IMAGE, image)
    try:
        run = submitted(world, waiting(world.namespace, image=image))
        # Where one slot has begun the run does not wait to begin any more.
        found = gives_up(world, run, "ErrImageNeverPull") if nodes == 2 else ended(world, run)
    finally:
        bed.node(1)._ctr("images", "rm", image)
    if nodes == 1:
        assert said(found)[0] == "image_pull", found
        assert said(found)[2:] == ("n2", "elsewhere", "none"), found
    else:
        assert said(found) == ("image_pull", None, None, "no", "none"), found


def test_errors_k10_a_volume_that_does_not_mount_is_named(world):
    made = waiting(world.namespace)
    made["kubernetes"]["volumes"].append({"name": "gone", "configMap": {"name": "not-there"}})
    made["kubernetes"]["volume_mounts"].append({"name": "gone", "mountPath": "/gone"})
    found = gives_up(world, submitted(world, made), "FailedMount")
    assert said(found) == ("volume_mount", None, None, "yes", "none"), found
    assert 'configmap "not-there" not found' in found["decisive"]["line"]


def test_errors_k7_a_node_that_refuses_a_pod_is_named(world, kubectl):
    """Given to a node by name, past the scheduler, where there is no room for it: the kubelet says so, in two words and without a condition."""
    spec = {
        "nodeName": "n2",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "64"}}}],
    }
    made = job(world.namespace, spec=spec)
    del made["kubernetes"]["pod"]["spec"]["affinity"]
    found = ended(world, submitted(world, made))
    # All slots were refused, so nothing says that it is that node's fault.
    assert said(found) == ("admission_rejected", None, None, "elsewhere", "none"), found
    assert "OutOfcpu" in found["decisive"]["line"]


def test_errors_k15_a_probe_that_kills_is_told_from_a_kill_without_a_sender(world):
    probe = {"exec": {"command": ["false"]}, "initialDelaySeconds": 12, "periodSeconds": 2, "failureThreshold": 1}
    spec = {"containers": [{"name": "main", "livenessProbe": probe}]}
    run, _ = begun(world, job(world.namespace, spec=spec))
    found = ended(world, run)
    assert (found["cause"]["slug"], found["retry"], found["node_action"]) == ("probe_killed", "once", "none"), found
    assert found["decisive"]["source"] == "event"
    assert "liveness probe" in found["decisive"]["line"].lower()


def test_errors_k11_a_pods_own_deadline_is_named_with_its_node(world):
    run, pods = begun(world, job(world.namespace))
    patch = '{"spec": {"activeDeadlineSeconds": 1}}'
    world.kubectl("patch", "pod", "-n", world.namespace, pods[1]["metadata"]["name"], "--patch", patch)
    found = ended(world, run)
    assert said(found) == ("deadline_exceeded", 1, pods[1]["spec"]["nodeName"], "no", "none"), found
    assert found["decisive"]["line"].startswith("DeadlineExceeded"), found


def test_errors_k12_s40_a_job_deleted_by_hand_and_one_that_is_suspended_are_no_failures(world, kubectl):
    run, _ = begun(world, job(world.namespace))
    kubectl("patch", "job", f"{run}-a1", "-n", world.namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    wait_until(lambda: world.document("status", run)["state"] == "suspended", timeout=60, what="the suspension")
    found = world.document("why", run)
    assert (found["cause"]["slug"], found["retry"], found["node_action"]) == ("cancelled", "no", "none"), found
    kubectl("delete", "job", f"{run}-a1", "-n", world.namespace, "--wait=false")
    world.cli("wait", run, timeout=60)
    assert world.document("status", run)["state"] == "deleted"


def test_health_s31_what_was_recorded_on_the_node_seconds_before_names_node_gpu_and_time(
    world, bed, kubectl, namespace, request
):
    """Of a rank that only died: the cause is in the record that the health agent keeps on the node."""
    may = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES, cluster_rules=[may])
    run, pods = begun(world, job(namespace))
    node = pods[1]["spec"]["nodeName"]
    text = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python, GPU has fallen off the bus."
    at = time.time_ns()
    cause = OpenCause(code="xid/79", device="gpu 0000:4e:00", first_at=at, last_at=at, text=text)
    record = encode_health(NodeHealth(state="suspect", causes=(cause,)))
    kubectl("annotate", "node", node, f"{ANNOTATION}={record}", "--overwrite")
    request.addfinalizer(lambda: kubectl("annotate", "node", node, f"{ANNOTATION}-"))
    name = pods[1]["metadata"]["name"]
    kubectl("exec", name, "-n", namespace, "--", "sh", "-c", "kill -KILL $(cat /tmp/pid)")
    found = ended(world, run)
    assert said(found) == ("gpu_fallen_off_bus", 1, node, "elsewhere", "taint"), found
    assert (found["rank"], found["gpu"]) == (1, "0000:4e:00")
    assert re.search(r"xid/79 on gpu 0000:4e:00, \d+\.\d s before rank 1 failed", found["decisive"]["line"])
    assert not any("nodes" in text for text in found["missing"])


def test_i32_a_node_that_its_cloud_reclaims_is_taken_away_and_no_fault_of_the_node(world, bed, kubectl, namespace):
    """The mark of a reclaim first, then the power cut."""
    may = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES, cluster_rules=[may])
    run, pods = begun(world, job(namespace, tolerations=SOON))
    node = pods[1]["spec"]["nodeName"]
    key = "aws-node-termination-handler/spot-itn"
    with faults.tainted(kubectl, node, key=key):

        def noticed() -> bool:
            return any(key in path.read_text() for path in world.only_run().glob("kube/attempt-1/*.jsonl"))

        wait_until(noticed, timeout=60, what="the mark in the run's directory")
        with faults.node_down(bed, int(node.removeprefix("n"))):
            world.cli("wait", run, timeout=330)
            found = ended(world, run)
    assert said(found) == ("preempted", 1, node, "yes", "none"), found
    assert key in found["decisive"]["line"]


def test_i32_what_a_container_printed_last_stays_in_its_status(world):
    """Nobody follows: its process is killed, and with it what would have written a message."""
    run, pods = begun(world, job(world.namespace))
    name = pods[1]["metadata"]["name"]
    world.kubectl("exec", name, "-n", world.namespace, "--", "sh", "-c", "kill -KILL -1")

    def last() -> str:
        (state,) = [one["state"] for one in pods_of(world)[1]["status"]["containerStatuses"] if one["name"] == "main"]
        return str(state.get("terminated", {}).get("message", ""))

    wait_until(last, timeout=60, what="an end with words")
    assert "slot 1 begins" in last() or "slot_end" in last()
    ended(world, run)
