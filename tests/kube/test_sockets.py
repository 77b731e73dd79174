"""At its end a client leaves no connection open, not even one that none of its sessions knows of."""

from __future__ import annotations

import asyncio
import socket

from rankfall.kube.http.sessions import Sockets


def test_a_connection_that_no_session_knows_of_is_closed_and_others_are_left_alone():
    async def story() -> None:
        loop = asyncio.get_running_loop()
        port = server.getsockname()[1]
        sockets = Sockets()
        ours = sockets.make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)))
        ours.setblocking(False)
        await loop.sock_connect(ours, ("127.0.0.1", port))
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        other, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        bare = sockets.make((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)))
        assert await sockets.close() == 2
        assert transport.is_closing()
        assert bare.fileno() == -1
        assert not other.is_closing()
        assert await sockets.close() == 0
        other.abort()
        await asyncio.sleep(0)

    # The kernel takes connections for it; nobody has to accept them.
    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(story())
