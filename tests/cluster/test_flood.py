"""A node whose kernel talks ten thousand times a second, by the real /dev/kmsg: an Xid among it is acted on, and what the ring lost is counted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.flood import flood
from cluster.kmsg_world import agent, devices, report, xid
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, KernelLine, decode_line
from rankfall.model.node_health.records import ANNOTATION
from rankfall.nodes.manifests import agent as agents
from rankfall.nodes.manifests import controller as controllers
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.kernel_log import loud

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
#: All nodes of a bed share one ring; this one is named as its owner.
NODE = "n1"
KEY = "flood.rankfall.dev/faulty"
RATE = 10_000
LIMIT_S = 60.0


@contextlib.contextmanager
def controller(bed: Bed, kubectl: Kubectl, namespace: str, folder: Path) -> Iterator[None]:
    """With the rights of its manifests; it believes the test mode, and knows whose the ring is."""
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    rules = [*controllers.CLUSTER_RULES, events]
    account = accounts.create(
        bed.control, kubectl, controllers.NAME, namespace=namespace, rules=controllers.OWN_RULES, cluster_rules=rules
    )
    config = folder / "policy.toml"
    config.write_text(f'[policy]\nkey = "{KEY}"\n')
    environ = {key: value for key, value in os.environ.items() if key not in {"LOG_ENDPOINT", "RANKFALL_LOKI_URL"}}
    command = [sys.executable, "-m", "rankfall", "controller", "-n", namespace, "--config", str(config)]
    command += ["--accept-injected-kmsg", "--shared-kernel-node", NODE]
    with (folder / "controller.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environ | {"KUBECONFIG": str(account)}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def tainted(kubectl: Kubectl) -> bool:
    return any(each["key"] == KEY for each in kubectl.get("node", NODE)["spec"].get("taints") or ())


def lines(out: Path) -> list[KernelLine]:
    return [each for each in map(decode_line, out.read_bytes().splitlines()) if each is not None]


def untouched(kubectl: Kubectl) -> None:
    """The node as it was before."""
    kubectl("annotate", "node", NODE, f"{REPORT_ANNOTATION}-", f"{ANNOTATION}-")
    kubectl.run("taint", "node", NODE, f"{KEY}-")
    kept = kubectl.get("node", NODE)["status"]["conditions"]
    kept = [each for each in kept if not each["type"].startswith("Rankfall")]
    patch = json.dumps([{"op": "replace", "path": "/status/conditions", "value": kept}])
    kubectl("patch", "node", NODE, "--subresource=status", "--type=json", "-p", patch)


def test_health_s39_in_a_flood_of_the_real_ring_an_xid_is_acted_on_and_an_overrun_is_a_counted_gap(
    bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    account = accounts.create(
        bed.control, kubectl, agents.NAME, namespace=namespace, rules=[], cluster_rules=[*agents.CLUSTER_RULES, events]
    )
    first, second = (f"f100:{uuid.uuid4().hex[:2]}:0{n}" for n in (1, 2))
    out = tmp_path / "agent.out"
    words = ("--accept-injected-kmsg", "--state", str(tmp_path / "state"))
    with contextlib.ExitStack() as stack:
        stack.callback(untouched, kubectl)
        stack.enter_context(controller(bed, kubectl, namespace, tmp_path))
        process = stack.enter_context(agent(account, NODE, *words, out=out))
        wait_until(lambda: report(kubectl, NODE) is not None, timeout=LIMIT_S, what="the agent's first report")
        before = report(kubectl, NODE)
        assert before is not None
        stack.enter_context(loud())

        seen = flood(2 * RATE, rate=RATE, middle=xid(79, first))
        assert seen.arrived >= 2 * RATE  # more: others write too
        assert seen.arrived / seen.seconds >= 0.95 * RATE
        wait_until(lambda: tainted(kubectl), timeout=LIMIT_S, what="the taint")
        assert devices(report(kubectl, NODE)).get(f"gpu {first}") == 1

        # Longer than the ring while nobody reads it: the second Xid stands in what is left, all before it is lost and said so.
        process.send_signal(signal.SIGSTOP)
        try:
            seen = flood(40_000)
            late = flood(100, middle=xid(79, second))
        finally:
            process.send_signal(signal.SIGCONT)
        wait_until(
            lambda: devices(report(kubectl, NODE)).get(f"gpu {second}") == 1, timeout=LIMIT_S, what="the second Xid"
        )
        gaps = [each for each in lines(out) if each.kind == "gap" and (each.last_seq or 0) >= seen.first]
        assert gaps
        assert all(each.count == (each.last_seq or 0) - (each.seq or 0) + 1 for each in gaps)
        assert late.last > (gaps[-1].last_seq or 0) >= seen.first
        total = sum(each.count for each in lines(out) if each.kind == "gap")

        def told() -> bool:
            found = report(kubectl, NODE)
            return found is not None and found.lost == total and (found.seq or 0) >= late.first

        wait_until(told, timeout=LIMIT_S, what="the count of lost records on the Node")
        printed = [each.seq for each in lines(out) if each.kind == "record" and each.device in {f"gpu {first}", f"gpu {second}"}]  # fmt: skip
        assert len(printed) == 2
        assert printed == sorted(printed)
