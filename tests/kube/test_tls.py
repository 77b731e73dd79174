"""TLS: what a server must show, what we show, and what a connection costs."""

from __future__ import annotations

import asyncio
import ssl
import tempfile

import pytest

from kube.apiserver import answer, serving
from rankfall.kube.auth import key_material
from rankfall.kube.auth.access import Login
from rankfall.kube.client import Kube
from rankfall.kube.errors import CredentialsError, KubeConfigError, Unreachable
from rankfall.kube.request import Retry
from rankfall.kube.resources import PODS
from rankfall.kube.secret import Secret
from testbed.pki import Authority


def test_the_read_buffer_of_a_real_connection_is_one_record(tmp_path):
    """On this Python: a new one that allocates it elsewhere fails here, and not in somebody's memory."""

    async def story():
        async with serving(tmp_path) as server, Kube(server.access()) as kube:
            large = b"x" * 5_000_000
            server.plays(answer(200, large))
            async with kube.stream("/big", read_timeout=10) as response:
                transport = response.connection.transport
                protocol = transport._ssl_protocol
                assert len(protocol._ssl_buffer) == key_material.READ_BUFFER == 16 * 1024
                assert protocol.max_size == key_material.READ_BUFFER
                assert await response.read() == large

    asyncio.run(story())


def test_a_certificate_of_somebody_else_is_refused_at_once(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            foreign = Authority(tmp_path / "foreign", "foreign").cert.read_bytes()
            async with Kube(server.access(ca_data=foreign)) as kube:
                with pytest.raises(Unreachable, match="its certificate is not trusted: ") as caught:
                    await kube.get(PODS, "p")
                assert caught.value.tls
                assert not caught.value.maybe_done
                assert kube.counters.requests == 1
                assert "clock" in caught.value.hint

    asyncio.run(story())


@pytest.mark.parametrize(
    ("endpoint", "works"),
    [
        ({}, False),
        ({"tls_server_name": "api.example"}, True),
        ({"tls_server_name": "other.example"}, False),
        ({"insecure": True, "ca_data": None}, True),
    ],
)
def test_the_name_that_a_certificate_must_have(tmp_path, endpoint, works):
    async def story():
        async with serving(tmp_path, hosts=["api.example"]) as server, Kube(server.access(**endpoint)) as kube:
            if works:
                await kube.get(PODS, "p")
                async with kube.stream("/x", read_timeout=5) as response:
                    await response.read()
            else:
                with pytest.raises(Unreachable, match="certificate is not trusted"):
                    await kube.get(PODS, "p")

    asyncio.run(story())


def test_an_intermediate_authority_may_be_trusted_alone(tmp_path):
    """As with Go's client: what is given is trusted, whoever signed it. Here: the server's own certificate."""

    async def story():
        async with serving(tmp_path) as server:
            own = (tmp_path / "pki" / "server.crt").read_bytes()
            text = "# Grüße\n".encode() + own
            async with Kube(server.access(ca_data=text)) as kube:
                await kube.get(PODS, "p")

    asyncio.run(story())


def test_certificates_given_as_data(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            mine = server.authority.issue("bob", user="bob")
            login = Login(cert_data=mine.cert.read_bytes(), key_data=Secret(mine.key.read_text()))
            async with Kube(server.access(login)) as kube:
                await kube.get(PODS, "p")
            assert server.seen[0].user == "bob"

    asyncio.run(story())


@pytest.mark.parametrize("memory", [True, False])
def test_a_key_leaves_no_file_behind(tmp_path, monkeypatch, memory):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    if not memory:
        monkeypatch.delattr(key_material.os, "memfd_create", raising=False)
    mine = Authority(tmp_path, "a").issue("bob", user="bob")
    made = key_material.context(
        authorities=None, insecure=False, certificate=mine.cert.read_bytes(), key=mine.key.read_bytes(), what="x"
    )
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert list((tmp_path / "tmp").iterdir()) == []


def context(certificate, key, authorities=None):
    return key_material.context(
        authorities=authorities, insecure=False, certificate=certificate, key=key, what="user 'bob'"
    )


def test_certificates_that_cannot_be_used(tmp_path):
    authority = Authority(tmp_path, "a")
    mine, other = authority.issue("bob", user="bob"), authority.issue("eve", user="eve")
    with pytest.raises(CredentialsError, match="KEY_VALUES_MISMATCH"):
        context(mine.cert.read_bytes(), other.key.read_bytes())
    with pytest.raises(CredentialsError, match="of user 'bob' cannot be used"):
        context(b"no", b"no")
    with pytest.raises(CredentialsError, match="protected by a password"):
        context(mine.cert.read_bytes(), b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    for wrong in (b"no", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----"):
        with pytest.raises(KubeConfigError, match="contains no readable certificate"):
            context(None, None, authorities=wrong)


def test_a_server_that_speaks_no_tls(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server:
            access = server.access()
            authority = Authority(tmp_path / "a", "a").cert.read_bytes()
            asked = type(access.endpoint)(server=access.server.replace("http:", "https:"), ca_data=authority)
            wrong = type(access)(context="c", cluster="k", user="u", namespace="n", endpoint=asked)
            async with Kube(wrong, retry=Retry(attempts=1)) as kube:
                with pytest.raises(Unreachable, match="TLS: "):
                    await kube.get(PODS, "p")

    asyncio.run(story())
