"""Node objects as others may leave them: what makes no sense counts as not said, and a patch is of the version that was read."""

from __future__ import annotations

import asyncio
import json

import pytest

from kube.apiserver import answer, refuse, serving
from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, encode_health
from rankfall.nodes import commands
from rankfall.nodes.node_writes import write_condition, write_node
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.nodes.rules.node_objects import OPT_OUT, read_node, status
from rankfall.nodes.rules.policy import Policy, Taint
from support.patience import scaled

POLICY = Policy()


def test_a_node_is_read_with_all_that_the_core_asks():
    item = {
        "metadata": {
            "name": "n1", "resourceVersion": "7", "labels": {"rankfall.dev/pool": "h100", OPT_OUT: "true"},
            "annotations": {ANNOTATION: encode_health(NodeHealth(state="suspect"))},
        },
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}, "nonsense", {"key": "v", "value": "1", "effect": "NoExecute"}]},
        "status": {
            "nodeInfo": {"bootID": "b-1"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "RankfallHealthy", "status": "True", "reason": "Healthy"}],
        },
    }  # fmt: skip
    node = read_node(item, policy=POLICY)
    view = node.view
    assert (node.name, view.version, view.pool, view.ready, view.boot, view.opted_out) == (
        "n1",
        "7",
        "h100",
        True,
        "b-1",
        True,
    )
    assert view.taints == (Taint("k", "NoSchedule"), Taint("", ""), Taint("v", "NoExecute", "1"))
    assert (view.record, node.cordoned, node.annotated, node.problem) == (NodeHealth(state="suspect"), True, True, None)
    assert node.condition is not None
    assert node.condition["reason"] == "Healthy"


STATE, EVENT, APPLIED = (
    "dgxc.nvidia.com/nvsentinel-state",
    "quarantineHealthEvent",
    "quarantineHealthEventAppliedTaints",
)
TAINT = {"key": "nvidia.com/gpu-xid-error", "value": "true", "effect": "NoSchedule"}
EVENTS = '[{"nodeName":"n1","checkName":"GpuXidError","isFatal":true}]'


@pytest.mark.parametrize(
    ("labels", "annotations", "spec", "holder"),
    [
        ({STATE: "draining"}, {EVENT: EVENTS}, {"unschedulable": True}, "NVSentinel: draining"),
        ({STATE: "remediation-failed"}, {}, {"unschedulable": True}, "NVSentinel: remediation-failed"),
        # Before its drain has begun.
        ({}, {EVENT: EVENTS}, {"unschedulable": True}, "NVSentinel: quarantined"),
        # Taints instead of a cordon.
        (
            {},
            {EVENT: EVENTS, APPLIED: json.dumps([{"Key": TAINT["key"]}])},
            {"taints": [TAINT]},
            "NVSentinel: quarantined",
        ),
        # A dry run, or a cordon that a person removed; taints of others.
        ({}, {EVENT: EVENTS, APPLIED: json.dumps([{"Key": TAINT["key"]}])}, {}, None),
        ({}, {EVENT: EVENTS}, {"taints": [TAINT]}, None),
        ({STATE: "quarantined"}, {}, {}, None),
        # A person's cordon.
        ({}, {}, {"unschedulable": True}, None),
        ({}, {EVENT: "[]"}, {"unschedulable": True}, None),
        ({STATE: 7}, {EVENT: 7, APPLIED: 7}, {"unschedulable": "yes", "taints": [3, {"key": 5}]}, None),
    ],
)
def test_i32_p5_who_holds_a_node_is_read_from_nvsentinels_marks(labels, annotations, spec, holder):
    node = read_node(
        {"metadata": {"name": "n1", "labels": labels, "annotations": annotations}, "spec": spec}, policy=POLICY
    )
    assert node.view.holder == holder
    assert node.view.hands_off == (holder is not None)
    assert status(node, rules=packaged(), policy=POLICY).holder == holder


@pytest.mark.parametrize("text", ["{", '{"schema":"rankfall.nodehealth/9"}', "x" * 40_000])
def test_a_record_that_cannot_be_believed_is_none_and_said(text):
    node = read_node({"metadata": {"name": "n1", "annotations": {ANNOTATION: text}}}, policy=POLICY)
    assert node.view.record is None
    assert ANNOTATION in (node.problem or "")


@pytest.mark.parametrize(
    "item", [{}, {"metadata": 3, "spec": [], "status": {"conditions": 5, "nodeInfo": {"bootID": 7}}}]
)
def test_nonsense_is_no_error(item):
    view = read_node(item, policy=POLICY).view
    assert (view.name, view.pool, view.ready, view.boot, view.taints) == ("", "default", False, None, ())


def test_health_s18_record_and_taint_go_in_one_request_at_the_version_that_was_read(tmp_path):
    async def story() -> None:
        async with serving(tmp_path) as server, Kube(server.access()) as kube:
            found = answer(200, {"metadata": {}})
            server.plays(found, refuse(409, "Conflict"), found, found)
            node = read_node({"metadata": {"name": "n1", "resourceVersion": "7"}}, policy=POLICY)
            done = commands.taint_change(node.view, reason="r", by="ann", rules=packaged(), policy=POLICY, now=10**18)
            assert done.patch is not None
            await write_node(kube, done.patch, node=node, policy=POLICY)
            with pytest.raises(Conflict):
                await write_node(kube, done.patch, node=node, policy=POLICY)
            assert await write_condition(kube, done.patch, node=node, now=10**18)
            sent = [json.loads(seen.body) for seen in server.seen]
            assert sent[0] == sent[1]
            assert [(each["op"], each["path"]) for each in sent[0]] == [
                ("replace", "/metadata/resourceVersion"),
                ("add", "/metadata/annotations"),
                ("add", "/metadata/annotations/rankfall.dev~1node-health"),
                ("add", "/spec/taints"),
            ]
            (condition,) = sent[2]["status"]["conditions"]
            assert (condition["type"], condition["status"], condition["reason"]) == (
                "RankfallHealthy",
                "False",
                "Quarantined",
            )
            assert server.seen[2].path == "/api/v1/nodes/n1/status"
            # The same condition again is no request; its time of transition stays while the status does.
            item = {"metadata": {"name": "n1"}, "status": {"conditions": [condition]}}
            assert not await write_condition(kube, done.patch, node=read_node(item, policy=POLICY), now=10**18 + 1)
            item["status"]["conditions"] = [{**condition, "message": "other", "lastTransitionTime": "then"}]
            assert await write_condition(kube, done.patch, node=read_node(item, policy=POLICY), now=10**18 + 1)
            assert json.loads(server.seen[3].body)["status"]["conditions"][0]["lastTransitionTime"] == "then"

    asyncio.run(asyncio.wait_for(story(), scaled(20)))
