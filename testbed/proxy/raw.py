"""After the protocol was switched (exec, attach, port-forward): bytes both ways, of which the proxy knows nothing."""

from __future__ import annotations

import asyncio
import contextlib

from testbed.proxy.job import Job
from testbed.proxy.passer import Passer
from testbed.proxy.server_side import stop
from testbed.proxy.sinks import RawSink, ServerGoneError
from testbed.proxy.stream import TlsStream

# When one side has ended, the other has so long to say the rest.
_REST_S = 2.0


async def pass_raw(job: Job) -> None:
    """Pass bytes until a side ends.

    Raises:
        Ending: a fault ends it.
        OSError: a connection is broken.
    """
    server = job.server.stream
    job.down.sink, job.up.sink = RawSink(job.client), RawSink(server)
    up = asyncio.create_task(_pump(job, job.client, job.up, job.wire.trailing_data[0], server))
    down = asyncio.create_task(_pump(job, server, job.down, job.server.wire.trailing_data[0], job.client))
    try:
        done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        # One side has said all; what becomes of the other's last words is nobody's fault.
        await asyncio.wait((up, down), timeout=_REST_S)
    except ServerGoneError as error:
        raise ConnectionResetError from error
    finally:
        await stop(up, down)


async def _pump(job: Job, source: TlsStream, passer: Passer, first: bytes, target: TlsStream) -> None:
    await passer.start()
    data: bytes | None = first
    while True:
        if data is None:
            await passer.ring()
        elif data:
            await passer.push(data)
            await passer.flush()
            job.count()
        data = await source.receive(passer.alarm)
        if data is not None and not data:
            with contextlib.suppress(OSError):
                await target.half_close()
            return
