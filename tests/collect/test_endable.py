"""Work that another thread may end: while it goes on, before it begins, after it is done."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rankfall.collect.background import CancellableWork
from support.patience import scaled


def test_ends_from_another_thread_while_it_goes_on() -> None:
    endable, begun, cleaned = CancellableWork(), threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    thread = threading.Thread(target=lambda: asyncio.run(endable.run(work())))
    thread.start()
    assert begun.wait(scaled(10))
    endable.end()
    endable.end()
    thread.join(scaled(10))
    assert not thread.is_alive()
    assert cleaned.is_set()


def test_ended_before_it_begins_it_does_nothing() -> None:
    endable, did = CancellableWork(), []

    async def work() -> None:
        did.append(1)

    endable.end()
    asyncio.run(endable.run(work()))
    assert not did


def test_done_by_itself_it_can_still_be_ended() -> None:
    endable, did = CancellableWork(), []

    async def work() -> None:
        did.append(1)

    asyncio.run(endable.run(work()))
    endable.end()
    assert did == [1]


def test_what_it_raises_is_raised() -> None:
    async def work() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        asyncio.run(CancellableWork().run(work()))
