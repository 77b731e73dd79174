"""Where HTTP has corners: switched protocols, idle connections, answers without a body, heads that are none."""

from __future__ import annotations

import socket
import ssl

import pytest
import yaml

from support.helpers import wait_until
from support.patience import scaled
from support.proxy_world import END, kernel_says
from testbed import kubeconfig
from testbed.proxy import (
    Answer,
    Cut,
    EndStream,
    HalfOpen,
    Match,
    ShiftTimes,
    Slow,
    Stall,
    Way,
    When,
    before,
    shift,
)

UPGRADE = b"POST /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"


def echo(handler) -> None:
    handler.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
    handler.close_connection = True
    while data := handler.connection.recv(1000):
        handler.connection.sendall(data.upper())


@pytest.fixture
def switched(world):
    """Opens a raw connection through the proxy, its head read."""
    world.upstream.routes["/exec"] = echo
    opened = []

    def make() -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(world.cluster.cert))
        sock = context.wrap_socket(
            socket.create_connection(world.address, timeout=scaled(20)), server_hostname="127.0.0.1"
        )
        opened.append(sock)
        sock.sendall(UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        return sock

    yield make
    for sock in opened:
        sock.close()


def test_a_switched_connection_is_cut_after_so_many_bytes(world, switched):
    world.proxy.add("cut", Cut(at=When(after_bytes=3)))
    sock = switched()
    sock.sendall(b"abcdef")
    assert kernel_says(sock) == "rst"
    assert world.proxy.log()[0].sent == 3


def test_a_switched_connection_ends_in_order_when_called(world, switched):
    world.proxy.add("end", EndStream(at=When(called=True)))
    sock = switched()
    world.proxy.fire("end")
    assert sock.recv(10) == b""
    assert kernel_says(sock) == "fin"


@pytest.mark.parametrize("way", [Way.UP, Way.DOWN])
def test_a_switched_connection_stalls_in_one_direction(world, switched, way):
    world.proxy.add("stall", Stall(way=way, at=When(after_bytes=2)))
    sock = switched()
    sock.sendall(b"abcdef")
    got = b""
    while len(got) < 2:
        got += sock.recv(10)
    assert got == b"AB"
    sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        sock.recv(10)
    sock.settimeout(20)
    world.proxy.remove("stall")
    while len(got) < 6:
        got += sock.recv(10)
    assert got == b"ABCDEF"


def test_a_switched_connection_is_left_half_open(world, switched):
    world.proxy.add("dead", HalfOpen(at=When(called=True)))
    sock = switched()
    world.proxy.fire("dead")
    sock.sendall(b"anybody?")
    assert kernel_says(sock, within=0.5) == "open"
    world.proxy.remove("dead")
    assert kernel_says(sock) == "rst"


def test_a_switched_connection_is_slow(world, switched):
    world.proxy.add("slow", Slow(bytes_per_second=100))
    sock = switched()
    sock.sendall(b"x" * 50)
    assert len(sock.recv(50)) <= 10


def test_when_the_server_ends_an_idle_connection_the_client_learns_of_it(world):
    def once(handler) -> None:
        handler.reply(b"{}")
        # Without "Connection: close": as a server does whose patience is over.
        handler.close_connection = True

    world.upstream.routes["/a"] = once
    client = world.client()
    client.request("GET", "/a")
    assert client.getresponse().read() == b"{}"
    assert world.how_it_ends() == "fin"


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_without_a_body(world, status):
    world.upstream.routes["/a"] = lambda handler: handler.reply(b"body")
    if status != 200:
        world.proxy.add("no", Answer(status=status))
    world.proxy.add("end", EndStream(at=When(after_bytes=2)))
    client = world.client()
    for _ in range(2):
        client.request("HEAD", "/a")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (status, b"")
    assert world.proxy.counters().connections == 1


def test_an_answer_of_known_length_can_be_ended_in_order_too(world):
    world.upstream.routes["/a"] = lambda handler: handler.reply(b"one\ntwo\nthree\n", kind="text/plain")
    world.proxy.add("end", EndStream(at=When(after_bytes=5)))
    answer = world.get("/a")
    assert answer.body == b"one\ntwo\n"
    assert "content-length" not in answer.headers


@pytest.mark.parametrize("text", [b"NONSENSE\r\n\r\n", b"GET /a HTTP/1.1\r\nbad header\r\n\r\n"])
def test_a_head_that_is_none_is_answered_with_400(world, text):
    client = world.client()
    client.connect()
    client.sock.sendall(text)
    assert client.sock.recv(100).startswith(b"HTTP/1.1 400 ")
    assert world.how_it_ends() == "fin"


def test_plain_http_is_refused(world):
    with socket.create_connection(world.address, timeout=scaled(20)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while sock.recv(100):
            pass
    wait_until(lambda: world.proxy.counters().refused == 1, timeout=10, what="the refusal")


def test_a_delayed_client_that_gives_up_is_noticed(world):
    world.upstream.answers("/a", {})
    world.proxy.add("stall", Stall(at=When(answered=True)))
    client = world.client()
    client.request("GET", "/a")
    wait_until(lambda: world.proxy.counters().by_rule == {"stall": 1}, timeout=10, what="the stall")
    client.close()
    wait_until(lambda: world.proxy.counters().open_connections == 0, timeout=10, what="the end of the connection")


def test_a_document_too_large_to_be_changed_is_not_passed_on_unchanged(world, monkeypatch):
    monkeypatch.setattr(shift, "_MAX_DOCUMENT", 1000)
    world.upstream.answers("/api/v1/pods", {"kind": "PodList", "items": ["x" * 2000]})
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=1))
    client = world.client()
    client.request("GET", "/api/v1/pods")
    assert world.how_it_ends() == "rst"
    assert "more than" in world.proxy.log()[0].ended


def test_a_node_of_callable_that_fails_ends_only_that_connection(world):
    def broken(_namespace: str, _pod: str) -> str:
        raise KeyError("no such pod")

    world.proxy.nodes(broken)
    world.proxy.add("clock", ShiftTimes(node="n1", seconds=1))
    world.client().request("GET", "/api/v1/namespaces/ns/pods/p/log")
    assert world.how_it_ends() == "rst"
    assert "KeyError" in world.proxy.log()[0].ended
    world.upstream.answers("/a", {})
    assert world.get("/a").status == 200


def test_fire_reaches_every_stream_that_waits_and_later_ones_wait_anew(world):
    world.proxy.add("cut", Cut(at=When(called=True)), Match(path="^/log"))
    for number in range(3):
        world.upstream.streams(f"/log/{number}").chunks.put(b"one\n")
        assert world.open(f"/log/{number}").readline() == b"one\n"
    world.proxy.fire("cut")
    assert [world.how_it_ends(number) for number in range(3)] == ["rst"] * 3
    stream = world.upstream.streams("/log/3")
    answer = world.open("/log/3")
    for item in (b"two\n", END):
        stream.chunks.put(item)
    assert answer.read() == b"two\n"


def test_a_kubeconfig_leads_its_user_through_the_proxy(world, tmp_path):
    straight = kubeconfig.write(
        tmp_path / "straight", server=world.upstream.url, authority=world.cluster.cert, user="kate", pair=world.serving
    )
    path = before.through(world.proxy.url, straight, tmp_path / "through")
    changed, first = (yaml.safe_load(file.read_text()) for file in (path, straight))
    assert changed["clusters"][0]["cluster"].pop("server") == world.proxy.url
    first["clusters"][0]["cluster"].pop("server")
    assert changed == first
    assert path.stat().st_mode & 0o777 == 0o600
