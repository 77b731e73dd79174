"""No credential shows anywhere: not in what is printed of our objects, not in an error and what hangs on it, not in a log line."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import pickle
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kube.apiserver import cut, serving, silence
from rankfall.kube.auth.exec_plugin import ExecCredential
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.kube.errors import CredentialsError, KubeConfigError, KubeError
from rankfall.kube.http.sessions import Limits
from rankfall.kube.request import Retry
from rankfall.kube.resources import PODS
from rankfall.kube.secret import Secret, excerpt, masked

MARK = "mArK"
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/="
secrets = st.text(ALPHABET, min_size=8, max_size=40).map(lambda text: f"{MARK}{text}{MARK}")
SEVERAL = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def users(secret: str, folder: Path) -> dict[str, dict[str, Any]]:
    (folder / "token").write_text(secret)
    plugin = folder / "plugin"
    plugin.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1], file=sys.stderr)\nsys.exit(1)\n")
    giving = folder / "giving"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": secret},
    }
    giving.write_text(f"#!{sys.executable}\nprint({json.dumps(credential)!r})\n")
    for program in (plugin, giving):
        program.chmod(0o755)
    spec = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
        "args": [secret],
        "env": [{"name": "SOME", "value": secret}],
    }
    return {
        "token": {"token": secret},
        "tokenFile": {"tokenFile": "token"},
        "password": {"username": "bob", "password": secret},
        "key": {
            "client-certificate-data": base64.b64encode(b"none").decode(),
            "client-key-data": base64.b64encode(secret.encode()).decode(),
        },
        "failing": {"exec": {**spec, "command": "./plugin"}},
        "giving": {"exec": {**spec, "command": "./giving"}},
    }


def kubeconfig(folder: Path, server: str, user: dict[str, Any], **cluster: Any) -> str:
    document = {
        "clusters": [{"name": "k", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "current-context": "c",
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    return str(folder / "config")


def everything(error: BaseException) -> str:
    """All that can be printed of an error: with its causes, suppressed ones too, and its attributes."""
    found, current = [], error
    while current is not None:
        found += [str(current), repr(current), repr(vars(current)), repr(current.args)]
        found += traceback.format_exception(current)
        current = current.__cause__ or current.__context__
    return "\n".join(found)


def hidden(text: str, secret: str) -> None:
    assert MARK not in text
    assert base64.b64encode(f"bob:{secret}".encode()).decode() not in text


async def tell_all(request: web.Request) -> web.StreamResponse:
    """A server that repeats what it was sent: in words, in details, in its reason."""
    said = request.headers.get("Authorization", "nothing")
    code = int(request.query.get("fieldSelector", "400"))
    body = {"kind": "Status", "message": said, "reason": said, "details": {"causes": [{"message": said, said: [said]}]}}
    text = f"<title>{said}</title>" if request.query.get("labelSelector") else json.dumps(body)
    return web.Response(status=code, text=text)


@settings(SEVERAL, max_examples=3)
@given(secret=secrets)
def test_no_error_of_a_request_tells_a_credential(secret, caplog):
    caplog.clear()
    caplog.set_level(logging.DEBUG)

    async def story(folder: Path) -> None:
        once = Retry(attempts=1)
        async with serving(folder, tls=False) as server:
            for name, user in users(secret, folder).items():
                access = load_access(kubeconfig=kubeconfig(folder, server.url, user), environ={})
                async with Kube(access, retry=once, limits=Limits(total=0.1), rate=1000, burst=1000) as kube:
                    if name == "failing":
                        await told(kube.get(PODS, "p"))
                    else:
                        await provoke(kube, server)

    async def provoke(kube: Kube, server) -> None:
        codes = ("300", "401", "403", "409", "422", "429", "503")
        server.default = tell_all
        for code in codes:
            for labels in (None, "page"):
                await told(kube.list(PODS, fields=code, labels=labels))
        for default in (cut, silence, answer_with_token):
            server.default = default
            await told(kube.get(PODS, "p"))
        server.default = tell_all
        await told(opened(kube.websocket("/w", protocols=["v5"])))
        await told(opened(kube.stream("/s", read_timeout=1)))
        hidden(repr(kube) + repr(vars(kube)) + repr(vars(kube._transport)), secret)

    async def opened(context) -> None:
        async with context:
            pass

    async def told(call) -> None:
        with pytest.raises(KubeError) as caught:
            await call
        hidden(everything(caught.value), secret)

    async def answer_with_token(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"hello {request.headers.get('Authorization')}")

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))
    # What the server under test logs of its own is not ours.
    hidden("\n".join(f"{record.name} {record.getMessage()} {record.args}" for record in caplog.records), secret)


@SEVERAL
@given(secret=secrets)
def test_no_error_of_tls_or_of_a_proxy_tells_a_credential(secret):
    async def story(folder: Path) -> None:
        async with serving(folder) as server:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            token = {"token": secret}
            proxy = {"proxy-url": f"http://bob:{secret.replace('/', '_')}@127.0.0.1:{port}"}
            good = {"certificate-authority": str(server.authority.cert)}
            cases = [
                (users(secret, folder)["key"], good),
                (token, {}),
                (token, {**good, "tls-server-name": "other"}),
                (token, {**good, **proxy}),
            ]
            for user, cluster in cases:
                access = load_access(kubeconfig=kubeconfig(folder, server.url, user, **cluster), environ={})
                async with Kube(access, retry=Retry(attempts=1)) as kube:
                    with pytest.raises(KubeError) as caught:
                        await kube.get(PODS, "p")
                hidden(everything(caught.value), secret)
                hidden(repr(access) + str(access) + repr(access.endpoint) + repr(kube._transport._proxy), secret)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@SEVERAL
@given(secret=secrets)
def test_nothing_that_holds_a_credential_shows_or_copies_it(secret):
    async def story(folder: Path) -> None:
        for name, user in users(secret, folder).items():
            access = load_access(kubeconfig=kubeconfig(folder, "http://[::1]:1", user), environ={})
            shown = [access, access.login, access.login.plugin, access.endpoint, *msgspec.structs.astuple(access.login)]
            kube = Kube(access)
            shown += [kube, vars(kube), vars(kube._transport), vars(kube._transport._credentials)]
            shown.append(ExecCredential(token=Secret(secret), key=Secret(secret)))
            with contextlib.suppress(CredentialsError):
                shown.append(await kube._transport._credentials.current())
            for each in shown:
                if not isinstance(each, bytes):
                    hidden(f"{each!r} {each!s} {each}", secret)
            if name != "tokenFile":
                with pytest.raises(TypeError):
                    msgspec.json.encode(access)
                with pytest.raises(TypeError, match="not copied"):
                    pickle.dumps(access)
            await kube._transport.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


@SEVERAL
@given(secret=secrets, at=st.integers(0, 60))
def test_no_error_of_a_broken_kubeconfig_tells_what_stands_in_it(secret, at):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = {**users(secret, folder)["password"], "token": secret}
        wrong = [both, {"token": [secret]}, {"client-key-data": secret}, {"exec": secret}, {"as-groups": secret}]
        wrong += [{"exec": {"apiVersion": "v0", "args": [secret]}}, {"auth-provider": {"config": secret}}]
        texts = [Path(kubeconfig(folder, "https://a", user)).read_text() for user in wrong]
        plain = Path(kubeconfig(folder, "https://a", {"token": secret})).read_text()
        place = plain.index("token") + at
        texts += [plain[:place] + broken + plain[place:] for broken in ("\x00", "{", "\t: :", "- [")]
        texts.append(Path(kubeconfig(folder, f"https://bob:{secret}@a", {})).read_text())
        texts.append(Path(kubeconfig(folder, "https://a", {}, **{"proxy-url": f"socks5://{secret}@a"})).read_text())
        for text in texts:
            (folder / "config").write_text(text)
            try:
                shown = repr(load_access(kubeconfig=str(folder / "config"), environ={}))
            except KubeConfigError as error:
                shown = everything(error)
            # A broken line may make a name of the secret: what is left of it is not whole.
            assert secret not in shown


def test_a_secret_is_equal_to_itself_only():
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"


@given(st.text(ALPHABET, min_size=8, max_size=400), st.integers(0, 9000), st.integers(1, 300))
def test_no_half_of_a_secret_is_left_where_a_text_is_cut(secret, before, limit):
    secret = f"{MARK}{secret}"
    shown = excerpt("\n" * (before % 9000) + secret * 3 + " x", secrets=[secret], limit=limit)
    assert MARK not in shown
    assert len(shown) <= limit


def test_details_are_masked_whole():
    found = masked({"a": ["x s3cret", 1, None, {"s3cret": "s3cret"}]}, ["s3cret", "x"])
    assert found == {"a": ["x ***", 1, None, {"***": "***"}]}
