"""Passes the bytes of one direction on, and strikes at the moments of the rules: after so many bytes, at a time, when called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from testbed.proxy.book import Armed
from testbed.proxy.endings import Ending, ending
from testbed.proxy.rules import Cut, EndStream, HalfOpen, How, Place, Slow, Stall, WatchError
from testbed.proxy.stream import Alarm

# Pieces a second in which a slowed body is passed on.
_PIECES = 10

Note = Callable[[Armed], None]


class Sink(Protocol):
    """Where bytes go."""

    def put(self, data: bytes) -> None:
        """Bytes to pass on; they leave with ``flush``."""

    def torn(self, data: bytes, size: int) -> None:
        """The first ``size`` bytes of a chunk that will not be completed."""

    async def flush(self, alarm: Alarm | None = None) -> bool:
        """Hand everything to the kernel; False = the alarm rang first."""


class Stage:
    """One fault that waits for its moment.

    Args:
        armed: its rule.
        action: the rule's action, or one of its place.
    """

    def __init__(self, armed: Armed, action: Cut | Stall | HalfOpen | EndStream | WatchError) -> None:
        self.armed, self.action = armed, action
        self.limit, self.seconds = armed.moment(action.at)
        self.ripe = False
        self.place = _place(action)
        self.needs_body = isinstance(action, EndStream | WatchError)

    def position(self, passed: int, last: int, data: bytes, *, started: bool) -> int | None:
        """Bytes of ``data`` that are still passed on before it strikes; None = its moment is not in ``data``.

        Args:
            passed: bytes before ``data``.
            last: value of the byte before ``data``; a newline at the start.
            data: what comes next; empty = is the moment now?
            started: the answer's head has been passed on.
        """
        if self.armed.removed or (not started and (self.needs_body or not self.ripe)):
            return None
        if self.ripe:
            start = 0
        elif self.limit is not None and self.limit - passed <= len(data):
            start = max(self.limit - passed, 0)
        else:
            return None
        if self.place is Place.ANYWHERE:
            return start
        before = data[start - 1] if start else last
        if self.place is Place.BOUNDARY:
            if before == _NEWLINE:
                return start
            found = data.find(b"\n", start)
            return found + 1 if found >= 0 else None
        for at in range(start, len(data)):
            if before != _NEWLINE and data[at] != _NEWLINE:
                return at
            before = data[at]
        return None


_NEWLINE = 10


class Passer:
    """One direction of one exchange.

    Args:
        sink: where bytes go; may be changed later.
        stages: faults that wait.
        slow: rules that slow it down.
        note: told of each rule whose fault happens.
    """

    def __init__(self, sink: Sink, stages: Sequence[Stage], slow: Sequence[Armed], note: Note) -> None:
        self.sink = sink
        self.passed = 0
        self.alarm: Alarm | None = None
        self._stages = list(stages)
        self._slow = list(slow)
        self._note = note
        self._last = _NEWLINE
        self._started = False
        self._undo: list[Callable[[], object]] = []
        loop = asyncio.get_running_loop()
        for stage in self._stages:
            if stage.action.at.called:
                self._undo.append(stage.armed.listen(lambda stage=stage: self._ripen(stage)))  # type: ignore[misc]
            elif stage.seconds is not None:
                self._undo.append(loop.call_later(stage.seconds, self._ripen, stage).cancel)
        if self._undo:
            self.alarm = loop.create_future()

    @property
    def needs_body(self) -> bool:
        """Whether a fault waits that ends the body in order, and so must own its framing."""
        return any(stage.needs_body for stage in self._stages)

    def drop(self, kind: type[WatchError]) -> None:
        """Faults of this kind cannot happen in this answer."""
        self._stages = [stage for stage in self._stages if not isinstance(stage.action, kind)]

    def close(self) -> None:
        """No timer and no listener stays."""
        for undo in self._undo:
            undo()

    async def start(self) -> None:
        """The head has been passed on.

        Raises:
            Ending: a fault ends the exchange.
        """
        self._started = True
        await self._strike_due()

    async def ring(self) -> None:
        """The alarm rang.

        Raises:
            Ending: a fault ends the exchange.
        """
        self.alarm = asyncio.get_running_loop().create_future()
        await self._strike_due()

    async def push(self, data: bytes) -> None:
        """Pass bytes on; they may wait for ``flush``.

        Raises:
            Ending: a fault ends the exchange.
        """
        while data:
            found = self._next(data)
            if found is None:
                await self._send(data)
                return
            stage, size = found
            if isinstance(stage.action, Cut) and stage.action.how is How.FIN:
                self._note(stage.armed)
                self.sink.torn(data, size)
                self.passed += size
                await self.flush()
                raise Ending("fin", "cut with FIN", stage.armed)
            if size:
                await self._send(data[:size])
            data = data[size:]
            await self.flush()
            await self._strike(stage)

    async def flush(self) -> None:
        """Hand everything to the kernel.

        Raises:
            Ending: a fault ends the exchange.
        """
        while not await self.sink.flush(self.alarm):
            await self.ring()

    def _next(self, data: bytes) -> tuple[Stage, int] | None:
        best: tuple[Stage, int] | None = None
        for stage in self._stages:
            at = stage.position(self.passed, self._last, data, started=self._started)
            if at is not None and (best is None or at < best[1]):
                best = stage, at
        return best

    async def _send(self, data: bytes) -> None:
        slow = [armed for armed in self._slow if not armed.removed]
        if not slow:
            self._put(data)
            return
        for armed in slow:
            self._note(armed)
        rate = min(armed.action.bytes_per_second for armed in slow if isinstance(armed.action, Slow))
        step = max(rate // _PIECES, 1)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            self._put(piece)
            await self.flush()
            await slow[0].hold(len(piece) / rate)

    def _put(self, data: bytes) -> None:
        self.sink.put(data)
        self.passed += len(data)
        self._last = data[-1]

    async def _strike_due(self) -> None:
        while (found := self._next(b"")) is not None:
            await self._strike(found[0])

    async def _strike(self, stage: Stage) -> None:
        self._stages.remove(stage)
        self._note(stage.armed)
        match stage.action:
            case Stall(for_s=seconds):
                await stage.armed.hold(seconds)
            case _:
                raise ending(stage.armed, stage.action)

    def _ripen(self, stage: Stage) -> None:
        stage.ripe = True
        if self.alarm is not None and not self.alarm.done():
            self.alarm.set_result(None)


def _place(action: Cut | Stall | HalfOpen | EndStream | WatchError) -> Place:
    if isinstance(action, EndStream):
        return action.place
    return Place.BOUNDARY if isinstance(action, WatchError) else Place.ANYWHERE
