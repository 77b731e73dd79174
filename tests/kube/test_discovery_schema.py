"""Which fields a server drops: against the server's own algorithm, the real definitions of JobSet and Trainer, and Kubernetes's own kinds."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kube.openapi import Node, Schemas, reduce
from testbed import builds
from testbed.components import choose
from testbed.proxy.old_answers import make

META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
OPEN, EMBEDDED = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"
KIND = {"x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "K"}]}


def published(definition: dict[str, Any], version: str) -> dict[str, Any]:
    """A definition as an API server publishes it: with the kind, and metadata as a reference."""
    (served,) = (one for one in definition["spec"]["versions"] if one["name"] == version)
    names = definition["spec"]["names"]
    schema = copy.deepcopy(served["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"allOf": [{"$ref": f"#/components/schemas/{META}"}]}
    key = {"group": definition["spec"]["group"], "version": version, "kind": names["kind"]}
    schema["x-kubernetes-group-version-kind"] = [key]
    return {"components": {"schemas": {META: object_meta(), names["kind"]: schema}}}


@functools.cache
def object_meta() -> dict[str, Any]:
    text = (make("1.33") / "v3" / "apis__batch__v1_openapi.json").read_text()
    return json.loads(text)["components"]["schemas"][META]


@functools.cache
def custom(component: str, folder: str, file: str, version: str) -> Schemas:
    (row,) = choose([component])
    assert builds.folder(row).is_dir(), f"{component} is not built here: python -m testbed build {component}"
    return reduce(
        published(yaml.load((builds.files(component) / folder / file).read_text(), yaml.CSafeLoader), version)
    )


def jobset() -> Schemas:
    return custom("jobset", "config/components/crd/bases", "jobset.x-k8s.io_jobsets.yaml", "v1alpha2")


def trainer(component: str, plural: str) -> Schemas:
    return custom(component, "manifests/base/crds", f"trainer.kubeflow.org_{plural}.yaml", "v1alpha1")


@functools.cache
def builtin(minor: str, file: str) -> Schemas:
    return reduce(json.loads((make(minor) / "v3" / file).read_text()))


def dropped(schemas: Schemas, manifest: dict[str, Any]) -> list[str]:
    group, _, version = manifest["apiVersion"].rpartition("/")
    root = schemas.root(group, version, manifest["kind"])
    assert root is not None
    return schemas.dropped(manifest, root)


POD = {
    "metadata": {"labels": {"rankfall.dev/run": "r"}, "annotations": {"a/b": "c"}},
    "spec": {
        "restartPolicy": "Never",
        "nodeSelector": {"any.name/at-all": "x"},
        "containers": [
            {
                "name": "main",
                "image": "i",
                "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": "8"}},
                "ports": [{"containerPort": 1}],
                "livenessProbe": {"httpGet": {"port": "http"}},
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            }
        ],
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"items": [{"key": "k", "path": "p"}]}}]}}],
    },
}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "n", "labels": {"x": "y"}, "ownerReferences": [{"uid": "u"}]},
    "spec": {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {"maxRestarts": 0, "rules": [{"name": "a", "action": "FailJobSet"}]},
        "replicatedJobs": [
            {
                "name": "node",
                "replicas": 1,
                "template": {"spec": {"completions": 2, "backoffLimit": 0, "template": POD}},
            }
        ],
    },
}


def at(manifest: Any, *steps: Any) -> Any:
    for step in steps:
        manifest = manifest[step]
    return manifest


@pytest.mark.root
def test_a_jobset_of_0_8_keeps_all_that_it_knows():
    assert dropped(jobset(), JOBSET) == []


@pytest.mark.root
def test_what_a_jobset_of_0_8_drops_is_named():
    manifest = copy.deepcopy(JOBSET)
    template = at(manifest, "spec", "replicatedJobs", 0, "template")
    container = at(template, "spec", "template", "spec", "containers", 0)
    container["restartPolicyRules"] = [{"action": "Restart"}]
    container["env"][0]["valueFrom"]["fileKeyRef"] = {"key": "k"}
    template["spec"]["template"]["metadata"]["naem"] = "typo"
    manifest["spec"]["failurePolicy"]["rules"][0]["onJobFailureMessagePatterns"] = ["x"]
    manifest["spec"]["groups"] = []
    manifest["metadata"]["lables"] = {"x": "y"}
    manifest["data"] = None
    role = "$.spec.replicatedJobs[0].template.spec.template"
    # In the order of the manifest.
    assert dropped(jobset(), manifest) == [
        "$.metadata.lables",
        "$.spec.failurePolicy.rules[0].onJobFailureMessagePatterns",
        f"{role}.metadata.naem",
        f"{role}.spec.containers[0].env[0].valueFrom.fileKeyRef",
        f"{role}.spec.containers[0].restartPolicyRules",
        "$.spec.groups",
        "$.data",
    ]


OVERRIDES = ("podSpecOverrides", "podTemplateOverrides", "runtimePatches")


@pytest.mark.root
@pytest.mark.parametrize(
    ("component", "kept"),
    [
        ("trainer", "podSpecOverrides"),
        ("trainer-2.1-files", "podTemplateOverrides"),
        ("trainer-2.2-files", "runtimePatches"),
    ],
)
def test_each_trainer_keeps_its_own_kind_of_overrides(component, kept):
    schemas = trainer(component, "trainjobs")
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "n"},
        "spec": {"runtimeRef": {"name": "r"}, **{name: [] for name in OVERRIDES}},
    }
    assert dropped(schemas, manifest) == [f"$.spec.{name}" for name in OVERRIDES if name != kept]
    root = schemas.root("trainer.kubeflow.org", "v1alpha1", "TrainJob")
    assert root is not None
    assert [name for name in OVERRIDES if schemas.names(root, ("spec", name))] == [kept]
    assert not schemas.names(root, ("spec", "nothing", "of", "that"))


@pytest.mark.root
def test_an_override_of_trainer_2_0_has_no_affinity_and_no_pull_secrets():
    schemas = trainer("trainer", "trainjobs")
    root = schemas.root("trainer.kubeflow.org", "v1alpha1", "TrainJob")
    assert root is not None
    overrides = ("spec", "podSpecOverrides")
    assert schemas.names(root, (*overrides, "containers", "env"))
    assert not schemas.names(root, (*overrides, "affinity"))
    one = {"targetJobs": [{"name": "node"}], "affinity": {}, "imagePullSecrets": [{"name": "s"}]}
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "spec": {"podSpecOverrides": [{"targetJobs": []}, one]},
    }
    assert dropped(schemas, manifest) == [
        "$.spec.podSpecOverrides[1].affinity",
        "$.spec.podSpecOverrides[1].imagePullSecrets",
    ]


@pytest.mark.root
@pytest.mark.parametrize("kind", ["TrainingRuntime", "ClusterTrainingRuntime"])
def test_a_runtime_of_trainer_2_0_keeps_a_jobset(kind):
    schemas = trainer("trainer", f"{kind.lower()}s")
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": kind,
        "spec": {
            "mlPolicy": {"numNodes": 2, "torch": {"numProcPerNode": "auto", "elastic": {}}},
            "template": {"spec": JOBSET["spec"]},
        },
    }
    assert dropped(schemas, manifest) == ["$.spec.mlPolicy.torch.elastic"]


@pytest.mark.root
def test_an_object_without_fields_in_place_keeps_nothing():
    # In Trainer 2.2 `torch` is written so.
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "spec": {"mlPolicy": {"jax": {"x": 1}}},
    }
    assert dropped(trainer("trainer-2.2-files", "trainingruntimes"), manifest) == ["$.spec.mlPolicy.jax.x"]


@pytest.mark.parametrize(
    ("minor", "too_new"),
    [
        ("1.25", ["backoffLimitPerIndex", "successPolicy", "podReplacementPolicy"]),
        ("1.30", []),
        ("1.33", []),
    ],
)
def test_what_older_servers_drop_of_a_job(minor, too_new):
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "n", "managedFields": [{"fieldsV1": {"f:x": {"anything": 1}}}]},
        "spec": {
            "backoffLimitPerIndex": 0,
            "successPolicy": {"rules": []},
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": 1,
            "template": POD,
        },
    }
    schemas = builtin(minor, "apis__batch__v1_openapi.json")
    # Quantities, int-or-string, free-form fields and labels of any name are kept by every one of them.
    assert dropped(schemas, manifest) == [f"$.spec.{name}" for name in too_new]
    manifest["spec"]["template"]["spec"]["containers"][0]["restartPolicyRules"] = []
    try:
        path = "$.spec.template.spec.containers[0].restartPolicyRules"
        assert dropped(schemas, manifest) == [*(f"$.spec.{name}" for name in too_new), path]
    finally:
        del manifest["spec"]["template"]["spec"]["containers"][0]["restartPolicyRules"]


def test_a_config_map_keeps_any_key():
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a.b/c": "x"}, "binaryData": {"k": "eA=="}, "odd": {}}
    assert dropped(builtin("1.33", "api__v1_openapi.json"), manifest) == ["$.odd"]


def test_names_that_are_no_words_are_quoted():
    schemas = reduce({"components": {"schemas": {"K": {"properties": {"a": {"type": "object"}}, **KIND}}}})
    manifest = {"apiVersion": "g/v1", "kind": "K", "a": {"x.y/z": 1, 'q"\\': 1, 5: 1}}
    found = dropped(schemas, manifest)
    assert found[2:] == ['$.a["x.y/z"]', '$.a["q\\"\\\\"]', '$.a["5"]']


def test_a_manifest_nested_without_end_and_a_circle_of_references_are_walked():
    circle = {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}
    lost = {"$ref": "#/components/schemas/NotThere"}
    root = {"properties": {"deep": {"$ref": "#/components/schemas/Deep"}, "a": circle["A"], "lost": lost}, **KIND}
    deep = {"properties": {"d": {"$ref": "#/components/schemas/Deep"}}}
    schemas = reduce({"components": {"schemas": {"K": root, "Deep": deep, **circle}}})
    value: dict[str, Any] = {"odd": 1}
    for _ in range(5000):
        value = {"d": value}
    found = schemas.dropped(
        {"deep": value, "a": {"x": 1}, "lost": {"x": {"y": 1}}}, schemas.root("g", "v1", "K") or Node()
    )
    # What nobody describes is not said to be dropped.
    assert found == ["$.deep" + ".d" * 5000 + ".odd"]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"components": None},
        {"components": {"schemas": []}},
        {
            "components": {
                "schemas": {"K": 1, "L": {"properties": {"x": 1}, "allOf": [1], "x-kubernetes-group-version-kind": [1]}}
            }
        },
    ],
)
def test_a_document_without_schemas_has_no_kinds(document):
    assert reduce(document).root("g", "v1", "K") is None


# The server's own algorithm (apiextensions-apiserver, schema/pruning/algorithm.go), line for line but for one thing: of an object within the
# object it leaves metadata to a later step, which drops what ObjectMeta does not name. Published schemas name ObjectMeta there.


def is_meta(schema: dict[str, Any], key: str) -> bool:
    return bool(schema.get(EMBEDDED)) and key in {"apiVersion", "kind", "metadata"}


def prune(value: Any, schema: dict[str, Any] | None, path: str, found: list[str]) -> None:
    if schema is not None and schema.get(OPEN):
        skip(value, schema, path, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{key}"
            if schema is None:
                found.append(below)
            elif key in schema.get("properties", {}):
                prune(item, schema["properties"][key], below, found)
            elif is_meta(schema, key):
                continue
            elif "additionalProperties" in schema:
                more = schema["additionalProperties"]
                prune(item, None if more is True else more, below, found)
            else:
                found.append(below)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            prune(item, None if schema is None else schema.get("items"), f"{path}[{number}]", found)


def skip(value: Any, schema: dict[str, Any] | None, path: str, found: list[str]) -> None:
    if schema is None:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if key in schema.get("properties", {}):
                prune(item, schema["properties"][key], f"{path}.{key}", found)
            elif is_meta(schema, key):
                continue
            elif "additionalProperties" in schema:
                more = schema["additionalProperties"]
                prune(item, None if more is True else more, f"{path}.{key}", found)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            skip(item, schema.get("items"), f"{path}[{number}]", found)


keys = st.sampled_from(["a", "b", "c", "metadata"])
values = st.recursive(
    st.none() | st.integers() | st.just("x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=15,
)


def schema_of(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(keys, inner, max_size=3),
            "additionalProperties": inner | st.just(True),
            "items": inner,
            OPEN: st.just(True),
            EMBEDDED: st.just(True),
        },
    )


schemas = st.recursive(st.just({"type": "string"}), schema_of, max_leaves=10)


@given(schema=schema_of(schemas), value=st.dictionaries(keys, values, max_size=4))
def test_the_walk_is_the_servers_own(schema, value):
    expected: list[str] = []
    prune(value, schema, "$", expected)
    made = reduce({"components": {"schemas": {"K": {"properties": {"top": schema}, **KIND}}}})
    root = made.root("g", "v1", "K")
    assert root is not None
    found = made.dropped({"top": value}, root)
    assert sorted(found) == sorted(path.replace("$", "$.top", 1) for path in expected)
