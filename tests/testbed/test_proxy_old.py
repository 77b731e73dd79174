"""A client that stands before the proxy believes in an older server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import BuildError
from testbed.proxy import Match, OldServer
from testbed.proxy.derive import discovery, names
from testbed.proxy.old import is_own
from testbed.proxy.old_answers import VERSIONS, make, module_of

pytestmark = pytest.mark.timeout(300)  # the first run loads modules

JOBSET = {
    "name": "jobset.x-k8s.io",
    "versions": [{"groupVersion": "jobset.x-k8s.io/v1alpha2", "version": "v1alpha2"}],
    "preferredVersion": {"groupVersion": "jobset.x-k8s.io/v1alpha2", "version": "v1alpha2"},
}


@pytest.fixture(params=sorted(VERSIONS))
def old(request, world) -> str:
    """An older server before a newer one that has a custom resource."""
    world.proxy.add("old", OldServer(folder=str(make(request.param))))
    world.upstream.answers(
        "/apis",
        {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": "resource.k8s.io", "versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]},
                JOBSET,
            ],
        },
    )
    kinds = [
        {"name": "jobsets", "singularName": "jobset", "namespaced": True, "kind": "JobSet", "verbs": ["get", "list"]}
    ]
    world.upstream.answers(
        "/apis/jobset.x-k8s.io/v1alpha2",
        {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "jobset.x-k8s.io/v1alpha2", "resources": kinds},
    )
    world.upstream.answers(
        "/openapi/v3",
        {
            "paths": {
                "apis/resource.k8s.io/v1": {"serverRelativeURL": "/x"},
                "apis/jobset.x-k8s.io/v1alpha2": {
                    "serverRelativeURL": "/openapi/v3/apis/jobset.x-k8s.io/v1alpha2?hash=1"
                },
            }
        },
    )
    world.upstream.answers("/api/v1/namespaces/ns/pods", {"kind": "PodList", "items": []})
    return str(request.param)


def test_version_discovery_and_openapi_are_the_older_servers(world, old):
    version = world.get("/version").json()
    assert (version["minor"], version["gitVersion"]) == (old.split(".")[1], f"v{VERSIONS[old]}")
    groups = {group["name"]: group for group in world.get("/apis").json()["groups"]}
    assert groups["jobset.x-k8s.io"] == JOBSET
    assert {"apps", "batch", "rbac.authorization.k8s.io"} <= groups.keys()
    # What the newer server has, or what needs a switch, is not there.
    assert "resource.k8s.io" not in groups
    assert not any(
        "alpha" in one["version"] for name, group in groups.items() if is_own(name) for one in group["versions"]
    )
    for group in groups.values():
        for one in group["versions"]:
            assert world.get(f"/apis/{one['groupVersion']}").json()["groupVersion"] == one["groupVersion"]
    assert world.get("/apis/resource.k8s.io/v1").status == 404
    assert world.get("/apis/batch").json()["preferredVersion"]["version"] == "v1"
    assert "pods" in {one["name"] for one in world.get("/api/v1").json()["resources"]}
    assert world.get("/api").json()["versions"] == ["v1"]
    paths = world.get("/openapi/v3").json()["paths"]
    assert "apis/resource.k8s.io/v1" not in paths
    assert paths["apis/jobset.x-k8s.io/v1alpha2"]["serverRelativeURL"].startswith("/openapi/v3/apis/jobset")
    batch = world.get(paths["apis/batch/v1"]["serverRelativeURL"]).json()
    assert "io.k8s.api.batch.v1.Job" in batch["components"]["schemas"]
    swagger = world.get("/openapi/v2").json()
    assert "/apis/batch/v1/namespaces/{namespace}/jobs" in swagger["paths"]
    assert "io.k8s.api.core.v1.Pod" in swagger["definitions"]
    assert world.get("/api/v1/namespaces/ns/pods").json() == {"kind": "PodList", "items": []}
    world.proxy.remove("old")
    assert world.get("/version").status == 404


def test_what_each_version_really_served(world, old):
    groups = {one["groupVersion"] for group in world.get("/apis").json()["groups"] for one in group["versions"]}
    flow = {one for one in groups if one.startswith("flowcontrol")}
    assert (
        flow
        == {
            "1.25": {"flowcontrol.apiserver.k8s.io/v1beta1", "flowcontrol.apiserver.k8s.io/v1beta2"},
            "1.30": {"flowcontrol.apiserver.k8s.io/v1", "flowcontrol.apiserver.k8s.io/v1beta3"},
            "1.33": {"flowcontrol.apiserver.k8s.io/v1"},
        }[old]
    )
    assert ("autoscaling/v2beta2" in groups) is (old == "1.25")


def test_the_newer_server_is_asked_so_that_its_answer_can_be_changed(world, old):
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    answer = world.get("/apis", headers={"Accept": accept, "If-None-Match": '"abc"', "Accept-Encoding": "gzip"})
    assert "groups" in answer.json()
    seen = world.upstream.seen[-1].headers
    assert (seen["accept"], seen["accept-encoding"]) == (["application/json"], ["identity"])
    assert "if-none-match" not in seen


def test_derived_discovery_is_what_a_server_of_1_30_wrote_down():
    api = Path(module_of(VERSIONS["1.30"])["Dir"]) / "api"
    written = {file.name: json.loads(file.read_text()) for file in (api / "discovery").glob("api*.json")}
    derived = discovery(json.loads((api / "openapi-spec" / "swagger.json").read_text()), names(api / "discovery"))
    assert derived.keys() == written.keys()
    for name, document in written.items():
        for resource in document.get("resources", ()):
            # Says how the server stores it; no client reads it, and OpenAPI does not hold it.
            resource.pop("storageVersionHash", None)
        if name not in {"api.json", "apis.json"}:
            assert derived[name] == document


@pytest.mark.parametrize(
    ("group", "own"),
    [
        ("apps", True),
        ("rbac.authorization.k8s.io", True),
        ("events.k8s.io", True),
        ("jobset.x-k8s.io", False),
        ("trainer.kubeflow.org", False),
        ("metrics.k8s.io", False),
    ],
)
def test_which_groups_are_kubernetes_own(group, own):
    assert is_own(group) is own


def test_a_version_or_a_folder_that_is_none(world, tmp_path):
    with pytest.raises(BuildError, match=r"no answers of Kubernetes 1\.1"):
        make("1.1")
    world.proxy.add("old", OldServer(folder=str(tmp_path)), Match(path="^/version"))
    world.client().request("GET", "/version")
    assert world.how_it_ends() == "rst"
    assert "holds no answers" in world.proxy.log()[0].ended
