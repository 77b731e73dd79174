"""One request and its answer, with the faults of the rules that struck it."""

from __future__ import annotations

import asyncio
import contextlib

import h11

from testbed.errors import TestbedError
from testbed.proxy import change, early
from testbed.proxy.downward import pass_down
from testbed.proxy.endings import Ending
from testbed.proxy.headers import request_headers
from testbed.proxy.job import Job
from testbed.proxy.raw import pass_raw
from testbed.proxy.server_side import stop
from testbed.proxy.upward import pass_up


async def run(job: Job) -> Ending:
    """Answer a request; how it ended (``done`` = the connection may live on)."""
    how = Ending("rst", "broken off")
    try:
        how = await _run(job)
    except Ending as wanted:
        how = await _carry_out(job, wanted)
    except (OSError, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
        how = Ending("rst", f"broken: {type(error).__name__}")
    except TestbedError as error:
        how = Ending("rst", str(error).splitlines()[0])
    finally:
        job.close(how.why)
    return how


async def _run(job: Job) -> Ending:
    over = await early.strike(job)
    if over is not None:
        return over
    job.plan = change.plan(job.facts, job.struck, job.hub.node_of)
    for armed in job.plan.rules:
        job.note(armed)
    if job.plan.instead is not None:
        code, headers, body = job.plan.instead
        return await early.reply(job, code, headers, body)
    headers_up = request_headers(job.request, job.who, readable=job.plan.readable or job.down.needs_body)
    await job.server.open(front=job.who is not None)
    target = job.plan.target(job.facts, job.request.target)
    await job.server.send(h11.Request(method=job.request.method, target=target, headers=headers_up))
    if not await _both(job):
        return Ending("done", "done")
    await pass_raw(job)
    return Ending("closed", "closed")


async def _both(job: Job) -> bool:
    """Body up, answer down; whether the protocol was switched."""
    up = asyncio.create_task(pass_up(job))
    down = asyncio.create_task(pass_down(job))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        if down.done():
            return down.result()
        up.result()
        raise Ending("gone", "the client went away")
    finally:
        await stop(up, down)


async def _carry_out(job: Job, wanted: Ending) -> Ending:
    """End as a rule, or the server, wants it."""
    if wanted.how == "clean":
        with contextlib.suppress(OSError):
            if wanted.tail:
                job.down.sink.put(wanted.tail)
            if job.wire.our_state is h11.SEND_BODY:
                await job.say_end(h11.EndOfMessage(), wanted.why)
            await job.client.flush()
    elif wanted.how == "half-open" and wanted.armed is not None:
        await job.server.close()
        gone = asyncio.create_task(job.client.wait_until_gone())
        released = asyncio.create_task(wanted.armed.hold(None))
        try:
            await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop(gone, released)
        return Ending("rst", wanted.why)
    return wanted
