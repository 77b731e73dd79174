"""The limit of requests: exact over any span, first come first served."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kube.apiserver import serving
from rankfall.kube.client import Kube
from rankfall.kube.http.transport import Limiter
from rankfall.kube.resources import PODS


@example(rate=0.53125, burst=1, gaps=[3.0])
@given(
    rate=st.floats(0.5, 1000),
    burst=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=100),
)
def test_no_span_holds_more_than_burst_and_rate_allow(rate, burst, gaps):
    now = [0.0]
    limiter = Limiter(rate=rate, burst=burst, clock=lambda: now[0])
    sent = []
    for gap in gaps:
        now[0] += gap
        sent.append(now[0] + limiter.reserve())
    assert sent == sorted(sent)
    for first, last in itertools.combinations(range(len(sent)), 2):
        span = sent[last] - sent[first]
        assert last - first + 1 <= burst + rate * span + 1e-6
    # And it does not wait longer than it must: what is not limited goes at once.
    assert sent[0] == gaps[0]


def test_a_place_is_waited_for():
    async def story():
        loop = asyncio.get_running_loop()
        limiter = Limiter(rate=100, burst=5)
        began = loop.time()
        order = []

        async def one(number):
            await limiter.wait()
            order.append(number)

        await asyncio.gather(*(one(number) for number in range(25)))
        assert loop.time() - began >= 0.19
        assert order == sorted(order)

    asyncio.run(story())


@pytest.mark.parametrize("wrong", [{"rate": 0, "burst": 1}, {"rate": 1, "burst": 0}])
def test_a_limit_that_lets_nothing_through_is_refused(wrong):
    with pytest.raises(ValueError, match="rate above zero"):
        Limiter(**wrong)


def test_all_requests_of_a_client_share_it(tmp_path):
    async def story():
        loop = asyncio.get_running_loop()
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), rate=100, burst=10) as kube:
            began = loop.time()

            async def stream(number):
                async with kube.stream(f"/{number}", read_timeout=5) as response:
                    await response.read()

            await asyncio.gather(
                *(kube.get(PODS, str(number)) for number in range(20)), *(stream(number) for number in range(20))
            )
            assert loop.time() - began >= 0.29
            assert kube.counters.requests == len(server.seen) == 40

    asyncio.run(story())
