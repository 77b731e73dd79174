"""A guarded cluster for scenarios of node health: one controller as a process with its account's rights alone, agents with theirs, nodes that fake as many kernels.

The scenarios share it, so each takes nodes of which nothing was said yet, and waits for what follows behind it where nothing is to happen.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.kmsg_world import Ring
from cluster.kmsg_world import agent as agent_process
from cluster.loki_push import push
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, decode_health
from rankfall.nodes.controller.notifier import COMPONENT, EVENTS_NAMESPACE
from rankfall.nodes.manifests.agent import CLUSTER_RULES as AGENT_RULES
from rankfall.nodes.manifests.agent import NAME as AGENT
from rankfall.nodes.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl

KEY = "rankfall.dev/faulty"
LOST = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DMESG = "dmesg-logging.dmesg"
LIMIT_S = 60.0
_RBAC = "rbac.authorization.k8s.io"
# A whole fleet may be quarantined here: limits have scenarios of their own.
_POLICY = "[policy]\nbudget = { nodes = 1000, percent = 100 }\nrate_nodes = 1000\nbreaker_nodes = 1000\n"


def account(bed: Bed, kubectl: Kubectl, space: str, *, more: Sequence[Any] = ()) -> Path:
    """A kubeconfig of the controller's account: what the manifests give it, and of ``more`` what they add for what is configured."""
    path = accounts.create(
        bed.control, kubectl, "controller", namespace=space, rules=[*OWN_RULES, *more], cluster_rules=CLUSTER_RULES
    )
    meta = {"name": f"{space}-controller", "namespace": "default"}
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": space}
    reference = {"apiGroup": _RBAC, "kind": "Role", "name": meta["name"]}
    kubectl.apply([
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": meta, "rules": [dict(each) for each in EVENT_RULES]},
        {"apiVersion": f"{_RBAC}/v1", "kind": "RoleBinding", "metadata": meta, "roleRef": reference, "subjects": [subject]},
    ])  # fmt: skip
    return path


def agent_account(bed: Bed, kubectl: Kubectl, space: str) -> Path:
    """A kubeconfig of the agents' account."""
    events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    return accounts.create(bed.control, kubectl, AGENT, namespace=space, rules=[], cluster_rules=[*AGENT_RULES, events])


class Guard:
    """A controller and what it says.

    Args:
        kubectl: of the administrator.
        kubeconfig: of the controller's account.
        space: its namespace.
        folder: for its files.
        loki: where lines are brought; None = there is no Loki.
        tenant: whose lines these are.
        policy: lines of ``[policy]`` beside the limits.
        tables: further tables of the file of settings.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        kubeconfig: Path,
        *,
        space: str,
        folder: Path,
        loki: str | None = None,
        tenant: str | None = None,
        policy: str = "",
        tables: str = "",
    ) -> None:
        self.kubectl, self.kubeconfig, self.space, self.folder = kubectl, kubeconfig, space, folder
        self._loki, self._tenant = loki, tenant
        self._policy, self._tables = policy, tables
        self._believed: list[str] = []
        self._rules: dict[str, str] = {}
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.config = folder / "health.toml"
        self.config.write_text(self._text())

    # -- the file of settings

    def _text(self) -> str:
        rules = "".join(f'[[rule]]\ncode = "{code}"\naction = "{action}"\n' for code, action in self._rules.items())
        return f"{_POLICY}pod_codes = {json.dumps(self._believed)}\n{self._policy}{self._tables}{rules}"

    def rule(self, code: str, action: str) -> None:
        """Have the operator's file say so; returns when it is in force."""
        if self._rules.get(code) != action:
            self._rules[code] = action
            self.write(self._text())

    def believe(self, code: str) -> None:
        """As ``rule``, for a code that a pod's own text may show."""
        self._believed.append(code)
        self._rules[code] = "quarantine"
        self.write(self._text())

    def write(self, text: str | None, *, says: str = "the settings of the file are active") -> None:
        """Put another file in the place of this one (None = the good one) and wait for what the controller says of it."""
        before = self.log.count(says)
        fresh = self.config.with_suffix(".new")
        fresh.write_text(self._text() if text is None else text)
        fresh.rename(self.config)
        wait_until(lambda: self.log.count(says) > before, timeout=LIMIT_S, what=says)

    # -- the process

    @contextmanager
    def controlling(self, *options: str, name: str = "one", **environ: str) -> Iterator[subprocess.Popen[bytes]]:
        """The controller, until it leads; a dry run leads nothing."""
        command = [sys.executable, "-m", "rankfall", "controller", "--poll", "0.5", "-n", self.space]
        command += ["--config", str(self.config), "--metrics-address", "127.0.0.1:0", *options]
        kept = {key: value for key, value in os.environ.items() if key not in {"LOG_ENDPOINT", "WATCHED_NAMESPACES"}}
        kept |= {"KUBECONFIG": str(self.kubeconfig), "POD_NAME": name, **environ}
        log, audit = self.folder / f"{name}.log", self.folder / f"{name}.audit"
        with log.open("ab") as said, audit.open("ab") as noted:
            process = subprocess.Popen(command, env=kept, stdout=noted, stderr=said)
            try:
                began = "nothing is written" if "--dry-run" in options else "this controller leads"
                wait_until(lambda: began in log.read_text(), timeout=LIMIT_S, what="a controller that leads")
                yield process
            finally:
                process.terminate()
                process.wait(30)

    @property
    def log(self) -> str:
        """All that it said to people."""
        path = self.folder / "one.log"
        return path.read_text() if path.exists() else ""

    def audit(self) -> list[dict[str, Any]]:
        """Whole lines of its audit trail."""
        text = (self.folder / "one.audit").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def saw(self, node: str, code: str) -> list[str]:
        """What became of observations of this code on this node."""
        rows = (row for row in self.audit() if row["what"] == "saw" and row["node"] == node)
        return [row["outcome"] for row in rows if row["fault"]["code"] == code]

    def happened(self, node: str, reason: str) -> int:
        """How often this was told of the node."""
        rows = (row for row in self.audit() if row["what"] == "happened" and row["node"] == node)
        return sum(row["reason"] == reason for row in rows)

    def metrics(self) -> str:
        """Its numbers, as Prometheus gets them."""
        port = re.search(r"metrics and probes on port (\d+)", self.log)
        assert port is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def number(self, name: str, **labels: str) -> float:
        """The sum of one of them over all labels that are not given."""
        rows = re.findall(rf"^rankfall_{name}(?:\{{(.*)\}})? (\S+)$", self.metrics(), re.MULTILINE)
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(float(value) for told, value in rows if wanted <= set(told.split(",")))

    # -- the cluster

    def say(self, node: str, *texts: str, tenant: str | None = None, at: int | None = None, **labels: str) -> None:
        """Lines of the DaemonSet that prints a node's kernel log, or of what ``labels`` name, a nanosecond apart."""
        now = time.time_ns() if at is None else at
        self.bring(node, [(now + index, text) for index, text in enumerate(texts)], tenant=tenant, **labels)

    def bring(self, node: str, rows: list[tuple[int, str]], *, tenant: str | None = None, **labels: str) -> None:
        """As a collector does: these lines at these moments."""
        assert self._loki is not None
        given = labels or {"k8s_namespace_name": "dmesg-logging", "k8s_daemonset_name": "dmesg"}
        push(self._loki, {**given, "k8s_node_name": node}, rows, tenant=tenant or self._tenant)

    def record(self, node: str) -> NodeHealth:
        """What the Node's annotation holds."""
        text = (self.kubectl.get("node", node)["metadata"].get("annotations") or {}).get(ANNOTATION)
        return NodeHealth() if text is None else decode_health(text)

    def causes(self, node: str) -> list[tuple[str, str | None, int]]:
        """Of the record, by device."""
        found = ((each.code, each.device, each.count) for each in self.record(node).causes)
        return sorted(found, key=lambda each: (each[1] or "", each[0]))

    def tainted(self, node: str) -> bool:
        """Whether our taint stands there."""
        taints = self.kubectl.get("node", node)["spec"].get("taints") or ()
        return any((each["key"], each["effect"]) == (KEY, "NoSchedule") for each in taints)

    def condition(self, node: str) -> str:
        """Why the Node says that it is healthy, or is not."""
        conditions = self.kubectl.get("node", node)["status"].get("conditions") or ()
        return next((each["reason"] for each in conditions if each["type"] == "RankfallHealthy"), "")

    def events(self, node: str, reason: str) -> list[str]:
        """Messages of the controller's Events; those of earlier tests outlive their Nodes."""
        items = self.kubectl.get("events", "-n", EVENTS_NAMESPACE)["items"]
        fresh = (each for each in items if each["metadata"]["creationTimestamp"] >= self._began)
        ours = (each for each in fresh if each["source"].get("component") == COMPONENT)
        return [each["message"] for each in ours if (each["involvedObject"]["name"], each["reason"]) == (node, reason)]

    def acts(self, node: str) -> None:
        """Wait for the taint."""
        wait_until(lambda: self.tainted(node), timeout=LIMIT_S, what=f"the taint of {node}")

    def stands(self, node: str, state: str) -> None:
        """Wait for a state."""
        wait_until(lambda: self.record(node).state == state, timeout=LIMIT_S, what=f"{node} to be {state}")


class Fleet(Guard):
    """A controller over fake nodes, each with a boot id of its own.

    Args:
        nodes: names with their boot ids.
        agents: kubeconfig of the agents' account.
        given: as of :class:`Guard`.
    """

    def __init__(self, *given: Any, nodes: dict[str, str], agents: Path, **more: Any) -> None:
        super().__init__(*given, **more)
        self._boots, self._agents = nodes, agents
        self._unused = list(nodes)

    def fresh(self) -> str:
        """A node of which nothing was said yet."""
        return self._unused.pop()

    @contextmanager
    def agent(self, node: str) -> Iterator[Ring]:
        """The node's kernel log with an agent that reads it."""
        ring = Ring(self.folder / f"{node}.sock", boot=self._boots[node])
        try:
            with agent_process(self._agents, node, "--kmsg-socket", str(ring.path), out=self.folder / f"{node}.out"):
                yield ring
        finally:
            ring.close()

    def settled(self) -> None:
        """Wait until all that was said before is decided: a fault of yet another node, said now, is acted on."""
        node = self.fresh()
        self.say(node, stamped(LOST))
        self.acts(node)


def stamped(text: str) -> str:
    """As dmesg prints it."""
    return f"[{time.monotonic():.6f}] {text}"


def kernel(ring: Ring, *texts: str) -> None:
    """Records of the kernel, printed now."""
    for text in texts:
        ring.write(text, stamp_us=time.monotonic_ns() // 1_000)
