"""Bodies that are read as they come: the same bytes straight, over TLS and through a proxy, however they are cut, and what their end says."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from kube.apiserver import answer, body, pair, refuse, serving
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Unreachable
from rankfall.kube.http import body_stream, connection
from rankfall.kube.http.body_stream import BatchTimer, message, place
from rankfall.kube.http.connection import MAX_HEAD, Body, Buffers, Head, Link, split_head
from rankfall.kube.http.sessions import Limits
from rankfall.kube.pod_logs import open_log
from rankfall.kube.request import Retry
from rankfall.kube.secret import Secret
from support.patience import scaled

WAYS = ["plain", "tls", "proxied"]
PIECES = [b"line %d\n" % number for number in range(40)]


@asynccontextmanager
async def world(folder, way, **options):
    """A server and a client; ``proxied``: the server answers in the place of another one."""
    options.setdefault("retry", Retry(attempts=1))
    async with serving(folder, tls=way == "tls") as server, asyncio.timeout(scaled(20)):
        access = server.access()
        if way == "proxied":
            endpoint = type(access.endpoint)(server="http://api.example", proxy=Secret(server.url))
            access = type(access)(context="c", cluster="k", user="u", namespace="n", endpoint=endpoint)
        async with Kube(access, **options) as kube:
            yield server, kube


def story(told):
    asyncio.run(told)


async def read(kube):
    async with open_log(kube, "p", container="main") as chunks:
        return b"".join([chunk async for chunk in chunks])


async def drops(request: web.Request) -> web.StreamResponse:
    """A piece every few milliseconds, then one that is large, then the end."""
    response = web.StreamResponse()
    await response.prepare(request)
    for piece in PIECES:
        await response.write(piece)
        await asyncio.sleep(0.005)
    await response.write(b"x" * body_stream.LARGE)
    await response.write_eof()
    return response


@pytest.mark.parametrize("way", WAYS)
def test_what_comes_in_drops_is_read_as_few_pieces(way, tmp_path):
    async def told():
        async with world(tmp_path, way) as (server, kube):
            server.plays(drops)
            begin = time.monotonic()
            async with open_log(kube, "p", container="main", follow=True, gather_s=0.1) as chunks:
                found = [chunk async for chunk in chunks]
            took = time.monotonic() - begin
        assert b"".join(found) == b"".join(PIECES) + b"x" * body_stream.LARGE
        assert len([one for one in found if len(one) < body_stream.LARGE]) <= took / 0.1 + 3

    story(told())


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_gives_what_had_come_and_then_says_so(way, tmp_path):
    pieces = [bytes([65 + number]) * 3000 for number in range(5)]

    async def told():
        gate, over = asyncio.Event(), asyncio.Event()
        played = body(*pieces, end="cut", each=gate)

        async def noted(request):
            try:
                return await played(request)
            finally:
                over.set()

        async with world(tmp_path, way) as (server, kube):
            server.plays(noted)
            async with open_log(kube, "p", container="main", follow=True) as chunks:
                found = await anext(chunks)
                # The rest comes and the connection breaks while nobody reads.
                gate.set()
                await over.wait()
                raised = None
                try:
                    async for chunk in chunks:
                        found += chunk
                except Unreachable as error:
                    raised = error
        assert raised is not None
        assert "broke off" in raised.message
        assert found == b"".join(pieces)
        assert raised.__cause__ is None
        assert raised.__context__ is None

    story(told())


@pytest.mark.parametrize("way", WAYS)
def test_a_large_body_comes_whole_and_a_refusal_with_its_words(way, tmp_path):
    large = bytes(range(256)) * 20_000

    async def told():
        async with world(tmp_path, way) as (server, kube):
            server.plays(answer(200, large), refuse(403, "Forbidden"), body(), answer(200, b""))
            for expected in (large, None, b"", b""):
                if expected is None:
                    with pytest.raises(ApiError, match="Forbidden"):
                        async with open_log(kube, "p", container="main"):
                            pass
                    continue
                async with open_log(kube, "p", container="main") as chunks:
                    assert b"".join([chunk async for chunk in chunks]) == expected
            assert kube.counters.by_status == {200: 3, 403: 1}

    story(told())


@pytest.mark.parametrize("way", ["plain", "tls"])
def test_closing_the_client_ends_who_waits(way, tmp_path):
    async def told():
        async with world(tmp_path, way) as (server, kube):
            server.plays(body(b"one\n", end="never"))
            async with open_log(kube, "p", container="main", follow=True) as chunks:
                assert await anext(chunks) == b"one\n"
                waiting = asyncio.create_task(anext(chunks))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                await kube._transport.close()
                with pytest.raises(Unreachable):
                    await waiting
                with pytest.raises(StopAsyncIteration):
                    await anext(chunks)

    story(told())


def test_the_server_is_checked_and_must_be_found(tmp_path):
    async def told():
        async with serving(tmp_path) as server:
            foreign = (await asyncio.to_thread(pair, server.authority, "foreign")).cert.read_bytes()
            cases = [
                (server.access(ca_data=foreign), "its certificate is not trusted"),
                (server.access(tls_server_name="other.example"), "its certificate is not trusted"),
            ]
            for access, words in cases:
                async with Kube(access, retry=Retry(attempts=1)) as kube:
                    with pytest.raises(Unreachable, match=words) as raised:
                        async with open_log(kube, "p", container="main"):
                            pass
                    assert raised.value.tls
            gone = server.access()
        async with Kube(gone, retry=Retry(attempts=1)) as kube:
            with pytest.raises(Unreachable, match="Connection refused"):
                async with open_log(kube, "p", container="main"):
                    pass

    story(told())


def test_a_name_that_is_not_known_is_said_to_be(tmp_path, monkeypatch):
    async def told():
        async with world(tmp_path, "plain") as (_, kube):

            async def nobody(*_, **__):
                raise socket.gaierror(socket.EAI_NONAME, "no such name")

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nobody, raising=False)
            with pytest.raises(Unreachable, match="its name does not resolve"):
                async with open_log(kube, "p", container="main"):
                    pass

    story(told())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "it closed the connection"),
        (b"SSH-2.0-x\r\n", "Protocol error"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX", "Protocol error|broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nabc", "Protocol error"),
    ],
)
def test_an_answer_that_is_none_is_said_to_be(said, words, tmp_path):
    async def told():
        async def speak(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            writer.close()
            await writer.wait_closed()

        listening = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with listening, world(tmp_path, "plain") as (server, _):
            server.port = listening.sockets[0].getsockname()[1]
            async with Kube(server.access(), retry=Retry(attempts=1)) as other:
                with pytest.raises(Unreachable, match=words):
                    await read(other)

    story(told())


def test_a_body_without_a_length_ends_with_its_connection(tmp_path):
    async def told():
        async def speak(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nall of it")
            writer.close()
            await writer.wait_closed()

        listening = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with listening, world(tmp_path, "plain") as (server, _):
            server.port = listening.sockets[0].getsockname()[1]
            async with Kube(server.access()) as kube, open_log(kube, "p", container="main") as chunks:
                assert b"".join([chunk async for chunk in chunks]) == b"all of it"

    story(told())


def test_an_end_without_tls_own_word_is_no_end(tmp_path):
    """Anybody on the way can end a TCP connection; only the server can say that this was all."""

    async def told():
        async with serving(tmp_path) as server:

            def speak(listening):
                taken, _ = listening.accept()
                with server.tls.wrap_socket(taken, server_side=True, suppress_ragged_eofs=False) as one:
                    one.recv(4096)
                    one.sendall(b"HTTP/1.0 200 OK\r\n\r\nhalf")
                    # Without unwrap: no close_notify.

            with socket.create_server(("127.0.0.1", 0)) as listening:
                server.port = listening.getsockname()[1]
                speaking = asyncio.create_task(asyncio.to_thread(speak, listening))
                async with Kube(server.access()) as kube, open_log(kube, "p", container="main") as chunks:
                    assert await anext(chunks) == b"half"
                    with pytest.raises(Unreachable, match="broke off"):
                        await anext(chunks)
                await speaking

    story(told())


def test_a_server_that_does_not_finish_tls_is_not_waited_for(tmp_path):
    async def told():
        async def mute(reader, writer):
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(mute, "127.0.0.1", 0)
        async with listening, serving(tmp_path) as server:
            server.port = listening.sockets[0].getsockname()[1]
            async with Kube(server.access(), retry=Retry(attempts=1), limits=Limits(connect=0.05)) as kube:
                with pytest.raises(Unreachable, match="no connection in time"):
                    async with open_log(kube, "p", container="main"):
                        pass

    story(told())


def test_a_server_that_ends_tls_before_it_stands_is_said_to_have_closed(tmp_path):
    async def told():
        async def leave(reader, writer):
            await reader.read(1)
            writer.close()

        listening = await asyncio.start_server(leave, "127.0.0.1", 0)
        async with listening, serving(tmp_path) as server:
            server.port = listening.sockets[0].getsockname()[1]
            async with Kube(server.access(), retry=Retry(attempts=1)) as kube:
                with pytest.raises(Unreachable, match=r"it closed the connection|Connection reset"):
                    async with open_log(kube, "p", container="main"):
                        pass

    story(told())


def test_the_second_address_of_a_name_is_tried(tmp_path, monkeypatch):
    async def told():
        async with world(tmp_path, "plain") as (server, kube):
            with socket.create_server(("127.0.0.1", 0)) as closed:
                nobody = closed.getsockname()
            kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")

            async def two(*_, **__):
                return [(*kind, nobody), (*kind, ("127.0.0.1", server.port))]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two, raising=False)
            server.plays(answer(200, b"here"))
            async with open_log(kube, "p", container="main") as chunks:
                assert await anext(chunks) == b"here"

    story(told())


def test_a_link_that_is_closed_says_so_and_one_that_is_over_waits_for_nothing():
    async def told():
        one = Link(Buffers())
        with pytest.raises(ConnectionAbortedError):
            one.take()
        one.close()
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            one._socket = here
            assert one.take() == b""
            there.sendall(b"x" * 10)
            there.close()
            assert one.take() == b"x" * 10
            await one.wait()
            assert one.take() == b""
            assert one.ended
            await one.wait()
            one.close()

    story(told())


def test_what_waits_is_taken_in_bounded_parts(monkeypatch):
    monkeypatch.setattr(connection, "_RAW", 1 << 10)
    monkeypatch.setattr(connection, "_RECORD", 0)
    monkeypatch.setattr(connection, "_PLAIN", 3 << 10)

    async def told():
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            one = Link(Buffers())
            one._socket = here
            there.sendall(b"y" * 5_000)
            assert [len(one.take()) for _ in range(3)] == [3 << 10, 5_000 - (3 << 10), 0]

    story(told())


def test_a_beat_is_one_for_all_and_a_cancelled_one_takes_nobody_along():
    async def told():
        beat = BatchTimer()
        tasks = [asyncio.create_task(beat.wait(0.02)) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(beat._waiting) == 1
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in done] == [type(None), asyncio.CancelledError, type(None)]
        assert not beat._waiting

    story(told())


def test_what_goes_out():
    url = urlsplit("https://user:secret@[::1]:6443/base/log?a=%2F")
    assert message(url, [("Authorization", "Bearer é")]) == (
        b"GET /base/log?a=%2F HTTP/1.1\r\nHost: [::1]:6443\r\nAccept-Encoding: identity\r\nConnection: close\r\n"
        b"Authorization: Bearer \xc3\xa9\r\n\r\n"
    )
    assert place(url) == ("::1", 6443)
    assert place(urlsplit("https://h")) == ("h", 443)
    with pytest.raises(ValueError, match="line end"):
        message(url, [("A", "b\r\nC: d")])


# -- the form of an answer

HEAD = Head(200, CIMultiDict({"Transfer-Encoding": "Chunked"}))


def chunked(pieces: list[bytes], extension: bytes) -> bytes:
    parts = [b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces if piece]
    return b"".join(parts) + b"0\r\n\r\n"


@given(data=st.data())
def test_a_body_is_the_same_however_it_is_cut(data):
    # Texts that look like what stands between chunks too.
    tricky = st.sampled_from([b"\r\n", b"a\r\n1\r\nb", b"0\r\n\r\n", b"line\n", b"\r"])
    pieces = data.draw(st.lists(st.binary(max_size=40) | tricky))
    extension = data.draw(st.sampled_from([b"", b";a=b", b" "]))
    text = chunked(pieces, extension)
    # Most often a read ends where a chunk does.
    ends = [len(chunked(pieces[:count], extension)) - 5 for count in range(len(pieces) + 1)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)) | st.sampled_from(ends), max_size=12)))
    one, found = Body(HEAD), b""
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += one.push(text[begin:end])
    assert found == b"".join(pieces)
    assert one.ended
    assert one.closed()
    assert one.push(b"more") == b""


@given(cut=st.integers(0, 90))
def test_a_head_is_the_same_however_it_is_cut(cut):
    text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A:  b \r\n\r\nabc"
    found = split_head(text[:cut])
    assert (found is None) == (cut < len(text) - 3)
    head, rest = split_head(text) or pytest.fail("no head")
    assert (head.status, head.headers["x-a"], rest) == (200, "b", b"abc")
    one = Body(head)
    assert one.push(b"abcd") == b"abc"
    assert one.ended


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"nonsense",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A" * MAX_HEAD,
    ],
)
def test_a_head_that_is_none_is_refused(text):
    with pytest.raises(OSError, match=r"HTTP/1\.1") as raised:
        split_head(text)
    assert raised.value.errno == errno.EPROTO


@pytest.mark.parametrize(
    "headers",
    [{"Transfer-Encoding": "gzip, chunked"}, {"Content-Encoding": "br"}, {"Content-Length": "-1"}],
)
def test_a_body_in_another_form_is_refused(headers):
    with pytest.raises(OSError, match="body"):
        Body(Head(200, CIMultiDict(headers)))


@pytest.mark.parametrize(
    "text",
    [
        b"zz\r\n",
        b"+3\r\nabc\r\n",
        b"4\r\nabc\r\nx",
        b"3\r\nabc\r\nx\r\nabc\r\n",
        b"3\r\nabcd\r\n",
        b"1" * 5000,
        b"0x3\r\n",
    ],
)
def test_a_chunk_that_is_none_is_refused(text):
    with pytest.raises(OSError, match="chunk"):
        Body(HEAD).push(text)


def test_without_a_body_there_is_nothing_to_wait_for():
    assert Body(Head(200, CIMultiDict({"Content-Length": "0"}))).ended
    assert not Body(HEAD).closed()
