"""One query over the wire, and what is made of every kind of answer: an error is never "no lines", and never shows a credential."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager

import pytest

from kube.apiserver import answer, cut, serving, silence
from rankfall.loki import LimitRefused, LokiError
from rankfall.loki.client import Loki
from rankfall.loki.reader import Cursor, Reader, State
from rankfall.loki.settings import loki_settings

KEYS = ("namespace", "pod")
TOO_MANY = b"max entries limit per query exceeded, limit > max_entries_limit_per_query (1000 > 50)"


def streams(*rows: tuple[dict[str, str], list[list]], kind: str = "streams") -> dict:
    result = [{"stream": labels, "values": values} for labels, values in rows]
    return {"status": "success", "data": {"resultType": kind, "result": result, "stats": {"any": 1}}}


EMPTY = streams()


@asynccontextmanager
async def world(tmp_path, *, environ=None, **limits):
    async with serving(tmp_path, tls=False) as server:
        server.default = answer(200, EMPTY)
        settings = loki_settings(server.url, environ or {})
        async with Loki(settings, keys=KEYS, **limits) as loki:
            yield server, loki


def ask(loki, *, limit=10):
    return loki.query_range('{pod="p"}', start=100, end=200, limit=limit)


def asked(tmp_path, handler, *, environ=None, limit=10, **limits):
    async def story():
        async with world(tmp_path, environ=environ, **limits) as (server, loki):
            server.default = handler
            return await ask(loki, limit=limit), server

    return asyncio.run(story())


def test_what_is_asked_and_what_comes_back(tmp_path):
    labels = {"namespace": "a", "pod": "p", "service_name": "x"}
    rows = streams(
        (labels, [["150", "second"], ["120", "first", {"k8s_node_name": "n"}]]), ({"pod": "q"}, [["130", ""]])
    )
    found, server = asked(tmp_path, answer(200, rows), environ={"RANKFALL_LOKI_TENANT": "team-a"})
    assert [(one.at, one.key, one.text) for one in found] == [
        (150, ("a", "p"), "second"),
        (120, ("a", "p"), "first"),
        (130, ("", "q"), ""),
    ]
    [seen] = server.seen
    assert (seen.method, seen.path) == ("GET", "/loki/api/v1/query_range")
    assert dict(seen.query) == {
        "query": '{pod="p"}',
        "start": "100",
        "end": "200",
        "limit": "10",
        "direction": "forward",
    }
    assert seen.headers["X-Scope-OrgID"] == ["team-a"]


def test_a_token_that_rotates_is_read_again(tmp_path):
    token = tmp_path / "token"
    token.write_text("first-token\n")

    async def story():
        async with world(tmp_path, environ={"RANKFALL_LOKI_TOKEN_FILE": str(token)}) as (server, loki):
            await ask(loki)
            token.write_text("second-token\n")
            server.plays(answer(401, b"no"), answer(200, EMPTY))
            await ask(loki)
            assert server.tokens()[0] == "Bearer first-token"
            assert server.tokens()[-1] == "Bearer second-token"
            server.default = answer(401, b"the token second-token has expired")
            with pytest.raises(LokiError) as caught:
                await ask(loki)
            assert "second-token" not in str(caught.value)
            assert "RANKFALL_LOKI_TOKEN_FILE" in str(caught.value)

    asyncio.run(story())


def test_a_login_of_a_file(tmp_path):
    login = tmp_path / "login"
    login.write_text("me:hunter22")
    _, server = asked(tmp_path, answer(200, EMPTY), environ={"RANKFALL_LOKI_BASIC_FILE": str(login)})
    assert server.tokens() == [f"Basic {base64.b64encode(b'me:hunter22').decode()}"]


@pytest.mark.parametrize("content", [None, "two\nlines"])
def test_a_login_that_cannot_be_used_is_said(tmp_path, content):
    login = tmp_path / "login"
    if content is not None:
        login.write_text(content)
    with pytest.raises(LokiError, match="login"):
        asked(tmp_path, answer(200, EMPTY), environ={"RANKFALL_LOKI_TOKEN_FILE": str(login)})


@pytest.mark.parametrize(
    ("handler", "passing", "said"),
    [
        (answer(500, b"oops"), True, "oops"),
        (answer(429, b"slow down", Retry_After="7"), True, "slow down"),
        (answer(400, b"parse error"), False, "parse error"),
        (answer(404, b"not found"), False, "it must lead to Loki"),
        (answer(302, b"", Location="http://elsewhere/"), False, "302"),
        (answer(200, b"<html>login</html>"), True, "cannot be used"),
        (answer(200, {"status": "error", "data": {}}), True, "not a list of streams"),
        (answer(200, streams(kind="matrix")), True, "not a list of streams"),
        (answer(200, streams(({}, [["150"]]))), True, "no stamp or no text"),
        (answer(200, streams(({}, [["150", {}]]))), True, "no stamp or no text"),
        (answer(200, streams(({}, [["250", "outside"]]))), True, "outside"),
        (answer(200, streams(({}, [["x", "no stamp"]]))), True, "outside"),
        (cut, True, "cut"),
        (silence, True, "no answer in time"),
    ],
)
def test_an_answer_that_is_none_is_an_error(tmp_path, handler, passing, said):
    with pytest.raises(LokiError, match=said) as caught:
        asked(tmp_path, handler, total_s=1.0)
    assert caught.value.passing is passing
    assert caught.value.retry_after == (7.0 if "slow" in said else None)


def test_a_server_that_is_not_there(tmp_path):
    async def story():
        async with Loki(loki_settings("http://127.0.0.1:1", {}), keys=KEYS) as loki:
            with pytest.raises(LokiError, match="no connection") as caught:
                await ask(loki)
            assert caught.value.passing

    asyncio.run(story())


def test_certificates_that_cannot_be_read_are_said_at_once(tmp_path):
    settings = loki_settings("https://loki", {"RANKFALL_LOKI_CA_FILE": str(tmp_path / "ca")})
    with pytest.raises(LokiError, match="cannot read"):
        Loki(settings, keys=KEYS)
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(LokiError, match="no readable certificate"):
        Loki(settings, keys=KEYS)


def test_over_tls_the_server_is_checked(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            server.default = answer(200, EMPTY)
            good = tmp_path / "good.pem"
            good.write_bytes(server.authority.cert.read_bytes())
            async with Loki(loki_settings(server.url, {"RANKFALL_LOKI_CA_FILE": str(good)}), keys=KEYS) as loki:
                assert await ask(loki) == []
            async with Loki(loki_settings(server.url, {}), keys=KEYS) as loki:
                with pytest.raises(LokiError, match="certificate is not trusted") as caught:
                    await ask(loki)
                assert not caught.value.passing

    asyncio.run(story())


def test_what_is_too_much_at_once_is_said_with_what_would_do(tmp_path):
    with pytest.raises(LimitRefused) as caught:
        asked(tmp_path, answer(400, TOO_MANY))
    assert caught.value.most == 50
    large = answer(200, streams(({"pod": "p"}, [["150", "x" * 5000]])))
    with pytest.raises(LimitRefused) as caught:
        asked(tmp_path, large, max_body=1000)
    assert caught.value.most == 5
    with pytest.raises(LokiError, match="one line is larger"):
        asked(tmp_path, large, limit=1, max_body=1000)


def read(loki, end=200, *, patience_s=60.0, limit=1000):
    troubles, stuck, got = [], [], []

    async def story():
        cursor = Cursor(State.starting_at(100), limit=limit)
        reader = Reader(
            loki, '{pod="p"}', cursor, trouble=troubles.append, on_stuck=stuck.append, patience_s=patience_s
        )
        async for page in reader.read(end):
            got.extend(one.text for one in page)

    return story(), got, troubles, stuck


def test_a_reader_waits_for_a_busy_server_lowers_its_pages_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.loki.reader.FIRST_S", 0.001)
    rows = [["110", "a"], ["120", "b"]]

    async def story():
        async with world(tmp_path) as (server, loki):
            server.plays(
                answer(503, b"no"), answer(400, TOO_MANY), answer(429, b"no", Retry_After="0.01"),
                answer(200, streams(({"pod": "p"}, rows))),
            )  # fmt: skip
            task, got, troubles, stuck = read(loki)
            await task
            assert (got, stuck, len(troubles)) == (["a", "b"], [], 2)
            assert [dict(seen.query)["limit"] for seen in server.seen] == ["1000", "1000", "50", "50"]

    asyncio.run(story())


def test_a_reader_gives_up_after_its_patience_and_at_once_where_nothing_will_change(tmp_path):
    async def story():
        async with world(tmp_path) as (server, loki):
            server.default = answer(503, b"no", Retry_After="100")
            with pytest.raises(LokiError, match="503"):
                await read(loki, patience_s=1.0)[0]
            server.default = answer(400, b"parse error")
            with pytest.raises(LokiError, match="parse error"):
                await read(loki)[0]
            assert len(server.seen) == 2
            server.default = answer(400, b"max entries limit (1 > 0)")
            with pytest.raises(LimitRefused):
                await read(loki)[0]

    asyncio.run(story())


def test_a_reader_says_what_it_cannot_have_and_goes_on(tmp_path):
    rows = [["110", "0"], ["110", "1"], ["120", "after"]]

    async def page(request):
        start, limit = int(request.query["start"]), int(request.query["limit"])
        if limit > 1:
            return await answer(400, b"max entries limit exceeded (5000 > 1)")(request)
        found = [row for row in rows if int(row[0]) >= start][:limit]
        return await answer(200, streams(({"pod": "p"}, found)))(request)

    async def story():
        async with world(tmp_path) as (server, loki):
            server.default = page
            task, got, _, stuck = read(loki, limit=1)
            await task
            assert (got, stuck) == (["0", "after"], [110, 120])

    asyncio.run(story())
