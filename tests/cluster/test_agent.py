"""The agent on a real cluster: as a DaemonSet with its own account and the real /dev/kmsg, and as processes over the socket of records."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from cluster.kmsg_world import Ring, agent, devices, report, xid
from rankfall.kube.auth.access import Login
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.errors import ApiError, Forbidden
from rankfall.kube.secret import Secret
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, REPORT_CONDITION, KernelLine, decode_line
from rankfall.nodes.agent.api import NodeApi
from rankfall.nodes.manifests.agent import CLUSTER_RULES, NAME, agent_admission, agent_objects
from support.helpers import wait_until
from testbed import accounts, faults, images
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
NODE = "n1"
T = TypeVar("T")


@pytest.fixture
def account(bed: Bed, kubectl: Kubectl, namespace: str) -> Iterator[Path]:
    """The agent's own rights, for a process of this machine."""
    cluster = [*CLUSTER_RULES, {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]
    yield accounts.create(bed.control, kubectl, NAME, namespace=namespace, rules=[], cluster_rules=cluster)
    for node in ("n1", "n2"):
        kubectl("annotate", "node", node, f"{REPORT_ANNOTATION}-")


def objects(namespace: str, *, injected: bool) -> list[dict]:
    """As the product makes them; the image has no Rankfall, so this machine's is mounted."""
    python = images.torch_python()
    found = agent_objects(
        namespace=namespace,
        image=PYTHON_IMAGE,
        command=(str(python), "-m", "rankfall"),
        node_selector={"kubernetes.io/hostname": NODE},
        injected=injected,
        pull="Never",
    )
    pod = found[-1]["spec"]["template"]["spec"]
    for index, path in enumerate((*images.torch_mounts(), ROOT / "src")):
        pod["volumes"].append({"name": f"host-{index}", "hostPath": {"path": str(path), "type": "Directory"}})
        mount = {"name": f"host-{index}", "mountPath": str(path), "readOnly": True}
        pod["containers"][0]["volumeMounts"].append(mount)
    return found


def lines(kubectl: Kubectl, namespace: str) -> list[KernelLine]:
    """What the agent's pod printed; nothing while there is none or more than one."""
    pods = kubectl.get("pods", "-n", namespace, "-l", f"app.kubernetes.io/name={NAME}")["items"]
    if [each["status"]["phase"] for each in pods] != ["Running"] or "deletionTimestamp" in pods[0]["metadata"]:
        return []
    text = kubectl.run("logs", "-n", namespace, pods[0]["metadata"]["name"]).stdout
    return [each for each in map(decode_line, text.splitlines()) if each is not None]


def seen(question: Callable[[], T], limit_s: float) -> T:
    return wait_until(question, timeout=limit_s, what="what the agent is to tell")


def echo(device: str) -> None:
    """As the seed: a process writes an Xid into the kernel's log of the node."""
    with Path("/dev/kmsg").open("w") as file:
        file.write(xid(79, device) + "\n")


def test_health_s35_agent_daemonset_comes_back_on_a_tainted_node_and_shows_what_a_process_wrote_in_the_test_mode_only(
    bed, kubectl, namespace
):
    """Seed 13, S35: a DaemonSet with its own account and policy, the real /dev/kmsg, a tainted node, a restart in between."""
    first, second = (f"dead:{uuid.uuid4().hex[:2]}:0{n}" for n in (1, 2))
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
    kubectl.apply([*objects(namespace, injected=False), *agent_admission(namespace=namespace)])
    try:
        with faults.tainted(kubectl, NODE, key="rankfall.dev/faulty", value="true", effect="NoSchedule"):
            seen(lambda: report(kubectl, NODE) is not None, 60)
            node = kubectl.get("node", NODE)
            assert report(kubectl, NODE).boot == node["status"]["nodeInfo"]["bootID"]
            (condition,) = [each for each in node["status"]["conditions"] if each["type"] == REPORT_CONDITION]
            assert (condition["status"], condition["reason"]) == ("True", "Reading")

            echo(first)
            found = seen(lambda: [each for each in lines(kubectl, namespace) if each.device == f"gpu {first}"], 30)
            assert [(each.code, each.trust) for each in found] == [("xid/79", "injected")]
            assert f"gpu {first}" not in devices(report(kubectl, NODE))

            kubectl.apply(objects(namespace, injected=True))
            seen(lambda: any("TEST MODE" in each.note for each in lines(kubectl, namespace)), 60)
            echo(second)
            seen(lambda: f"gpu {second}" in devices(report(kubectl, NODE)), 30)
            found = lines(kubectl, namespace)
            assert not [each for each in found if each.device == f"gpu {first}"]  # its cursor was kept
            (entry,) = [each for each in report(kubectl, NODE).entries if each.device == f"gpu {second}"]
            assert (entry.code, entry.trust, entry.count) == ("xid/79", "injected", 1)
            seen(lambda: [each for each in kubectl.get("events", "-n", "default")["items"] if second in each["message"]], 30)  # fmt: skip
            forbidden(bed, kubectl, namespace)
    finally:
        for each in (*agent_admission(namespace=namespace), *objects(namespace, injected=False)):
            place = ("-n", each["metadata"]["namespace"]) if "namespace" in each["metadata"] else ()
            kubectl.run("delete", each["kind"].lower(), each["metadata"]["name"], *place, "--ignore-not-found")
        kubectl("annotate", "node", NODE, f"{REPORT_ANNOTATION}-")


def forbidden(bed: Bed, kubectl: Kubectl, namespace: str) -> None:
    """The account of the pod, with the pod's own token: everything but its annotation and condition is refused."""
    (pod,) = kubectl.get("pods", "-n", namespace, "-l", f"app.kubernetes.io/name={NAME}")["items"]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", pod["metadata"]["name"])
    token = kubectl("create", "token", NAME, "-n", namespace, *bound).strip()
    access = load_access(kubeconfig=str(bed.layout.kubeconfig("admin")))
    access = msgspec.structs.replace(access, login=Login(token=Secret(token)), origin=None)
    before = kubectl.get("node", NODE)["spec"]
    with NodeApi(access, node=NODE) as api:
        api.patch({"metadata": {"annotations": {REPORT_ANNOTATION: None}}})
        assert kubectl.get("node", NODE)["spec"] == before
        api.patch({"spec": {"unschedulable": True, "taints": []}})  # taken, and without effect: a status has no spec
        assert kubectl.get("node", NODE)["spec"] == before
        for body in (
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
        ):
            with pytest.raises(ApiError, match="an agent may"):
                api.patch(body)
        with pytest.raises(Forbidden):
            api._call("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}}, kind="application/merge-patch+json")  # fmt: skip
    with NodeApi(access, node="n2") as api, pytest.raises(ApiError, match="may write only the Node"):
        api.patch({"metadata": {"annotations": {REPORT_ANNOTATION: "x"}}})


def test_health_agent_over_a_socket_neither_loses_nor_repeats_and_waits_for_the_server(bed, kubectl, account, tmp_path):
    """A kill, a boot that changes, an API server that is away: each record is shown once, within a moment of its being possible."""
    rings = {node: Ring(tmp_path / f"{node}.sock") for node in ("n1", "n2")}
    outs = {node: tmp_path / f"{node}.out" for node in rings}

    def started(node: str):
        state = tmp_path / f"state-{node}"
        return agent(account, node, "--kmsg-socket", str(rings[node].path), "--state", str(state), out=outs[node])

    with contextlib.ExitStack() as stack:
        for each in rings.values():
            stack.callback(each.close)
        one = stack.enter_context(started("n1"))
        stack.enter_context(started("n2"))
        rings["n1"].write(xid(79, "0000:4e:00"))
        seen(lambda: devices(report(kubectl, "n1")) == {"gpu 0000:4e:00": 1}, 30)
        seen(lambda: report(kubectl, "n2") is not None, 30)
        assert report(kubectl, "n1").boot != report(kubectl, "n2").boot
        assert devices(report(kubectl, "n2")) == {}

        one.kill()
        one.wait(10)
        rings["n1"].write(xid(94, "0000:0f:00", "pid=7, name=python3, Ch 00000008"))
        with started("n1"):
            seen(lambda: devices(report(kubectl, "n1")) == {"gpu 0000:4e:00": 1, "gpu 0000:0f:00": 1}, 30)
            with faults.part_down(bed, "kube-apiserver"):
                rings["n1"].write(xid(64, "0000:3b:00", "pid=7, name=python3, Row Remapper Error"))
                seen(lambda: b'"xid/64"' in outs["n1"].read_bytes(), 30)
                seen(lambda: b"trying again" in outs["n1"].with_suffix(".err").read_bytes(), 30)
            seen(lambda: devices(report(kubectl, "n1")).get("gpu 0000:3b:00") == 1, 60)
            assert devices(report(kubectl, "n1")) == {f"gpu {each}": 1 for each in ("0000:4e:00", "0000:0f:00", "0000:3b:00")}  # fmt: skip
    printed = [decode_line(each) for each in outs["n1"].read_bytes().splitlines()]
    assert [each.seq for each in printed if each is not None and each.kind == "record"] == [0, 1, 2]
