"""What is sent again, after how long, and what never is."""

from __future__ import annotations

import asyncio
import random
import socket
from datetime import UTC, datetime

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kube.apiserver import answer, cut, refuse, serving, silence
from rankfall.kube import request as retry
from rankfall.kube.auth.access import Access, Endpoint
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, KubeError, ServerError, TooManyRequests, Unreachable
from rankfall.kube.http.sessions import Limits
from rankfall.kube.request import Retry, Risk, repeats
from rankfall.kube.resources import PODS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = Retry(attempts=4, first_s=0.001, cap_s=0.01, total_s=5)
BODY = {"metadata": {"name": "p"}}
CALLS = {
    "get": lambda kube: kube.get(PODS, "p"),
    "list": lambda kube: kube.list(PODS),
    "apply": lambda kube: kube.apply(PODS, "p", BODY, manager="m"),
    "delete with a uid": lambda kube: kube.delete(PODS, "p", uid="u"),
    "dry run": lambda kube: kube.create(PODS, BODY, dry_run=True),
    "create": lambda kube: kube.create(PODS, BODY),
    "delete": lambda kube: kube.delete(PODS, "p"),
    "patch": lambda kube: kube.patch(PODS, "p", {}, kind="merge"),
    "delete collection": lambda kube: kube.delete_collection(PODS, labels="a=b"),
}
ONCE = ("create", "delete", "patch", "delete collection")
AGAIN = tuple(name for name in CALLS if name not in ONCE)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("Thu, 01 Jan 2026 00:00:09 GMT", 9.0),
        ("Thu, 01 Jan 2026 00:00:09 -0000", 9.0),
        ("Thu, 01 Jan 2025 00:00:09 GMT", 0.0),
        ("-3", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("9" * 400, 365 * 86400.0),
        ("Thu, 99 Jan 2026 00:00:09 GMT", None),
    ],
)
def test_retry_after(header, seconds):
    assert retry.seconds(header, now=NOW) == seconds


@given(st.text())
def test_no_header_breaks_the_reading(header):
    found = retry.seconds(header)
    assert found is None or 0 <= found <= 365 * 86400


@given(attempt=st.integers(1, 10_000), asked=st.none() | st.floats(0, 1e6), seed=st.integers())
def test_a_pause_is_bounded_and_never_undercuts_what_the_server_asked_for(attempt, asked, seed):
    policy = Retry()
    pause = policy.pause(attempt, retry_after=asked, rng=random.Random(seed))
    if asked is None:
        assert 0 < pause <= policy.cap_s
    else:
        assert asked <= pause <= asked + min(policy.cap_s, 0.1 * asked + policy.first_s)


def test_pauses_grow_and_differ():
    rng = random.Random(1)
    pauses = [[Retry().pause(attempt, retry_after=None, rng=rng) for _ in range(50)] for attempt in range(1, 7)]
    assert all(len(set(each)) > 40 for each in pauses)
    assert [max(each) for each in pauses] == sorted(max(each) for each in pauses)


@pytest.mark.parametrize(
    ("status", "retry_after", "expected"),
    [
        (429, None, {Risk.READ, Risk.SAME, Risk.TWICE}),
        (500, None, {Risk.READ}),
        (500, 1.0, {Risk.READ, Risk.SAME}),
        (502, None, {Risk.READ, Risk.SAME}),
        (503, 1.0, {Risk.READ, Risk.SAME}),
        (504, None, {Risk.READ, Risk.SAME}),
        (501, 1.0, set()),
        (403, 1.0, set()),
        (404, None, set()),
        (409, 1.0, set()),
        (422, None, set()),
    ],
)
def test_the_table_of_repeats(status, retry_after, expected):
    assert {risk for risk in Risk if repeats(risk, status=status, retry_after=retry_after)} == expected


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("fault", [cut, refuse(503), refuse(429), refuse(500, retry_after="0")])
def test_what_may_be_repeated_is(tmp_path, name, fault):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            server.plays(fault, times=2)
            await CALLS[name](kube)
            assert len(server.seen) == 3
            assert len({(seen.method, seen.path, seen.body) for seen in server.seen}) == 1
            assert (kube.counters.requests, kube.counters.retries) == (3, 2)

    asyncio.run(story())


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("fault", [cut, refuse(503, retry_after="0"), refuse(500, retry_after="0"), refuse(504)])
def test_what_may_have_been_done_is_not_sent_again_and_says_so(tmp_path, name, fault):
    """On a fresh connection and on a kept one, which the HTTP library would repeat by itself."""

    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            for number in range(2):
                server.plays(fault)
                with pytest.raises(Unreachable if fault is cut else ServerError) as caught:
                    await CALLS[name](kube)
                assert caught.value.maybe_done
                await kube.get(PODS, "p")
                assert len(server.seen) == 2 * (number + 1)

    asyncio.run(story())


@pytest.mark.parametrize("name", ONCE)
def test_a_busy_server_did_nothing_so_everything_is_repeated(tmp_path, name):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            server.plays(refuse(429))
            await CALLS[name](kube)
            assert len(server.seen) == 2

    asyncio.run(story())


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("name", CALLS)
def test_nobody_listens(name):
    async def story():
        endpoint = Endpoint(server=f"http://127.0.0.1:{closed_port()}")
        access = Access(context="c", cluster="k", user="u", namespace="n", endpoint=endpoint)
        async with Kube(access, retry=QUICK) as kube:
            with pytest.raises(Unreachable, match=r"no answer from http://127.0.0.1:.*: Connection refused") as caught:
                await CALLS[name](kube)
            # Nothing was sent, so even a create may be tried again, and is known not to be done.
            assert not caught.value.maybe_done
            assert (kube.counters.requests, kube.counters.failures) == (4, 4)

    asyncio.run(story())


def test_a_name_that_nobody_knows():
    async def story():
        endpoint = Endpoint(server="https://no-such-host.invalid")
        access = Access(context="c", cluster="k", user="u", namespace="n", endpoint=endpoint)
        async with Kube(access, retry=Retry(attempts=1)) as kube:
            with pytest.raises(
                Unreachable, match=r"no answer from https://no-such-host.invalid: its name does not resolve"
            ):
                await kube.get(PODS, "p")

    asyncio.run(story())


def test_retry_after_is_honoured_as_seconds_as_a_date_and_in_the_status(tmp_path):
    async def story():
        loop = asyncio.get_running_loop()
        # Dates are compared with the server's clock, which is an hour wrong here.
        date = {"Date": "Thu, 01 Jan 2026 00:00:00 GMT", "Retry-After": "Thu, 01 Jan 2026 00:00:01 GMT"}
        faults = [
            refuse(429, retry_after="1"),
            answer(503, {}, **date),
            answer(500, {"kind": "Status", "details": {"retryAfterSeconds": 1}}),
        ]
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            for fault in faults:
                server.plays(fault)
                began = loop.time()
                await kube.delete(PODS, "p", uid="u")
                # Taken by this machine's clock it would be the hour.
                assert 1 <= loop.time() - began < 1800

    asyncio.run(story())


def test_a_server_that_wants_more_patience_than_we_have_is_an_error_at_once(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            server.default = refuse(429, retry_after="3600")
            with pytest.raises(TooManyRequests) as caught:
                await kube.get(PODS, "p")
            assert caught.value.retry_after == 3600
            assert len(server.seen) == 1

    asyncio.run(story())


def test_patience_ends(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            server.default = refuse(503)
            with pytest.raises(ServerError) as caught:
                await kube.get(PODS, "p")
            assert len(server.seen) == QUICK.attempts
            assert not caught.value.maybe_done

    asyncio.run(story())


@pytest.mark.parametrize("name", ["get", "create"])
def test_an_answer_that_never_comes(tmp_path, name):
    async def story():
        limits = Limits(total=0.3, head=0.3)
        async with serving(tmp_path, tls=False) as server:
            server.default = silence
            async with Kube(server.access(), retry=Retry(attempts=1), limits=limits) as kube:
                with pytest.raises(Unreachable, match="no answer in time") as caught:
                    await CALLS[name](kube)
                assert caught.value.maybe_done == (name == "create")
                for open_it in (
                    lambda: kube.stream("/s", read_timeout=None),
                    lambda: kube.stream("/s", read_timeout=0.2, head_timeout=10),
                    lambda: kube.websocket("/w", protocols=["v5"]),
                ):
                    with pytest.raises(Unreachable, match="no answer in time"):
                        async with open_it():
                            pass

    asyncio.run(story())


def test_a_connection_that_is_never_accepted():
    """A listening socket whose queue is full: the kernel answers no SYN."""

    async def story():
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            port = deaf.getsockname()[1]
            full = [socket.socket() for _ in range(4)]
            for each in full:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            endpoint = Endpoint(server=f"http://127.0.0.1:{port}")
            access = Access(context="c", cluster="k", user="u", namespace="n", endpoint=endpoint)
            async with Kube(access, retry=Retry(attempts=1), limits=Limits(connect=0.3)) as kube:
                with pytest.raises(Unreachable, match="no connection in time") as caught:
                    await kube.create(PODS, BODY)
                assert not caught.value.maybe_done
            for each in full:
                each.close()

    asyncio.run(story())


def test_more_streams_than_the_pool_has(tmp_path):
    async def story():
        limits = Limits(streams=1, pool=0.2)
        async with (
            serving(tmp_path, tls=False) as server,
            Kube(server.access(), retry=Retry(attempts=1), limits=limits) as kube,
        ):
            server.plays(half)
            async with kube.stream("/1", read_timeout=None):
                with pytest.raises(Unreachable, match="no connection in time"):
                    async with kube.stream("/2", read_timeout=None):
                        pass
            async with kube.stream("/3", read_timeout=None):
                pass

    async def half(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    asyncio.run(story())


def test_a_caller_with_a_pace_of_its_own(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=QUICK) as kube:
            server.plays(refuse(503), refuse(401))
            with pytest.raises(ApiError):
                async with kube.stream("/w", read_timeout=1, repeat=False):
                    pass
            assert len(server.seen) == 1
            async with kube.stream("/w", read_timeout=1, repeat=False, verb="watch"):
                pass
            assert kube.counters.by_verb == {"stream": 1, "watch": 2}

    asyncio.run(story())


def test_a_client_that_is_not_open():
    async def story():
        endpoint = Endpoint(server="http://127.0.0.1:1")
        access = Access(context="c", cluster="k", user="u", namespace="n", endpoint=endpoint)
        with pytest.raises(RuntimeError, match="async with"):
            await Kube(access).get(PODS, "p")

    asyncio.run(story())


def test_deleting_everything_is_refused(tmp_path):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            for how in ({"labels": " "}, {"labels": "a=b", "namespace": ""}):
                with pytest.raises(KubeError, match="refused to delete all pods"):
                    await kube.delete_collection(PODS, **how)
            assert server.seen == []

    asyncio.run(story())
