"""The controller as a process with its own account's rights alone, on a real API server, with a real Loki and fake nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.loki_push import push
from rankfall.model.node_health.records import ANNOTATION, decode_health
from rankfall.nodes.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES, POD_RULES
from support.patience import scaled
from testbed import accounts
from testbed.client import Kubectl
from testbed.ondemand import kwok, loki

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
KEY = "trainy.konduktor.ai/faulty"
SPACE = "rankfall-health"
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SECOND = 10**9
LIMIT_S = 60.0


class Cluster:
    """Fake nodes, Loki, and the account of a controller."""

    def __init__(self, kubectl: Kubectl, url: str, kubeconfig: Path, nodes: list[str], folder: Path) -> None:
        self.kubectl, self.url, self.kubeconfig, self.folder = kubectl, url, kubeconfig, folder
        self.spare, self.nodes = nodes, list[str]()

    def say(self, node: str, text: str, *, at: int | None = None, **more: str) -> None:
        labels = {"k8s_namespace_name": "dmesg-logging", "k8s_daemonset_name": "dmesg", "k8s_node_name": node, **more}
        push(self.url, labels, [(time.time_ns() if at is None else at, text)])

    def node(self, name: str) -> dict[str, Any]:
        return dict(self.kubectl.get("node", name))

    def tainted(self) -> set[str]:
        items = self.kubectl.get("nodes")["items"]
        return {
            item["metadata"]["name"]
            for item in items
            if any(each["key"] == KEY for each in item["spec"].get("taints") or ())
        }

    def condition(self, name: str) -> dict[str, str]:
        found = [each for each in self.node(name)["status"]["conditions"] if each["type"] == "RankfallHealthy"]
        return found[0] if found else {}

    def events(self, name: str, reason: str, text: str) -> list[str]:
        """Messages that hold this text: Events outlive the Nodes of earlier tests."""
        items = self.kubectl.get("events", "-n", "default")["items"]
        return [
            each["message"]
            for each in items
            if each["involvedObject"]["name"] == name and each["reason"] == reason and text in each["message"]
        ]

    def reset(self) -> str:
        config = self.folder / "reset.toml"
        config.write_text(f'[policy]\nkey = "{KEY}"\n')
        command = [sys.executable, "-m", "rankfall", "nodes", "reset", "-y", "--config", str(config)]
        environ = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout

    @contextmanager
    def controller(self, *options: str, policy: str = "", name: str = "one") -> Iterator[subprocess.Popen[bytes]]:
        config = self.folder / f"{name}.toml"
        config.write_text(f'[policy]\nkey = "{KEY}"\n{policy}')
        environ = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "LOG_ENDPOINT": self.url, "POD_NAME": name}
        command = [sys.executable, "-m", "rankfall", "controller", "--poll", "1", "-n", SPACE, "--config", str(config)]
        with (self.folder / f"{name}.log").open("ab") as log, (self.folder / f"{name}.audit").open("ab") as audit:
            process = subprocess.Popen([*command, *options], env=environ, stdout=audit, stderr=log)
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait(30)

    def log(self, name: str = "one") -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def cluster(bed, kubectl, tmp_path_factory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("controller")
    with kwok.fleet(bed, nodes=24, pods=0), loki.run(bed) as url:
        config = accounts.create(
            bed.control,
            kubectl,
            "controller",
            namespace=SPACE,
            rules=OWN_RULES,
            cluster_rules=[*CLUSTER_RULES, *POD_RULES],
        )
        group = "rbac.authorization.k8s.io"
        meta = {"name": "rankfall-controller", "namespace": "default"}
        subject = {"kind": "ServiceAccount", "name": "controller", "namespace": SPACE}
        kubectl.apply([
            {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [dict(each) for each in EVENT_RULES]},
            {
                "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": meta["name"]}, "subjects": [subject],
            },
        ])  # fmt: skip
        nodes = sorted(item["metadata"]["name"] for item in kubectl.get("nodes", "-l", kwok.LABEL)["items"])
        for name in nodes:
            boot = json.dumps({"status": {"nodeInfo": {"bootID": f"boot-{name}"}}})
            kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", boot)
        yield Cluster(kubectl, url, config, nodes, folder)


@pytest.fixture
def fresh(cluster: Cluster) -> Cluster:
    """Three nodes of which nothing was said yet, and no state: Loki still has what earlier tests said of others."""
    for name in cluster.nodes:
        cluster.kubectl("delete", "node", name)
    cluster.nodes = [cluster.spare.pop(0) for _ in range(3)]
    names = ("rankfall-controller-state", "rankfall-controller")
    cluster.kubectl("delete", "configmap", "-n", SPACE, "--ignore-not-found", *names)
    cluster.kubectl("delete", "lease", "-n", SPACE, "--ignore-not-found", "rankfall-controller")
    for path in cluster.folder.iterdir():
        path.unlink()
    return cluster


def until(holds: Callable[[], Any], *, limit_s: float = LIMIT_S) -> float:
    """Seconds until it held."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < scaled(limit_s)
        time.sleep(0.1)
    return time.monotonic() - start


def dmesg(text: str = XID, *, clock: float | None = None) -> str:
    return f"[{time.monotonic() if clock is None else clock:.6f}] {text}"


def test_health_s01_s02_s08_from_a_line_in_loki_to_a_taint_with_the_accounts_rights_alone(fresh):
    first, second = fresh.nodes[:2]
    line = dmesg()
    with fresh.controller():
        until(lambda: "leads" in fresh.log())
        fresh.say(first, line)
        took = until(lambda: fresh.tainted() == {first}, limit_s=15)
        print(f"line to taint: {took:.2f} s, with a poll of 1 s")
        until(lambda: fresh.condition(first).get("reason") == "Quarantined")
        until(lambda: fresh.events(first, "Quarantined", line))
        (event,) = fresh.events(first, "Quarantined", line)
        assert "xid/79 gpu 0000:4e:00" in event
        assert XID in event
        assert XID in fresh.condition(first)["message"]
        assert fresh.condition(second) == {}
    log = fresh.log()
    for said in (
        "using POD_LOG_TYPE = otlp", "incluster config failed to load, attempting to use kubeconfig.", "KUBECONFIG loaded",
        f"node `{first}` has dmesg error: {line}", f"Node {first} tainted.",
    ):  # fmt: skip
        assert said in log
    # Nothing but what it needs is allowed to it.
    mine = Kubectl(fresh.kubectl.program, fresh.kubeconfig)
    for verb, what in (
        ("create", "nodes"), ("delete", "nodes"), ("update", "nodes"), ("create", "pods"), ("delete", "pods"), ("get", "secrets"),
        ("list", "events"), ("list", "configmaps"), ("delete", "configmaps"), ("patch", "deployments.apps"), ("list", "leases"),
    ):  # fmt: skip
        said = mine.run("auth", "can-i", verb, what, "-n", SPACE).stdout.strip()
        assert said == "no", (verb, what)
    assert first in fresh.reset()
    assert fresh.tainted() == set()


def test_health_s16_s18_s20_killed_at_any_moment_it_ends_the_same_and_what_others_wrote_stays(fresh):
    first = fresh.nodes[0]
    fresh.kubectl("taint", "node", first, "theirs=1:NoSchedule", "--overwrite")
    fresh.kubectl("cordon", first)
    line = dmesg()
    for number in range(3):
        with fresh.controller(name=f"k{number}") as process:
            if number == 0:
                until(lambda: "leads" in fresh.log("k0"))
                fresh.say(first, line)
                until(lambda: fresh.tainted() == {first})
            else:
                until(lambda name=f"k{number}": "leads" in fresh.log(name), limit_s=60)
            process.send_signal(signal.SIGKILL)
    with fresh.controller(name="last"):
        until(lambda: "leads" in fresh.log("last"), limit_s=60)
        until(lambda: fresh.events(first, "Quarantined", line))
        time.sleep(3)  # three polls that must change nothing
        node = fresh.node(first)
        keys = [each["key"] for each in node["spec"]["taints"]]
        assert keys.count(KEY) == 1
        assert "theirs" in keys
        assert node["spec"]["unschedulable"]
        assert len(fresh.events(first, "Quarantined", line)) == 1
        assert json.loads(node["metadata"]["annotations"]["rankfall.dev/node-health"])["causes"][0].get("count", 1) == 1
    fresh.reset()
    keys = [each["key"] for each in fresh.node(first)["spec"]["taints"]]
    assert "theirs" in keys
    assert KEY not in keys
    assert fresh.node(first)["spec"]["unschedulable"]
    fresh.kubectl("uncordon", first)
    fresh.kubectl("taint", "node", first, "theirs-")


def test_health_s22_s25_budget_and_kill_switch_at_run_time(fresh):
    fresh.kubectl("create", "configmap", "rankfall-controller", "-n", SPACE, "--from-literal=kill-switch=true")
    one, two = fresh.nodes[:2]
    with fresh.controller(policy="budget = { nodes = 1, percent = 100 }\n"):
        until(lambda: "the kill switch is on" in fresh.log())
        fresh.say(one, dmesg())
        until(lambda: fresh.condition(one).get("reason") == "HeldKillSwitch")
        assert fresh.tainted() == set()
        fresh.kubectl(
            "patch",
            "configmap",
            "rankfall-controller",
            "-n",
            SPACE,
            "--type=merge",
            "-p",
            '{"data":{"kill-switch":"false"}}',
        )
        until(lambda: fresh.tainted() == {one})
        fresh.say(two, dmesg())
        until(lambda: fresh.condition(two).get("reason") == "HeldBudget")
        assert fresh.tainted() == {one}
        (fresh.folder / "one.toml").write_text(f'[policy]\nkey = "{KEY}"\nbudget = {{ nodes = 2, percent = 100 }}\n')
        until(lambda: fresh.tainted() == {one, two})


def test_health_s24_a_dry_run_leaves_the_cluster_as_it_is(fresh):
    first = fresh.nodes[0]
    before = fresh.node(first)["metadata"]["annotations"]
    assert fresh.condition(first) == {}
    with fresh.controller("--dry-run"):
        until(lambda: "dry run" in fresh.log())
        fresh.say(first, dmesg())
        until(lambda: "not tainted: dry_run" in fresh.log())
    assert fresh.tainted() == set()
    assert fresh.node(first)["metadata"]["annotations"] == before
    assert fresh.condition(first) == {}
    for kind in ("configmap/rankfall-controller-state", "lease/rankfall-controller"):
        assert fresh.kubectl("get", kind, "-n", SPACE, "--ignore-not-found").strip() == ""


def test_health_s26_the_second_acts_when_the_first_is_killed(fresh):
    first = fresh.nodes[0]
    with fresh.controller(name="one") as one, fresh.controller(name="two") as two:
        until(lambda: "leads" in fresh.log("one") and "leads" in fresh.log("two"))
        leads = ["this controller leads" in fresh.log(name) for name in ("one", "two")]
        assert sorted(leads) == [False, True]
        (one if leads[0] else two).send_signal(signal.SIGKILL)
        fresh.say(first, dmesg())
        took = until(lambda: fresh.tainted() == {first}, limit_s=60)
        print(f"kill to taint by the other: {took:.1f} s, with a lease of 15 s")


def test_health_s13_s17_a_storm_and_a_late_line(fresh):
    one, two, three = fresh.nodes[:3]
    with fresh.controller(policy="budget = { nodes = 3, percent = 100 }\n"):
        until(lambda: "leads" in fresh.log())
        now = time.time_ns()
        rows = [
            (
                now + index,
                dmesg(f"NVRM: Xid (PCI:0000:4e:00): 31, pid={index}, name=x, Ch 0", clock=1000 + index / 1000),
            )
            for index in range(5_000)
        ]
        labels = {"k8s_namespace_name": "dmesg-logging", "k8s_daemonset_name": "dmesg", "k8s_node_name": one}
        push(fresh.url, labels, rows)
        fresh.say(two, dmesg(), at=now + 6_000)
        took = until(lambda: two in fresh.tainted())
        print(f"storm of 5,000 lines of another node: taint after {took:.2f} s")
        fresh.say(three, dmesg(), at=time.time_ns() - 240 * SECOND)
        took = until(lambda: three in fresh.tainted(), limit_s=100)
        print(f"line that came 240 s late: taint after {took:.1f} s")
        assert one not in fresh.tainted()
        rows_read = [json.loads(each) for each in (fresh.folder / "one.audit").read_text().splitlines()]
        assert sum(row["what"] == "happened" and row["reason"] == "Quarantined" for row in rows_read) == 2


def state(fresh: Cluster, name: str) -> str:
    text = (fresh.node(name)["metadata"].get("annotations") or {}).get(ANNOTATION)
    return "none" if text is None else decode_health(text).state


def test_health_s10_s43_reboots_are_proven_by_boot_ids_one_node_at_a_time_also_when_the_leader_is_killed(fresh):
    """Both hooks say that they worked. The first changed no boot id, so the ladder goes on; the second does, after the lead has changed."""
    one, two = sorted(fresh.nodes[:2])
    said = fresh.folder / "said"
    said.write_text("")
    hook = f"""command = ["sh", "-c", "echo $RANKFALL_NODE $RANKFALL_STEP $RANKFALL_ATTEMPT >> {said}"]\n"""
    policy = "budget = { nodes = 9, percent = 100 }\n"
    policy += f"[[hook]]\nstep = 'reboot'\nprove_s = 3\n{hook}[[hook]]\nstep = 'power_cycle'\nprove_s = 600\n{hook}"
    with fresh.controller(policy=policy, name="one") as first, fresh.controller(policy=policy, name="two") as second:
        until(lambda: "this controller leads" in fresh.log("one") + fresh.log("two"))
        fresh.say(one, dmesg())
        fresh.say(two, dmesg())
        called = [f"{one} reboot 1", f"{two} reboot 1", f"{one} power_cycle 1"]
        until(lambda: said.read_text().splitlines() == called, limit_s=120)
        assert fresh.tainted() == {one, two}
        leads = "this controller leads" in fresh.log("one")
        (first if leads else second).send_signal(signal.SIGKILL)
        other = "two" if leads else "one"
        until(lambda: "this controller leads" in fresh.log(other), limit_s=90)
        looks = time.monotonic() + 12
        until(lambda: time.monotonic() > looks)
        # It has looked at both nodes since: the step on the first goes on, so nothing is begun on the second.
        assert said.read_text().splitlines() == called
        assert (state(fresh, one), state(fresh, two)) == ("remediating", "quarantined")
        boot = json.dumps({"status": {"nodeInfo": {"bootID": f"again-{one}"}}})
        fresh.kubectl("patch", "node", one, "--subresource=status", "--type=merge", "-p", boot)
        until(lambda: state(fresh, one) == "validating")
        until(lambda: said.read_text().splitlines() == [*called, f"{two} power_cycle 1"])
        assert fresh.tainted() == {one, two}


def test_health_s30_a_fault_that_waits_for_the_jobs_end_takes_the_node_out_after_it(fresh):
    one = fresh.nodes[0]
    said = fresh.folder / "said"
    hook = f"""command = ["sh", "-c", "echo $RANKFALL_NODE $RANKFALL_STEP $RANKFALL_CAUSE >> {said}"]\n"""
    job = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train-0", "namespace": SPACE + "-jobs"},
        "spec": {
            "nodeName": one,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "none", "resources": {"limits": {"rankfall.test/gpu": "1"}}},
            ],
        },
    }
    fresh.kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE + "-jobs"}}])
    try:
        until(lambda: fresh.kubectl.run("get", "serviceaccount", "default", "-n", SPACE + "-jobs").returncode == 0)
        fresh.kubectl.apply([job])
        with fresh.controller(policy=f"after_job = true\n[[hook]]\nstep = 'reset_gpu'\n{hook}"):
            until(lambda: "leads" in fresh.log())
            fresh.say(
                one,
                dmesg(
                    "NVRM: Xid (PCI:0000:0f:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping"
                ),
            )
            until(lambda: "actions that need an idle node wait" in fresh.log())
            assert fresh.tainted() == set()
            assert not said.exists()
            fresh.kubectl("delete", "pod", "train-0", "-n", SPACE + "-jobs", "--grace-period=0", "--force")
            until(lambda: fresh.tainted() == {one})
            until(lambda: said.exists() and said.read_text() == f"{one} reset_gpu xid/63\n")
            until(lambda: state(fresh, one) == "validating")
            assert fresh.tainted() == {one}
    finally:
        fresh.kubectl.run("delete", "namespace", SPACE + "-jobs", "--wait=false")
