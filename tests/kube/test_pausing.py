"""Small pieces of a stream are read as one, over plain HTTP and over TLS, and none of them is lost."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from kube.apiserver import serving
from rankfall.kube import pausing
from rankfall.kube.client import Kube
from rankfall.kube.podlogs import open_log

PIECES = [b"line %d\n" % number for number in range(40)]


async def drops(request: web.Request) -> web.StreamResponse:
    """A piece every few milliseconds, then one that is large, then the end."""
    response = web.StreamResponse()
    await response.prepare(request)
    for piece in PIECES:
        await response.write(piece)
        await asyncio.sleep(0.005)
    await response.write(b"x" * pausing.LARGE)
    await response.write_eof()
    return response


def read(folder, *, tls, gather_s):
    async def all_of_it():
        async with serving(folder, tls=tls) as server, Kube(server.access()) as kube, asyncio.timeout(20):
            server.plays(drops)
            begin = time.monotonic()
            async with open_log(kube, "p", container="main", follow=True, gather_s=gather_s) as chunks:
                found = [chunk async for chunk in chunks]
            return found, time.monotonic() - begin

    return asyncio.run(all_of_it())


@pytest.mark.parametrize("tls", [False, True])
def test_what_comes_in_drops_is_read_as_few_chunks(tls, tmp_path):
    found, took = read(tmp_path, tls=tls, gather_s=0.1)
    assert b"".join(found) == b"".join(PIECES) + b"x" * pausing.LARGE
    small = [chunk for chunk in found if len(chunk) < pausing.LARGE]
    assert len(small) <= took / 0.1 + 2


def test_where_the_socket_cannot_be_paused_the_bytes_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(pausing, "_socket_of", lambda _: None)
    found, _ = read(tmp_path, tls=True, gather_s=0.02)
    assert b"".join(found) == b"".join(PIECES) + b"x" * pausing.LARGE


def test_a_stream_whose_connection_is_gone_is_left_alone(tmp_path):
    class Gone:
        connection = None

    asyncio.run(pausing.gathered(Gone(), 0.001, size=1))
