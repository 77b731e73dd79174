"""Each fault does to a real connection what it says, and nothing else."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time

import pytest

from support.helpers import wait_until
from support.patience import scaled
from support.proxy_world import END
from testbed.errors import TestbedError
from testbed.proxy import (
    Answer,
    Cut,
    Delay,
    EndStream,
    HalfOpen,
    How,
    Match,
    Place,
    Slow,
    Stall,
    WatchError,
    Way,
    When,
)
from testbed.proxy.status import REASONS

LINES = b"".join(b"line %d\n" % number for number in range(1000))


def poured(world, path: str = "/log", data: bytes = LINES, piece: int = 700):
    """A stream that has said all this and stays open."""
    stream = world.upstream.streams(path)
    for start in range(0, len(data), piece):
        stream.chunks.put(data[start : start + piece])
    return stream


class Tap(threading.Thread):
    """Reads a stream in the background."""

    def __init__(self, answer) -> None:
        super().__init__(daemon=True)
        self.answer, self.got, self.end = answer, b"", None
        self.start()

    def run(self) -> None:
        while piece := self.answer.read1(65536):
            self.got += piece
        self.end = "clean"


def read_all(answer) -> tuple[bytes, str]:
    """What arrived, and whether the body ended in order."""
    got = b""
    try:
        while piece := answer.read1(65536):
            got += piece
    except http.client.IncompleteRead as error:
        return got + error.partial, "broken"
    except OSError:
        return got, "broken"
    return got, "clean" if answer.isclosed() else "broken"


@pytest.mark.parametrize(("how", "end"), [(How.RST, "rst"), (How.FIN, "fin")])
def test_cut_at_once_and_the_server_never_hears_of_it(world, how, end):
    world.upstream.answers("/a", {})
    world.proxy.add("cut", Cut(how=how))
    world.client().request("GET", "/a")
    assert world.how_it_ends() == end
    assert world.upstream.seen == []
    assert world.proxy.log()[0].rules == ("cut",)


@pytest.mark.parametrize(("how", "end"), [(How.RST, "rst"), (How.FIN, "fin")])
def test_cut_when_answered_what_was_done_stays_done(world, how, end):
    world.upstream.answers("/a", {})
    world.proxy.add("cut", Cut(how=how, at=When(answered=True)))
    world.client().request("POST", "/a", body=b"do it")
    assert world.how_it_ends() == end
    assert [seen.body for seen in world.upstream.seen] == [b"do it"]
    assert world.proxy.log()[0].status == 0


@pytest.mark.parametrize("size", [0, 1, 699, 700, 701, 4321])
def test_cut_with_fin_in_the_middle_of_a_chunk_after_exactly_so_many_bytes(world, size):
    stream = poured(world)
    world.proxy.add("cut", Cut(how=How.FIN, at=When(after_bytes=size)))
    assert read_all(world.open("/log")) == (LINES[:size], "broken")
    assert world.how_it_ends() == "fin"
    assert world.proxy.log()[0].sent == size
    assert stream.gone.wait(scaled(10))


def test_the_last_chunk_says_that_there_is_more(world):
    poured(world)
    world.proxy.add("cut", Cut(how=How.FIN, at=When(after_bytes=100)))
    client = world.client()
    client.request("GET", "/log")
    raw = b""
    while piece := client.sock.recv(65536):
        raw += piece
    head, _, body = raw.rpartition(b"\r\n")
    assert body == LINES[:100]
    assert int(head.rpartition(b"\r\n")[2], 16) > len(body)


def test_cut_with_rst_after_so_many_bytes(world):
    poured(world)
    world.proxy.add("cut", Cut(at=When(after_bytes=4321)))
    got, end = read_all(world.open("/log"))
    # A reset may throw away what was on its way.
    assert end == "broken"
    assert LINES[:4321].startswith(got)
    assert world.proxy.log()[0].sent == 4321


def test_a_random_byte_is_the_same_byte_for_the_same_seed(world):
    poured(world)
    cut = Cut(how=How.FIN, at=When(random_bytes=(100, 5000)))
    found = []
    for seed in (7, 7, 8):
        poured(world)
        world.proxy.add("cut", cut, Match(seed=seed))
        found.append(len(read_all(world.open("/log"))[0]))
    assert found == [random.Random(seed).randint(100, 5000) for seed in (7, 7, 8)]


def test_a_mean_life_ends_a_quiet_stream(world):
    world.upstream.streams("/log")
    world.proxy.add("cut", Cut(at=When(mean_life_s=0.05)), Match(seed=1))
    for _ in range(3):
        # It may end before the answer's head.
        world.client().request("GET", "/log")
        assert world.how_it_ends() == "rst"
    assert world.proxy.counters().by_rule == {"cut": 3}


def test_cut_when_called_and_only_then(world):
    stream = world.upstream.streams("/log")
    world.proxy.add("cut", Cut(at=When(called=True)))
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    assert world.proxy.log()[0].rules == ()
    world.proxy.fire("cut")
    assert world.how_it_ends() == "rst"


def test_cut_reaches_a_connection_whose_client_does_not_read(world):
    stream = poured(world, data=b"x" * 40_000_000, piece=1_000_000)
    world.proxy.add("cut", Cut(at=When(called=True)))
    world.open("/log")
    sent = -1

    def stuck() -> bool:
        nonlocal sent
        before, sent = sent, world.proxy.counters().sent
        time.sleep(0.2)
        return sent == before > 0

    wait_until(stuck, timeout=20, what="full buffers")
    world.proxy.fire("cut")
    assert stream.gone.wait(scaled(10))


@pytest.mark.parametrize("size", [0, 5, 4321])
def test_stall_until_released_then_everything_arrives(world, size):
    stream = poured(world)
    stream.chunks.put(END)
    world.proxy.add("stall", Stall(at=When(after_bytes=size)))
    tap = Tap(world.open("/log"))
    wait_until(lambda: world.proxy.log()[0].rules == ("stall",), timeout=10, what="the stall")
    wait_until(lambda: len(tap.got) >= size, timeout=10, what="what was passed on")
    tap.join(0.3)
    assert (tap.got, tap.end) == (LINES[:size], None)
    world.proxy.release("stall")
    tap.join(scaled(10))
    assert (tap.got, tap.end) == (LINES, "clean")


def test_stall_for_a_time_goes_on_by_itself(world):
    stream = poured(world)
    stream.chunks.put(END)
    world.proxy.add("stall", Stall(for_s=0.5, at=When(after_bytes=1000)))
    began = time.monotonic()
    assert read_all(world.open("/log")) == (LINES, "clean")
    assert time.monotonic() - began >= 0.5


def test_stall_upwards_keeps_the_request_from_the_server(world):
    world.upstream.answers("/a", {})
    world.proxy.add("stall", Stall(way=Way.UP, at=When()))
    client = world.client()
    client.request("GET", "/a")
    wait_until(lambda: world.proxy.counters().by_rule.get("stall") == 1, timeout=10, what="the stall")
    assert world.upstream.seen == []
    world.proxy.remove("stall")
    assert client.getresponse().read() == b"{}"


def test_stall_upwards_in_the_middle_of_a_body(world):
    world.upstream.answers("/a", {})
    world.proxy.add("stall", Stall(way=Way.UP, at=When(after_bytes=1000)))
    client = world.client()
    client.request("POST", "/a", body=b"y" * 100_000)
    wait_until(lambda: world.proxy.counters().by_rule.get("stall") == 1, timeout=10, what="the stall")
    assert world.upstream.seen == []
    world.proxy.release("stall")
    assert client.getresponse().read() == b"{}"
    assert world.upstream.seen[0].body == b"y" * 100_000


def test_a_client_that_gives_up_in_a_stall_leaves_nothing_behind(world):
    world.proxy.add("stall", Stall(way=Way.UP, at=When()))
    client = world.client()
    client.request("GET", "/a")
    wait_until(lambda: world.proxy.counters().open_requests == 1, timeout=10, what="the request")
    client.close()
    wait_until(lambda: world.proxy.counters().open_connections == 0, timeout=10, what="the end of the connection")


@pytest.mark.parametrize("called", [False, True])
def test_half_open_the_server_is_gone_and_the_client_is_told_nothing(world, called):
    stream = world.upstream.streams("/log")
    world.proxy.add("dead", HalfOpen(at=When(called=True) if called else When(after_bytes=4)))
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    if called:
        world.proxy.fire("dead")
    assert stream.gone.wait(scaled(10))
    stream.chunks.put(b"two\n")
    assert world.how_it_ends(within=0.5) == "open"
    world.proxy.release("dead")
    assert world.how_it_ends() == "rst"


def test_half_open_before_the_answer_and_the_client_gives_up(world):
    world.upstream.answers("/a", {})
    world.proxy.add("dead", HalfOpen())
    client = world.client()
    client.request("GET", "/a")
    assert world.how_it_ends(within=0.5) == "open"
    assert world.upstream.seen == []
    client.close()
    wait_until(lambda: world.proxy.counters().open_connections == 0, timeout=10, what="the end of the connection")


def test_delay_holds_the_answer_not_the_request(world):
    world.upstream.answers("/a", {})
    world.proxy.add("late", Delay(seconds=30))
    client = world.client()
    client.request("GET", "/a")
    wait_until(lambda: world.upstream.seen, timeout=10, what="the request at the server")
    wait_until(lambda: world.proxy.counters().by_rule.get("late") == 1, timeout=10, what="the delay")
    world.proxy.remove("late")
    assert client.getresponse().read() == b"{}"
    world.proxy.add("late", Delay(seconds=0.4))
    began = time.monotonic()
    assert world.get("/a").status == 200
    assert time.monotonic() - began >= 0.4


def test_slow_takes_its_time_and_loses_nothing(world):
    stream = poured(world)
    stream.chunks.put(END)
    world.proxy.add("slow", Slow(bytes_per_second=10_000))
    began = time.monotonic()
    assert read_all(world.open("/log")) == (LINES, "clean")
    assert time.monotonic() - began >= len(LINES) / 10_000 * 0.9


@pytest.mark.parametrize(
    ("place", "size"),
    [(Place.BOUNDARY, 0), (Place.BOUNDARY, 3000), (Place.BOUNDARY, 700), (Place.INSIDE, 3000), (Place.ANYWHERE, 3001)],
)
def test_a_follow_ends_in_order_though_it_goes_on(world, place, size):
    stream = poured(world)
    world.proxy.add("end", EndStream(at=When(after_bytes=size), place=place), Match(path="^/log$"))
    got, end = read_all(world.open("/log"))
    assert end == "clean"
    assert LINES.startswith(got)
    assert size <= len(got) <= size + 10
    if place is Place.BOUNDARY:
        assert got == b"" or got.endswith(b"\n")
    elif place is Place.INSIDE:
        assert not got.endswith(b"\n")
        assert LINES[len(got) : len(got) + 1] != b"\n"
    else:
        assert len(got) == size
    assert stream.gone.wait(scaled(10))


def test_a_quiet_follow_ends_in_order_when_called_and_the_connection_lives_on(world):
    stream = world.upstream.streams("/log")
    world.upstream.answers("/a", {})
    world.proxy.add("end", EndStream(at=When(called=True)), Match(path="^/log$"))
    client = world.client()
    client.request("GET", "/log")
    answer = client.getresponse()
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    world.proxy.fire("end")
    assert answer.read() == b""
    client.request("GET", "/a")
    assert client.getresponse().read() == b"{}"
    assert world.proxy.counters().connections == 1


def test_an_end_inside_a_line_waits_for_a_line(world):
    stream = world.upstream.streams("/log")
    world.proxy.add("end", EndStream(at=When(called=True), place=Place.INSIDE))
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    world.proxy.fire("end")
    stream.chunks.put(b"two\n")
    assert answer.read() == b"t"


@pytest.mark.parametrize("code", [401, 403, 404, 409, 410, 429, 500, 502, 503, 504])
def test_an_answer_instead_of_the_server_is_a_status_as_kubernetes_gives_it(world, code):
    world.upstream.answers("/a", {"real": True})
    world.proxy.add("no", Answer(status=code, retry_after_s=7), Match(times=1))
    answer = world.get("/a", method="POST", body=b"x" * 1000)
    assert answer.status == code
    assert answer.headers["retry-after"] == "7"
    body = answer.json()
    assert (body["kind"], body["apiVersion"], body["status"]) == ("Status", "v1", "Failure")
    assert (body["code"], body["reason"]) == (code, REASONS[code])
    assert body["details"]["retryAfterSeconds"] == 7
    assert body["message"]
    assert world.upstream.seen == []
    assert world.get("/a").json() == {"real": True}


def test_an_answer_keeps_the_connection(world):
    world.upstream.answers("/a", {})
    world.proxy.add("no", Answer(status=503, reason="Odd", message="because"), Match(nth=2))
    client = world.client()
    found = []
    for _ in range(3):
        client.request("POST", "/a", body=b"x" * 100_000)
        answer = client.getresponse()
        found.append((answer.status, json.loads(answer.read()).get("message")))
    assert found == [(200, None), (503, "because"), (200, None)]
    assert world.proxy.counters().connections == 1


def test_a_watch_that_gets_an_error_event_at_once(world):
    world.proxy.add("gone", WatchError())
    answer = world.get("/api/v1/pods?watch=true&resourceVersion=1")
    event = answer.json()
    assert answer.status == 200
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert world.upstream.seen == []


def test_a_watch_that_gets_an_error_event_after_some_events(world):
    stream = world.upstream.streams("/api/v1/pods", kind="application/json")
    world.proxy.add("gone", WatchError(at=When(after_bytes=30)))
    events = [json.dumps({"type": "ADDED", "object": {"n": number}}).encode() + b"\n" for number in range(5)]
    stream.chunks.put(b"".join(events))
    got, end = read_all(world.open("/api/v1/pods?watch=1"))
    *before, last = got.splitlines(keepends=True)
    assert end == "clean"
    assert before == events[:1]
    assert json.loads(last)["object"]["code"] == 410


def test_an_error_event_leaves_alone_what_is_no_watch(world):
    world.upstream.answers("/api/v1/pods", {"items": []})
    world.proxy.add("gone", WatchError())
    world.proxy.add("later", WatchError(at=When(after_bytes=1)))
    assert world.get("/api/v1/pods").json() == {"items": []}
    assert world.proxy.counters().by_rule == {}


@pytest.mark.parametrize(
    ("match", "target", "headers", "fits"),
    [
        (Match(), "/x", {}, True),
        (Match(method="GET"), "/x", {}, True),
        (Match(method="POST"), "/x", {}, False),
        (Match(path="/pods/[^/]+$"), "/api/v1/namespaces/n/pods/p", {}, True),
        (Match(path="/pods/[^/]+$"), "/api/v1/namespaces/n/pods/p/log", {}, False),
        (Match(query="limit=5"), "/x?limit=500", {}, True),
        (Match(query="limit=5"), "/x", {}, False),
        (Match(watch=True), "/x?watch=true", {}, True),
        (Match(watch=True), "/x?watch=1", {}, True),
        (Match(watch=True), "/x?watch=false", {}, False),
        (Match(watch=False), "/x?watch=true", {}, False),
        (Match(watch=True), "/api/v1/watch/pods", {}, True),
        (Match(follow=True), "/pods/p/log?follow=true", {}, True),
        (Match(follow=True), "/pods/p?follow=true", {}, False),
        (Match(follow=True), "/pods/p/log", {}, False),
        (Match(user_agent="^kubectl/"), "/x", {"User-Agent": "kubectl/v1"}, True),
        (Match(user_agent="^kubectl/"), "/x", {"User-Agent": "me"}, False),
        (Match(probability=0), "/x", {}, False),
        (Match(times=0), "/x", {}, False),
    ],
)
def test_which_requests_a_rule_strikes(world, match, target, headers, fits):
    world.proxy.add("no", Answer(status=503), match)
    assert (world.get(target, headers=headers).status == 503) is fits


def test_probability_is_thrown_again_the_same_way(world):
    world.upstream.answers("/a", {})
    client = world.client()

    def throw() -> list[int]:
        world.proxy.add("no", Answer(status=500), Match(probability=0.5, seed=3))
        found = []
        for _ in range(20):
            client.request("GET", "/a")
            answer = client.getresponse()
            answer.read()
            found.append(answer.status)
        return found

    first = throw()
    assert set(first) == {200, 500}
    assert throw() == first


def test_rules_act_together_and_are_gone_when_removed(world):
    stream = poured(world)
    stream.chunks.put(END)
    world.proxy.add("late", Delay(seconds=0.1))
    world.proxy.add("slow", Slow(bytes_per_second=1_000_000))
    with world.proxy.fault("end", EndStream(at=When(after_bytes=500))):
        assert len(read_all(world.open("/log"))[0]) < 520
        assert world.proxy.log()[0].rules == ("late", "slow", "end")
        assert list(world.proxy.rules()) == ["late", "slow", "end"]
    world.proxy.clear()
    assert world.proxy.rules() == {}
    stream = poured(world)
    stream.chunks.put(END)
    assert read_all(world.open("/log")) == (LINES, "clean")
    assert world.proxy.log()[1].rules == ()


def test_a_rule_that_is_removed_leaves_running_streams_alone(world):
    stream = world.upstream.streams("/log")
    world.proxy.add("cut", Cut(at=When(after_bytes=6)))
    answer = world.open("/log")
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    world.proxy.remove("cut")
    world.proxy.remove("cut")
    for item in (b"two\n", b"three\n", END):
        stream.chunks.put(item)
    assert answer.read() == b"two\nthree\n"


def test_all_connections_are_cut_at_a_word(world):
    for number in range(3):
        world.upstream.streams(f"/log/{number}").chunks.put(b"one\n")
        assert world.open(f"/log/{number}").readline() == b"one\n"
    world.proxy.cut_all()
    assert [world.how_it_ends(number) for number in range(3)] == ["rst"] * 3
    world.upstream.answers("/a", {})
    assert world.get("/a").status == 200


def test_hundreds_of_streams_at_once_each_with_its_own_bytes(world):
    count, lines = 150, 20

    def talk(handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        ready.release()
        gate.wait(scaled(50))
        for number in range(lines):
            text = f"{handler.path} {number}\n".encode()
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
        handler.wfile.write(b"0\r\n\r\n")

    ready, gate = threading.Semaphore(0), threading.Event()
    for number in range(count):
        world.upstream.routes[f"/log/{number}"] = talk
    answers = [world.open(f"/log/{number}") for number in range(count)]
    for _ in range(count):
        assert ready.acquire(timeout=scaled(30))
    assert world.proxy.counters().open_requests == count
    gate.set()
    for number, answer in enumerate(answers):
        assert answer.read() == b"".join(f"/log/{number} {line}\n".encode() for line in range(lines))


def test_what_cannot_be_is_refused(world):
    with pytest.raises(ValueError, match="one moment"):
        When(after_bytes=1, called=True)
    with pytest.raises(TestbedError, match="no regular expression"):
        world.proxy.add("bad", Cut(), Match(path="("))
    with pytest.raises(TestbedError, match="no rule 'nobody'"):
        world.proxy.fire("nobody")
