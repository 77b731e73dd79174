"""The controller's objects: least rights, a pod that may nothing, an image by digest. What a real API server makes of them: tests/cluster."""

from __future__ import annotations

import click
import pytest
import yaml
from click.testing import CliRunner

from rankfall.cli.commands.controller import manifests
from rankfall.model.errors import RankfallError
from rankfall.nodes.manifests import controller as made
from rankfall.nodes.manifests.cluster import cluster_objects
from rankfall.nodes.rules.policy import Policy

IMAGE = "registry.example/rankfall@sha256:" + "a" * 64


def of_kind(objects, kind, name=made.NAME):
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def test_the_controllers_pod_has_no_privilege_and_a_limit_for_everything():
    pod = of_kind(cluster_objects(namespace="rankfall", image=IMAGE), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    assert container["image"] == IMAGE
    assert {"livenessProbe", "readinessProbe"} <= container.keys()
    assert not any("hostPath" in each for each in pod["volumes"])


def test_rights_are_verbs_that_the_code_uses_and_no_star():
    objects = made.controller_objects(namespace="rankfall", image=IMAGE, jobs=True)
    rules = [rule for each in objects if each["kind"].endswith("Role") for rule in each["rules"]]
    words = {word for rule in rules for key in ("apiGroups", "resources", "verbs") for word in rule[key]}
    assert not {"*", "update", "deletecollection", "secrets", "impersonate"} & words
    cluster = of_kind(objects, "ClusterRole")["rules"]
    assert {resource for rule in cluster for resource in rule["resources"]} == {"nodes", "nodes/status"}
    assert not any("delete" in rule["verbs"] or "create" in rule["verbs"] for rule in cluster)
    seeing = made.controller_objects(namespace="rankfall", image=IMAGE, jobs=True, occupied=True)
    assert [*cluster, *made.POD_RULES] == of_kind(seeing, "ClusterRole")["rules"]
    assert [rule["verbs"] for rule in made.POD_RULES] == [["list"]]
    without = made.controller_objects(namespace="rankfall", image=IMAGE)
    assert not any("jobs" in rule["resources"] for each in without if each["kind"] == "Role" for rule in each["rules"])


def test_the_file_of_settings_is_checked_and_becomes_a_config_map(tmp_path):
    config = tmp_path / "own.toml"
    config.write_text('[policy]\nkey = "trainy.konduktor.ai/faulty"\n')
    objects = cluster_objects(
        namespace="guard", image=IMAGE, config=config, loki_url="http://loki:3100", admission=True, injected=True
    )
    assert of_kind(objects, "ConfigMap", made.SETTINGS)["data"] == {"health.toml": config.read_text()}
    (container,) = of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert (env["RANKFALL_HEALTH_CONFIG"], env["LOG_ENDPOINT"]) == ("/etc/rankfall/health.toml", "http://loki:3100")
    assert container["command"][4:] == [
        "--accept-injected-kmsg", "--stream", "dmesg-logging/dmesg", "--stream", "guard/rankfall-agent",
    ]  # fmt: skip
    assert {each["metadata"].get("namespace", "guard") for each in objects} == {"guard", "default"}
    policy = of_kind(objects, "ValidatingAdmissionPolicy")
    assert "trainy.konduktor.ai/faulty" in str(policy)
    assert of_kind(objects, "DaemonSet", "rankfall-agent")
    config.write_text("[polcy]\n")
    with pytest.raises(RankfallError, match="polcy"):
        cluster_objects(namespace="guard", image=IMAGE, config=config)


@pytest.mark.parametrize(
    ("text", "sees"),
    [
        ("", False),
        ("[policy]\nafter_job = true\n", True),
        ("[[hook]]\nstep = 'reboot'\nwebhook = 'https://a/b'\n", True),
    ],
)
def test_pods_are_seen_only_where_something_waits_for_a_job(tmp_path, text, sees):
    config = tmp_path / "own.toml"
    config.write_text(text)
    rules = of_kind(
        cluster_objects(namespace="guard", image=IMAGE, config=config, agent=False), "ClusterRole", made.NAME
    )["rules"]
    assert any("pods" in rule["resources"] for rule in rules) is sees


def test_the_policy_names_this_account_alone():
    (policy, binding) = made.controller_admission(namespace="guard", policy=Policy())
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:guard:rankfall-controller'"
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_the_command_prints_yaml_and_refuses_an_image_without_digest():
    done = CliRunner().invoke(manifests, ["--image", IMAGE, "--no-agent", "-n", "guard"], standalone_mode=False)
    objects = list(yaml.safe_load_all(done.stdout))
    assert objects[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert [each["kind"] for each in objects][-1] == "Deployment"
    for words in (["--image", "rankfall:latest"], ["--image", IMAGE, "-n", "Two Words"]):
        with pytest.raises((RankfallError, click.ClickException)):
            CliRunner().invoke(manifests, words, standalone_mode=False, catch_exceptions=False)
