"""Logs against a scripted server: what is asked for, bytes as they come, and what the end of the bytes says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.apiserver import Server, answer, body, refuse, serving, status
from rankfall.kube import pod_logs
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, ObjectNotFound, Unreachable
from rankfall.kube.pod_logs import complaint, not_started, open_log
from rankfall.kube.resources import PODS
from support.patience import scaled


@pytest.fixture
def run(tmp_path) -> Callable[[Callable[[Server, Kube], Any]], Any]:
    def play(story: Callable[[Server, Kube], Any]) -> Any:
        async def all_of_it() -> Any:
            async with (
                serving(tmp_path, tls=False) as server,
                Kube(server.access()) as kube,
                asyncio.timeout(scaled(20)),
            ):
                return await story(server, kube)

        return asyncio.run(all_of_it())

    return play


async def read(kube: Kube, **options: Any) -> bytes:
    async with open_log(kube, "p", container="main", **options) as chunks:
        return b"".join([chunk async for chunk in chunks])


def test_what_is_asked_for(run):
    async def story(server, kube):
        server.default = answer(200, b"")
        await read(kube)
        since = datetime(2025, 11, 21, 18, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
        await read(kube, namespace="x/y", follow=True, since=since, previous=True, timestamps=False, limit_bytes=5)
        await read(kube, since_second=1_763_740_800, tail=0)
        return [(seen.path, dict(seen.query)) for seen in server.seen]

    plain, full, tail = run(story)
    assert plain == ("/api/v1/namespaces/here/pods/p/log", {"container": "main", "timestamps": "true"})
    assert full[0] == "/api/v1/namespaces/x%2Fy/pods/p/log"
    assert full[1] == {
        "container": "main",
        "follow": "true",
        "previous": "true",
        "sinceTime": "2025-11-21T16:00:00Z",
        "limitBytes": "5",
    }
    assert tail[1] == {
        "container": "main",
        "timestamps": "true",
        "sinceTime": "2025-11-21T16:00:00Z",
        "tailLines": "0",
    }


zones = st.sampled_from([UTC, timezone(timedelta(hours=-9)), timezone(timedelta(minutes=330))])


@given(moment=st.datetimes(timezones=zones).filter(lambda moment: 1 < moment.year < 9999))
def test_a_beginning_is_rounded_down_never_up(moment):
    text = pod_logs._rfc3339(moment, None)
    back = datetime.fromisoformat(text)
    assert timedelta(0) <= moment - back < timedelta(seconds=1)


@pytest.mark.parametrize(
    "options",
    [
        {"since": datetime(2025, 1, 1)},  # noqa: DTZ001 - that is what is refused
        {"since": datetime(2025, 1, 1, tzinfo=UTC), "since_second": 1},
        {"tail": -1},
        {"limit_bytes": 0},
    ],
)
def test_what_the_api_would_refuse_or_misread_is_refused(run, options):
    async def story(server, kube):
        with pytest.raises(ValueError, match=r"since|tail|limit_bytes"):
            await read(kube, **options)
        return server.seen

    assert run(story) == []


def test_bytes_come_as_they_are(run):
    text = b"2025-11-21T16:00:00Z a\r\x00\xff\n\n\n2025-11-21T16:00:01Z \xe2\x80\xa8no end"

    async def story(server, kube):
        server.plays(body(text[:7], text[7:30], text[30:]))
        return await read(kube, follow=True)

    assert run(story) == text


def test_launch_s31_the_kubelets_complaint_ends_a_body_of_status_200(run):
    async def story(server, kube):
        server.plays(
            body(b"unable to retrieve container logs for containerd://0a"),
            body(b"2025-11-21T16:00:00Z line\n", b"failed to create fsnotify watcher: too many open files"),
            body(b"2025-11-21T16:00:00Z unable to retrieve container logs for containerd://0a\n"),
        )
        return [complaint((await read(kube, follow=True)).rpartition(b"\n")[2]) for _ in range(3)]

    gone, limits, printed = run(story)
    assert (gone.kind, limits.kind, printed) == ("gone", "limits", None)


def test_a_container_that_has_not_begun_is_a_state(run):
    async def story(server, kube):
        server.default = answer(
            400, status(400, "BadRequest", 'container "main" in pod "p" is waiting to start: ContainerCreating')
        )
        with pytest.raises(ApiError) as raised:
            await read(kube)
        server.default = refuse(404, "NotFound")
        with pytest.raises(ObjectNotFound):
            await read(kube)
        return raised.value

    error = run(story)
    assert error.status == 400
    assert not_started(error.message) == "ContainerCreating"
    assert "log of pod here/p, container main" in error.message


def test_silence_is_a_lost_connection_where_a_limit_is_given(run):
    async def story(server, kube):
        server.plays(body(b"one\n", end="never"))
        async with open_log(kube, "p", container="main", follow=True, read_timeout=0.2) as chunks:
            assert await anext(chunks) == b"one\n"
            with pytest.raises(Unreachable, match="no answer in time"):
                await anext(chunks)
        # A call of the client is not kept waiting by it.
        server.plays(answer(200, {"metadata": {"name": "p"}}))
        await kube.get(PODS, "p")

    run(story)


def test_the_opening_is_repeated_only_when_wished(run):
    async def story(server, kube):
        server.plays(refuse(503), refuse(503), answer(200, b"x"))
        with pytest.raises(ApiError):
            await read(kube)
        assert len(server.seen) == 1
        assert await read(kube, repeat=True) == b"x"
        return kube.counters

    counters = run(story)
    assert counters.by_verb["get"] == 3
    assert counters.retries == 1
