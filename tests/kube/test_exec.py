"""Exec against a scripted server that speaks both protocols: output, exit codes, stdin with its end, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, web

from kube.apiserver import Handler, Server, refuse, serving
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, ObjectNotFound, Unreachable
from rankfall.kube.exec import session as exec_session
from rankfall.kube.exec.protocol import V4, V5, ExecFailed, ExecLost, ExecTimeout, ExecTooMuch, ExecUnsupported
from rankfall.kube.exec.session import execute, open_exec
from support.patience import scaled

Program = Callable[[web.WebSocketResponse], Awaitable[None]]


def program(play: Program, *, speaks: tuple[str, ...] = (V5, V4)) -> Handler:
    """An answer that opens a websocket, plays, and closes it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=speaks, max_msg_size=32 << 20)
        await socket.prepare(request)
        await play(socket)
        await socket.close()
        return socket

    return handle


def success() -> bytes:
    return b'\x03{"metadata":{},"status":"Success"}'


def failed(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    return b"\x03" + json.dumps(status).encode()


def not_run(message: str) -> bytes:
    return (
        b"\x03" + json.dumps({"status": "Failure", "reason": "InternalError", "message": message, "code": 500}).encode()
    )


def says(*messages: bytes) -> Handler:
    async def play(socket: web.WebSocketResponse) -> None:
        for message in messages:
            await socket.send_bytes(message)

    return program(play)


async def cat(socket: web.WebSocketResponse) -> None:
    """Sends stdin back until it is closed; then its own last words."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY:
            break
        if message.data == b"\xff\x00":
            await socket.send_bytes(b"\x02end")
            await socket.send_bytes(success())
            return
        assert message.data[0] == 0
        assert len(message.data) <= (64 << 10) + 1
        await socket.send_bytes(b"\x01" + message.data[1:])


@pytest.fixture
def run(tmp_path) -> Callable[[Callable[[Server, Kube], Any]], Any]:
    def play(story: Callable[[Server, Kube], Any]) -> Any:
        async def all_of_it() -> Any:
            async with (
                serving(tmp_path, tls=False) as server,
                Kube(server.access()) as kube,
                asyncio.timeout(scaled(40)),
            ):
                return await story(server, kube)

        return asyncio.run(all_of_it())

    return play


async def go(kube: Kube, *argv: str, timeout: float = 20, **options: Any) -> Any:  # noqa: ASYNC109 - passed on
    return await execute(kube, "p", argv or ("x",), container="main", timeout=timeout, **options)


def test_words_reach_the_server_one_by_one(run):
    words = ["sh", "-c", "echo $HOME; a && b", "two words", "", "-", "ü\n&command=x", "%41"]

    async def story(server, kube):
        server.plays(says(success()), says(success()))
        await go(kube, *words)
        await go(kube, "x", stdin=b"", namespace="there")
        return server.seen

    first, second = run(story)
    assert first.method == "GET"
    assert first.path == "/api/v1/namespaces/here/pods/p/exec"
    assert first.query == [
        ("container", "main"),
        *(("command", word) for word in words),
        ("stdout", "true"),
        ("stderr", "true"),
    ]
    assert first.headers["Sec-WebSocket-Protocol"] == [f"{V5},{V4}"]
    assert second.path == "/api/v1/namespaces/there/pods/p/exec"
    assert second.query[-1] == ("stdin", "true")


@pytest.mark.parametrize("words", ["ls -l", [], [""]])
def test_a_command_is_a_list_of_words(run, words):
    async def story(server, kube):
        with pytest.raises(ValueError, match="a list of words"):
            async with open_exec(kube, "p", words, container="main", timeout=1):
                pass
        return server.seen

    assert run(story) == []


@pytest.mark.parametrize("speaks", [(V5, V4), (V4,)])
@pytest.mark.parametrize(("end", "code"), [(success(), 0), (failed(3), 3), (failed(137), 137)])
def test_output_and_exit_code(run, speaks, end, code):
    async def play(socket: web.WebSocketResponse) -> None:
        for message in (
            b"\x01",
            b"\x02",
            b"\x01out\x00\xff",
            b"\x02err",
            b"\x01\n",
            b"\xff\x01",
            end[:9],
            b"\x03" + end[9:],
        ):
            await socket.send_bytes(message)

    async def story(server, kube):
        server.plays(program(play, speaks=speaks))
        return await go(kube)

    found = run(story)
    assert (found.stdout, found.stderr, found.code) == (b"out\x00\xff\n", b"err", code)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_000_000])
def test_stdin_is_sent_whole_and_then_ended(run, size):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)

    async def story(server, kube):
        server.plays(program(cat))
        return await go(kube, stdin=data)

    found = run(story)
    assert (found.stdout, found.stderr, found.code) == (data, b"end", 0)


def test_large_streams_both_ways_stay_out_of_memory(run):
    size, piece = 64 << 20, bytes(range(256)) * 1024

    async def source() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    async def story(server, kube):
        server.plays(program(cat))
        digest, count = hashlib.sha256(), 0
        tracemalloc.start()
        try:
            async with open_exec(kube, "p", ["cat"], container="main", stdin=True, timeout=60) as session:

                async def feed() -> None:
                    async for chunk in source():
                        await session.write(chunk)
                    await session.close_stdin()

                feeder = asyncio.create_task(feed())
                async for name, data in session.output():
                    if name == "stdout":
                        digest.update(data)
                        count += len(data)
                await feeder
                code = session.code
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        return digest.hexdigest(), count, code, peak

    digest, count, code, peak = run(story)
    expected = hashlib.sha256()
    for _ in range(size // len(piece)):
        expected.update(piece)
    assert (digest, count, code) == (expected.hexdigest(), size, 0)
    # Of both sides together.
    assert peak < 8 << 20


def test_who_does_not_read_makes_the_command_wait(run):
    sent = 0

    async def floods(socket: web.WebSocketResponse) -> None:
        nonlocal sent
        while True:
            await socket.send_bytes(b"\x01" + bytes(30_000))
            sent += 30_000

    async def story(server, kube):
        server.plays(program(floods))
        async with open_exec(kube, "p", ["yes"], container="main", timeout=20) as session:
            await anext(session.output())
            before = -1
            while sent > before:  # until every buffer on the way is full
                before = sent
                await asyncio.sleep(0.3)

    run(story)
    assert sent < 32 << 20


def test_a_command_that_does_not_read_its_stdin_makes_the_writer_wait_and_may_end(run):
    async def play(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01enough")
        await socket.send_bytes(failed(141))

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)

    async def story(server, kube):
        server.plays(program(play))
        return await go(kube, stdin=endless())

    found = run(story)
    assert (found.stdout, found.code) == (b"enough", 141)


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_breaks_stops_an_endless_source(tmp_path, tls):
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100_000)

    async def story() -> None:
        async with serving(tmp_path, tls=tls) as server, Kube(server.access()) as kube, asyncio.timeout(scaled(20)):
            server.plays(program(breaks_off))
            with pytest.raises(ExecLost):
                await go(kube, stdin=endless())

    asyncio.run(story())


def test_nobody_writes_to_a_command_that_has_ended(run):
    async def story(server, kube):
        server.plays(says(b"\x02gone", failed(9)))
        async with open_exec(kube, "p", ["x"], container="main", stdin=True, timeout=20) as session:
            assert [chunk async for chunk in session.output()] == [("stderr", b"gone")]
            with pytest.raises(ExecLost, match="the command has ended"):
                await session.write(b"x")
            with pytest.raises(ExecLost):
                await session.close_stdin()
            return session.code

    assert run(story) == 9


def test_a_time_out_of_the_callers_own_stays_its_own(run):
    async def late() -> AsyncIterator[bytes]:
        yield b"half"
        raise TimeoutError("mine")

    async def story(server, kube):
        server.plays(program(cat))
        with pytest.raises(TimeoutError, match="mine"):
            await go(kube, stdin=late())

    run(story)


def test_a_source_that_fails_ends_the_command(run):
    class SourceError(Exception):
        pass

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise SourceError

    async def story(server, kube):
        server.plays(program(cat))
        with pytest.raises(SourceError):
            await go(kube, stdin=breaks())

    run(story)


def test_an_old_server_cannot_end_stdin_and_nobody_pretends(run):
    got: list[bytes] = []

    async def counted(socket: web.WebSocketResponse) -> None:
        got.append((await socket.receive_bytes())[1:])
        await socket.send_bytes(success())

    async def story(server, kube):
        server.plays(program(cat, speaks=(V4,)))
        with pytest.raises(ExecUnsupported, match="cannot end the stdin") as raised:
            await go(kube, stdin=b"x")
        assert "1.30" in str(raised.value)
        server.plays(program(counted, speaks=(V4,)))
        return await go(kube, "head", "-c", "3", stdin=b"abc", stdin_ends=False)

    assert run(story).code == 0
    assert got == [b"abc"]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ('Internal error occurred: unable to upgrade connection: container not found ("main")', "no_container"),
        ('Internal error occurred: exec: "nope": executable file not found in $PATH: unknown', "no_program"),
        (
            "Internal error occurred: error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused",
            "no_node",
        ),
        ("Internal error occurred: \x1b[31mwho knows", "other"),
    ],
)
def test_a_command_that_did_not_run_is_an_error_with_the_reason(run, message, why):
    async def story(server, kube):
        server.plays(says(not_run(message)))
        with pytest.raises(ExecFailed) as raised:
            await go(kube)
        return raised.value

    error = run(story)
    assert (error.why, error.reason, error.status) == (why, "InternalError", 500)
    assert error.hint
    assert "pod here/p, container main" in error.message
    assert "\x1b" not in str(error)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(404, "NotFound", ObjectNotFound), (400, "BadRequest", ApiError), (403, "Forbidden", ApiError)],
)
def test_a_refusal_before_the_command_is_the_clients_error(run, code, reason, error):
    async def story(server, kube):
        server.plays(refuse(code, reason))
        with pytest.raises(error) as raised:
            await go(kube)
        assert "exec" in raised.value.message
        assert len(server.seen) == 1

    run(story)


async def breaks_off(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\x01half")
    socket._req.transport.abort()


@pytest.mark.parametrize(
    "answer",
    [
        says(b"\x01half"),
        program(breaks_off),
        says(b"\x01half", b"\x07odd"),
        says(b"\x01half", b"\x03{not json"),
        says(b"\x03" + b" " * 40_000, b"\x03" + b" " * 40_000),
        says(b"\x03" + json.dumps({"status": "Failure", "reason": "NonZeroExitCode"}).encode()),
    ],
)
def test_an_end_that_nobody_told_is_unknown_never_success(run, answer):
    async def story(server, kube):
        server.plays(answer)
        with pytest.raises(ExecLost) as raised:
            await go(kube)
        assert "may still run" in str(raised.value)

    run(story)


# What Kubernetes 1.34.4 sent for commands that ended with exit code 5, most of their stdin unread. The second is byte for byte what a
# command that succeeded has: only what was printed shows that it was cut.
ARRIVED = (
    b'\x03{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 5",'
    b'"reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"5"}]}}'
)
LOST = b'\x03{"metadata":{},"status":"Success"}'


@pytest.mark.parametrize(("status", "code"), [(ARRIVED, 5), (LOST, 0)])
def test_the_api_servers_status_when_the_exit_code_arrived_and_when_it_was_lost(run, status, code):
    async def story(server, kube):
        server.plays(says(b"\x01half\n", status))
        return await go(kube)

    found = run(story)
    assert (found.stdout, found.code) == (b"half\n", code)


def test_text_instead_of_bytes_is_no_output(run):
    async def play(socket: web.WebSocketResponse) -> None:
        await socket.send_str("1 hello")

    async def story(server, kube):
        server.plays(program(play))
        with pytest.raises(ExecLost, match="the server sent text"):
            await go(kube)

    run(story)


async def sleeps(socket: web.WebSocketResponse) -> None:
    await socket.receive()


async def reads_nothing(socket: web.WebSocketResponse) -> None:
    socket._req.transport.pause_reading()
    await asyncio.Event().wait()


def test_a_server_that_takes_no_more_is_left_in_time(run):
    async def story(server, kube):
        server.plays(program(reads_nothing))
        with pytest.raises(ExecTimeout):
            await go(kube, stdin=bytes(64 << 20), timeout=1)

    # The library would wait for the good-bye of the server without end.
    run(story)


def test_a_command_that_takes_too_long(run):
    async def story(server, kube):
        server.plays(program(sleeps))
        with pytest.raises(ExecTimeout, match=r"not ended in 0\.3 s") as raised:
            await go(kube, timeout=0.3)
        assert "may still run" in str(raised.value)
        assert raised.value.__cause__ is None

    run(story)


def test_more_output_than_wanted_is_refused(run):
    async def story(server, kube):
        server.plays(says(b"\x01" + bytes(600), b"\x02" + bytes(600), success()))
        with pytest.raises(ExecTooMuch, match="more than 1000 bytes"):
            await go(kube, max_output=1000)

    run(story)


async def told_and_stuck(socket: web.WebSocketResponse) -> None:
    """As a server whose command ended while it waits for somebody to read its stdin."""
    await socket.send_bytes(b"\x01enough")
    await socket.send_bytes(failed(3))
    await reads_nothing(socket)


@pytest.mark.parametrize("stdin", [None, bytes(64 << 20)])
def test_a_server_that_does_not_close_after_the_status_is_not_waited_for(run, stdin, monkeypatch):
    received = []
    receive = ClientWebSocketResponse.receive

    async def counted(socket, *args, **options):
        received.append(1)
        return await receive(socket, *args, **options)

    monkeypatch.setattr(ClientWebSocketResponse, "receive", counted)

    async def story(server, kube):
        server.plays(program(told_and_stuck))
        return await go(kube, stdin=stdin)

    assert run(story).code == 3
    # The output and the status; nothing after it is waited for.
    assert len(received) == 2


def test_half_a_status_is_not_waited_for_without_end(run, monkeypatch):
    monkeypatch.setattr(exec_session, "LAST_S", 0.1)

    async def play(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(success()[:10])
        await socket.receive()

    async def story(server, kube):
        server.plays(program(play))
        with pytest.raises(ExecLost, match="not JSON"):
            await go(kube)

    run(story)


def test_it_is_never_started_twice(run):
    async def dies(request: web.Request) -> web.StreamResponse:
        request.transport.abort()
        return web.Response()

    async def story(server, kube):
        server.plays(dies)
        with pytest.raises(Unreachable) as raised:
            await go(kube)
        assert raised.value.maybe_done
        return len(server.seen)

    assert run(story) == 1
