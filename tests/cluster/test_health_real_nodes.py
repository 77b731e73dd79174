"""Scenarios of node health that need real nodes: what a real kernel writes when it kills for memory, and checks that real kubelets run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import health_world
from cluster.health_world import LIMIT_S, Guard
from cluster.kmsg_world import agent, report
from cluster.run_world import RULES, World
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, KernelLine, decode_line
from rankfall.model.node_health.records import ANNOTATION
from rankfall.nodes.manifests.controller import JOB_RULES
from support.helpers import wait_until
from testbed import accounts, faults
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.ondemand import loki
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
#: All nodes of a bed share one ring; this one is named as its owner.
NODE = "n1"
SPACE = "rankfall-real-nodes"
LINK = "kernel/nic_down.kernel"
GROWS = """
import os, time

while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
held = []
while True:
    held.append(b"x" * (1 << 20))
"""
POLICY = "validate_after_s = 5\nclean_rounds = 2\nclean_s = 2\n"
CHECK = f'[[check]]\nname = "looks-good"\nimage = "{PYTHON_IMAGE}"\ncommand = ["true"]\n'


@pytest.fixture(autouse=True)
def clean(kubectl: Kubectl) -> Iterator[None]:
    """Nothing was said of the node, before and after."""

    def wipe() -> None:
        kubectl.run("delete", "configmap,lease", "-n", SPACE, "--all")
        kubectl.run("taint", "node", NODE, f"{health_world.KEY}-")
        kubectl("annotate", "node", NODE, f"{ANNOTATION}-", f"{REPORT_ANNOTATION}-")

    wipe()
    yield
    wipe()


def test_health_s32_what_a_job_does_to_its_own_memory_is_its_cause_and_no_matter_of_the_node(
    bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """The kernel's own record of the kill, read from the real ring by an agent, and the verdict of the run that it ended."""
    home = tmp_path / "home"
    home.mkdir()
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    world = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=GROWS)
    spec = {
        "name": "grows",
        "backend": "job",
        "command": ["python3", "/job/train.py"],
        "nnodes": 1,
        "nproc_per_node": 1,
        "launcher": "plain",
        "policies": {"max_restarts": 0, "grace_s": 2},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": namespace,
            "resources": {"limits": {"memory": "160Mi"}},
            "volumes": [{"name": "script", "configMap": {"name": "program"}}],
            "volume_mounts": [{"name": "script", "mountPath": "/job"}],
            "pod": {
                "spec": {
                    "automountServiceAccountToken": False,
                    "nodeSelector": {"kubernetes.io/hostname": NODE},
                }
            },
        },
    }
    out = tmp_path / "agent.out"
    guard = Guard(kubectl, health_world.account(bed, kubectl, SPACE), space=SPACE, folder=tmp_path)
    with (
        guard.controlling("--shared-kernel-node", NODE),
        agent(health_world.agent_account(bed, kubectl, SPACE), NODE, out=out),
    ):
        started = world.cli("submit", "--file", str(world.file(spec)))
        assert started.returncode == 0, started.stderr
        run = started.stdout.strip()
        wait_until(lambda: world.document("status", run)["ranks"], timeout=120, what="the rank")
        (pod,) = kubectl.get("pods", "-n", namespace, "-l", "rankfall.dev/run")["items"]
        name = pod["metadata"]["name"]
        wait_until(lambda: report(kubectl, NODE) is not None, timeout=LIMIT_S, what="the agent's report")
        numbers = faults.processes_of(bed, namespace, name)

        def killed() -> list[KernelLine]:
            lines = (decode_line(each) for each in out.read_text().splitlines())
            found = [each for each in lines if each is not None and each.pid in numbers]
            return found if any(each.code == "kernel/host_oom.kernel_memcg" for each in found) else []

        assert killed() == []
        before = guard.number("health_evidence_total", source="kmsg", kind="kernel", outcome="harmless")
        kubectl("exec", name, "-n", namespace, "--", "touch", "/tmp/go")
        lines = wait_until(killed, timeout=LIMIT_S, what="the kernel's record of the kill")
        assert {(each.facility, each.trust, each.slug) for each in lines} == {(0, "kernel", "host_oom")}
        world.cli("wait", run, timeout=120)
        wait_until(
            lambda: guard.number("health_evidence_total", source="kmsg", kind="kernel", outcome="harmless") > before,
            timeout=LIMIT_S,
            what="the controller to have seen it",
        )
        verdict = world.document("why", run)
        assert (verdict["cause"]["slug"], verdict["node"], verdict["node_action"]) == ("host_oom", NODE, "none")
        ended = kubectl.get("pod", name, "-n", namespace)["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 137
        assert not guard.tainted(NODE)
        assert guard.record(NODE).causes == ()


def test_health_s42_a_flapping_link_acts_once_comes_back_after_its_checks_and_is_on_probation(
    bed: Bed, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Ten minutes of a link that goes and comes; then silence, and checks by real Jobs."""
    account = health_world.account(bed, kubectl, SPACE, more=JOB_RULES)
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(loki.alone(tmp_path / "loki", say=print))
        guard = Guard(
            kubectl, account, space=SPACE, folder=tmp_path, loki=url, policy=POLICY, tables=CHECK
        )  # fmt: skip

        def flap(*ago: float) -> None:
            """The link goes, and comes back, so many seconds ago."""
            now, clock = time.time(), time.monotonic()
            for word, later in (("down", 0.0), ("up", 0.1)):
                line = f"mlx5_core 0000:9a:00.0 ens9np0: Link {word}"
                moments = [later - each for each in ago]
                guard.bring(NODE, [(int((now + at) * 1e9), f"[{clock + at:.6f}] {line}") for at in moments])

        # Four losses of a link in ten minutes are none that acts; with the fifth it does, and what follows changes nothing.
        flap(590, 440, 290, 140)
        stack.enter_context(guard.controlling("--shared-kernel-node", NODE, LOG_ENDPOINT=url))
        wait_until(lambda: guard.causes(NODE) == [(LINK, "pci 0000:9a:00.0", 4)], timeout=LIMIT_S, what="four of them")
        assert not guard.tainted(NODE)
        flap(6)
        guard.acts(NODE)
        flap(*(5 - index / 5 for index in range(25)))
        wait_until(lambda: guard.causes(NODE) == [(LINK, "pci 0000:9a:00.0", 30)], timeout=LIMIT_S, what="all of them")
        wait_until(lambda: guard.record(NODE).state == "validating", timeout=LIMIT_S, what="quiet")
        assert guard.tainted(NODE)
        wait_until(lambda: guard.happened(NODE, "Returned"), timeout=120, what="its return")
        assert not guard.tainted(NODE)
        wait_until(lambda: guard.events(NODE, "Returned"), timeout=LIMIT_S, what="the Event")
        assert guard.log.count(f"node `{NODE}`: checks passed") == 2
        assert guard.happened(NODE, "Quarantined") == 1
        probation = guard.record(NODE).probation_until
        assert probation is not None
        assert probation > time.time_ns()
        # Once more is enough now. Its clock is a little ahead: what came before the return does not count.
        guard.bring(
            NODE, [(time.time_ns() + 5 * 10**9, "mlx5_core 0000:9a:00.0 ens9np0: Link down")]
        )  # fmt: skip
        guard.acts(NODE)
        assert guard.happened(NODE, "Quarantined") == 2
        (cause,) = guard.record(NODE).causes
        assert (cause.code, cause.count, cause.on_probation) == (LINK, 1, True)
    wait_until(lambda: kubectl.get("jobs", "-n", SPACE)["items"] == [], timeout=LIMIT_S, what="no Job to be left")
