"""The serving certificate can be changed while the proxy runs: a new one, one that has run out, one of another authority."""

from __future__ import annotations

import ssl

import pytest

from support.proxy_world import END
from testbed.errors import TestbedError
from testbed.pki import Pair
from testbed.proxy import Certificates


@pytest.fixture
def certificates(world, tmp_path):
    return Certificates(world.cluster, tmp_path / "foreign", ("127.0.0.1",))


def shown(world) -> bytes:
    client = world.client()
    client.connect()
    return client.sock.getpeercert(binary_form=True)


def test_new_connections_see_the_new_certificate_and_old_ones_go_on(world, certificates):
    stream = world.upstream.streams("/log")
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    seen = [shown(world)]
    for _ in range(2):
        world.proxy.present(certificates.good())
        seen.append(shown(world))
    assert len(set(seen)) == 3
    stream.chunks.put(b"two\n")
    stream.chunks.put(END)
    assert answer.read() == b"two\n"


def test_a_session_is_not_taken_up_again_after_a_rotation(world, certificates):
    world.upstream.answers("/a", {})
    client = world.client()
    client.request("GET", "/a")
    client.getresponse().read()
    session = client.sock.session
    world.proxy.present(certificates.good())
    again = world.client()
    again.connect()
    assert session is None or not session.has_ticket
    assert not again.sock.session_reused


@pytest.mark.parametrize(("kind", "words"), [("expired", "expired"), ("foreign", "unable to get|self.signed")])
def test_a_bad_certificate_is_noticed_and_a_good_one_mends_it(world, certificates, kind, words):
    world.upstream.answers("/a", {})
    world.proxy.present(getattr(certificates, kind)())
    with pytest.raises(ssl.SSLCertVerificationError, match=words):
        world.get("/a")
    world.proxy.present(certificates.good())
    assert world.get("/a").status == 200
    assert world.proxy.counters().refused == 1


def test_files_that_are_no_certificate_are_refused_and_the_old_one_stays(world, tmp_path):
    before = shown(world)
    with pytest.raises(TestbedError, match="are not a certificate and its key"):
        world.proxy.present(Pair(tmp_path / "none", tmp_path / "none"))
    assert shown(world) == before


def test_proxies_of_one_bed_that_start_at_once_have_keys_of_their_own(world, tmp_path):
    both = [Certificates(world.cluster, tmp_path / "foreign", ("127.0.0.1",)) for _ in range(2)]
    pairs = [pair for one in both for pair in (one.good(), one.good(), one.expired(), one.foreign())]
    assert len({path for pair in pairs for path in (pair.cert, pair.key)}) == 16
    for pair in pairs:
        # Refuses a certificate with the key of another.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.cert, pair.key)
