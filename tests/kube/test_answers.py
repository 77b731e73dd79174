"""What is made of answers that are no Kubernetes, and of a Status with odd fields: bounded, escaped, with a next step."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kube.apiserver import answer, serving, status
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Forbidden, ObjectNotFound, ServerError, TooManyRequests, error_class
from rankfall.kube.http import responses
from rankfall.kube.http.responses import Refusal, refused
from rankfall.kube.request import Retry
from rankfall.kube.resources import PODS, Resource

PAGE = b"<!doctype html><html><head><TITLE lang=en>504 Gateway\x1b[31m Time-out</title></head><body>" + b"x" * 100_000


def test_an_html_page_of_a_proxy(tmp_path):
    async def story():
        once = Retry(attempts=1)
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), retry=once) as kube:
            server.plays(answer(504, PAGE), answer(200, PAGE))
            with pytest.raises(ServerError, match="a page named") as caught:
                await kube.get(PODS, "p")
            assert "504 Gateway\\\\x1b[31m Time-out" in str(caught.value)
            with pytest.raises(ApiError, match="the answer is not a JSON object but: <!doctype html>") as second:
                await kube.get(PODS, "p")
            for error in (caught.value, second.value):
                assert len(str(error)) < 800
                assert "\x1b" not in str(error)
                assert error.hint

    asyncio.run(story())


def test_an_error_whose_body_is_cut_is_still_that_error(tmp_path):
    async def story():
        async def torn(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(status=403, headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"kind": "Status"')
            request.transport.abort()
            return response

        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(torn)
            with pytest.raises(Forbidden, match="an empty answer"):
                await kube.get(PODS, "p")

    asyncio.run(story())


@pytest.mark.parametrize("body", [b"", b"[1]", b"null", b'"text"', b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_success_that_is_no_object(tmp_path, body):
    async def story():
        async with serving(tmp_path, tls=False) as server, Kube(server.access()) as kube:
            server.plays(answer(200, body))
            with pytest.raises(ApiError, match="not a JSON object"):
                await kube.get(PODS, "p")

    asyncio.run(story())


def test_a_status_speaks_for_itself():
    body = json.dumps(status(404, "NotFound", 'pods "p" not found', name="p", kind="pods")).encode()
    error = refused(Refusal(404, {}, body), what="get pod here/p")
    assert isinstance(error, ObjectNotFound)
    assert error.message == 'cannot get pod here/p: pods "p" not found (404 NotFound)'
    assert error.details == {"name": "p", "kind": "pods"}
    assert (error.reason, error.status, error.retry_after) == ("NotFound", 404, None)


ODD = [
    {"kind": "Status"},
    {"kind": "Status", "message": 7, "reason": ["x"], "details": "none", "code": "x"},
    {"kind": "Status", "message": None, "reason": None, "details": None},
    {"kind": "Status", "details": {"retryAfterSeconds": "soon"}},
    {"kind": "Status", "details": {"retryAfterSeconds": -1}},
    {"kind": "Status", "details": {"retryAfterSeconds": True}},
    {"kind": "Status", "message": "\x1b]0;title\x07" + "x" * 10_000},
]


@pytest.mark.parametrize("body", ODD)
def test_a_status_with_odd_fields(body):
    error = refused(Refusal(429, {}, json.dumps(body).encode()), what="get pod here/p")
    assert isinstance(error, TooManyRequests)
    assert isinstance(error.details, dict)
    assert error.retry_after in {None, 1.0}
    assert len(str(error)) < 2000
    assert "\x1b" not in str(error)


@given(
    code=st.integers(300, 599),
    body=st.binary(max_size=300) | st.dictionaries(st.text(), st.text()).map(lambda found: json.dumps(found).encode()),
    header=st.text(),
    date=st.text(),
)
def test_any_answer_becomes_one_of_our_errors(code, body, header, date):
    error = refused(Refusal(code, {"Retry-After": header, "Date": date}, body), what="get pod here/p")
    assert type(error) is error_class(code)
    assert error.status == code
    assert all(char.isprintable() for char in error.message)
    assert error.retry_after is None or error.retry_after >= 0


def test_errors_of_every_kind_are_worded():
    for error in (RuntimeError("x"), OSError("x"), TimeoutError(), ConnectionResetError(104, "reset")):
        lost = responses.lost(error, what="get pod here/p", server="https://a", repeatable=False)
        assert lost.maybe_done
        assert lost.message.startswith("cannot get pod here/p: no answer from https://a: ")


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_name_climbs_out_of_its_place(namespace, name):
    resource = Resource("g.example", "v1", "things", "Thing")
    if {namespace, name} & {".", ".."}:
        return
    path = resource.path(namespace, name, "status")
    parts = path.split("/")
    assert parts[:4] == ["", "apis", "g.example", "v1"]
    assert len(parts) == 9
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set("?#\\ ")


def test_how_resources_are_shown():
    assert PODS.label("p", "here") == "pod here/p"
    assert PODS.label(None, "here") == "pods in here"
    assert PODS.label() == "pods"
    assert PODS.label("a\x1b[2J", "here") == "pod 'here/a\\x1b[2J'"
    assert (PODS.api_version, Resource("batch", "v1", "jobs", "Job").api_version) == ("v1", "batch/v1")
    assert PODS.path("n", "p", "proxy/metrics") == "/api/v1/namespaces/n/pods/p/proxy/metrics"
