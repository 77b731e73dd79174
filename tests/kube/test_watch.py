"""A watch against a scripted server: nothing lost and nothing told twice, however connections end; what waiting does not heal is raised."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kube.apiserver import Handler, Server, answer, body, cut, pair, refuse, serving, silence, status
from rankfall.kube.client import ALL_NAMESPACES, Kube
from rankfall.kube.errors import CredentialsError, Forbidden, KubeError, ObjectNotFound, Unreachable
from rankfall.kube.request import Retry
from rankfall.kube.resources import NODES, PODS
from rankfall.kube.watch import watcher as module
from rankfall.kube.watch.known_objects import Book, Head, head_of
from rankfall.kube.watch.pace import Pace
from rankfall.kube.watch.watcher import Event, watch
from support.patience import scaled
from testbed.pki import Authority

FAST = Pace(idle=5.0, first=0.01, cap=0.05)


def pod(name: str, version: int, uid: str | None = None, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "here", "uid": uid or f"u-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **more}


def listing(version: int, *items: dict[str, Any]) -> Handler:
    return answer(200, {"kind": "PodList", "metadata": {"resourceVersion": str(version)}, "items": list(items)})


def line(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


class Snapshot:
    """A watch that runs, and what it told."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.server = server
        self.options = {"pace": FAST, **options}
        self.events: list[Event] = []
        self.troubles: list[KubeError | None] = []
        self.stop = asyncio.Event()

    @property
    def told(self) -> list[str]:
        return [f"{one.type} {one.object['metadata'].get('name', '')}".strip() for one in self.events]

    @property
    def watches(self) -> list[dict[str, str]]:
        return [dict(seen.query) for seen in self.server.seen if dict(seen.query).get("watch")]

    async def until(self, done: Callable[[Snapshot], bool], resource: Any = PODS) -> Snapshot:
        retry = Retry(attempts=1)
        async with Kube(self.server.access(), retry=retry, rate=1000) as kube, asyncio.timeout(scaled(20)):
            events = watch(kube, resource, stop=self.stop, trouble=self.troubles.append, **self.options)
            async with contextlib.aclosing(events):
                async for event in events:
                    self.events.append(event)
                    if done(self):
                        self.stop.set()
        return self


async def true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(10)):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.01)


@pytest.fixture
def run(tmp_path) -> Callable[[Callable[[Server], Any]], Any]:
    """Plays a story with a plain server; TLS is the client's own matter."""

    def play(story: Callable[[Server], Any]) -> Any:
        async def all_of_it() -> Any:
            async with serving(tmp_path, tls=False) as server:
                server.default = body(end="never")
                return await story(server)

        return asyncio.run(all_of_it())

    return play


def test_a_list_then_changes_and_what_is_asked_for(run):
    async def story(server):
        server.plays(
            listing(10, pod("a", 3), pod("b", 5)),
            body(
                line("MODIFIED", pod("a", 11)), line("ADDED", pod("c", 12)), line("DELETED", pod("b", 13)), bookmark(20)
            ),
        )
        return await Snapshot(server, labels="x=y", fields="spec.nodeName=n").until(
            lambda seen: len(seen.watches) == 1 and len(seen.events) == 7
        )

    look = run(story)
    assert look.told == ["listed a", "listed b", "bookmark", "modified a", "added c", "deleted b", "bookmark"]
    assert look.events[2].object == {"metadata": {"resourceVersion": "10"}}
    assert not any(event.vanished for event in look.events)
    first, second = look.server.seen[:2]
    assert first.path == second.path == "/api/v1/namespaces/here/pods"
    [asked] = look.watches
    assert 300 <= int(asked.pop("timeoutSeconds")) <= 600
    assert asked == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "10",
        "labelSelector": "x=y",
        "fieldSelector": "spec.nodeName=n",
    }
    assert look.troubles == []


@pytest.mark.parametrize(
    ("options", "resource", "path"),
    [
        ({"namespace": "there"}, PODS, "/api/v1/namespaces/there/pods"),
        ({"namespace": ALL_NAMESPACES}, PODS, "/api/v1/pods"),
        ({}, NODES, "/api/v1/nodes"),
    ],
)
def test_where_it_looks(run, options, resource, path):
    async def story(server):
        server.plays(listing(1), body(bookmark(2)))
        return await Snapshot(server, **options).until(lambda seen: len(seen.events) == 2, resource)

    assert {seen.path for seen in run(story).server.seen} == {path}


@pytest.mark.parametrize("end", ["clean", "cut"])
def test_launch_s23_a_connection_that_ends_is_resumed_from_the_last_version_seen(run, end):
    async def story(server):
        server.plays(
            listing(10, pod("a", 3)),
            body(line("MODIFIED", pod("a", 11)), end=end),
            body(bookmark(40), end=end),
            body(line("ADDED", pod("b", 41)), end=end),
            body(line("ADDED", pod("c", 42)), end="never"),
        )
        return await Snapshot(server).until(lambda seen: seen.told[-1] == "added c")

    look = run(story)
    assert look.told == ["listed a", "bookmark", "modified a", "bookmark", "added b", "added c"]
    assert [asked["resourceVersion"] for asked in look.watches] == ["10", "11", "40", "41"]
    # An end in order is what servers do every few minutes; a cut is told, and that it is over.
    assert bool(look.troubles) is (end == "cut")
    assert look.troubles[1::2] == [None] * (len(look.troubles) // 2)


@pytest.mark.parametrize("at", [1, 40, -2, -1])
def test_a_body_cut_inside_an_object_loses_nothing(run, at):
    async def story(server):
        half = line("MODIFIED", pod("a", 12, text="x" * 300))
        server.plays(
            listing(10, pod("a", 3)),
            body(line("MODIFIED", pod("a", 11)), half[:at], end="cut"),
            body(half, end="never"),
        )
        return await Snapshot(server).until(lambda seen: seen.events[-1].object["metadata"]["resourceVersion"] == "12")

    look = run(story)
    assert look.told == ["listed a", "bookmark", "modified a", "modified a"]
    assert [asked["resourceVersion"] for asked in look.watches] == ["10", "11"]


GONE = status(410, "Expired", "too old resource version: 11 (99)")
TOO_LARGE = status(
    504, "Timeout", "Too large resource version: 11, current: 5", causes=[{"reason": "ResourceVersionTooLarge"}]
)


@pytest.mark.parametrize(
    "gap",
    [
        answer(410, GONE),
        body(line("ERROR", GONE)),
        answer(504, TOO_LARGE),
        body(line("ERROR", TOO_LARGE)),
        body(line("ERROR", status(500, "InternalError", "etcd event received with PrevKv=nil"))),
    ],
)
def test_a_gap_in_the_history_is_closed_by_a_list(run, gap):
    async def story(server):
        server.plays(
            listing(10, pod("same", 1), pod("old", 2, phase="Running"), pod("new", 3), pod("other", 4, uid="one")),
            body(line("MODIFIED", pod("old", 11, phase="Failed"))),
            gap,
            listing(90, pod("same", 1), pod("new", 88), pod("other", 89, uid="two"), pod("fresh", 90)),
            body(line("ADDED", pod("last", 91)), end="never"),
        )
        return await Snapshot(
            server, keep=lambda item: {"metadata": item["metadata"], "phase": item.get("phase")}
        ).until(lambda seen: seen.told[-1] == "added last")

    look = run(story)
    assert look.told[6:] == [
        "deleted old",
        "deleted other",
        "relisted new",
        "added other",
        "added fresh",
        "bookmark",
        "added last",
    ]
    vanished = [event for event in look.events if event.vanished]
    assert [one.object["metadata"]["name"] for one in vanished] == ["old", "other"]
    # Its last state that anybody saw, as the caller wanted it kept.
    assert vanished[0].object["phase"] == "Failed"
    assert vanished[0].object["metadata"]["resourceVersion"] == "11"
    assert [asked["resourceVersion"] for asked in look.watches] == ["10", "11", "90"]


def test_an_object_that_comes_back_under_its_name_is_another_one(run):
    async def story(server):
        again = body(line("ADDED", pod("a", 11, uid="two")), line("DELETED", pod("a", 12, uid="one")), bookmark(13))
        server.plays(listing(10, pod("a", 3, uid="one")), again)
        return await Snapshot(server).until(lambda seen: len(seen.events) == 5)

    look = run(story)
    assert look.told == ["listed a", "bookmark", "deleted a", "added a", "bookmark"]
    assert [event.object["metadata"]["uid"] for event in look.events[2:4]] == ["one", "two"]
    assert look.events[2].vanished


def test_what_is_known_is_not_told_twice(run):
    async def story(server):
        repeats = [line("ADDED", pod("a", 3)), line("MODIFIED", pod("a", 3)), line("DELETED", pod("never-seen", 4))]
        server.plays(listing(10, pod("a", 3)), body(*repeats, bookmark(11)))
        return await Snapshot(server).until(lambda seen: len(seen.events) == 3)

    assert run(story).told == ["listed a", "bookmark", "bookmark"]


def test_failing_servers_are_ridden_out_and_told_of(run):
    async def story(server):
        server.plays(refuse(503), cut, listing(10), refuse(429, Retry_After="0.05"), refuse(500), cut)
        server.plays(body(line("ERROR", status(429, "TooManyRequests")), end="never"), body(bookmark(11)))
        server.plays(
            body(line("ERROR", "odd")), body(b"<html>\n"), body(b'{"type": "ADDED", "object": {"metadata": {}}}\n')
        )
        server.plays(body(line("NEW", {}), b"\n", line("ADDED", pod("a", 12)), end="never"))
        return await Snapshot(server).until(lambda seen: seen.told[-1] == "added a")

    look = run(story)
    assert look.told == ["bookmark", "bookmark", "added a"]
    kinds = [type(one).__name__ for one in look.troubles]
    assert kinds == [
        *["ServerError", "Unreachable", "TooManyRequests", "ServerError", "Unreachable", "NoneType"],
        *["TooManyRequests", "NoneType", *["ServerError", "NoneType"] * 3],
    ]
    # The version is kept through all of it, and no second list is needed.
    assert {asked["resourceVersion"] for asked in look.watches} == {"10", "11"}


def test_a_server_that_starts_and_does_not_know_its_roles_yet_is_ridden_out(run):
    async def story(server):
        denied = [refuse(403, "Forbidden"), *[refuse(401, "Unauthorized")] * 2, refuse(403, "Forbidden")]
        server.plays(listing(1), body(bookmark(2)), *denied, body(line("ADDED", pod("a", 3)), end="never"))
        return await Snapshot(server).until(lambda seen: seen.told[-1] == "added a")

    look = run(story)
    assert look.told == ["bookmark", "bookmark", "added a"]
    assert [type(one).__name__ for one in look.troubles] == ["Forbidden", "CredentialsError", "Forbidden", "NoneType"]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([refuse(403, "Forbidden")], Forbidden),
        ([refuse(404, "NotFound")], ObjectNotFound),
        ([refuse(401, "Unauthorized")] * 2, CredentialsError),
        ([listing(1), refuse(403, "Forbidden")], Forbidden),
        ([listing(1), refuse(404, "NotFound")], ObjectNotFound),
        ([listing(1), *[refuse(401, "Unauthorized")] * 2], CredentialsError),
        # What was granted once is doubted for a moment, and then believed.
        ([listing(1), body(bookmark(2)), *[refuse(403, "Forbidden")] * 2], Forbidden),
        ([listing(1), body(bookmark(2)), *[refuse(401, "Unauthorized")] * 4], CredentialsError),
        ([listing(1), body(line("ERROR", status(403, "Forbidden"))), refuse(403, "Forbidden")], Forbidden),
    ],
)
def test_what_waiting_does_not_heal_is_raised(run, script, error):
    async def story(server):
        server.plays(*script)
        # The first denial begins the doubt; the pause after it is longer than the doubt.
        with pytest.raises(error):
            await Snapshot(server, pace=Pace(first=0.2, denied=0.001)).until(lambda _: False)
        return len(server.seen)

    assert run(story) == len(script)


def test_a_list_that_expires_is_asked_for_anew(run):
    async def story(server):
        # The client itself begins a paged list anew; when that does not help either, it is the watch's turn.
        server.plays(*[refuse(410, "Expired")] * 3, listing(10, pod("a", 3)))
        return await Snapshot(server).until(lambda seen: len(seen.events) == 2)

    look = run(story)
    assert look.told == ["listed a", "bookmark"]
    assert len(look.server.seen) in {4, 5}


def test_a_list_with_an_object_that_is_none_is_asked_for_anew(run):
    async def story(server):
        server.plays(listing(10, {"metadata": {}}), listing(10, pod("a", 3)))
        return await Snapshot(server).until(lambda seen: len(seen.events) == 2)

    look = run(story)
    assert look.told == ["listed a", "bookmark"]
    assert "is not a JSON object" in str(look.troubles[0])


def test_a_certificate_that_is_refused_is_an_error_at_first_and_ridden_out_later(tmp_path):
    async def story() -> None:
        async with serving(tmp_path) as server:
            server.default = body(end="never")
            other = Authority(tmp_path / "other", "other")
            look = Snapshot(server)
            retry = Retry(attempts=1)
            async with Kube(server.access(ca_data=other.cert.read_bytes()), retry=retry) as kube:
                with pytest.raises(Unreachable, match="certificate"):
                    await anext(watch(kube, PODS, pace=FAST))
            gate = asyncio.Event()
            # Cut, so that the next one needs a new connection.
            server.plays(listing(10), body(bookmark(11), end="cut", gate=gate))
            async with Kube(server.access(), retry=retry) as kube, asyncio.timeout(scaled(20)):
                events = watch(kube, PODS, pace=FAST, trouble=look.troubles.append)
                async with contextlib.aclosing(events):
                    await anext(events)
                    await anext(events)
                    good, bad = pair(server.authority), pair(other)
                    server.tls.load_cert_chain(bad.cert, bad.key)
                    gate.set()
                    refused = asyncio.create_task(anext(events))
                    await true(lambda: any(one is not None and one.tls for one in look.troubles))
                    server.tls.load_cert_chain(good.cert, good.key)
                    server.plays(body(bookmark(12), end="never"))
                    await refused

    asyncio.run(story())


def test_an_event_above_the_bound_is_refused(run, monkeypatch):
    monkeypatch.setattr(module, "MAX_LINE", 1000)

    async def story(server):
        server.plays(listing(1), body(b"x" * 600, b"x" * 600, end="never"))
        with pytest.raises(KubeError, match="more than 1000 bytes"):
            await Snapshot(server).until(lambda _: False)

    run(story)


def test_a_silent_connection_is_replaced(run):
    async def story(server):
        server.plays(listing(10), body(bookmark(11), end="never"), silence, body(bookmark(12), end="never"))
        return await Snapshot(server, pace=Pace(idle=0.2, head=0.2, first=0.01)).until(
            lambda seen: len(seen.events) == 3
        )

    look = run(story)
    assert [asked["resourceVersion"] for asked in look.watches] == ["10", "11", "11"]
    # Silence alone is no trouble: where nothing happens servers are silent. A server that does not answer is.
    assert [type(one) for one in look.troubles] == [Unreachable, type(None)]


@pytest.mark.parametrize("script", [[silence], [listing(1)], [listing(1), silence], [refuse(503, Retry_After="100")]])
def test_it_stops_at_once_whatever_it_waits_for(run, script):
    async def story(server):
        server.plays(*script)
        look = Snapshot(server, pace=Pace())
        task = asyncio.create_task(look.until(lambda _: False))
        # The scripted answers, and after a list the watch that the server holds open.
        await true(lambda: len(server.seen) >= len(script) + (len(script) == 1 and bool(look.events)))
        look.stop.set()
        async with asyncio.timeout(scaled(5)):
            await task

    run(story)


def test_what_was_read_before_the_stop_is_not_told_after_it(run):
    async def story(server):
        server.plays(listing(1), body(b"".join(bookmark(version) for version in range(2, 100)), end="never"))
        return await Snapshot(server).until(lambda seen: len(seen.events) == 3)

    assert len(run(story).events) == 3


def test_a_watch_that_is_left_closes_its_connection(run):
    async def story(server):
        held: list[asyncio.Transport] = []

        async def waits(request: web.Request) -> web.StreamResponse:
            held.append(request.transport)
            return await body(bookmark(2), end="never")(request)

        server.plays(listing(1), waits)
        async with Kube(server.access()) as kube, asyncio.timeout(scaled(10)):
            async with contextlib.aclosing(watch(kube, PODS, pace=FAST)) as events:
                async for _ in events:
                    if len(server.seen) == 2:
                        break
            tasks = [task for task in asyncio.all_tasks() if "Waits" in repr(task)]
            assert tasks == []
            await true(held[0].is_closing)

    run(story)


def test_a_slow_consumer_makes_the_server_wait(run):
    async def story(server):
        sent = 0

        async def floods(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(line("MODIFIED", pod("a", 100 + sent, text="x" * 10_000)))
                sent += 1

        server.plays(listing(1), floods)
        async with Kube(server.access()) as kube, asyncio.timeout(scaled(30)):
            events = watch(kube, PODS, pace=FAST)
            async with contextlib.aclosing(events):
                await anext(events)
                await anext(events)
                before = -1
                while sent > before:  # until the pipe is full
                    before = sent
                    await asyncio.sleep(0.3)
        return sent

    # What the kernel's buffers of both sides hold, and two of the library's.
    assert run(story) * 10_000 < 32 << 20


states = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.sampled_from(["u1", "u2"]), st.integers(1, 4)))


@given(before=states, after=states)
def test_differences_lead_from_one_list_to_the_next(before, after):
    def items(state: dict[str, tuple[str, int]]) -> list[Head]:
        return [head_of(pod(name, version, uid)) for name, (uid, version) in state.items()]

    book = Book(keep=lambda item: item["metadata"]["uid"])
    assert [change for change, _, _ in book.compare(items(before))] == ["added"] * len(before)
    held = {name: uid for name, (uid, _) in before.items()}
    changes = list(book.compare(items(after)))
    for change, item, vanished in changes:
        assert vanished is (change == "deleted")
        if change == "deleted":
            # What was kept of it; its name is looked up by that here.
            name = next(key for key, uid in held.items() if uid == item and after.get(key, ("",))[0] != uid)
            del held[name]
        else:
            meta = item["metadata"]
            assert (meta["name"] in held) is (change == "modified")
            held[meta["name"]] = meta["uid"]
    assert held == {name: uid for name, (uid, _) in after.items()}
    assert len(book) == len(after)
    untouched = sum(before.get(name) == value for name, value in after.items())
    assert sum(change != "deleted" for change, _, _ in changes) == len(after) - untouched
    assert list(book.compare(items(after))) == []


def test_of_an_object_only_what_the_caller_keeps_is_remembered():
    book = Book(keep=lambda item: item["metadata"]["name"])
    tracemalloc.start()
    try:
        for number in range(5000):
            one = pod(f"p{number}", number + 1, f"uid-{number}", spec="x" * 2000)
            assert [change for change, _ in book.seen(head_of(one))] == ["added"]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(book) == 5000
    # Names, UIDs and versions; the objects are 10 MB and more.
    assert held < 5000 * 800


def test_of_a_list_one_object_at_a_time_is_more_than_bytes(run):
    """As Python's objects a thousand pods are a hundred MiB, and an allocator keeps what it once had."""
    count = 1000
    pods = [
        pod(f"p{n}", n + 1, spec={"env": [{"name": f"E{m}", "value": str(m)} for m in range(100)]})
        for n in range(count)
    ]
    size = len(json.dumps(pods))

    async def story(server):
        server.plays(listing(5000, *pods))
        look = Snapshot(server, keep=lambda item: item["metadata"]["name"])
        names = []
        retry = Retry(attempts=1)
        async with Kube(server.access(), retry=retry, rate=1000) as kube, asyncio.timeout(scaled(40)):
            tracemalloc.start()
            try:
                events = watch(kube, PODS, stop=look.stop, pace=FAST, keep=lambda item: item["metadata"]["name"])
                async with contextlib.aclosing(events):
                    async for event in events:
                        if event.type == "bookmark":
                            break
                        names.append(event.object["metadata"]["name"])
                return names, tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    names, peak = run(story)
    assert names == [one["metadata"]["name"] for one in pods]
    # The body as it came, in pieces and whole, and what is remembered of each; as objects they are five times as much.
    assert peak < 3 * size, (peak, size)


@pytest.mark.parametrize("item", ["7", '{"metadata": {}}', '{"metadata": {"name": 7}}'])
def test_an_object_of_a_list_that_is_none_is_said_and_the_list_asked_for_again(run, item):
    async def story(server):
        good = answer(200, {"metadata": {"resourceVersion": "5"}, "items": [pod("a", 3)]})
        bad = body(b'{"metadata": {"resourceVersion": "4"}, "items": [' + item.encode() + b"]}", end="close")
        server.plays(bad, good)
        return await Snapshot(server).until(lambda seen: any(one.type == "bookmark" for one in seen.events))

    look = run(story)
    assert look.told[0] == "listed a"


@given(tries=st.integers(0, 10_000), retry_after=st.none() | st.floats(0, 1e6), seed=st.integers())
def test_pauses_grow_to_a_cap_and_never_undercut_the_server(tries, retry_after, seed):
    pace, rng = Pace(), random.Random(seed)
    pause = pace.pause(tries, retry_after=retry_after, rng=rng)
    asked = min(retry_after or 0.0, pace.patience)
    assert asked <= pause <= asked + pace.cap
    if tries:
        assert pause - asked >= min(pace.cap, pace.first * 2.0 ** min(tries, 16)) / 2 - 1e-6
    assert pace.shortest <= pace.life(rng) <= pace.longest
