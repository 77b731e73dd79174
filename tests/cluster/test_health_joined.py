"""Node health joined with jobs, on a real cluster: a run tells its node, a real controller taints it and answers, then the next attempt is made.

Controller and run have accounts of their own with the rights that the manifests and the pages name, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import RULES, World
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, KernelEntry, KernelReport, Place, encode_report
from rankfall.model.node_health.records import ANNOTATION, CONDITION, decode_health
from rankfall.model.node_health.run_verdicts import CONTROLLER_NAMESPACE, LEASE, VERDICTS_ANNOTATION
from rankfall.nodes.manifests import cluster
from rankfall.nodes.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]
SPACE = "rankfall-joined"
KEY = "rankfall.dev/faulty"
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid=4242, name=python, GPU has fallen off the bus."
#: The first attempt waits to be killed, the second one is done at once.
PROGRAM = """
import os, time

with open("/tmp/pid", "w") as file:
    file.write(str(os.getpid()))
print(f"attempt {os.environ['RANKFALL_ATTEMPT']} begins", flush=True)
time.sleep(300 if os.environ["RANKFALL_ATTEMPT"] == "1" else 0)
"""


class Joined(World):
    """A user whose account may tell nodes what they did."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), CONTROLLER_NAMESPACE: SPACE}

    def events(self) -> list[dict[str, Any]]:
        """What the supervisor said, in its order."""
        text = (self.only_run() / "events.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def grant(kubectl: Kubectl, name: str, *, namespace: str, rules: Any, account: str, home: str) -> None:
    """A Role in another namespace, for an account of ``home``."""
    group = "rbac.authorization.k8s.io"
    meta = {"name": name, "namespace": namespace}
    kubectl.apply([
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [dict(each) for each in rules]},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
        },
    ])  # fmt: skip


@pytest.fixture(scope="module")
def control(bed: Bed, kubectl: Kubectl) -> Path:
    """The controller's account."""
    path = accounts.create(
        bed.control, kubectl, "controller", namespace=SPACE, rules=OWN_RULES, cluster_rules=CLUSTER_RULES
    )
    grant(kubectl, "joined-controller", namespace="default", rules=EVENT_RULES, account="controller", home=SPACE)
    return path


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path, control: Path) -> World:
    del control
    seen = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    path = accounts.create(
        bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES, cluster_rules=[*cluster.CLUSTER_RULES, seen]
    )
    events = [{"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]}]
    grant(kubectl, namespace, namespace="default", rules=events, account="rankfall", home=namespace)
    grant(kubectl, namespace, namespace=SPACE, rules=cluster.OWN_RULES, account="rankfall", home=namespace)
    home = tmp_path / "home"
    home.mkdir()
    return Joined(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=PROGRAM)


@pytest.fixture(autouse=True)
def clean(kubectl: Kubectl) -> Iterator[None]:
    """Nodes of which nothing was said, before and after."""

    def wipe() -> None:
        for node in names(kubectl):
            marks = [f"{each}-" for each in (ANNOTATION, REPORT_ANNOTATION, VERDICTS_ANNOTATION)]
            kubectl("annotate", "node", node, *marks)
            kubectl.run("taint", "node", node, f"{KEY}-")
        kubectl("delete", "configmap,lease", "-n", SPACE, "--all", "--ignore-not-found")

    wipe()
    yield
    wipe()


def names(kubectl: Kubectl) -> list[str]:
    return [each["metadata"]["name"] for each in kubectl.get("nodes")["items"]]


@contextmanager
def controlling(kubeconfig: Path, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A controller that leads."""
    command = [sys.executable, "-m", "rankfall", "controller", "-n", SPACE, *options]
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "joined"}
    environ.pop("LOG_ENDPOINT", None)
    with (folder / "controller.log").open("ab") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            wait_until(lambda: "this controller leads" in log_of(folder), timeout=60, what="a leading controller")
            yield process
        finally:
            process.terminate()
            process.wait(30)


def log_of(folder: Path) -> str:
    return (folder / "controller.log").read_text()


def job(namespace: str) -> dict[str, Any]:
    """One slot, one retry."""
    return {
        "name": "joined",
        "backend": "job",
        "command": ["python3", "/job/train.py"],
        "nnodes": 1,
        "nproc_per_node": 1,
        "launcher": "plain",
        "policies": {"max_restarts": 1, "grace_s": 2, "backoff_s": 0.2},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "volumes": [{"name": "script", "configMap": {"name": "program"}}],
            "volume_mounts": [{"name": "script", "mountPath": "/job"}],
            "pod": {"spec": {"automountServiceAccountToken": False}},
        },
    }


def begun(world: World) -> tuple[str, str, str]:
    """A run whose rank runs: its id, its pod, its node."""
    started = world.cli("submit", "--file", str(world.file(job(world.namespace))))
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    wait_until(lambda: world.document("status", run)["ranks"], timeout=120, what="the rank")
    (pod,) = world.kubectl.get("pods", "-n", world.namespace, "-l", "rankfall.dev/run")["items"]
    return run, pod["metadata"]["name"], pod["spec"]["nodeName"]


def fall(world: World, pod: str) -> None:
    world.kubectl("exec", pod, "-n", world.namespace, "--", "sh", "-c", "kill -KILL $(cat /tmp/pid)")


def node_event(kubectl: Kubectl, node: str) -> None:
    """As a problem detector writes it; only who may write Events of nodes can."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kubectl.apply([
        {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": f"{node}.joined-{time.time_ns()}", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": "XidError", "message": XID, "type": "Warning", "source": {"component": "kernel-monitor"},
            "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
        }
    ])  # fmt: skip


def tainted(kubectl: Kubectl) -> set[str]:
    items = kubectl.get("nodes")["items"]
    return {
        each["metadata"]["name"]
        for each in items
        if any(taint["key"] == KEY for taint in each["spec"].get("taints") or ())
    }


def order(world: Joined, *wanted: str) -> list[int]:
    """Where in the supervisor's story these words stand first."""
    said = [f"{each['kind']}: {each['text']}" for each in world.events()]
    places = [next((at for at, text in enumerate(said) if words in text), -1) for words in wanted]
    assert -1 not in places, (wanted, said)
    return places


def test_health_s31_the_next_attempt_begins_after_the_taint_that_its_runs_verdict_asked_for(
    world, kubectl, control, tmp_path
):
    """A problem detector's Event proves the cause; only the run joins it to its fall, and the controller learns of it by the run."""
    with controlling(control, tmp_path):
        run, pod, node = begun(world)
        node_event(kubectl, node)
        assert tainted(kubectl) == set()
        fall(world, pod)
        done = world.cli("wait", run, timeout=240)
        assert done.returncode == 0, done.stderr
        first = world.document("why", run, "--attempt", "1")
        assert (first["cause"]["slug"], first["cause"]["confidence"]) == ("gpu_fallen_off_bus", "proven")
        assert (first["node"], first["node_action"]) == (node, "taint")
        assert tainted(kubectl) == {node}
    told = order(
        world,
        f"blamed: reported node {node} as the cause",
        f"blamed: node {node}: the controller of node health keeps",
        "attempt: attempt 2",
    )
    assert told == sorted(told)
    record = decode_health(kubectl.get("node", node)["metadata"]["annotations"][ANNOTATION])
    causes = [(each.code, each.device, each.count) for each in record.causes]
    assert causes == [("verdict/gpu_fallen_off_bus", "gpu 0000:4e:00", 1)]
    assert [(each.id, each.outcome) for each in record.answered] == [(f"verdict:{run}:1", "counted")]
    conditions = {each["type"]: each for each in kubectl.get("node", node)["status"]["conditions"]}
    assert conditions[CONDITION]["reason"] == "Quarantined"
    assert run in conditions[CONDITION]["message"]
    nodes = {slot["node"] for slot in world.document("status", run)["slots"]}
    assert node not in nodes
    assert f"node `{node}` has caused the failure of a run" in log_of(tmp_path)


def test_health_s31_the_controllers_own_evidence_is_in_why_and_the_restart_lands_elsewhere(
    world, kubectl, control, tmp_path
):
    """An agent's report of an Xid seconds before the fall: the controller acts on it, the verdict cites the record that it wrote."""
    run, pod, node = begun(world)
    boot = kubectl.get("node", node)["status"]["nodeInfo"]["bootID"]
    with controlling(control, tmp_path, "--shared-kernel-node", node):
        place = Place(7, time.time_ns())
        entry = KernelEntry(
            code="xid/79", device="gpu 0000:4e:00", slug="gpu_fallen_off_bus", seen=(place,), first=place, text=XID
        )
        report = encode_report(KernelReport(boot=boot, seq=7, entries=(entry,)))
        kubectl("annotate", "node", node, f"{REPORT_ANNOTATION}={report}")
        wait_until(lambda: tainted(kubectl) == {node}, timeout=60, what="the taint")
        fall(world, pod)
        done = world.cli("wait", run, timeout=240)
        assert done.returncode == 0, done.stderr
        first = world.document("why", run, "--attempt", "1")
    assert (first["cause"]["slug"], first["node"], first["gpu"]) == ("gpu_fallen_off_bus", node, "0000:4e:00")
    assert (first["node_action"], first["retry"]) == ("taint", "elsewhere")
    assert ANNOTATION in first["decisive"]["where"]
    assert "xid/79 on gpu 0000:4e:00" in first["decisive"]["line"]
    told = order(world, f"blamed: node {node}: the controller of node health keeps", "attempt: attempt 2")
    assert told == sorted(told)
    record = decode_health(kubectl.get("node", node)["metadata"]["annotations"][ANNOTATION])
    assert {each.code for each in record.causes} == {"xid/79", "verdict/gpu_fallen_off_bus"}
    nodes = {slot["node"] for slot in world.document("status", run)["slots"]}
    assert node not in nodes


def test_health_s31_without_a_controller_a_run_tells_its_node_and_waits_for_nobody(world, kubectl):
    run, pod, node = begun(world)
    node_event(kubectl, node)
    fall(world, pod)
    done = world.cli("wait", run, timeout=240)
    assert done.returncode == 0, done.stderr
    said = [each["text"] for each in world.events()]
    assert any(f"reported node {node} as the cause" in text for text in said)
    assert not any("controller of node health" in text for text in said)
    assert run in kubectl.get("node", node)["metadata"]["annotations"][VERDICTS_ANNOTATION]


def test_health_s08_who_may_tell_a_node_of_a_run_may_change_nothing_else_of_it(bed, kubectl, namespace, request):
    node = names(kubectl)[0]
    kubectl.apply(cluster.runs_admission())
    request.addfinalizer(
        lambda: kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", cluster.NAME)
    )
    # kubectl reads what it patches, which the product does not.
    read = {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["get"]}
    path = accounts.create(
        bed.control, kubectl, "teller", namespace=namespace, rules=[], cluster_rules=[*cluster.CLUSTER_RULES, read]
    )
    theirs = Kubectl(kubectl.program, path)

    def patch(body: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
        return theirs.run("patch", "node", node, "--type=merge", "-p", json.dumps(body), *more)

    status = "--subresource=status"
    bad = {"status": {"phase": "Terminated"}}
    # A policy counts some moments after it was made. Until then the server takes the change: kept, the next one would change nothing and pass for ever.
    wait_until(
        lambda: "may change nothing" in patch(bad, status, "--dry-run=server").stderr, timeout=60, what="the policy"
    )
    good = patch({"metadata": {"annotations": {VERDICTS_ANNOTATION: "{}"}}}, status)
    assert good.returncode == 0, good.stderr
    for body in (
        bad,
        {"metadata": {"annotations": {ANNOTATION: "{}"}}},
        {"metadata": {"annotations": {VERDICTS_ANNOTATION: "x" * 20_000}}},
        {"metadata": {"labels": {"mine": "1"}}},
        {"status": {"conditions": []}},
    ):
        assert patch(body, status).returncode != 0, body
    assert patch({"spec": {"unschedulable": True}}).returncode != 0
    admin = kubectl(
        "patch", "node", node, status, "--type=merge", "-p", json.dumps({"metadata": {"annotations": {"other": "1"}}})
    )
    assert admin
    kubectl("annotate", "node", node, "other-")
    assert theirs.run("get", "lease", LEASE, "-n", SPACE).returncode != 0
