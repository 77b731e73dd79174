"""The Kubernetes client and a real API server: objects, pages, strictness, preconditions; then with a proxy that misbehaves in between."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from rankfall.kube.auth.access import Access, Impersonation
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import ALL_NAMESPACES, Kube
from rankfall.kube.errors import (
    ApiError,
    Conflict,
    CredentialsError,
    Forbidden,
    Invalid,
    ObjectNotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from rankfall.kube.request import Retry
from rankfall.kube.resources import CONFIG_MAPS, JOBS, JOBSETS, NODES, PODS, SECRETS, TRAINJOBS
from testbed import kubeconfig
from testbed.proxy import Answer, Cut, Match, When, before

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

QUICK = Retry(attempts=4, first_s=0.05, cap_s=0.2)
Story = Callable[[Kube], Awaitable[Any]]


def run(access: Access, story: Story, **how: Any) -> Any:
    async def whole() -> Any:
        async with Kube(access, **how) as kube:
            return await story(kube)

    return asyncio.run(whole())


@pytest.fixture
def access(kubectl, namespace) -> Access:
    return load_access(kubeconfig=str(kubectl.kubeconfig), namespace=namespace)


@pytest.fixture
def guest(proxy, kubectl, namespace, tmp_path) -> Access:
    """The administrator, through the proxy."""
    path = before.through(proxy.url, kubectl.kubeconfig, tmp_path / "kubeconfig")
    return load_access(kubeconfig=str(path), namespace=namespace)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"of": "test"}},
        "data": data,
    }


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "none"}], **spec},
    }


def test_an_object_is_made_read_changed_and_deleted(access):
    async def story(kube: Kube) -> None:
        made = await kube.create(CONFIG_MAPS, config_map("a", x="1"))
        assert made["metadata"]["namespace"] == access.namespace
        assert (await kube.get(CONFIG_MAPS, "a"))["data"] == {"x": "1"}
        changed = await kube.patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}}, kind="merge")
        assert changed["data"] == {"y": "2"}
        patch = [{"op": "add", "path": "/data/z", "value": "3"}]
        version = changed["metadata"]["resourceVersion"]
        changed = await kube.patch(CONFIG_MAPS, "a", patch, kind="json", resource_version=version)
        assert changed["data"] == {"y": "2", "z": "3"}
        strategic = {"metadata": {"labels": {"more": "yes"}}}
        changed = await kube.patch(CONFIG_MAPS, "a", strategic, kind="strategic")
        assert changed["metadata"]["labels"] == {"of": "test", "more": "yes"}
        with pytest.raises(Conflict) as caught:
            await kube.create(CONFIG_MAPS, config_map("a"))
        assert caught.value.already_exists
        assert caught.value.details["kind"] == "configmaps"
        await kube.delete(CONFIG_MAPS, "a", uid=made["metadata"]["uid"])
        with pytest.raises(ObjectNotFound, match=f"cannot get configmap {access.namespace}/a: "):
            await kube.get(CONFIG_MAPS, "a")
        assert await kube.version() >= (1, 25)
        assert (await kube.raw("/api"))["kind"] == "APIVersions"

    run(access, story)


@pytest.mark.parametrize("kind", ["merge", "json", "strategic"])
def test_a_patch_of_an_older_version_is_a_conflict(access, kind):
    async def story(kube: Kube) -> None:
        made = await kube.create(CONFIG_MAPS, config_map("a", x="1"))
        await kube.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, kind="merge")
        body: Any = {"data": {"x": "3"}}
        if kind == "json":
            body = [{"op": "replace", "path": "/data/x", "value": "3"}]
        with pytest.raises(Conflict) as caught:
            await kube.patch(CONFIG_MAPS, "a", body, kind=kind, resource_version=made["metadata"]["resourceVersion"])
        assert not caught.value.already_exists
        assert (await kube.get(CONFIG_MAPS, "a"))["data"] == {"x": "2"}

    run(access, story)


def test_a_list_of_three_pages_and_what_selectors_choose(access):
    async def story(kube: Kube) -> None:
        for number in range(25):
            await kube.create(CONFIG_MAPS, config_map(f"m-{number:02}"))
        await kube.create(CONFIG_MAPS, {**config_map("other"), "metadata": {"name": "other"}})
        asked = kube.counters.by_verb["list"]
        found = await kube.list(CONFIG_MAPS, labels="of=test", page=10)
        assert kube.counters.by_verb["list"] == asked + 3
        assert [item["metadata"]["name"] for item in found.items] == [f"m-{number:02}" for number in range(25)]
        assert found.items[0]["kind"] == "ConfigMap"
        assert int(found.resource_version) > 0
        one = await kube.list(CONFIG_MAPS, fields="metadata.name=m-07")
        assert [item["metadata"]["name"] for item in one.items] == ["m-07"]
        everywhere = await kube.list(CONFIG_MAPS, namespace=ALL_NAMESPACES, page=7)
        assert len({item["metadata"]["namespace"] for item in everywhere.items}) > 1
        assert (await kube.list(NODES)).items
        await kube.delete_collection(CONFIG_MAPS, labels="of=test")
        left = {item["metadata"]["name"] for item in (await kube.list(CONFIG_MAPS)).items}
        assert left - {"kube-root-ca.crt"} == {"other"}

    run(access, story, rate=500, burst=500)


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (PODS, pod("p", nope=1)),
        (
            JOBS,
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "j"},
                "spec": {"nope": 1, "template": {"spec": {**pod("p")["spec"], "restartPolicy": "Never"}}},
            },
        ),
        (
            JOBSETS,
            {
                "apiVersion": JOBSETS.api_version,
                "kind": "JobSet",
                "metadata": {"name": "s"},
                "spec": {"nope": 1, "replicatedJobs": []},
            },
        ),
        (
            TRAINJOBS,
            {
                "apiVersion": TRAINJOBS.api_version,
                "kind": "TrainJob",
                "metadata": {"name": "t"},
                "spec": {"nope": 1, "runtimeRef": {"name": "none"}},
            },
        ),
    ],
    ids=lambda value: value.kind if hasattr(value, "kind") else "",
)
def test_a_field_that_the_server_does_not_know_is_refused_and_nothing_is_made(access, resource, body):
    async def story(kube: Kube) -> None:
        for dry in (True, False):
            with pytest.raises(ApiError, match=r'unknown field "spec\.nope"') as caught:
                await kube.create(resource, body, dry_run=dry)
            assert caught.value.status in {400, 422}
            assert caught.value.hint
        with pytest.raises(ApiError, match=r"nope"):
            await kube.apply(resource, body["metadata"]["name"], body, manager="test")
        assert (await kube.list(resource)).items == []

    run(access, story)


def test_what_is_invalid_names_its_field_and_a_dry_run_keeps_nothing(access):
    async def story(kube: Kube) -> None:
        with pytest.raises(Invalid) as caught:
            await kube.create(PODS, pod("p", restartPolicy="Sometimes"))
        assert "spec.restartPolicy" in {cause["field"] for cause in caught.value.details["causes"]}
        assert "spec.restartPolicy" in caught.value.message
        await kube.create(CONFIG_MAPS, config_map("dry"), dry_run=True)
        with pytest.raises(ObjectNotFound):
            await kube.get(CONFIG_MAPS, "dry")
        with pytest.raises(ObjectNotFound):
            await kube.get(msgspec.structs.replace(JOBS, plural="nothings"), "x")

    run(access, story)


def test_a_delete_touches_only_the_object_that_was_meant(access):
    async def story(kube: Kube) -> None:
        old = await kube.create(CONFIG_MAPS, config_map("a"))
        uid, version = old["metadata"]["uid"], old["metadata"]["resourceVersion"]
        await kube.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, kind="merge")
        with pytest.raises(Conflict, match="recondition"):
            await kube.delete(CONFIG_MAPS, "a", resource_version=version)
        await kube.delete(CONFIG_MAPS, "a", uid=uid)
        new = await kube.create(CONFIG_MAPS, config_map("a"))
        with pytest.raises(Conflict, match="recondition") as caught:
            await kube.delete(CONFIG_MAPS, "a", uid=uid)
        assert not caught.value.already_exists
        assert (await kube.get(CONFIG_MAPS, "a"))["metadata"]["uid"] == new["metadata"]["uid"]

    run(access, story)


def test_two_managers_of_one_field(access):
    async def story(kube: Kube) -> None:
        for value in ("1", "2"):  # makes it, then changes it
            await kube.apply(CONFIG_MAPS, "a", config_map("a", x=value), manager="one")
        with pytest.raises(Conflict, match='conflict with "one"') as caught:
            await kube.apply(CONFIG_MAPS, "a", config_map("a", x="3"), manager="two")
        assert not caught.value.already_exists
        found = await kube.apply(CONFIG_MAPS, "a", config_map("a", x="3"), manager="two", force=True)
        assert found["data"] == {"x": "3"}
        await kube.apply(CONFIG_MAPS, "a", {**config_map("a"), "data": {}}, manager="two")
        assert (await kube.get(CONFIG_MAPS, "a")).get("data") is None

    run(access, story)


def test_acting_as_somebody_without_rights(access):
    jane = msgspec.structs.replace(
        access, login=msgspec.structs.replace(access.login, impersonate=Impersonation(user="jane", groups=("dev",)))
    )

    async def story(kube: Kube) -> None:
        with pytest.raises(Forbidden, match='User "jane" cannot list resource "secrets"') as caught:
            await kube.list(SECRETS)
        assert caught.value.reason == "Forbidden"
        assert kube.counters.requests == 1

    run(jane, story)


# Through the proxy.


def answers(code: int, *, path: str = "/configmaps", method: str | None = None, times: int = 1, **more: Any) -> tuple:
    return Answer(status=code, **more), Match(path=path, method=method, times=times)


def test_every_request_is_counted_and_none_goes_unseen(proxy, guest):
    async def story(kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("a"))
        await kube.list(CONFIG_MAPS, page=1)
        await kube.delete(CONFIG_MAPS, "a")
        assert kube.counters.requests == len(proxy.log())

    run(guest, story)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_passing_trouble_is_waited_out_when_reading(proxy, guest, code):
    proxy.add("busy", *answers(code, times=2))

    async def story(kube: Kube) -> None:
        await kube.list(CONFIG_MAPS)
        assert kube.counters.by_status == {code: 2, 200: 1}

    run(guest, story, retry=QUICK)


def test_a_busy_server_is_asked_again_when_it_said(proxy, guest):
    proxy.add("busy", *answers(429, times=2, retry_after_s=1, method="POST"))

    async def story(kube: Kube) -> None:
        began = time.monotonic()
        await kube.create(CONFIG_MAPS, config_map("a"))
        assert time.monotonic() - began >= 2
        assert kube.counters.by_status == {429: 2, 201: 1}

    run(guest, story, retry=QUICK)
    proxy.clear()
    proxy.add("busy", *answers(429, times=100, retry_after_s=3600))

    async def impatient(kube: Kube) -> None:
        with pytest.raises(TooManyRequests) as caught:
            await kube.list(CONFIG_MAPS)
        assert caught.value.retry_after == 3600
        assert kube.counters.requests == 1

    run(guest, impatient, retry=QUICK)


def test_a_create_whose_answer_was_lost_makes_one_object(proxy, guest):
    """The caller learns that it may be done and finds its own object."""
    proxy.add("cut", Cut(at=When(answered=True)), Match(path="/configmaps", method="POST", times=1))

    async def story(kube: Kube) -> None:
        with pytest.raises(Unreachable) as caught:
            await kube.create(CONFIG_MAPS, config_map("a", by="mine"))
        assert caught.value.maybe_done
        assert (await kube.get(CONFIG_MAPS, "a"))["data"] == {"by": "mine"}
        assert kube.counters.by_verb["create"] == 1

    run(guest, story, retry=QUICK)


@pytest.mark.parametrize("code", [500, 503])
def test_a_create_that_failed_on_the_way_is_not_sent_again(proxy, guest, code):
    proxy.add("down", *answers(code, method="POST", retry_after_s=0))

    async def story(kube: Kube) -> None:
        with pytest.raises(ServerError) as caught:
            await kube.create(CONFIG_MAPS, config_map("a"))
        assert caught.value.maybe_done
        assert kube.counters.by_verb["create"] == 1

    run(guest, story, retry=QUICK)


def test_a_delete_of_one_uid_survives_a_cut(proxy, guest):
    async def story(kube: Kube) -> None:
        made = await kube.create(CONFIG_MAPS, config_map("a"))
        proxy.add("cut", Cut(at=When()), Match(method="DELETE", times=1))
        await kube.delete(CONFIG_MAPS, "a", uid=made["metadata"]["uid"])
        assert kube.counters.by_verb["delete"] == 2
        # Done, and its answer lost: the repeat says that it is gone.
        made = await kube.create(CONFIG_MAPS, config_map("a"))
        proxy.add("lost", Cut(at=When(answered=True)), Match(method="DELETE", times=1))
        with pytest.raises(ObjectNotFound):
            await kube.delete(CONFIG_MAPS, "a", uid=made["metadata"]["uid"])

    run(guest, story, retry=QUICK)


def test_launch_s50_a_401_is_answered_with_renewed_credentials_at_once(proxy, guest):
    async def story(kube: Kube) -> None:
        for call in (
            lambda: kube.create(CONFIG_MAPS, config_map("a")),
            lambda: kube.list(CONFIG_MAPS),
            lambda: kube.delete(CONFIG_MAPS, "a"),
        ):
            proxy.add("who", *answers(401))
            await call()
        assert (kube.counters.refreshes, kube.counters.by_status[401]) == (3, 3)
        proxy.add("who", *answers(401, times=100))
        with pytest.raises(CredentialsError, match="refused too"):
            await kube.list(CONFIG_MAPS)
        assert kube.counters.by_status[401] == 5

    # A pause before another try would outlast the test.
    run(guest, story, retry=Retry(first_s=3600.0, cap_s=3600.0, total_s=7200.0))


def test_409_and_403_are_told_and_never_repeated(proxy, guest):
    async def story(kube: Kube) -> None:
        for code, kind in ((409, Conflict), (403, Forbidden)):
            proxy.add("no", *answers(code, times=100))
            before_it = kube.counters.requests
            with pytest.raises(kind):
                await kube.create(CONFIG_MAPS, config_map("a"))
            assert kube.counters.requests == before_it + 1
            proxy.remove("no")

    run(guest, story)


def test_the_servers_certificate_is_rotated_and_open_streams_live_on(proxy, guest, bed):
    certificates = before.certificates(bed.layout)

    async def story(kube: Kube) -> None:
        listed = await kube.list(CONFIG_MAPS)
        params = {"watch": "true", "resourceVersion": listed.resource_version}
        path = CONFIG_MAPS.path(kube.namespace)
        async with kube.stream(path, params=params, read_timeout=30, verb="watch") as response:
            for number, pair in enumerate((certificates.good(), certificates.good())):
                await asyncio.to_thread(proxy.present, pair)
                async with Kube(guest) as fresh:
                    await fresh.create(CONFIG_MAPS, config_map(f"a-{number}"))
                await kube.get(CONFIG_MAPS, f"a-{number}")
                event = msgspec.json.decode(await response.content.readline())
                assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", f"a-{number}")
        for pair, words in (
            (certificates.expired(), "expired"),
            (certificates.foreign(), "certificate is not trusted"),
        ):
            await asyncio.to_thread(proxy.present, pair)
            async with Kube(guest) as fresh:
                with pytest.raises(Unreachable, match=words) as caught:
                    await fresh.get(CONFIG_MAPS, "a-0")
                assert caught.value.tls
                assert fresh.counters.requests == 1
        await asyncio.to_thread(proxy.present, certificates.good())

    run(guest, story)


@pytest.fixture
def account(bed, kubectl, namespace, tmp_path) -> tuple[Path, Callable[[], str]]:
    """A kubeconfig with a token in a file, and what makes a new token; the account may read config maps."""
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    subject = {"kind": "ServiceAccount", "name": "bot", "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    meta = {"name": "bot", "namespace": namespace}

    def token() -> str:
        kubectl.apply([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}])
        return str(kubectl("create", "token", "bot", "-n", namespace)).strip()

    kubectl.apply(
        [
            {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [rule]},
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "bot"},
                "subjects": [subject],
            },
        ]
    )
    (tmp_path / "token").write_text(token())
    path = tmp_path / "bot"
    kubeconfig.write(path, server=bed.control.server, authority=bed.control.authority.cert, user="bot")
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = {"tokenFile": "token"}
    path.write_text(yaml.safe_dump(document))
    return path, token


def test_a_token_of_a_service_account_that_ends_and_is_written_anew(kubectl, namespace, account, tmp_path):
    """The account is made again: its old token is worth nothing at once, and the kubelet's file has a new one."""
    path, token = account

    async def story(kube: Kube) -> None:
        assert (await kube.get(CONFIG_MAPS, "kube-root-ca.crt"))["data"]
        with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:bot"):
            await kube.list(SECRETS)
        await asyncio.to_thread(kubectl, "delete", "serviceaccount", "bot", "-n", namespace)
        new = await asyncio.to_thread(token)
        (tmp_path / "next").write_text(new)
        (tmp_path / "next").rename(tmp_path / "token")
        await kube.list(CONFIG_MAPS)
        await asyncio.to_thread(kubectl, "delete", "serviceaccount", "bot", "-n", namespace)

        async def go_on() -> None:
            while True:
                await kube.list(CONFIG_MAPS)

        # The server remembers a token that it accepted for some seconds.
        with pytest.raises(CredentialsError, match="refused too") as caught:
            await asyncio.wait_for(go_on(), 60)
        assert new not in repr(caught.value)

    run(load_access(kubeconfig=str(path), namespace=namespace), story)


def test_launch_s49_a_client_certificate_is_rotated_on_disk(bed, namespace, tmp_path):
    """The second certificate is of another user: what a new connection shows is seen in what it may do."""
    authority = bed.control.authority
    users = {"first": ("system:masters",), "second": ()}
    pairs = {user: authority.issue(f"test-{user}", user=user, groups=groups) for user, groups in users.items()}
    path = kubeconfig.write(tmp_path / "config", server=bed.control.server, authority=authority.cert, user="u")
    document = yaml.safe_load(path.read_text())
    document["users"][0]["user"] = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    path.write_text(yaml.safe_dump(document))

    def use(user: str) -> None:
        for name, source in dataclasses.asdict(pairs[user]).items():
            (tmp_path / "next").write_bytes(source.read_bytes())
            (tmp_path / "next").rename(tmp_path / f"tls.{'crt' if name == 'cert' else 'key'}")

    async def story(kube: Kube) -> None:
        listed = await kube.list(CONFIG_MAPS)
        params = {"watch": "true", "resourceVersion": listed.resource_version}
        async with kube.stream(CONFIG_MAPS.path(namespace), params=params, read_timeout=30) as response:
            use("second")
            with pytest.raises(Forbidden, match='User "second"'):
                await kube.list(CONFIG_MAPS)
            use("first")
            await kube.create(CONFIG_MAPS, config_map("a"))
            assert msgspec.json.decode(await response.content.readline())["type"] == "ADDED"

    use("first")
    try:
        run(load_access(kubeconfig=str(path), namespace=namespace), story)
    finally:
        for pair in pairs.values():
            pair.cert.unlink()
            pair.key.unlink()
