"""The seed's own test, the whole way: a line in a node's /dev/kmsg, the pod of a DaemonSet that prints it, a collector, Loki, a controller elsewhere, the taint, the reset."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.loki_push import push
from rankfall.model.node_health.records import ANNOTATION
from rankfall.model.timestamps import nanoseconds
from rankfall.nodes.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.ondemand import loki
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
#: All nodes of a bed share one ring; this one is named as its owner.
NODE, OTHER = "n1", "n2"
KEY = "trainy.konduktor.ai/faulty"
SPACE = "dmesg-logging"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "node-health.md"
LIMIT_S = 90.0


def printing() -> list[dict]:
    """The seed's DaemonSet, on the one node of the bed whose ring it is; it prints what comes, and not what earlier tests left there."""
    pod = {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "dmesg", "image": PYTHON_IMAGE, "imagePullPolicy": "Never",
                "command": ["dmesg", "--follow-new"], "securityContext": {"privileged": True},
            }
        ],
    }  # fmt: skip
    labels = {"app": "dmesg"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "dmesg", "namespace": SPACE}, "spec": spec},
    ]


@contextlib.contextmanager
def collecting(kubectl: Kubectl, pod: dict, url: str) -> Iterator[None]:
    """A collector: follows the pod's log and brings each line to Loki with what Kubernetes says of the pod."""
    labels = {
        "k8s_namespace_name": SPACE, "k8s_daemonset_name": pod["metadata"]["ownerReferences"][0]["name"],
        "k8s_pod_name": pod["metadata"]["name"], "k8s_node_name": pod["spec"]["nodeName"],
    }  # fmt: skip
    words = ["logs", "-f", "--timestamps", "-n", SPACE, pod["metadata"]["name"]]
    command = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None

        def bring() -> None:
            for line in following.stdout or ():
                stamp, _, text = line.rstrip("\n").partition(" ")
                at = nanoseconds(stamp)
                assert at is not None
                push(url, labels, [(at, text)])

        thread = threading.Thread(target=bring, daemon=True)
        thread.start()
        try:
            yield
        finally:
            following.kill()
            thread.join(20)


@contextlib.contextmanager
def controller(bed: Bed, kubectl: Kubectl, space: str, url: str, folder: Path) -> Iterator[Path]:
    """Outside of the cluster, with LOG_ENDPOINT and its own account's rights; its log."""
    rules = [*CLUSTER_RULES, *EVENT_RULES]
    account = accounts.create(bed.control, kubectl, "controller", namespace=space, rules=OWN_RULES, cluster_rules=rules)
    config, log = folder / "policy.toml", folder / "controller.log"
    config.write_text(f'[policy]\nkey = "{KEY}"\n')
    words = ["-n", space, "--config", str(config), "--shared-kernel-node", NODE, "--poll", "1"]
    environ = os.environ | {"KUBECONFIG": str(account), "LOG_ENDPOINT": url}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankfall", "controller", *words], env=environ, stdout=subprocess.DEVNULL, stderr=out
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)


def tainted(kubectl: Kubectl) -> set[str]:
    items = kubectl.get("nodes")["items"]
    return {item["metadata"]["name"] for item in items if any(each["key"] == KEY for each in item["spec"].get("taints") or ())}  # fmt: skip


def test_health_s01_s02_seed_13_the_whole_way_from_dev_kmsg_to_the_taint_and_back_by_the_commands_of_the_page(
    bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    section = PAGE.read_text().partition("\n## A drill\n")[2].partition("\n## ")[0]
    echo, look, reset = section.partition("```sh\n")[2].partition("```")[0].strip().splitlines()
    device = f"f200:{uuid.uuid4().hex[:2]}:00"
    assert "0000:4e:00" in echo
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl.program)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = os.environ | {"KUBECONFIG": str(kubectl.kubeconfig), "PATH": path}

    def type_in(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        kubectl.apply(printing())
        ready = ("rollout", "status", "daemonset/dmesg", "-n", SPACE, "--timeout=60s")
        assert kubectl.run(*ready, timeout_s=70).returncode == 0
        (pod,) = kubectl.get("pods", "-n", SPACE)["items"]
        with (
            loki.run(bed) as url,
            collecting(kubectl, pod, url),
            controller(bed, kubectl, namespace, url, tmp_path) as log,
        ):
            wait_until(lambda: "this controller leads" in log.read_text(), timeout=LIMIT_S, what="the lead")
            type_in(echo.replace("0000:4e:00", device))
            wait_until(lambda: tainted(kubectl) == {NODE}, timeout=LIMIT_S, what="the taint")
            assert KEY in type_in(look)
            text = log.read_text()
            line = rf"\[ *\d+\.\d{{6}}\] NVRM: Xid \(PCI:{device}\): 79, .*"
            assert re.search(rf"node `{NODE}` has dmesg error: {line}", text)
            wait_until(lambda: f"Node {NODE} tainted. ({KEY}=true:NoSchedule)" in log.read_text(), timeout=LIMIT_S, what="the log")  # fmt: skip
            for said in ("using POD_LOG_TYPE = otlp", "incluster config failed to load, attempting to use kubeconfig.", "KUBECONFIG loaded"):  # fmt: skip
                assert said in text
            assert type_in(reset) == f"{NODE}: cleared; taint {KEY} is removed\n"
            # What was seen until then does not taint it again; a person took the taint away, and that is respected.
            looks = log.read_text().count("tainted.")
            type_in(echo.replace("NVRM: Xid (PCI:0000:4e:00): 79", f"NVRM: Xid (PCI:{device}): 31"))
            wait_until(lambda: "31, pid=" in log.read_text(), timeout=LIMIT_S, what="a later line")
            assert log.read_text().count("tainted.") == looks
            assert tainted(kubectl) == set()
    finally:
        kubectl.run("delete", "namespace", SPACE, "--wait=false", "--ignore-not-found")
        kubectl.run("annotate", "node", NODE, f"{ANNOTATION}-")
        kubectl.run("taint", "node", NODE, f"{KEY}-")
