"""Any history of faults, forgeries, reboots, checks, remedies and hands of people: what never happens in one."""

from __future__ import annotations

import copy
import math

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodes.cluster import SECOND, Cluster
from rankfall.nodes.rules.node_state import CheckRound, Clear, Remedy
from rankfall.nodes.rules.planner import Input
from rankfall.nodes.rules.policy import Budget, Policy, Safety

pytestmark = pytest.mark.steady

NAMES = st.sampled_from([f"n{n}" for n in range(1, 7)])
GRAVE = (
    "xid/79",
    "xid/48",
    "sxid/20034/fatal",
    "xid/154/gpu_reset",
    "kernel/disk_fault.readonly",
    "condition/KernelDeadlock",
)
MILD = ("xid/94", "xid/31", "xid/163", "kernel/nic_down.kernel", "kernel/nic_down.mlx5_module", "sxid/12028")
NOTHING = (
    "xid/999",
    "sxid/99999/fatal",
    "xid/43",
    "xid/162",
    "xid/154/none",
    "kernel/host_oom.kernel_memcg",
    "sxid/19049/nonfatal",
    "xid/unreadable",
)
TRUSTED = ("kernel", "collector", "condition", "verdict")
FOREIGN = {"key": "example.com/broken", "effect": "NoSchedule", "timeAdded": "2026-11-21T09:00:00Z"}


class AnyHistory(RuleBasedStateMachine):
    """Six nodes in two pools. After each step all patches were applied, or none of them."""

    def __init__(self) -> None:
        super().__init__()
        policy = Policy(
            budget=Budget(nodes=2, percent=50), rate_nodes=3, rate_s=300, breaker_nodes=3, validate_after_s=120, clean_rounds=1, clean_s=0,
            probation_s=600,
        )  # fmt: skip
        self.cluster = Cluster(6, policy=policy)
        for name in ("n5", "n6"):
            self.cluster.nodes[name]["pool"] = "small"
        self.given: list[Input] = []
        self.evidence: dict[str, int] = {}
        self.untainted: dict[str, int] = {}
        self.lost = False

    def see(self, *inputs: Input, apply: bool = True) -> None:
        before = self.cluster.tainted
        self.given += (each for each in inputs if each not in self.given)
        self.lost |= not apply  # a controller that was killed is given the same again
        self.cluster.see(*inputs, apply=apply)
        for name in self.cluster.tainted - before:
            assert name in self.evidence, f"{name} was tainted without trusted evidence"
            # Its time is known to half a second.
            assert self.evidence[name] - SECOND // 2 > self.untainted.get(name, 0), (
                f"{name} was tainted again by old evidence"
            )
            pool = self.cluster.nodes[name]["pool"]
            members = [each for each in self.cluster.nodes.values() if each["pool"] == pool]
            limit = max(1, min(2, math.ceil(sum(each["ready"] for each in members) * 0.5)))
            assert sum(self.cluster.nodes[each]["pool"] == pool for each in self.cluster.tainted) <= limit
            assert not self.cluster.policy.kill_switch
            assert not self.cluster.nodes[name].get("opted_out")

    @rule(
        name=NAMES,
        code=st.sampled_from(GRAVE + MILD),
        seen=st.tuples(st.sampled_from(TRUSTED), st.sampled_from([None, "a", "b"]), st.integers(0, 700)),
        apply=st.booleans(),
    )
    def believable(self, name, code, seen, apply):
        trust, job, age = seen
        at = self.cluster.now - age * SECOND
        more = {} if trust == "kernel" else {"boot": None, "seq": None}
        self.evidence[name] = max(at, self.evidence.get(name, 0))
        self.see(self.cluster.fault(name, code, trust=trust, job=job, at=at, **more), apply=apply)

    @rule(name=NAMES, code=st.sampled_from(GRAVE), trust=st.sampled_from(("injected", "pod_text")))
    def forged(self, name, code, trust):
        self.see(self.cluster.fault(name, code, trust=trust))

    @rule(name=NAMES, code=st.sampled_from(NOTHING), trust=st.sampled_from(TRUSTED))
    def harmless_or_unknown(self, name, code, trust):
        self.see(self.cluster.fault(name, code, trust=trust))

    @rule(name=NAMES, code=st.sampled_from(GRAVE))
    def of_another_boot(self, name, code):
        self.see(self.cluster.fault(name, code, boot="boot-of-old", at=self.cluster.now - 601 * SECOND))

    @rule(name=NAMES, outcome=st.sampled_from(("passed", "failed", "unable")))
    def check(self, name, outcome):
        self.see(
            CheckRound(
                node=name, at=self.cluster.now, outcome=outcome, check="disk", boot=self.cluster.nodes[name]["boot"]
            )
        )

    @rule(
        name=NAMES,
        outcome=st.sampled_from(("started", "ended")),
        step=st.sampled_from(("reboot", "reset_gpu")),
        ok=st.booleans(),
    )
    def remedy(self, name, outcome, step, ok):
        self.see(Remedy(node=name, at=self.cluster.now, step=step, outcome=outcome, ok=ok))

    @rule(seconds=st.sampled_from((1, 61, 130, 700, 4_000)))
    def later(self, seconds):
        self.cluster.later(seconds)
        self.see()

    @rule(name=NAMES)
    def reboot(self, name):
        self.cluster.reboot(name)

    @rule(name=NAMES)
    def readiness(self, name):
        self.cluster.nodes[name]["ready"] ^= True

    @rule(name=NAMES)
    def a_person_clears(self, name):
        self.see(Clear(node=name, at=self.cluster.now, by="someone"))
        self.untainted[name] = self.cluster.now

    @rule(name=NAMES)
    def a_person_untaints(self, name):
        if name in self.cluster.tainted and self.cluster.record(name).tainted:
            self.cluster.untaint(name)
            self.untainted[name] = self.cluster.now
            self.see()

    @rule(name=NAMES)
    def others_taint(self, name):
        taints = self.cluster.nodes[name]["spec"].setdefault("taints", [])
        if FOREIGN not in taints:
            taints.append(dict(FOREIGN))
            self.cluster.nodes[name]["foreign"] = True

    @rule(on=st.booleans())
    def kill_switch(self, on):
        self.cluster.policy = msgspec.structs.replace(self.cluster.policy, kill_switch=on)

    @rule(name=NAMES, out=st.booleans())
    def opt_out(self, name, out):
        self.cluster.nodes[name]["opted_out"] = out

    @precondition(lambda self: self.cluster.safety.trip is not None)
    @rule()
    def a_person_closes_the_breaker(self):
        assert isinstance(self.cluster.safety, Safety)
        self.cluster.safety = msgspec.structs.replace(self.cluster.safety, trip=None, reset_at=self.cluster.now)

    @rule()
    def everything_again_changes_nothing(self):
        if self.lost:
            self.see(*self.given)
            self.lost = False
        for _ in range(10):  # what frees room lets others follow in the next step
            self.cluster.see()
            assert self.cluster.plan is not None
            if not self.cluster.plan.patches:
                break
        before = copy.deepcopy(self.cluster.nodes)
        safety = self.cluster.safety
        plan = self.cluster.see(*self.given)
        assert plan.patches == ()
        assert self.cluster.nodes == before
        assert self.cluster.safety == safety

    @invariant()
    def foreign_taints_stay_and_ours_is_there_once(self):
        for name, node in self.cluster.nodes.items():
            taints = node["spec"].get("taints", [])
            assert (FOREIGN in taints) is node.get("foreign", False)
            assert sum(each["key"] == self.cluster.policy.key for each in taints) <= 1
            record = self.cluster.record(name)
            assert (record.state in {"quarantined", "remediating", "validating"}) is record.tainted


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
