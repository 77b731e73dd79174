"""A pretended API server for the pure machine: applies the patches of a plan as the real one would, and lets others change Nodes."""

from __future__ import annotations

from typing import Any

import msgspec

from rankfall.model.node_health.records import ANNOTATION, NodeFault, NodeHealth, decode_health
from rankfall.nodes.rules.fault_rules import Rules, packaged
from rankfall.nodes.rules.node_objects import json_patch
from rankfall.nodes.rules.node_state import NodeView
from rankfall.nodes.rules.planner import Input, Plan, step
from rankfall.nodes.rules.policy import Policy, Safety, Taint

SECOND = 1_000_000_000
START = 1_795_000_000 * SECOND


class Cluster:
    """Nodes n1 to nN, all in one pool unless said, each with a boot id of its own; ``now`` moves only by ``later``."""

    def __init__(self, count: int = 4, *, policy: Policy | None = None, rules: Rules | None = None) -> None:
        self.policy = policy or Policy(clean_rounds=2, clean_s=60)
        self.rules = rules or packaged()
        self.safety = Safety()
        self.now = START
        self.nodes: dict[str, dict[str, Any]] = {
            f"n{number}": {
                "metadata": {"resourceVersion": "1"},
                "spec": {},
                "pool": "default",
                "ready": True,
                "boot": f"boot-{number}-0",
            }
            for number in range(1, count + 1)
        }
        self.memory: dict[str, NodeHealth] = {}
        self.plan: Plan | None = None
        self.writes = 0
        self._seq = 0

    def later(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def fault(self, node: str, code: str, **more: Any) -> NodeFault:
        self._seq += 1
        given: dict[str, Any] = {
            "id": f"f{self._seq}", "source": "kmsg", "trust": "kernel", "device": "gpu 0000:4e:00", "boot": self.nodes.get(node, {}).get("boot"),
            "seq": self._seq, "at": self.now, "uncertainty": 0.5, "text": f"line of {code}",
        } | more  # fmt: skip
        return NodeFault(node=node, code=code, **given)

    def see(self, *inputs: Input, apply: bool = True) -> Plan:
        views = {name: self.view(name) for name in self.nodes}
        self.plan = step(views, inputs, rules=self.rules, policy=self.policy, safety=self.safety, now=self.now)
        self.safety = self.plan.safety
        self.memory |= self.plan.records
        if apply:
            for patch in self.plan.patches:
                node = self.nodes[patch.node]
                self.write(
                    node,
                    json_patch(
                        patch,
                        taints=self.taints(patch.node),
                        annotated="annotations" in node["metadata"],
                        policy=self.policy,
                        also=self.policy.keys,
                    ),
                )
        return self.plan

    def view(self, name: str) -> NodeView:
        node = self.nodes[name]
        text = node["metadata"].get("annotations", {}).get(ANNOTATION)
        return NodeView(
            name=name,
            version=node["metadata"]["resourceVersion"],
            pool=node["pool"],
            ready=node["ready"],
            taints=self.taints(name),
            boot=node["boot"],
            opted_out=node.get("opted_out", False),
            holder=node.get("holder"),
            idle_at=node.get("idle_at"),
            record=decode_health(text) if text is not None else self.memory.get(name) if self.policy.dry_run else None,
        )

    def write(self, node: dict[str, Any], operations: list[dict[str, Any]]) -> None:
        assert operations[0] == {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": node["metadata"]["resourceVersion"],
        }
        for each in operations[1:]:
            *path, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
            target: Any = node
            for part in path:
                target = target[part]
            if each["op"] == "remove":
                del target[int(last)]
            elif isinstance(target, list):
                assert last == "-"
                target.append(each["value"])
            else:
                target[last] = each["value"]
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        self.writes += 1

    def taints(self, name: str) -> tuple[Taint, ...]:
        return msgspec.convert(self.nodes[name]["spec"].get("taints", []), tuple[Taint, ...])

    def untaint(self, name: str, key: str | None = None) -> None:
        """A person takes a taint away, as ``kubectl taint`` does."""
        node = self.nodes[name]
        key = key or self.policy.key
        node["spec"]["taints"] = [each for each in node["spec"].get("taints", []) if each["key"] != key]
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)

    def reboot(self, name: str) -> str:
        head, _, number = self.nodes[name]["boot"].rpartition("-")
        self.nodes[name]["boot"] = f"{head}-{int(number) + 1}"
        return str(self.nodes[name]["boot"])

    @property
    def tainted(self) -> set[str]:
        return {name for name in self.nodes if self.view(name).tainted(self.policy)}

    def record(self, name: str) -> NodeHealth:
        return self.view(name).record or NodeHealth()

    def reasons(self, node: str | None = None) -> list[str]:
        assert self.plan is not None
        return [each.reason for each in self.plan.happenings if node in {None, each.node}]
