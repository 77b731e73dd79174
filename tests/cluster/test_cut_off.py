"""A node that is cut off, or loses its power, in the middle of a run: named, waited for, never forced, and no second gang beside its pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.chaos_world import KINDS, Chaos, counting, heard
from support.helpers import wait_until
from testbed import faults
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Proxy, before

# Twenty seconds until the controllers call a node lost, a minute until we do, and a node that joins again.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
EVICT_S = 2


@pytest.fixture
def chaos(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Chaos]:
    with Proxy(before.settings(bed.layout)) as proxy:
        made = Chaos(bed, proxy, home=tmp_path / "home", kubectl=kubectl, namespace=namespace)
        yield made
        made.close()


def two_nodes(backend: str, namespace: str) -> dict[str, Any]:
    """A rank on each node; it counts for long in its first attempt, and is soon done in a later one. Both may then be on one node."""
    spec = counting(backend=backend, namespace=namespace, lines=3000)
    spec["env"]["LINES_OF_2"] = "3"
    spec["policies"] |= {"max_restarts": 1, "backoff_s": 0.1}
    spec["kubernetes"]["tolerations"] = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICT_S}
        for what in ("unreachable", "not-ready")
    ]
    term = {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchExpressions": [{"key": "rankfall.dev/run", "operator": "Exists"}]},
            "topologyKey": "kubernetes.io/hostname",
        },
    }
    spread = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec["kubernetes"]["pod"]["spec"]["affinity"] = spread
    return spec


@pytest.mark.parametrize(("backend", "fault"), [("job", faults.cable_out), ("jobset", faults.node_down)])
def test_a_node_that_is_cut_off_is_named_and_the_next_attempt_waits_for_its_pods(bed, kubectl, chaos, backend, fault):
    spec = two_nodes(backend, chaos.namespace)
    started = chaos.cli("submit", "--file", str(chaos.file(spec)))
    assert started.returncode == 0, started.stderr
    run = started.stdout.strip()
    folder = chaos.home / "runs" / run
    wait_until(lambda: heard(folder, "line 3"), timeout=120, what="a line")
    wait_until(lambda: len(chaos.document("status", run)["ranks"]) == 2, timeout=60, what="both ranks")
    pods = kubectl.get("pods", "-n", chaos.namespace)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"n1", "n2"}
    (there,) = [pod["metadata"] for pod in pods if pod["spec"]["nodeName"] == "n2"]

    with fault(bed, 2):
        events = folder / "events.jsonl"
        wait_until(lambda: '"kind":"verdict"' in events.read_text(), timeout=240, what="a verdict")
        verdict = chaos.document("why", run)
        assert (verdict["cause"]["slug"], verdict["node"]) == ("node_lost", "n2")
        assert verdict["slot"] == int(there["labels"]["batch.kubernetes.io/job-completion-index"])
        wait_until(lambda: chaos.document("status", run)["state"] == "restarting", timeout=60, what="the restart")
        # The other gang may still compute on the node that nobody hears: its pod stays, and nothing is made beside it.
        left = kubectl.get("pod", "-n", chaos.namespace, there["name"])["metadata"]
        assert left["uid"] == there["uid"]
        names = [item["metadata"]["name"] for item in kubectl.get(KINDS[backend], "-n", chaos.namespace)["items"]]
        assert f"{run}-a2" not in names
    done = chaos.cli("wait", run, timeout=240)
    assert done.returncode == 0, done.stderr
    status = chaos.document("status", run)
    assert (status["state"], status["attempts"]) == ("succeeded", 2)
    # Kept off the node that fell.
    assert {slot["node"] for slot in status["slots"]} == {"n1"}
