"""At the end of a loop of our own no connection is left, not even one that no client knows of."""

from __future__ import annotations

import asyncio

from rankfall.kube.leftover import drop_connections


def test_a_connection_that_nobody_knows_of_is_closed():
    async def story() -> int:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
        found = await drop_connections()
        assert transport.is_closing()
        server.close()
        return found

    # The server's side of the connection stands in the same loop.
    assert asyncio.run(story()) in {1, 2}


def test_what_is_closed_already_is_not_counted():
    async def story() -> int:
        return await drop_connections()

    assert asyncio.run(story()) == 0
