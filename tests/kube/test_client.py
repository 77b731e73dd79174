"""Objects in, objects out: what goes over the wire for each method, and what is made of the answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from kube.apiserver import answer, cut, refuse, serving
from rankfall.kube.auth.access import Impersonation, Login
from rankfall.kube.client import ALL_NAMESPACES, Kube
from rankfall.kube.errors import ApiError, Conflict, Expired, Forbidden, KubeConfigError, ObjectNotFound, ServerError
from rankfall.kube.http.sessions import Limits
from rankfall.kube.request import Retry
from rankfall.kube.resources import JOBS, NODES, PODS
from rankfall.kube.secret import Secret
from support.patience import scaled

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
STRICT = ("fieldValidation", "Strict")
QUICK = Retry(attempts=3, first_s=0.001)


def asked(tmp_path, call, *, body: Any = None) -> Any:
    """The one request that a call sends."""

    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.default = answer(200, body or POD)
            await call(kube)
            [seen] = server.seen
            return seen

    return asyncio.run(story())


def test_get_with_a_token_over_tls(tmp_path):
    async def story():
        async with serving(tmp_path) as server, Kube(server.access(Login(token=Secret("t0ken-value")))) as kube:
            server.plays(answer(200, POD))
            assert await kube.get(PODS, "p") == POD
            [seen] = server.seen
            assert (seen.method, seen.path, seen.query) == ("GET", "/api/v1/namespaces/here/pods/p", [])
            assert server.tokens() == ["Bearer t0ken-value"]
            assert seen.headers["Accept"] == ["application/json"]
            assert seen.headers["User-Agent"][0].startswith("rankfall")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda kube: kube.get(PODS, "p", namespace="other"), "/api/v1/namespaces/other/pods/p"),
        (lambda kube: kube.get(NODES, "n1"), "/api/v1/nodes/n1"),
        (lambda kube: kube.get(NODES, "n1", namespace="any"), "/api/v1/nodes/n1"),
        (lambda kube: kube.get(JOBS, "j", subresource="status"), "/apis/batch/v1/namespaces/here/jobs/j/status"),
        (lambda kube: kube.get(PODS, "a/b ?"), "/api/v1/namespaces/here/pods/a%2Fb%20%3F"),
        (lambda kube: kube.raw("/openapi/v3"), "/openapi/v3"),
    ],
)
def test_paths(tmp_path, call, path):
    assert asked(tmp_path, call).path == path


def test_a_server_below_a_path(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server:
            access = server.access()
            made = type(access.endpoint)(server=f"{server.url}/k8s/clusters/c-1")
            access = type(access)(context="c", cluster="k", user="u", namespace="n", endpoint=made)
            async with Kube(access) as kube:
                await kube.get(NODES, "n1")
            assert server.seen[0].path == "/k8s/clusters/c-1/api/v1/nodes/n1"

    asyncio.run(story())


@pytest.mark.parametrize("name", ["", ".", "..", "\udc80"])
def test_a_name_that_would_be_another_path_is_refused(tmp_path, name):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            with pytest.raises(KubeConfigError, match="cannot be the name of Pod"):
                await kube.delete(PODS, name)
            assert server.seen == []

    asyncio.run(story())


@pytest.mark.parametrize(("dry", "extra"), [(False, []), (True, [("dryRun", "All")])])
def test_create_is_strict(tmp_path, dry, extra):
    seen = asked(tmp_path, lambda kube: kube.create(PODS, POD, dry_run=dry))
    assert (seen.method, seen.path, seen.json) == ("POST", "/api/v1/namespaces/here/pods", POD)
    assert seen.query == [("fieldManager", "rankfall"), STRICT, *extra]
    assert seen.headers["Content-Type"] == ["application/json"]


def test_where_an_object_is_created(tmp_path):
    body = {"metadata": {"generateName": "p-", "namespace": "theirs"}}
    assert asked(tmp_path, lambda kube: kube.create(PODS, body)).path == "/api/v1/namespaces/theirs/pods"
    path = asked(tmp_path, lambda kube: kube.create(PODS, body, namespace="mine")).path
    assert path == "/api/v1/namespaces/mine/pods"


@pytest.mark.parametrize("force", [True, False])
def test_apply(tmp_path, force):
    seen = asked(tmp_path, lambda kube: kube.apply(PODS, "p", POD, manager="m", force=force, subresource="status"))
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/namespaces/here/pods/p/status")
    assert seen.headers["Content-Type"] == ["application/apply-patch+yaml"]
    assert seen.query == [("fieldManager", "m"), STRICT, ("force", "true" if force else "false")]
    assert seen.json == POD


@pytest.mark.parametrize(
    ("kind", "content", "body", "sent"),
    [
        ("merge", "application/merge-patch+json", {"a": 1}, {"a": 1, "metadata": {"resourceVersion": "7"}}),
        (
            "strategic",
            "application/strategic-merge-patch+json",
            {"metadata": {"labels": {}}},
            {"metadata": {"labels": {}, "resourceVersion": "7"}},
        ),
        (
            "json",
            "application/json-patch+json",
            [{"op": "remove", "path": "/a"}],
            [
                {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "remove", "path": "/a"},
            ],
        ),
    ],
)
def test_patch_with_and_without_a_version(tmp_path, kind, content, body, sent):
    seen = asked(tmp_path, lambda kube: kube.patch(PODS, "p", body, kind=kind))
    assert (seen.method, seen.headers["Content-Type"], seen.json) == ("PATCH", [content], body)
    assert seen.query == [("fieldManager", "rankfall"), STRICT]
    assert asked(tmp_path, lambda kube: kube.patch(PODS, "p", body, kind=kind, resource_version="7")).json == sent


def test_delete_with_and_without_preconditions(tmp_path):
    plain = asked(tmp_path, lambda kube: kube.delete(PODS, "p"))
    assert plain.json == {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    full = asked(
        tmp_path,
        lambda kube: kube.delete(PODS, "p", uid="u", resource_version="7", propagation="Foreground", grace=0),
    )
    assert (full.method, full.path) == ("DELETE", "/api/v1/namespaces/here/pods/p")
    assert full.json["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert (full.json["propagationPolicy"], full.json["gracePeriodSeconds"]) == ("Foreground", 0)


def test_delete_collection(tmp_path):
    seen = asked(tmp_path, lambda kube: kube.delete_collection(PODS, labels="a=b", grace=1))
    assert (seen.method, seen.path, seen.query) == (
        "DELETE",
        "/api/v1/namespaces/here/pods",
        [("labelSelector", "a=b")],
    )


def page(names: str, *, go_on: str | None = None, version: str = "10") -> Any:
    meta = {"resourceVersion": version} | ({"continue": go_on} if go_on else {})
    return answer(200, {"kind": "PodList", "metadata": meta, "items": [{"metadata": {"name": name}} for name in names]})


def test_a_list_follows_its_pages(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(page("ab", go_on="x+/="), page("cd", go_on="y"), page("e"))
            found = await kube.list(PODS, labels="a=b,c!=d", fields="spec.nodeName=n1", page=2)
            assert "".join(item["metadata"]["name"] for item in found.items) == "abcde"
            assert found.resource_version == "10"
            assert {(item["kind"], item["apiVersion"]) for item in found.items} == {("Pod", "v1")}
            base = [("labelSelector", "a=b,c!=d"), ("fieldSelector", "spec.nodeName=n1"), ("limit", "2")]
            more = [[], [("continue", "x+/=")], [("continue", "y")]]
            assert [seen.query for seen in server.seen] == [base + each for each in more]

    asyncio.run(story())


def test_a_list_begins_anew_when_its_pages_expire_and_ends_in_one_piece(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            gone = refuse(410, "Expired")
            server.plays(page("ab", go_on="x"), gone, page("cd", go_on="y"), gone, page("efg", version="12"))
            found = await kube.list(PODS)
            assert "".join(item["metadata"]["name"] for item in found.items) == "efg"
            assert found.resource_version == "12"
            assert server.seen[-1].query == []
            server.default = gone
            with pytest.raises(Expired):
                await kube.list(PODS)

    asyncio.run(story())


def test_lists_of_all_namespaces_and_odd_lists(tmp_path):
    none = {"metadata": {"resourceVersion": "1"}, "items": None}
    assert asked(tmp_path, lambda kube: kube.list(PODS, namespace=ALL_NAMESPACES), body=none).path == "/api/v1/pods"
    for odd in ({"metadata": 7, "items": []}, {"metadata": {}, "items": 7}, {"items": []}):
        with pytest.raises(ApiError, match="not a JSON object but: an object that is no list"):
            asked(tmp_path, lambda kube: kube.list(PODS), body=odd)


@pytest.mark.parametrize(("text", "version"), [(("1", "34"), (1, 34)), (("1", "29+"), (1, 29))])
def test_the_servers_version(tmp_path, text, version):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(answer(200, {"major": text[0], "minor": text[1]}), answer(200, {"major": "", "minor": "x"}))
            assert await kube.version() == version
            with pytest.raises(ApiError, match="its answer has none"):
                await kube.version()

    asyncio.run(story())


def test_acting_as_somebody_else(tmp_path):
    async def story():
        who = Impersonation(user="jane", uid="7", groups=("dev", "ops"), extra=(("Example.com/Scope", ("a", "b")),))
        async with (
            serving(tmp_path, tls=False) as server,
            Kube(server.access(Login(impersonate=who), compress=False)) as kube,
        ):
            await kube.get(PODS, "p")
            headers = server.seen[0].headers
            assert headers["Impersonate-User"] == ["jane"]
            assert headers["Impersonate-Uid"] == ["7"]
            assert headers["Impersonate-Group"] == ["dev", "ops"]
            assert headers["Impersonate-Extra-example.com%2Fscope"] == ["a", "b"]
            assert headers["Accept-Encoding"] == ["identity"]

    asyncio.run(story())


def test_a_redirect_is_not_followed(tmp_path):
    """It would carry whom we act as to another host."""

    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(answer(302, {}, location="http://127.0.0.1:1/elsewhere"))
            with pytest.raises(ApiError) as caught:
                await kube.get(PODS, "p")
            assert caught.value.status == 302
            assert len(server.seen) == 1

    asyncio.run(story())


def test_an_answer_beyond_the_bound_is_not_kept(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), limits=Limits(body=1000)) as kube:
            server.plays(answer(200, b"[" + b" " * 100_000 + b"]"))
            with pytest.raises(ApiError, match="larger than 1000 bytes"):
                await kube.get(PODS, "p")
            await kube.get(PODS, "p")

    asyncio.run(story())


def test_a_stream_is_read_as_it_comes_and_ends_with_its_context(tmp_path):
    async def story():
        left = asyncio.Event()

        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"line\n")
                    await asyncio.sleep(0.001)
            except (ConnectionError, asyncio.CancelledError):
                left.set()
                raise

        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(refuse(503), endless)
            path = PODS.path("here", "p", "log")
            async with kube.stream(path, params={"follow": "true"}, read_timeout=5, verb="log") as response:
                assert await response.content.readline() == b"line\n"
            await asyncio.wait_for(left.wait(), scaled(10))
            assert [seen.query for seen in server.seen] == [[("follow", "true")]] * 2
            assert kube.counters.by_verb == {"log": 2}
            assert kube.counters.by_status == {503: 1, 200: 1}

    asyncio.run(story())


def test_errors_of_a_stream_are_raised_before_its_body(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            for status, kind in ((400, ApiError), (403, Forbidden), (404, ObjectNotFound), (410, Expired)):
                server.plays(refuse(status, "Because"))
                with pytest.raises(kind, match=r"cannot log pod here/p: no \(\d+ Because\)"):
                    async with kube.stream("/x", read_timeout=5, verb="log", what="pod here/p"):
                        pass

    asyncio.run(story())


def test_many_streams_never_make_a_call_wait(tmp_path):
    async def story():
        async def held(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
            return response

        async with serving(tmp_path, tls=False) as server:
            server.plays(held, times=30)
            limits = Limits(calls=1, streams=31, pool=0.5)
            async with Kube(server.access(), limits=limits, retry=QUICK, rate=1000, burst=1000) as kube:
                opened = [kube.stream(f"/{number}", read_timeout=None) for number in range(30)]
                for each in opened:
                    await each.__aenter__()
                await asyncio.wait_for(kube.get(PODS, "p"), scaled(10))
                for each in opened:
                    await each.__aexit__(None, None, None)

    asyncio.run(story())


async def echo(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    return socket


def test_a_websocket(tmp_path):
    async def story():
        async with serving(tmp_path) as server, Kube(server.access(Login(token=Secret("t0ken-value")))) as kube:
            server.plays(refuse(401), echo)
            params = [("command", "sh"), ("command", "-c"), ("command", "a b&c"), ("stdin", "true")]
            path = PODS.path("here", "p", "exec")
            protocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
            async with kube.websocket(path, params=params, protocols=protocols) as socket:
                assert socket.protocol == "v5.channel.k8s.io"
                await socket.send_bytes(b"\0hello")
                assert (await socket.receive(5)).data == b"\0hello"
            assert server.seen[1].query == params
            assert server.tokens() == ["Bearer t0ken-value"] * 2
            assert kube.counters.by_status == {401: 1, 101: 1}

    asyncio.run(story())


def test_a_websocket_that_is_refused_says_why_and_is_not_opened_twice(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            for handler, error, words in (
                (refuse(403, "Forbidden"), Forbidden, "cannot exec /w: no \\(403 Forbidden"),
                (refuse(404, "NotFound"), ObjectNotFound, "404"),
                (refuse(500), ServerError, "500"),
                (answer(200, {}), ApiError, "did not open a websocket"),
            ):
                server.seen.clear()
                server.plays(handler)
                with pytest.raises(error, match=words):
                    async with kube.websocket("/w", protocols=["v5"]):
                        pass
                assert len(server.seen) == 1
            server.plays(cut)
            with pytest.raises(Exception, match="closed the connection") as caught:
                async with kube.websocket("/w", protocols=["v5"]):
                    pass
            assert caught.value.maybe_done

    asyncio.run(story())


def test_a_conflict_says_whether_an_object_is_in_the_way(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(refuse(409, "AlreadyExists"), refuse(409, "Conflict"))
            for exists in (True, False):
                with pytest.raises(Conflict) as caught:
                    await kube.create(PODS, POD)
                assert caught.value.already_exists is exists

    asyncio.run(story())


def test_a_large_answer_comes_compressed(tmp_path):
    async def story():
        async def packed(request: web.Request) -> web.StreamResponse:
            response = web.Response(body=json.dumps({"metadata": {"name": "x" * 100_000}}).encode())
            response.enable_compression()
            return response

        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(packed)
            assert len((await kube.get(PODS, "p"))["metadata"]["name"]) == 100_000

    asyncio.run(story())
