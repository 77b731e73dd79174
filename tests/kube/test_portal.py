"""A call that is given up may still undo what it had done: the portal's end waits for that, and not without limit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import pytest

from rankfall.kube import loop_thread
from rankfall.kube.loop_thread import Abandoned, EventLoopThread


class NoKube:
    """A client that notes when it was closed."""

    def __init__(self, story: list[str]) -> None:
        self._story = story

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._story.append("closed")


@pytest.mark.parametrize(("undo_s", "expected"), [(0.2, ["undone", "closed"]), (60.0, ["closed"])])
def test_what_a_call_that_was_given_up_undoes_comes_before_the_end(undo_s, expected, monkeypatch):
    monkeypatch.setattr(loop_thread, "_LAST_S", 1.0)
    story: list[str] = []
    begun = threading.Event()

    async def work(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(undo_s)
            story.append("undone")

    made = EventLoopThread(lambda: NoKube(story))  # type: ignore[arg-type,return-value]
    with pytest.raises(Abandoned):
        made.call(work, meanwhile=begun.is_set)
    made.close()
    assert story == expected
