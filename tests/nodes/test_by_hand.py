"""What people do with a node by hand, on the pure machine: no limit holds them back, and the controller goes on from what they did."""

from __future__ import annotations

import msgspec
import pytest

from nodes.cluster import SECOND, Cluster
from rankfall.model.node_health.records import MANUAL_CODE, NodeHealth, OpenCause
from rankfall.nodes import commands
from rankfall.nodes.rules.node_objects import json_patch
from rankfall.nodes.rules.node_state import CheckRound
from rankfall.nodes.rules.policy import Policy


def order(cluster: Cluster, done: commands.ManualChange) -> str:
    """Apply it as the command does."""
    if done.patch is not None:
        node = cluster.nodes[done.patch.node]
        taints, policy = cluster.taints(done.patch.node), cluster.policy
        operations = json_patch(
            done.patch, taints=taints, annotated="annotations" in node["metadata"], policy=policy, also=policy.keys
        )
        cluster.write(node, operations)
    return done.message


def taint(cluster: Cluster, name: str, reason: str = "smells burnt") -> str:
    return order(
        cluster,
        commands.taint_change(
            cluster.view(name), reason=reason, by="ann", rules=cluster.rules, policy=cluster.policy, now=cluster.now
        ),
    )


def clear(cluster: Cluster, name: str, cause: str | None = None) -> str:
    return order(
        cluster,
        commands.clear_change(
            cluster.view(name), cause=cause, rules=cluster.rules, policy=cluster.policy, now=cluster.now
        ),
    )


def test_a_person_taints_more_nodes_than_any_limit_and_opens_no_breaker():
    cluster = Cluster(8, policy=Policy(rate_nodes=1, breaker_nodes=1))
    for name in list(cluster.nodes)[:6]:
        assert taint(cluster, name) == "tainted rankfall.dev/faulty=true:NoSchedule"
    cluster.see()
    assert len(cluster.tainted) == 6
    assert cluster.safety.trip is None
    assert cluster.record("n1").causes[0].text == "ann: smells burnt"


def test_a_node_that_a_person_tainted_is_given_back_by_a_person_only():
    cluster = Cluster(policy=Policy(clean_rounds=1, clean_s=0, validate_after_s=0))
    taint(cluster, "n1")
    for _ in range(3):
        cluster.later(100)
        cluster.see(CheckRound(node="n1", at=cluster.now, outcome="passed"))
    assert cluster.tainted == {"n1"}
    assert cluster.record("n1").state == "quarantined"
    assert clear(cluster, "n1") == "cleared; taint rankfall.dev/faulty is removed"
    cluster.later(1)
    cluster.see()
    assert not cluster.tainted


def test_a_reason_that_comes_twice_is_one_cause_and_a_fault_stays_beside_it():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "xid/79"))
    assert taint(cluster, "n1", "first") == "has Rankfall's taint already; the reason is added"
    taint(cluster, "n1", "second")
    assert [each.code for each in cluster.record("n1").causes] == [MANUAL_CODE, "xid/79"]
    assert cluster.record("n1").causes[0].text == "ann: second"


def test_health_s40_one_cause_is_settled_and_the_taint_stays_for_the_other():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "xid/79"), cluster.fault("n1", "xid/74", device="gpu 0000:5e:00"))
    old = cluster.fault("n1", "xid/79")
    cluster.later(5)
    assert "the taint stays for xid/74@gpu 0000:5e:00" in clear(cluster, "n1", "xid/79@gpu 0000:4e:00")
    cluster.see(old)  # what was seen before the word of the person does not open it again
    assert cluster.tainted == {"n1"}
    assert "is removed" in clear(cluster, "n1", "xid/74")
    assert not cluster.tainted
    assert cluster.record("n1").state == "healthy"


def test_what_was_settled_does_not_taint_again_and_newer_evidence_does():
    cluster = Cluster()
    old = cluster.fault("n1", "xid/79")
    cluster.see(old)
    cluster.later(60)
    clear(cluster, "n1")
    cluster.see(old)
    assert not cluster.tainted
    cluster.later(60)
    cluster.see(cluster.fault("n1", "xid/79"))
    assert cluster.tainted == {"n1"}


@pytest.mark.parametrize(
    ("cause", "told"), [(None, "has nothing to clear"), ("xid/79", "has no open cause xid/79; open: none")]
)
def test_a_node_without_anything_is_not_written(cause, told):
    cluster = Cluster()
    assert clear(cluster, "n1", cause) == told
    assert cluster.writes == 0


def test_a_suspicion_is_settled_without_any_taint():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "verdict/nccl_ib_error", device=None, source="verdict", trust="verdict"))
    assert cluster.record("n1").state == "suspect"
    assert clear(cluster, "n1", "verdict/nccl_ib_error") == "verdict/nccl_ib_error is settled"
    assert cluster.record("n1").state == "healthy"
    assert clear(cluster, "n1") == "cleared; it had no taint of Rankfall"


def test_health_s20_taints_of_others_stay_and_ours_of_both_keys_go():
    cluster = Cluster(policy=Policy(key="trainy.konduktor.ai/faulty"))
    cluster.nodes["n1"]["spec"]["taints"] = [
        {"key": "a", "effect": "NoSchedule"},
        {"key": "rankfall.dev/faulty", "value": "true", "effect": "NoExecute"},
        {"key": "b", "value": "x", "effect": "NoExecute"},
        {"key": "trainy.konduktor.ai/faulty", "value": "true", "effect": "NoSchedule"},
    ]
    assert "rankfall.dev/faulty, trainy.konduktor.ai/faulty is removed" in clear(cluster, "n1")
    assert [each.key for each in cluster.taints("n1")] == ["a", "b"]


def test_a_full_record_counts_what_a_persons_word_pushed_out():
    cluster = Cluster()
    causes = tuple(OpenCause(code="xid/79", device=f"gpu {n}", due_at=1, last_at=cluster.now) for n in range(16))
    view = cluster.view("n1")
    done = commands.taint_change(
        msgspec.structs.replace(view, record=NodeHealth(causes=causes)),
        reason="x",
        by="ann",
        rules=cluster.rules,
        policy=cluster.policy,
        now=cluster.now + SECOND,
    )
    assert done.patch is not None
    assert (len(done.patch.record.causes), done.patch.record.more) == (16, 1)
