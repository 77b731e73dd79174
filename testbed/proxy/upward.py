"""From the client to the server: the request's body, then nothing but the client's going away."""

from __future__ import annotations

import asyncio
import contextlib

import h11

from testbed.proxy.headers import header
from testbed.proxy.job import Job
from testbed.proxy.sinks import ServerGoneError


async def pass_up(job: Job) -> None:
    """Pass the body on; returns when the client has ended.

    Raises:
        OSError: the client's connection is broken.
    """
    with contextlib.suppress(ServerGoneError):
        await _pass_body(job)
    while True:
        data = await job.client.receive()
        if not data:
            return
        if job.wire.their_state is h11.SEND_BODY:
            # The server wants no more of the body; it is read so that the client's going away is seen.
            continue
        job.wire.receive_data(data)
        await asyncio.get_running_loop().create_future()


async def _pass_body(job: Job) -> None:
    if not header(job.request, b"upgrade"):
        await job.up.start()
    while True:
        event = job.wire.next_event()
        if event is h11.NEED_DATA:
            await job.up.flush()
            data = await job.client.receive(job.up.alarm)
            if data is None:
                await job.up.ring()
            else:
                job.wire.receive_data(data)
        elif isinstance(event, h11.Data):
            await job.up.push(bytes(event.data))
        else:
            await job.up.flush()
            await _end(job)
            return


async def _end(job: Job) -> None:
    try:
        await job.server.send(h11.EndOfMessage())
    except OSError as error:
        raise ServerGoneError from error
