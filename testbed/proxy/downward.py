"""From the server to the client: the answer's head, then its body chunk by chunk as it comes."""

from __future__ import annotations

import h11

from testbed.proxy.endings import Ending, ending
from testbed.proxy.headers import header, response_headers
from testbed.proxy.job import Job
from testbed.proxy.rules import Cut, Delay, HalfOpen, Stall, WatchError, Way
from testbed.proxy.shift import Rewriter

_SWITCHING, _OK = 101, 200
_BODILESS = frozenset({204, 304})


async def pass_down(job: Job) -> bool:
    """Pass the answer on; whether it switched the protocol.

    Raises:
        Ending: a fault ends it, or the server broke off.
        OSError: the client's connection is broken.
    """
    rewriter: Rewriter | None = None
    arrived: list[bytes] = []
    while True:
        event = job.server.next_event()
        if isinstance(event, h11.Data):
            # Chunks that came together go on together; none waits for a later one.
            arrived.append(bytes(event.data))
            continue
        if arrived:
            data = b"".join(arrived)
            arrived.clear()
            await job.down.push(rewriter.push(data) if rewriter else data)
        if event is h11.NEED_DATA:
            await job.down.flush()
            job.count()
            await _read(job)
        elif isinstance(event, h11.InformationalResponse):
            if event.status_code == _SWITCHING:
                job.entry.status = event.status_code
            job.say(
                h11.InformationalResponse(
                    status_code=event.status_code, headers=event.headers.raw_items(), reason=event.reason
                )
            )
            await job.client.flush()
            if event.status_code == _SWITCHING:
                return True
        elif isinstance(event, h11.Response):
            rewriter = await _pass_head(job, event)
        elif isinstance(event, h11.EndOfMessage):
            if rewriter:
                await job.down.push(rewriter.end())
            if job.body.chunked:
                # Faults may still strike while the client takes the rest; a client that knows the length has its answer with the last byte.
                await job.down.flush()
            await job.say_end(h11.EndOfMessage(headers=event.headers.raw_items()), "done")
            return False
        else:
            raise Ending("fin", "the server ended without an answer")


async def _read(job: Job) -> None:
    try:
        if not await job.server.receive(job.down.alarm):
            await job.down.ring()
    except OSError as error:
        raise Ending("rst", f"the server's connection broke: {type(error).__name__}") from error


async def _pass_head(job: Job, response: h11.Response) -> Rewriter | None:
    await _strike_answered(job)
    json = header(response, b"content-type").startswith("application/json")
    bodiless = job.request.method == b"HEAD" or response.status_code in _BODILESS
    rewriter = None if bodiless or response.status_code != _OK else job.plan.rewriter(json=json)
    if not json or not job.facts.watch:
        job.down.drop(WatchError)
    reframed = not bodiless and (rewriter is not None or job.down.needs_body)
    headers = response_headers(response, reframed=reframed)
    job.body.chunked = not any(name.lower() == b"content-length" for name, _ in headers)
    job.entry.status = response.status_code
    job.say(h11.Response(status_code=response.status_code, headers=headers, reason=response.reason))
    await job.down.flush()
    await job.down.start()
    return rewriter


async def _strike_answered(job: Job) -> None:
    for armed in job.struck:
        if armed.removed:
            continue
        match armed.action:
            case Delay(seconds=seconds):
                job.note(armed)
                await armed.hold(seconds)
            case Stall(way=Way.DOWN, at=at, for_s=limit) if at.answered or at.at_once:
                job.note(armed)
                await armed.hold(limit)
            case Cut(at=at) | HalfOpen(at=at) if at.answered:
                job.note(armed)
                raise ending(armed, armed.action)
            case _:
                continue
