"""What the platform says of a node after the job there has failed: late, and yet in the verdict and in where the next attempt is placed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.chaos_world import counting
from cluster.run_world import RULES, TRAIN, World, job
from support.helpers import wait_until
from testbed import accounts, faults
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# Rank 1 is killed in attempt 1, and in attempt 2 when somebody says so; the third attempt ends well.
KILLED = """
import os, signal, time

attempt, rank = os.environ["RANKFALL_ATTEMPT"], int(os.environ["RANK"])
print("begun", flush=True)
while attempt == "2" and not os.path.exists("/tmp/go"):
    time.sleep(0.1)
if attempt != "3":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""
SPREAD = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchExpressions": [{"key": "rankfall.dev/run", "operator": "Exists"}]},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    }
}
READER: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["nodes", "events"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
]


def world(bed: Bed, kubectl: Kubectl, namespace: str, home: Path, *, program: str, sees_nodes: bool) -> World:
    home.mkdir()
    rights = READER if sees_nodes else []
    config = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES, cluster_rules=rights)
    return World(home, kubeconfig=config, kubectl=kubectl, namespace=namespace, program=program)


def test_i19_p12_an_xid_that_is_known_late_is_in_the_verdict_and_its_node_is_avoided(bed, kubectl, namespace, tmp_path):
    here = world(bed, kubectl, namespace, tmp_path / "home", program=KILLED, sees_nodes=True)
    spec = counting(backend="job", namespace=namespace)
    spec["policies"] |= {"max_restarts": 2, "backoff_s": 0.1}
    spec["kubernetes"]["pod"]["spec"]["affinity"] = SPREAD
    started = here.cli("submit", "--file", str(here.file(spec)))
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    wait_until(lambda: here.document("status", run)["attempts"] == 2, timeout=90, what="the second attempt")
    first = here.document("why", run, "--attempt", "1")
    assert first["cause"]["slug"] == "killed_unknown"

    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 2))
    name = f"{namespace}-xid"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": first["node"], "uid": first["node"]},
        "reason": "GPUFault",
        "message": XID,
        "type": "Warning",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": "node-problem-detector"},
    }
    kubectl("create", "-f", "-", text=json.dumps(event))
    try:
        fresh = here.document("why", run, "--attempt", "1", "--fresh")
        assert (fresh["cause"]["slug"], fresh["cause"]["confidence"]) == ("gpu_fallen_off_bus", "proven")
        assert (fresh["node"], fresh["rank"]) == (first["node"], 1)
        # What was done is what was done: the run is in attempt 2.
        assert (fresh["decision"]["action"], fresh["decision"]["state"]) == ("retry", "done")
        assert "nothing yet" not in here.cli("why", run, "--attempt", "1", "--fresh").stdout
        for pod in kubectl.get("pods", "-n", namespace, "-l", "rankfall.dev/attempt=2")["items"]:
            there = pod["metadata"]["name"]
            wait_until(
                lambda there=there: "begun" in kubectl.run("logs", "-n", namespace, there).stdout,
                timeout=60,
                what="its line",
            )
            kubectl("exec", "-n", namespace, there, "--", "touch", "/tmp/go")
        done = here.cli("wait", run, timeout=120)
        assert done.returncode == 0, done.stderr
    finally:
        kubectl.run("delete", "event", "-n", "default", name)
    status = here.document("status", run)
    assert (status["state"], status["attempts"]) == ("succeeded", 3)
    assert first["node"] not in {slot["node"] for slot in status["slots"]}
    stored = here.document("why", run, "--attempt", "1")
    assert (stored["version"], stored["cause"]["slug"]) == (2, "gpu_fallen_off_bus")
    assert (stored["decision"]["action"], stored["decision"]["state"]) == ("retry_elsewhere", "done")
    assert "found only after attempt 2 had started" in stored["decision"]["because"]


def test_i19_a_proven_exception_beside_a_healthy_slot_waits_for_nothing(bed, kubectl, namespace, tmp_path):
    program = "import os, time\nfor n in range(6000):\n    print('line', n, flush=True)\n    time.sleep(0.1)\n    if os.environ['RANK'] == '1' and n == 20:\n        raise KeyError('bad')\n"
    here = world(bed, kubectl, namespace, tmp_path / "home", program=program, sees_nodes=False)
    spec = counting(backend="job", namespace=namespace)
    spec["policies"] |= {"settle_quiet_s": 600, "settle_max_s": 900}
    done = here.run(spec)
    assert done.returncode == 1, done.stderr
    told = [json.loads(line) for line in (here.only_run() / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in told]
    assert kinds.index("verdict") < kinds.index("stopping")
    assert [event for event in told if event["data"].get("waits_for") == "evidence"] == []


@pytest.mark.parametrize("sees_nodes", [False, True])
@pytest.mark.timeout(500)
def test_i19_p3_a_power_cut_is_the_nodes_loss_though_its_peers_fail_first(
    bed, kubectl, namespace, tmp_path, sees_nodes
):
    program = TRAIN.replace("range(4)", "range(100000)")
    here = world(bed, kubectl, namespace, tmp_path / "home", program=program, sees_nodes=sees_nodes)
    spec = job(backend="job", namespace=namespace)
    spec["kubernetes"]["pod"]["spec"]["affinity"] = SPREAD
    started = here.cli("submit", "--file", str(here.file(spec)))
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    wait_until(lambda: "step " in here.cli("logs", run, "--tail", "5").stdout, timeout=200, what="steps")
    (there,) = [slot for slot in here.document("status", run)["slots"] if slot["node"] == "n2"]
    events = here.home / "runs" / run / "events.jsonl"
    with faults.node_down(bed, 2):
        wait_until(lambda: '"kind":"decision"' in events.read_text(), timeout=120, what="a decision")
        verdict = here.document("why", run)
        assert (verdict["cause"]["slug"], verdict["cause"]["confidence"]) == ("node_lost", "proven")
        assert (verdict["node"], verdict["slot"], verdict["rank"]) == ("n2", there["slot"], None)
        assert verdict["decision"]["action"] == "retry_elsewhere"
    # Its pods go when the node is back.
    asked = here.cli("cancel", "--yes", run)
    assert asked.returncode in {0, 130}, asked.stderr
