"""Credentials that change while we work: files swapped, tokens refused, plug-ins asked again (launch-logs.md 49-51, S14, S38)."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
import sys
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from kube.apiserver import answer, refuse, serving
from rankfall.kube.auth.access import ExecPlugin, Login
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.kube.errors import CredentialsError, Forbidden, Unauthorized, Unreachable
from rankfall.kube.resources import JOBS, PODS
from rankfall.kube.secret import Secret

OLD, NEW = "old-token-1", "new-token-2"


def accepts(token: str):
    """Answers whoever has this token."""

    async def handle(request: web.Request) -> web.StreamResponse:
        right = request.headers.get("Authorization") == f"Bearer {token}"
        return await (answer(200, {"metadata": {}}) if right else refuse(401, "Unauthorized"))(request)

    return handle


def test_launch_s50_a_refused_token_is_read_again_and_the_request_repeated_at_once(tmp_path):
    """In every kind of call; a create too, because a 401 did nothing."""

    async def story():
        async with serving(tmp_path) as server:
            path = tmp_path / "token"
            path.write_text(OLD)
            async with Kube(server.access(Login(token_file=str(path)))) as kube:
                server.default = accepts(OLD)
                await kube.get(PODS, "p")
                for number, call in enumerate(
                    (
                        lambda: kube.get(PODS, "p"),
                        lambda: kube.create(PODS, {"metadata": {"name": "p"}}),
                        lambda: kube.delete(PODS, "p"),
                        lambda: kube.list(PODS),
                        lambda: kube.patch(PODS, "p", {}, kind="merge"),
                    )
                ):
                    # What the file has is new, but its time is trusted: only the 401 tells.
                    token = f"token-number-{number}"
                    kube._transport._credentials._files[str(path)]._read_again_at = 1e18
                    server.default = accepts(token)
                    path.write_text(token)
                    await call()
                path.write_text(NEW)
                server.default = accepts(NEW)
                async with kube.stream("/log", read_timeout=5) as response:
                    assert response.status == 200
            assert server.tokens()[-1] == f"Bearer {NEW}"

    asyncio.run(story())


def test_a_refresh_costs_one_request_and_no_pause(tmp_path):
    async def story():
        async with serving(tmp_path) as server, Kube(server.access(Login(token=Secret(OLD)))) as kube:
            server.plays(refuse(401))
            await kube.get(PODS, "p")
            assert (kube.counters.requests, kube.counters.retries, kube.counters.refreshes) == (2, 1, 1)
            assert kube.counters.by_status == {401: 1, 200: 1}
            assert kube.counters.by_verb == {"get": 2}

    asyncio.run(story())


def test_launch_s51_credentials_that_are_gone_for_good(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            path = tmp_path / "token"
            path.write_text(OLD)
            server.default = refuse(401, "Unauthorized")
            async with Kube(server.access(Login(token_file=str(path)))) as kube:
                with pytest.raises(CredentialsError, match=r"get pod here/p.*refused too") as caught:
                    await kube.get(PODS, "p")
                assert len(server.seen) == 2
                assert caught.value.exit_code == 77
                assert isinstance(caught.value.__cause__, Unauthorized)
                assert "the job itself is not affected" in caught.value.hint
                path.unlink()
                with pytest.raises(CredentialsError, match=r"cannot read .*token"):
                    await kube.get(PODS, "p")

    asyncio.run(story())


def test_403_is_never_repeated(tmp_path):
    async def story():
        async with serving(tmp_path) as server, Kube(server.access(Login(token=Secret(OLD)))) as kube:
            server.default = refuse(403, "Forbidden")
            with pytest.raises(Forbidden, match="cannot get pod here/p"):
                await kube.get(PODS, "p")
            assert len(server.seen) == 1

    asyncio.run(story())


def test_launch_s49_a_new_client_certificate_is_used_and_open_streams_live_on(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            folder = tmp_path / "cert"
            for version in ("one", "two"):
                (folder / version).mkdir(parents=True)
                made = server.authority.issue(version, user=version)
                made.cert.rename(folder / version / "tls.crt")
                made.key.rename(folder / version / "tls.key")
            (folder / "..data").symlink_to("one")
            login = Login(cert_file=str(folder / "..data/tls.crt"), key_file=str(folder / "..data/tls.key"))
            go_on = asyncio.Event()

            async def slow(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b"before ")
                await go_on.wait()
                await response.write(b"after")
                return response

            async with Kube(server.access(login)) as kube:
                server.plays(slow)
                async with kube.stream("/log", read_timeout=30) as response:
                    assert await response.content.readexactly(7) == b"before "
                    await kube.get(PODS, "p")
                    (folder / "..tmp").symlink_to("two")
                    (folder / "..tmp").rename(folder / "..data")
                    await kube.get(PODS, "p")
                    await kube.get(PODS, "p")
                    go_on.set()
                    assert await response.read() == b"after"
            assert [seen.user for seen in server.seen] == ["one", "one", "two", "two"]

    asyncio.run(story())


def test_a_certificate_and_a_key_that_do_not_belong_together_yet(tmp_path):
    """Two files are written one after the other: what was good stands in between."""

    async def story():
        async with serving(tmp_path) as server:
            mine = server.authority.issue("bob", user="bob")
            new = server.authority.issue("jane", user="jane")
            login = Login(cert_file=str(mine.cert), key_file=str(mine.key))
            async with Kube(server.access(login)) as kube:
                await kube.get(PODS, "p")
                new.cert.rename(mine.cert)
                await kube.get(PODS, "p")
                new.key.rename(mine.key)
                await kube.get(PODS, "p")
            assert [seen.user for seen in server.seen] == ["bob", "bob", "jane"]
            mine.key.write_text("torn")
            async with Kube(server.access(login)) as kube:
                with pytest.raises(CredentialsError, match="client certificate and key"):
                    await kube.get(PODS, "p")

    asyncio.run(story())


def test_a_new_authority_is_trusted_as_soon_as_its_file_has_it(tmp_path):
    async def story():
        async with serving(tmp_path / "a") as first, serving(tmp_path / "b") as second:
            path = tmp_path / "ca.crt"
            path.write_bytes(first.authority.cert.read_bytes())
            async with Kube(first.access(ca_data=None, ca_file=str(path))) as kube:
                await kube.get(PODS, "p")
                # The same address serves a certificate of another authority from now on.
                first.tls.load_cert_chain(tmp_path / "b/pki/server.crt", tmp_path / "b/pki/server.key")
                path.write_bytes(second.authority.cert.read_bytes())
                await kube.get(PODS, "p")
            assert len(first.seen) == 2

    asyncio.run(story())


def test_a_new_authority_inside_the_kubeconfig_is_found_when_the_old_one_fails(tmp_path):
    async def story():
        async with serving(tmp_path / "a") as first, serving(tmp_path / "b") as second:
            path = tmp_path / "config"

            def write(authority):
                document = kubeconfig(path, first, token=OLD)
                cluster = document["clusters"][0]["cluster"]
                del cluster["certificate-authority"]
                cluster["certificate-authority-data"] = base64.b64encode(authority.cert.read_bytes()).decode()
                path.write_text(yaml.safe_dump(document))

            write(first.authority)
            access = load_access(kubeconfig=str(path), environ={})
            first.tls.load_cert_chain(tmp_path / "b/pki/server.crt", tmp_path / "b/pki/server.key")
            async with Kube(access) as kube:
                with pytest.raises(Unreachable, match="certificate is not trusted"):
                    await kube.get(PODS, "p")
                assert kube.counters.requests == 1
                write(second.authority)
                await asyncio.gather(*(kube.get(PODS, str(number)) for number in range(5)))
                assert len(first.seen) == 5

    asyncio.run(story())


def test_a_hundred_refused_requests_renew_once(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            count = tmp_path / "count"
            count.write_text("")
            script = tmp_path / "login"
            credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {}}
            script.write_text(
                f"#!{sys.executable}\nimport json\nopen({str(count)!r}, 'a').write('x')\n"
                f"number = len(open({str(count)!r}).read())\ncredential = {json.dumps(credential)}\n"
                "credential['status']['token'] = f'plugin-token-{number}'\nprint(json.dumps(credential))\n"
            )
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
            plugin = ExecPlugin(version="client.authentication.k8s.io/v1", command=str(script), interactive="Never")
            async with Kube(server.access(Login(plugin=plugin)), rate=1000, burst=1000) as kube:
                server.default = accepts("plugin-token-1")
                await asyncio.gather(*(kube.get(PODS, str(number)) for number in range(100)))
                assert count.read_text() == "x"
                server.default = accepts("plugin-token-2")
                await asyncio.gather(*(kube.get(PODS, str(number)) for number in range(100)))
                assert count.read_text() == "xx"

    asyncio.run(story())


@pytest.mark.parametrize("login", [Login(username="bob", password=Secret("pass")), Login(token=Secret(OLD))])
def test_what_is_given_beside_a_plugin_goes_first(tmp_path, login):
    async def story():
        async with serving(tmp_path) as server:
            plugin = ExecPlugin(version="client.authentication.k8s.io/v1", command="no-such-program")
            made = type(login)(token=login.token, username=login.username, password=login.password, plugin=plugin)
            async with Kube(server.access(made)) as kube:
                await kube.get(PODS, "p")
            assert server.tokens() == ["Basic Ym9iOnBhc3M=" if login.username else f"Bearer {OLD}"]

    asyncio.run(story())


def kubeconfig(path: Path, server, **user):
    document = {
        "clusters": [
            {"name": "k", "cluster": {"server": server.url, "certificate-authority": str(server.authority.cert)}}
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(document))
    return document


def test_launch_s38_an_inline_token_is_read_again_from_the_kubeconfig_of_the_launch(tmp_path):
    """Another tool logged in again meanwhile, and somebody else chose another context."""

    async def story():
        async with serving(tmp_path) as server:
            path = tmp_path / "config"
            kubeconfig(path, server, token=OLD)
            async with Kube(load_access(kubeconfig=str(path), environ={})) as kube:
                server.default = accepts(OLD)
                await kube.get(JOBS, "j")
                document = kubeconfig(path, server, token=NEW)
                document["current-context"] = "other"
                document["contexts"].append({"name": "other", "context": {"cluster": "other"}})
                document["clusters"].append({"name": "other", "cluster": {"server": "https://other.example"}})
                path.write_text(yaml.safe_dump(document))
                server.default = accepts(NEW)
                await kube.get(JOBS, "j")
                assert server.tokens() == [f"Bearer {OLD}", f"Bearer {OLD}", f"Bearer {NEW}"]
                # From now on the kubeconfig says nothing that helps: so does the error.
                server.default = refuse(401)
                document["clusters"][0]["cluster"]["server"] = "https://elsewhere.example"
                path.write_text(yaml.safe_dump(document))
                with pytest.raises(CredentialsError, match=r"is now at https://elsewhere.example"):
                    await kube.get(JOBS, "j")

    asyncio.run(story())


def test_a_user_that_became_a_plugin_meanwhile(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            path = tmp_path / "config"
            kubeconfig(path, server, token=OLD)
            async with Kube(load_access(kubeconfig=str(path), environ={})) as kube:
                script = tmp_path / "login"
                text = {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "kind": "ExecCredential",
                    "status": {"token": NEW},
                }
                script.write_text(f"#!{sys.executable}\nprint({json.dumps(text)!r})\n")
                script.chmod(0o755)
                spec = {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "./login",
                    "interactiveMode": "Never",
                }
                kubeconfig(path, server, exec=spec)
                server.default = accepts(NEW)
                await kube.get(JOBS, "j")

    asyncio.run(story())


@pytest.mark.parametrize("token", ["", "  ", "a\nb", "a b", "ü"])
def test_a_token_that_cannot_be_one(tmp_path, token):
    async def story():
        async with serving(tmp_path) as server, Kube(server.access(Login(token=Secret(token)))) as kube:
            with pytest.raises(CredentialsError, match="characters that are invalid in a token"):
                await kube.get(PODS, "p")
            assert server.seen == []

    asyncio.run(story())


def test_a_certificate_of_a_plugin(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            mine = server.authority.issue("jane", user="jane")
            credential = {
                "apiVersion": "client.authentication.k8s.io/v1",
                "kind": "ExecCredential",
                "status": {"clientCertificateData": mine.cert.read_text(), "clientKeyData": mine.key.read_text()},
            }
            script = tmp_path / "login"
            script.write_text(f"#!{sys.executable}\nprint({json.dumps(credential)!r})\n")
            script.chmod(0o755)
            plugin = ExecPlugin(version="client.authentication.k8s.io/v1", command=str(script), interactive="Never")
            async with Kube(server.access(Login(plugin=plugin))) as kube:
                await kube.get(PODS, "p")
            assert server.seen[0].user == "jane"

    asyncio.run(story())
