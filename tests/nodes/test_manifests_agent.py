"""What the agent gets in a cluster: no right to change a Node's spec, every taint tolerated, little of everything else."""

from __future__ import annotations

import msgspec

from rankfall.nodes.manifests.agent import NAME, agent_admission, agent_objects


def test_the_agent_may_write_a_nodes_status_and_events_and_nothing_else():
    found = agent_objects(namespace="ns", image="i@sha256:0")
    rules = [rule for each in found for rule in each.get("rules", ())]
    assert rules == [
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    assert [(each["kind"], each["metadata"].get("namespace")) for each in found] == [
        ("ServiceAccount", "ns"), ("ClusterRole", None), ("ClusterRoleBinding", None), ("Role", "default"),
        ("RoleBinding", "default"), ("DaemonSet", "ns"),
    ]  # fmt: skip


def test_health_s35_the_agent_tolerates_every_taint_and_writes_to_one_folder():
    pod = agent_objects(namespace="ns", image="i")[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")] == [
        "/var/lib/rankfall-agent"
    ]
    assert container["command"] == [
        "rankfall", "agent", "--state", "/var/lib/rankfall-agent", "--probe-address", ":8081",
    ]  # fmt: skip
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probe"}
    assert container["ports"] == [{"name": "probe", "containerPort": 8081}]
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
    assert "nodeSelector" not in pod


def test_the_test_mode_and_the_choice_of_nodes_are_asked_for():
    found = agent_objects(namespace="ns", image="i", injected=True, node_selector={"gpu": "yes"}, labels={"a": "b"})
    pod = found[-1]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][-1] == "--accept-injected-kmsg"
    assert pod["nodeSelector"] == {"gpu": "yes"}
    assert all(each["metadata"]["labels"]["a"] == "b" for each in found)


def test_the_policy_is_about_this_account_alone():
    policy, binding = agent_admission(namespace="ns")
    assert policy["spec"]["matchConditions"][0]["expression"].endswith(f"'system:serviceaccount:ns:{NAME}'")
    assert binding["spec"] == {"policyName": NAME, "validationActions": ["Deny"]}
    assert "{" not in "".join(each["expression"] for each in policy["spec"]["validations"]).replace("{}", "")
    assert msgspec.json.encode([policy, binding])
