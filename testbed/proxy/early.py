"""Faults that strike before the server hears of a request, and answers in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import h11

from testbed.proxy.book import Armed
from testbed.proxy.endings import Ending, ending
from testbed.proxy.job import Job
from testbed.proxy.rules import Answer, Cut, HalfOpen, Stall, WatchError, Way
from testbed.proxy.server_side import stop
from testbed.proxy.status import answer, error_event, status

_OURS = "answered by the proxy"


async def strike(job: Job) -> Ending | None:
    """Strike what strikes at once; how the exchange ended by that, None = it goes on.

    Raises:
        Ending: a fault ends the connection.
    """
    for armed in job.struck:
        match armed.action:
            case Cut(at=at) | HalfOpen(at=at) if at.at_once:
                job.note(armed)
                raise ending(armed, armed.action)
            case Stall(way=Way.UP, at=at, for_s=seconds) if at.at_once:
                job.note(armed)
                await hold(job, armed, seconds)
            case Answer(status=code, reason=reason, message=message, retry_after_s=retry):
                job.note(armed)
                headers, body = answer(code, status(code, reason=reason, message=message, retry_after_s=retry))
                return await reply(job, code, headers, body)
            case WatchError(at=at, code=code, reason=reason, message=message) if at.at_once and job.facts.watch:
                job.note(armed)
                line = error_event(code, reason=reason, message=message)
                return await reply(job, 200, [("Content-Type", "application/json")], line)
            case _:
                continue
    return None


async def reply(job: Job, code: int, headers: Sequence[tuple[str, str]], body: bytes) -> Ending:
    """Answer in the server's place."""
    if not job.wire.they_are_waiting_for_100_continue:
        await _drop_body(job)
    job.entry.status = code
    job.say(h11.Response(status_code=code, headers=list(headers)))
    if job.request.method != b"HEAD":
        job.body.put(body)
        job.down.passed = len(body)
    await job.say_end(h11.EndOfMessage(), _OURS)
    return Ending("done", _OURS)


async def hold(job: Job, armed: Armed, seconds: float | None) -> None:
    """Hold the exchange up, and notice a client that gives up meanwhile.

    Raises:
        Ending: it gave up.
    """
    held = asyncio.create_task(armed.hold(seconds))
    gone = asyncio.create_task(_gone(job))
    try:
        await asyncio.wait((held, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not held.done():
            gone.result()
            raise Ending("gone", "the client went away")
    finally:
        await stop(held, gone)


async def _gone(job: Job) -> None:
    data = await job.client.receive()
    if data:
        # What it sends meanwhile is kept; no more than one piece is read.
        job.wire.receive_data(data)
        await asyncio.get_running_loop().create_future()


async def _drop_body(job: Job) -> None:
    while True:
        event = job.wire.next_event()
        if event is h11.NEED_DATA:
            job.wire.receive_data(await job.client.receive() or b"")
        elif not isinstance(event, h11.Data):
            return
