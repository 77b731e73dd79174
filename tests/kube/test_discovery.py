"""Discovery against scripted servers and against what servers of 1.25, 1.30 and 1.33 answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from kube.apiserver import Server, serving, status
from rankfall.kube import discovery
from rankfall.kube.client import Kube
from rankfall.kube.discovery import Cache, Served, discover
from rankfall.kube.errors import Forbidden, KubeError
from rankfall.kube.openapi import Node, Schemas, ServedResource
from rankfall.kube.resources import CONFIG_MAPS, JOBS, JOBSETS, NODES, PODS, TRAINJOBS, Resource
from support.patience import scaled
from testbed.proxy.old import Answers, Merge
from testbed.proxy.old_answers import make

pytestmark = pytest.mark.timeout(300)  # the first run loads modules

VERSION = {"major": "1", "minor": "34"}
JOBSET_PATH = "apis/jobset.x-k8s.io/v1alpha2"


def jobset_document(*fields: str) -> dict[str, Any]:
    gvk = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"}
    operation = {"x-kubernetes-action": "list", "x-kubernetes-group-version-kind": gvk}
    schema = {
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"$ref": "#/components/schemas/Meta"},
            "spec": {"properties": {name: {"items": {"properties": {"inner": {}}}} for name in fields}},
        },
        "x-kubernetes-group-version-kind": [gvk],
    }
    path = f"/{JOBSET_PATH}/namespaces/{{namespace}}/jobsets"
    return {
        "paths": {path: {"get": operation}, f"/{JOBSET_PATH}/jobsets": {"get": operation}, "/odd": 1},
        "components": {"schemas": {"JobSet": schema, "Meta": {"properties": {"name": {}}}}},
    }


class Offer:
    """A server of group versions whose documents may change."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[str | None, Any]] = {
            JOBSET_PATH: ("A" * 128, jobset_document("replicatedJobs"))
        }
        self.on_index: Callable[[], None] = lambda: None
        self.refuses: dict[str, int] = {}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in self.refuses:
            return web.json_response(status(self.refuses[path]), status=self.refuses[path])
        if path == "/version":
            return web.json_response(VERSION)
        if path == "/openapi/v3":
            urls = {
                name: {"serverRelativeURL": f"/openapi/v3/{name}" + (f"?hash={digest}" if digest else "")}
                for name, (digest, _) in self.documents.items()
            }
            found = web.json_response({"paths": urls | {"version": {}, "apis/batch": {}, "apis/x/../y": {}}})
            self.on_index()
            return found
        digest, document = self.documents.get(path.removeprefix("/openapi/v3/"), (None, None))
        if document is None:
            return web.json_response(status(404, "NotFound"), status=404)
        asked = request.query.get("hash")
        if asked is not None and asked != digest:
            raise web.HTTPMovedPermanently(f"{path}?hash={digest}")
        return web.json_response(document)


@pytest.fixture
def run(tmp_path) -> Callable[[Callable[[Server, Kube], Any]], Any]:
    def play(story: Callable[[Server, Kube], Any]) -> Any:
        async def all_of_it() -> Any:
            async with (
                serving(tmp_path, tls=False) as server,
                Kube(server.access()) as kube,
                asyncio.timeout(scaled(60)),
            ):
                server.default = Offer()
                return await story(server, kube)

        return asyncio.run(all_of_it())

    return play


def paths(server: Server) -> list[str]:
    return [seen.path for seen in server.seen]


MANIFEST = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "n"},
    "spec": {"replicatedJobs": [{"inner": 1, "outer": 2}], "groups": []},
}


def test_what_is_asked_for_and_what_is_said(run):
    async def story(server, kube):
        return await discover(kube, [JOBSETS, TRAINJOBS, JOBSETS]), paths(server)

    served, asked = run(story)
    # What is not served is not asked for, and nothing is asked for twice.
    assert asked == ["/version", "/openapi/v3", f"/openapi/v3/{JOBSET_PATH}"]
    assert served.version == (1, 34)
    assert served.at_least(34)
    assert not served.at_least(35)
    assert served.group_versions == {"jobset.x-k8s.io/v1alpha2"}
    assert served.serves(JOBSETS)
    assert not served.serves(TRAINJOBS)
    assert not served.serves(Resource("jobset.x-k8s.io", "v1alpha2", "others", "Other"))
    assert served.versions("jobset.x-k8s.io") == ("v1alpha2",)
    assert served.versions("trainer.kubeflow.org") == ()
    assert served.offers(JOBSETS, "spec", "replicatedJobs", "inner")
    assert not served.offers(JOBSETS, "spec", "groups")
    assert not served.offers(TRAINJOBS, "spec")
    assert served.pruned(MANIFEST) == ["$.spec.replicatedJobs[0].outer", "$.spec.groups"]


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        (
            {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"},
            "does not serve trainer.kubeflow.org/v1alpha1, which TrainJob",
        ),
        ({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSett"}, "no kind 'JobSett' in jobset"),
        ({}, "does not serve , which the manifest needs"),
    ],
)
def test_a_kind_that_is_not_served_is_an_error_not_an_empty_list(run, manifest, complaint):
    async def story(server, kube):
        return await discover(kube, [JOBSETS])

    with pytest.raises(KubeError, match=complaint):
        run(story).pruned(manifest)


def test_what_nobody_asked_about_is_not_answered(run):
    async def story(server, kube):
        return await discover(kube, [])

    served = run(story)
    with pytest.raises(KubeError, match="were not queried"):
        served.serves(JOBSETS)
    with pytest.raises(KubeError, match="were not queried"):
        served.pruned(MANIFEST)


def test_a_schema_is_fetched_once_for_each_hash(run, tmp_path):
    cache = tmp_path / "deep" / "cache"

    async def story(server, kube):
        for _ in range(2):
            first = await discover(kube, [JOBSETS], cache=cache)
        before = paths(server)
        server.default.documents[JOBSET_PATH] = ("B" * 128, jobset_document("replicatedJobs", "groups"))
        second = await discover(kube, [JOBSETS], cache=cache)
        # What cannot be read is fetched again.
        for file in cache.iterdir():
            file.write_bytes(b"\xff{")
        third = await discover(kube, [JOBSETS], cache=cache)
        return first, second, third, before, paths(server)[len(before) :]

    first, second, third, before, after = run(story)
    document = f"/openapi/v3/{JOBSET_PATH}"
    assert before == ["/version", "/openapi/v3", document, "/version", "/openapi/v3"]
    assert after == ["/version", "/openapi/v3", document] * 2
    assert first.serves(JOBSETS)
    assert [bool(one.offers(JOBSETS, "spec", "groups")) for one in (first, second, third)] == [False, True, True]


def test_without_a_hash_nothing_is_kept(run, tmp_path):
    async def story(server, kube):
        server.default.documents[JOBSET_PATH] = (None, jobset_document("replicatedJobs"))
        served = await discover(kube, [JOBSETS], cache=tmp_path / "cache")
        assert server.seen[-1].query == []
        return served

    assert run(story).serves(JOBSETS)
    assert not (tmp_path / "cache").exists()


def test_a_schema_that_changes_after_the_index_is_asked_for_anew(run):
    async def story(server, kube):
        changes = iter("BC")

        def change() -> None:
            for letter in changes:
                server.default.documents[JOBSET_PATH] = (letter * 128, jobset_document(f"field{letter}"))
                return

        server.default.on_index = change
        served = await discover(kube, [JOBSETS])
        return served.offers(JOBSETS, "spec", "fieldC"), paths(server).count("/openapi/v3")

    assert run(story) == (True, 3)


def test_a_schema_that_never_stands_still_is_an_error(run):
    async def story(server, kube):
        numbers = iter(range(100))

        def change() -> None:
            server.default.documents[JOBSET_PATH] = (f"{next(numbers)}" * 64, jobset_document())

        server.default.on_index = change
        with pytest.raises(KubeError, match="changes faster"):
            await discover(kube, [JOBSETS])

    run(story)


def test_a_group_that_goes_away_meanwhile_is_not_served(run):
    async def story(server, kube):
        server.default.on_index = server.default.documents.clear
        return await discover(kube, [JOBSETS])

    assert not run(story).serves(JOBSETS)


@pytest.mark.parametrize("path", ["/openapi/v3", f"/openapi/v3/{JOBSET_PATH}"])
def test_a_refusal_is_not_an_absence(run, path):
    async def story(server, kube):
        server.default.refuses[path] = 403
        with pytest.raises(Forbidden):
            await discover(kube, [JOBSETS])

    run(story)


def test_a_server_without_schemas_is_asked_by_plain_discovery(run):
    rows = [
        {"name": "jobs", "kind": "Job", "namespaced": True},
        {"name": "jobs/status", "kind": "Job", "namespaced": True},
        "odd",
    ]
    documents = {
        "/version": {"major": "1", "minor": "23+"},
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [{"versions": [{"groupVersion": "batch/v1"}, {"groupVersion": "batch/v1beta1"}, 1]}, 2]},
        "/apis/batch/v1": {"resources": rows},
        "/api/v1": {"resources": [{"name": "nodes", "kind": "Node", "namespaced": False}]},
    }

    async def answers(request: web.Request) -> web.StreamResponse:
        found = documents.get(request.path)
        return web.json_response(
            status(404, "NotFound") if found is None else found, status=404 if found is None else 200
        )

    async def story(server, kube):
        server.default = answers
        return await discover(kube, [JOBS, NODES, JOBSETS])

    served = run(story)
    assert served.version == (1, 23)
    assert (served.serves(JOBS), served.serves(NODES), served.serves(JOBSETS)) == (True, True, False)
    assert served.versions("batch") == ("v1", "v1beta1")
    with pytest.raises(KubeError, match=r"Kubernetes 1\.23\) does not publish the fields of Job that it knows"):
        served.pruned({"apiVersion": "batch/v1", "kind": "Job"})


@pytest.mark.parametrize(("minor", "fields"), [("1.25", ["$.spec.backoffLimitPerIndex"]), ("1.30", []), ("1.33", [])])
def test_older_servers(run, minor, fields):
    old = Answers(make(minor))

    async def answers(request: web.Request) -> web.StreamResponse:
        found = old.find(request.path)
        if isinstance(found, Merge):
            document: dict[str, Any] = {"paths": {}, "groups": []}
            found(document)
            return web.json_response(document)
        if found is None:
            return web.json_response(status(404, "NotFound"), status=404)
        code, headers, body = found
        return web.Response(status=code, body=body, content_type=headers[0][1].partition(";")[0])

    async def story(server, kube):
        server.default = answers
        return await discover(kube, [JOBS, PODS, NODES, CONFIG_MAPS, JOBSETS]), len(server.seen)

    served, asked = run(story)
    assert served.version == (1, int(minor.partition(".")[2]))
    assert asked == 4
    for resource in (JOBS, PODS, NODES, CONFIG_MAPS):
        assert served.serves(resource)
        _, root = served._root(resource.api_version, resource.kind)
        assert root.properties
        shown = served._resources[resource.api_version][resource.plural]
        assert shown == ServedResource(resource.kind, namespaced=resource.namespaced)
    assert not served.serves(JOBSETS)
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimitPerIndex": 0, "suspend": True}}
    assert served.pruned(job) == fields
    assert served.versions("autoscaling")[0] == "v2"


@given(versions=st.permutations(["v2", "v1", "v2beta2", "v2beta1", "v1beta1", "v2alpha10", "v1alpha9", "other"]))
def test_versions_come_in_kubernetes_own_order(versions):
    served = Served((1, 34), [f"g/{version}" for version in versions], schemas={})
    assert served.versions("g") == ("v2", "v1", "v2beta2", "v2beta1", "v1beta1", "v2alpha10", "v1alpha9", "other")


def node_of(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        properties=st.dictionaries(st.text(max_size=3), inner, max_size=2),
        values=st.none() | inner,
        items=st.none() | inner,
        ref=st.none() | st.text(max_size=3),
        open=st.booleans(),
        embedded=st.booleans(),
    )


@settings(max_examples=30)
@given(
    components=st.dictionaries(st.text(max_size=3), st.recursive(st.just(Node()), node_of, max_leaves=4), max_size=2)
)
def test_schemas_survive_the_disk(components):
    schemas = Schemas(
        components=components, kinds={"g/v/K": "x"}, resources={"ks": ServedResource("K", namespaced=True)}
    )
    assert msgspec.json.decode(msgspec.json.encode(schemas), type=Schemas) == schemas


def test_the_cache_does_not_grow_without_end_and_needs_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_MOST", 3)
    schemas = Schemas(components={}, kinds={}, resources={})
    cache = Cache(tmp_path / "c")
    for number in range(6):
        cache.put("../../odd", f"{number}/..", schemas)
    assert len(list((tmp_path / "c").iterdir())) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"c"}
    assert Cache(None).get("a", "b") is None
    Cache(None).put("a", "b", schemas)
    (tmp_path / "file").write_text("")
    Cache(tmp_path / "file").put("a", "b", schemas)
    # A name that is taken by something else.
    (tmp_path / "c" / cache._path(tmp_path, "a", "b").name).mkdir()
    cache.put("a", "b", schemas)
    assert cache.get("a", "b") is None
    assert not list((tmp_path / "c").glob("*.new"))
    assert Cache(tmp_path / "file").get("a", "b") is None


def test_the_documents_of_the_index_are_small_on_disk(run, tmp_path):
    document = json.loads((make("1.33") / "v3" / "api__v1_openapi.json").read_text())

    async def story(server, kube):
        server.default.documents["api/v1"] = ("C" * 128, document)
        await discover(kube, [PODS], cache=tmp_path / "c")

    run(story)
    [file] = (tmp_path / "c").iterdir()
    assert file.stat().st_size < len(json.dumps(document)) / 8
