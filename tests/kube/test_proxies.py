"""The way through a proxy: the kubeconfig's, else the environment's by Go's rules."""

from __future__ import annotations

import asyncio
import base64
import contextlib

import pytest

from kube.apiserver import serving
from rankfall.kube.auth.access import Endpoint
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeConfigError, Unreachable
from rankfall.kube.http.sessions import proxy_for
from rankfall.kube.request import Retry
from rankfall.kube.resources import PODS
from rankfall.kube.secret import Secret

PROXY = {"HTTPS_PROXY": "http://proxy:3128"}


def chosen(server, environ, proxy=None):
    found = proxy_for(Endpoint(server=server, proxy=proxy), environ)
    return None if found is None else found.reveal()


@pytest.mark.parametrize(
    ("server", "excluded", "through"),
    [
        ("https://api.example", "", True),
        ("https://api.example", "*", False),
        ("https://api.example", "example", False),
        ("https://api.example", ".example", False),
        ("https://api.example", "*.example", False),
        ("https://example", ".example", True),
        ("https://badexample", "example", True),
        ("https://api.example:6443", "api.example:6443", False),
        ("https://api.example:6443", "api.example:443", True),
        ("https://api.example", "other, api.example:443 ", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://10.1.2.3", "10.1.2.4,192.168.0.0/16", True),
        ("https://api.example", "10.0.0.0/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]", "fd00::/8", False),
        ("https://127.0.0.1", "", False),
        ("https://[::1]", "", False),
        ("https://localhost", "", False),
    ],
)
def test_who_is_asked_through_the_environments_proxy(server, excluded, through):
    assert chosen(server, {**PROXY, "NO_PROXY": excluded}) == ("http://proxy:3128" if through else None)


def test_which_variable_and_which_form():
    assert chosen("https://a", {}) is None
    assert chosen("http://a", PROXY) is None
    assert chosen("http://a", {"http_proxy": "p:1"}) == "http://p:1"
    assert chosen("https://a", {"https_proxy": "https://p"}) == "https://p"
    assert chosen("https://a", {**PROXY, "no_proxy": "a"}) is None
    assert chosen("https://a", PROXY, Secret("http://mine")) == "http://mine"
    for wrong in ("socks5://p:1", "http://", "http://p:99999"):
        with pytest.raises(KubeConfigError, match=r"\$HTTPS_PROXY"):
            chosen("https://a", {"HTTPS_PROXY": wrong})


@contextlib.asynccontextmanager
async def tunnel(login):
    """A real CONNECT proxy; yields its port and the hosts it was asked for."""
    asked = []

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split()[1])
        if base64.b64encode(login.encode()).decode() not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = asked[-1].rpartition(":")
        upward_reader, upward = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pump(reader, upward), pump(upward_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
        server.close()


def test_tls_is_kept_through_a_proxy_with_a_password(tmp_path):
    async def story():
        async with serving(tmp_path) as server, tunnel("bob:s3cret-word") as (port, asked):
            proxy = Secret(f"http://bob:s3cret-word@127.0.0.1:{port}")
            async with Kube(server.access(proxy=proxy)) as kube:
                await kube.get(PODS, "p")
            assert asked == [f"127.0.0.1:{server.port}"]
            assert "Proxy-Authorization" not in server.seen[0].headers
            wrong = Secret(f"http://127.0.0.1:{port}")
            async with Kube(server.access(proxy=wrong), retry=Retry(attempts=1)) as kube:
                with pytest.raises(Unreachable, match="status 407"):
                    await kube.get(PODS, "p")
            wrong = Secret(f"http://bob:wr0ng-word@127.0.0.1:{port}")
            async with Kube(server.access(proxy=wrong), retry=Retry(attempts=1)) as kube:
                with pytest.raises(Unreachable, match="the proxy refused with status 407") as caught:
                    await kube.get(PODS, "p")
            assert "wr0ng" not in repr(caught.value)
            assert not caught.value.maybe_done

    asyncio.run(story())
