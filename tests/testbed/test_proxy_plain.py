"""Without rules nobody notices the proxy."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
import threading

import pytest

from support.helpers import wait_until
from support.patience import scaled
from support.proxy_world import END
from testbed.errors import TestbedError
from testbed.proxy import Proxy, Settings


def test_an_answer_passes_unchanged_with_status_headers_and_body(world):
    world.upstream.routes["/teapot"] = lambda handler: handler.reply(b"short and stout", status=418, kind="text/tea")
    answer = world.get("/teapot?a=b&c=%2F")
    assert (answer.status, answer.headers["content-type"], answer.body) == (418, "text/tea", b"short and stout")
    assert world.upstream.seen[0].target == "/teapot?a=b&c=%2F"


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_request_bodies_pass_with_length_and_in_chunks(world, size):
    world.upstream.routes["/put"] = lambda handler: handler.reply(str(len(handler.server.seen[-1].body)).encode())
    body = os.urandom(size)
    assert world.get("/put", method="PUT", body=body).body == str(size).encode()
    client = world.client()
    client.request(
        "POST",
        "/put",
        body=iter([body[: size // 2], body[size // 2 :]]),
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    assert client.getresponse().read() == str(size).encode()
    assert [seen.body for seen in world.upstream.seen] == [body, body]


def test_a_chunk_is_passed_on_when_it_comes_not_when_the_body_ends(world):
    stream = world.upstream.streams("/log")
    answer = world.open("/log")
    for line in (b"one\n", b"two\n", b"x" * 300_000 + b"\n"):
        stream.chunks.put(line)
        assert answer.readline() == line
    stream.chunks.put(END)
    assert answer.read() == b""


def test_many_requests_share_one_connection_to_the_server(world):
    world.upstream.answers("/a", {})
    client = world.client()
    for _ in range(5):
        client.request("GET", "/a")
        assert client.getresponse().read() == b"{}"
    assert world.proxy.counters().connections == 1
    assert world.proxy.counters().requests == 5


def test_the_token_passes_and_no_certificate_is_shown_for_it(world):
    world.upstream.answers("/a", {})
    world.get("/a", headers={"Authorization": "Bearer secret-token"})
    seen = world.upstream.seen[0]
    assert seen.headers["authorization"] == ["Bearer secret-token"]
    assert seen.client == {}


def test_a_client_certificate_becomes_front_proxy_headers_and_forged_ones_are_taken_out(world):
    world.upstream.answers("/a", {})
    jane = world.cluster.issue("jane", user="jane", groups=("dev", "system:masters"))
    world.get("/a", pair=jane, headers={"X-Remote-User": "root", "X-Remote-Group": "g", "X-Remote-Extra-Scopes": "s"})
    seen = world.upstream.seen[0]
    assert seen.headers["x-remote-user"] == ["jane"]
    assert seen.headers["x-remote-group"] == ["dev", "system:masters"]
    assert "x-remote-extra-scopes" not in seen.headers
    assert seen.client["subject"] == ((("commonName", "front-proxy-client"),),)
    world.get("/a", headers={"X-Remote-User": "root"})
    assert "x-remote-user" not in world.upstream.seen[1].headers
    assert world.upstream.seen[1].client == {}


def test_a_certificate_of_another_authority_is_refused(world):
    with pytest.raises(OSError):  # noqa: PT011 - which of OpenSSL's words it is depends on timing
        world.get("/a", pair=world.front.issue("stranger", user="system:admin"))
    assert world.upstream.seen == []


def test_http2_is_not_spoken(world):
    client = world.client()
    client.connect()
    assert client.sock.selected_alpn_protocol() == "http/1.1"


def test_when_the_client_goes_away_the_server_learns_of_it(world):
    stream = world.upstream.streams("/log")
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    answer.readline()
    answer.close()
    world._open[0].close()
    assert stream.gone.wait(scaled(10))


def test_when_the_server_breaks_off_so_does_the_proxy(world):
    stream = world.upstream.streams("/log")
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    stream.chunks.put(None)
    with pytest.raises((OSError, http.client.IncompleteRead)) as broken:
        answer.read()
    assert not isinstance(broken.value, TimeoutError)
    assert world.proxy.log()[0].ended != "done"


def test_without_a_server_clients_meet_a_reset(world):
    world.upstream.close()
    client = world.client()
    client.request("GET", "/a")
    assert world.how_it_ends() == "rst"


def test_an_upgraded_connection_is_raw_bytes_both_ways(world):
    def switch(handler):
        handler.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nhello"
        )
        while data := handler.connection.recv(1000):
            handler.connection.sendall(data.upper())
        handler.connection.sendall(b"bye")
        handler.close_connection = True

    world.upstream.routes["/exec"] = switch
    context = ssl.create_default_context(cafile=str(world.cluster.cert))
    with (
        socket.create_connection(world.address, timeout=scaled(20)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(
            b"POST /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
        )
        answer = sock.makefile("rb")
        assert answer.readline().startswith(b"HTTP/1.1 101 ")
        while answer.readline() != b"\r\n":
            pass
        assert answer.read(5) == b"hello"
        for word in (b"abc", b"\x80\x03\x00\x01"):
            sock.sendall(word)
            assert answer.read(len(word)) == word.upper()


def test_a_slow_client_holds_the_server_back(world):
    sent = threading.Event()
    total = 200 * 1024 * 1024

    def pour(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(total))
        handler.end_headers()
        handler.connection.settimeout(2)
        piece = b"x" * 65536
        try:
            for _ in range(total // len(piece)):
                handler.wfile.write(piece)
        except OSError:
            sent.set()
            raise

    world.upstream.routes["/pour"] = pour
    answer = world.open("/pour")
    assert answer.read(10) == b"x" * 10
    assert sent.wait(scaled(20)), "the server could send 200 MiB to a client that read ten bytes"


def test_log_and_counters_say_what_passed_and_hold_no_secret(world):
    world.upstream.answers("/a", {"secret": "body"})
    world.get("/a?watch=0", headers={"Authorization": "Bearer secret", "User-Agent": "me/1"})
    (record,) = world.proxy.log()
    assert (record.method, record.path, record.query, record.status) == ("GET", "/a", "watch=0", 200)
    assert (record.user_agent, record.sent, record.ended, record.rules) == ("me/1", 18, "done", ())
    assert "secret" not in repr(record)
    counters = world.proxy.counters()
    assert (counters.requests, counters.by_status, counters.sent) == (1, {200: 1}, 18)


def test_closing_leaves_no_thread_task_or_socket(world):
    stream = world.upstream.streams("/log")
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    answer.readline()
    loop, thread = world.proxy._loop, world.proxy._thread
    before = len(asyncio.all_tasks(loop))
    assert before > 2
    address = world.address
    world.proxy.close()
    assert not thread.is_alive()
    assert loop.is_closed()
    assert stream.gone.wait(scaled(10))
    assert world.how_it_ends() == "rst"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.parametrize("upstream", ["http://127.0.0.1:1", "127.0.0.1:6443", "https://"])
def test_an_address_that_is_none_is_refused(world, upstream):
    with pytest.raises(TestbedError, match="no address of an API server"):
        Settings(upstream=upstream, authority=world.cluster.cert, serving=world.serving)


def test_client_certificates_without_a_front_proxy_certificate_are_refused(world):
    with pytest.raises(TestbedError, match="front-proxy"):
        Settings(
            upstream=world.upstream.url,
            authority=world.cluster.cert,
            serving=world.serving,
            clients=world.cluster.cert,
        )


def test_a_port_that_is_taken_is_named(world):
    taken = Settings(
        upstream=world.upstream.url, authority=world.cluster.cert, serving=world.serving, port=world.address[1]
    )
    proxy = Proxy(taken)
    with pytest.raises(TestbedError, match=str(world.address[1])):
        proxy.start()
    wait_until(lambda: not proxy._thread.is_alive(), timeout=10, what="the end of the proxy's thread")
