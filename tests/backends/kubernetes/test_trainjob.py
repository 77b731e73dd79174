"""The TrainJob as a manifest: on a runtime of its own, and on one of the platform, with whichever override field is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.kubernetes.made import KINDS, compiled, expand, spec, workload
from rankfall.backends.kubernetes.manifests.request import ServedFacts
from rankfall.model import Refused


def served(field: Any) -> ServedFacts:
    return ServedFacts(version=(1, 34), kinds=KINDS, pod_overrides=field)


SHARED = {"runtime": "torch-distributed"}
RICH = {
    **SHARED,
    "service_account": "trainer",
    "tolerations": [{"key": "gpu"}],
    "node_selector": {"gpu": "h100"},
    "volumes": [{"name": "data", "emptyDir": {}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}],
    "resources": {"gpus": 8},
}
NEWER = {
    **RICH,
    "affinity": {"podAffinity": {}},
    "image_pull_secrets": ["pull"],
    "labels": {"team": "a"},
    "annotations": {"eth": "1"},
    "exclude_nodes": ["n1"],
}


def test_without_a_named_runtime_the_job_gets_one_of_its_own():
    made = compiled(spec(backend="trainjob", nnodes=3, kubernetes={"priority_class": "high", "exclude_nodes": ["n1"]}))
    runtime, job, _ = made.objects
    assert (made.workload, job["kind"], made.container) == (1, "TrainJob", "node")
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": "job-0a1b2c-a1",
    }
    assert runtime["metadata"]["name"] == job["metadata"]["name"]
    assert job["spec"]["trainer"] == {"numNodes": 3}
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 3}
    (role,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (role["name"], role["replicas"]) == ("node", 1)
    assert role["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (note,) = [note for note in made.notes if note.startswith("runtime:")]
    assert "$.kubernetes.priority_class" in note
    assert "$.kubernetes.exclude_nodes" in note


def test_jobapi_s22_a_ttl_is_in_no_manifest_because_a_runtimes_would_bring_the_set_back():
    assert "ttl" not in json.dumps(compiled(spec(backend="trainjob", ttl_s=5)).masked_objects()).lower()


def test_a_platforms_runtime_is_used_as_given():
    made = compiled(spec(backend="trainjob", nnodes=2, nproc_per_node=8, kubernetes=RICH, env={"A": "$x"}))
    assert [item["kind"] for item in made.objects] == ["TrainJob", "ConfigMap"]
    body = workload(made)["spec"]
    assert body["runtimeRef"]["name"] == "torch-distributed"
    assert body["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    trainer = body["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 8, "registry/train:1")
    assert trainer["command"][:2] == ["sh", "-c"]
    assert trainer["args"][0] == "rankfall"
    assert trainer["args"][-2:] == ["python3", "train.py"]
    assert trainer["env"][0]["name"] == "RANKFALL_SLOT"
    assert expand(trainer["env"][-1]["value"], {}) == "$x"
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "8"}
    (override,) = body["podSpecOverrides"]
    assert override == {
        "targetJobs": [{"name": "node"}],
        "volumes": override["volumes"],
        "containers": [{"name": "node", "volumeMounts": override["containers"][0]["volumeMounts"]}],
        "serviceAccountName": "trainer",
        "tolerations": [{"key": "gpu"}],
        "nodeSelector": {"gpu": "h100"},
    }
    assert [item["name"] for item in override["volumes"]] == ["rankfall-inside", "rankfall-run", "data"]
    assert "jobset.sigs.k8s.io/jobset-name=job-0a1b2c-a1" in made.selector


def test_without_an_image_the_runtimes_own_is_used():
    made = compiled(spec(backend="trainjob", kubernetes={**SHARED, "image": None}))
    assert "image" not in workload(made)["spec"]["trainer"]


@pytest.mark.parametrize("field", ["podTemplateOverrides", "runtimePatches"])
def test_newer_trainers_take_more_and_under_their_own_names(field):
    made = compiled(spec(backend="trainjob", kubernetes=NEWER), served=served(field))
    body = workload(made)["spec"]
    if field == "podTemplateOverrides":
        (override,) = body[field]
        assert override["targetJobs"] == [{"name": "node"}]
        assert body["labels"]["team"] == "a"
    else:
        (patch,) = body[field]
        assert patch["manager"] == "rankfall.dev/launch"
        (role,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        assert role["name"] == "node"
        override = role["template"]["spec"]["template"]
        assert not {"labels", "annotations"} & set(body)
    assert override["metadata"]["labels"].items() >= {("team", "a"), ("rankfall.dev/run", "job-0a1b2c")}
    assert override["metadata"]["annotations"] == {"eth": "1"}
    assert override["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert set(override["spec"]["affinity"]) == {"podAffinity", "nodeAffinity"}
    assert made.selector == "rankfall.dev/run=job-0a1b2c,rankfall.dev/attempt=1"
    others = {"podSpecOverrides", "podTemplateOverrides", "runtimePatches"} - {field}
    assert not others & set(body)


@pytest.mark.parametrize(
    "section",
    [
        {"affinity": {"podAffinity": {}}},
        {"image_pull_secrets": ["pull"]},
        {"labels": {"team": "a"}},
        {"annotations": {"eth": "1"}},
        {"image_pull_policy": "Never"},
        {"priority_class": "high"},
        {"pod": {"spec": {"hostIPC": True}}},
    ],
)
def test_what_a_platforms_runtime_cannot_be_told_is_refused_by_field(section):
    (field,) = section
    with pytest.raises(Refused, match=rf"\$\.kubernetes\.{field}: .*torch-distributed.*backend trainjob") as caught:
        compiled(spec(backend="trainjob", kubernetes={**SHARED, **section}))
    assert "leave kubernetes.runtime out" in (caught.value.hint or "")


@pytest.mark.parametrize("fields", [{"cwd": "/code"}, {"policies": {"grace_s": 60}}, {"command": ["x"] * 200}])
def test_what_a_platforms_runtime_has_no_room_for_is_refused(fields):
    with pytest.raises(Refused, match="backend trainjob"):
        compiled(spec(backend="trainjob", kubernetes=SHARED, **fields))
    compiled(spec(backend="trainjob", **fields))


def test_many_nodes_on_a_platforms_runtime_stay_within_its_words():
    made = compiled(spec(backend="trainjob", nnodes=500, kubernetes=SHARED))
    assert len(workload(made)["spec"]["trainer"]["args"]) <= 128
