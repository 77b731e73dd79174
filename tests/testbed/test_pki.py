"""Certificates of a bed: real TLS takes them, and refuses the ones that have run out or are another authority's."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import timedelta

import pytest

from support.patience import scaled
from testbed.pki import Authority, Pair, signing_keys


def handshake(serving: Pair, trusted: Authority, *, name: str, client: Pair | None = None) -> dict[str, object]:
    """What the server sees of the client's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(serving.cert, serving.key)
    server.verify_mode = ssl.CERT_OPTIONAL
    server.load_verify_locations(trusted.cert)
    context = ssl.create_default_context(cafile=str(trusted.cert))
    if client:
        context.load_cert_chain(client.cert, client.key)
    here, there = socket.socketpair()
    seen: dict[str, object] = {}

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as end:
                seen.update(end.getpeercert() or {})
                end.recv(1)
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with context.wrap_socket(here, server_hostname=name) as end:
            end.send(b"x")
    finally:
        here.close()
        thread.join(scaled(10))
    return seen


def test_a_client_is_known_by_user_and_groups(tmp_path):
    authority = Authority(tmp_path, "cluster")
    serving = authority.issue("server", user="server", hosts=("10.0.0.1", "api.local"))
    client = authority.issue("client", user="system:node:n1", groups=("system:nodes",))
    subject = dict(row[0] for row in handshake(serving, authority, name="10.0.0.1", client=client)["subject"])  # type: ignore[attr-defined]
    assert subject == {"organizationName": "system:nodes", "commonName": "system:node:n1"}
    assert handshake(serving, authority, name="api.local") == {}


@pytest.mark.parametrize(("name", "valid"), [("other.local", 1), ("api.local", -1)])
def test_another_name_and_a_certificate_that_has_run_out_are_refused(tmp_path, name, valid):
    authority = Authority(tmp_path, "cluster")
    serving = authority.issue("server", user="server", hosts=("api.local",), valid=timedelta(days=valid))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, authority, name=name)


def test_another_authority_of_the_same_name_is_refused(tmp_path):
    mine, other = Authority(tmp_path / "a", "cluster"), Authority(tmp_path / "b", "cluster")
    serving = other.issue("server", user="server", hosts=("api.local",))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, mine, name="api.local")


def test_an_authority_is_read_again_and_keys_are_for_their_owner_alone(tmp_path):
    first = Authority(tmp_path, "cluster")
    serving = Authority(tmp_path, "cluster").issue("server", user="server", hosts=("api.local",))
    assert handshake(serving, first, name="api.local") == {}
    for key in (serving.key, tmp_path / "cluster.key", signing_keys(tmp_path).key):
        assert key.stat().st_mode & 0o777 == 0o600
