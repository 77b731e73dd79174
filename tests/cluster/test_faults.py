"""Each fault of the bed does what it says, and is undone."""

from __future__ import annotations

import signal

import pytest

from cluster.programs import pod
from testbed import faults, process
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
SLEEPS = ("python3", "-c", "import time; time.sleep(600)")


def running(kubectl: Kubectl, namespace: str, *objects: dict[str, object]) -> None:
    kubectl.apply(objects)
    names = [f"pod/{item['metadata']['name']}" for item in objects]  # type: ignore[index]
    kubectl("wait", "--for=condition=Ready", "-n", namespace, *names, "--timeout=60s")


def state_of(kubectl: Kubectl, namespace: str, name: str) -> dict[str, object]:
    return kubectl.get("pod", "-n", namespace, name)["status"]


def ready(kubectl: Kubectl, node: str) -> str:
    conditions = kubectl.get("node", node)["status"]["conditions"]
    return next(item["status"] for item in conditions if item["type"] == "Ready")


# The tests of logs and of chaos kill the API server as well, those of jobs the rest of the controllers by what they do.
@pytest.mark.parametrize("part", ["etcd", "kube-apiserver"])
def test_the_api_is_away_and_back_and_pods_live_on(bed, kubectl, namespace, part):
    running(kubectl, namespace, pod("lives", namespace, *SLEEPS))
    before = state_of(kubectl, namespace, "lives")["containerStatuses"]
    with faults.part_down(bed, part):
        assert kubectl.run("get", "--raw", "/readyz", "--request-timeout=3s").returncode
    assert process.poll(lambda: not kubectl.run("get", "--raw", "/readyz").returncode, 60)
    assert state_of(kubectl, namespace, "lives")["containerStatuses"] == before


@pytest.mark.parametrize(
    "part",
    ["kube-controller-manager", "kube-scheduler", "trainer", "jobset"],
)
def test_a_controller_is_away_and_back(bed, part):
    with faults.part_down(bed, part, how=signal.SIGTERM):
        assert process.find(bed.layout, part) is None
    assert process.find(bed.layout, part) is not None


def test_a_pod_waits_while_the_scheduler_is_away(bed, kubectl, namespace):
    with faults.part_down(bed, "kube-scheduler"):
        kubectl.apply([pod("waits", namespace, *SLEEPS)])
        assert "nodeName" not in kubectl.get("pod", "-n", namespace, "waits")["spec"]
    kubectl("wait", "--for=condition=Ready", "-n", namespace, "pod/waits", "--timeout=60s")


def test_a_node_without_its_kubelet_is_noticed_and_its_pod_lives_on(bed, kubectl, namespace):
    running(kubectl, namespace, pod("lives", namespace, *SLEEPS, nodeName="n2"))
    before = state_of(kubectl, namespace, "lives")["containerStatuses"]
    with faults.kubelet_down(bed, 2, how=signal.SIGKILL):
        assert process.poll(lambda: ready(kubectl, "n2") == "Unknown", 60)
    assert ready(kubectl, "n2") == "True"
    assert process.poll(lambda: state_of(kubectl, namespace, "lives")["containerStatuses"] == before, 30)


def test_a_power_cut_takes_the_node_and_its_pods_and_it_comes_back_empty(bed, kubectl, namespace):
    running(
        kubectl,
        namespace,
        pod("gone", namespace, *SLEEPS, nodeName="n2"),
        pod("stays", namespace, *SLEEPS, nodeName="n1"),
    )
    stays = state_of(kubectl, namespace, "stays")["containerStatuses"]
    with faults.node_down(bed, 2):
        assert process.find(bed.layout, "n2-kubelet") is None
        assert process.find(bed.layout, "n2-containerd") is None
        assert process.poll(lambda: ready(kubectl, "n2") == "Unknown", 60)
    assert ready(kubectl, "n2") == "True"
    assert state_of(kubectl, namespace, "stays")["containerStatuses"] == stays
    running(kubectl, namespace, pod("fresh", namespace, *SLEEPS, nodeName="n2"))


def test_a_pulled_cable_cuts_a_node_off_and_kills_nothing(bed, kubectl, namespace):
    running(kubectl, namespace, pod("lives", namespace, *SLEEPS, nodeName="n2"))
    before = state_of(kubectl, namespace, "lives")["containerStatuses"]
    with faults.cable_out(bed, 2):
        assert process.poll(lambda: ready(kubectl, "n2") == "Unknown", 60)
        assert kubectl.run("exec", "-n", namespace, "lives", "--request-timeout=5s", "--", "true").returncode
        assert process.find(bed.layout, "n2-kubelet") is not None
    assert process.poll(lambda: state_of(kubectl, namespace, "lives")["containerStatuses"] == before, 30)


def test_small_logs_are_rotated(bed, kubectl, namespace):
    with faults.kubelet_config(
        bed, 1, containerLogMaxSize="20Ki", containerLogMaxFiles=3, containerLogMonitorInterval="3s"
    ):
        talk = "import time\nfor n in range(3000): print(n, 'x' * 100, flush=True); time.sleep(0.005)"
        running(kubectl, namespace, pod("talks", namespace, "python3", "-c", talk, nodeName="n1"))
        folder = bed.node(1).folder / "pod-logs"
        assert process.poll(lambda: len(list(folder.glob(f"{namespace}_talks_*/main/0.log.*"))) > 0, 60)


def test_a_third_node_joins_and_leaves(bed, kubectl, namespace):
    with faults.extra_node(bed, 3) as name:
        running(kubectl, namespace, pod("third", namespace, *SLEEPS, nodeName=name))
        kubectl("delete", "pod", "-n", namespace, "third", "--grace-period=0", "--force")
    names = {item["metadata"]["name"] for item in kubectl.get("nodes")["items"]}
    assert names == {"n1", "n2"}


def test_a_killed_container_is_gone_at_once_with_all_its_processes(bed, kubectl, namespace):
    tree = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(3):\n"
        "    if not os.fork(): break\n"
        "time.sleep(600)\n"
    )
    running(kubectl, namespace, pod("tree", namespace, "python3", "-c", tree))
    assert process.poll(lambda: len(faults.processes_of(bed, namespace, "tree")) == 4, 20)
    assert len(faults.kill_container(bed, namespace, "tree")) == 4
    kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "-n", namespace, "pod/tree", "--timeout=30s")
    ended = state_of(kubectl, namespace, "tree")["containerStatuses"][0]["state"]["terminated"]  # type: ignore[index]
    assert ended["exitCode"] == 137


def test_memory_above_the_limit_is_an_oom_kill(kubectl, namespace):
    grow = "held = []\nwhile True: held.append(bytearray(1 << 20))"
    one = pod("grows", namespace, "python3", "-c", grow, resources={"limits": {"memory": "64Mi"}})
    kubectl.apply([one])
    kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "-n", namespace, "pod/grows", "--timeout=60s")
    ended = state_of(kubectl, namespace, "grows")["containerStatuses"][0]["state"]["terminated"]  # type: ignore[index]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_a_pod_that_asks_for_too_much_stays_pending_and_says_why(kubectl, namespace):
    kubectl.apply([pod("large", namespace, *SLEEPS, resources={"requests": {"cpu": "1000"}})])
    assert process.poll(lambda: kubectl.has_event(namespace, "large", "Insufficient cpu"), 30)
    assert state_of(kubectl, namespace, "large")["phase"] == "Pending"


def test_an_image_that_does_not_exist_is_named(kubectl, namespace):
    kubectl.apply([pod("none", namespace, "x", image="rankfall.test/nothing:1")])
    assert process.poll(lambda: kubectl.has_event(namespace, "none", "ErrImageNeverPull"), 30)


def test_a_taint_keeps_pods_away(bed, kubectl, namespace):
    with (
        faults.tainted(kubectl, "n1", key="rankfall.dev/faulty"),
        faults.tainted(kubectl, "n2", key="rankfall.dev/faulty"),
    ):
        kubectl.apply([pod("homeless", namespace, *SLEEPS)])
        assert process.poll(lambda: kubectl.has_event(namespace, "homeless", "untolerated taint"), 30)
    kubectl("wait", "--for=condition=Ready", "-n", namespace, "pod/homeless", "--timeout=60s")


def test_an_eviction_through_the_api_ends_the_pod(kubectl, namespace):
    running(kubectl, namespace, pod("leaves", namespace, *SLEEPS))
    faults.evict(kubectl, namespace, "leaves")
    kubectl("wait", "--for=delete", "-n", namespace, "pod/leaves", "--timeout=60s")


def test_a_higher_priority_preempts(bed, kubectl, namespace):
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"{namespace}-{name}"},
            "value": value,
        }
        for name, value in (("low", 1), ("high", 1000))
    ]
    kubectl.apply(classes)
    try:
        room = kubectl.get("node", "n1")["status"]["allocatable"]["cpu"]
        spec = {"resources": {"requests": {"cpu": room}}, "nodeSelector": {"kubernetes.io/hostname": "n1"}}
        running(kubectl, namespace, pod("low", namespace, *SLEEPS, priorityClassName=f"{namespace}-low", **spec))
        kubectl.apply([pod("high", namespace, *SLEEPS, priorityClassName=f"{namespace}-high", **spec)])
        assert process.poll(lambda: kubectl.has_event(namespace, "low", "Preempted"), 30)
        kubectl("wait", "--for=condition=Ready", "-n", namespace, "pod/high", "--timeout=60s")
    finally:
        kubectl.run("delete", "priorityclass", f"{namespace}-low", f"{namespace}-high")
