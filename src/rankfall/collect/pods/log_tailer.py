"""Tails the log of one container instance to its end, reopening it as often as needed.

The end of a stream proves nothing; only the container state does. After any end the tailer checks the
container: running means reopen, ended means read until nothing new comes, replaced or gone means the rest
is lost and recorded so. An existing log is read to its end before it is followed, because the API server
sends large pieces of a read and single lines of a follow. A silent connection is doubted after its longest
silence so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Literal

from rankfall.collect.pods.instance_log import InstanceLog, Standing
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, CredentialsError, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.http.body_stream import HURRY_S
from rankfall.kube.pod_logs import not_started, open_log

# The longest time, seconds.
IDLE_TIMEOUT_S: Final = 240.0
# The shortest; and how many times the longest silence so far are waited for.
QUIET_S: Final = 20.0
TIMES: Final = 3.0
# From so much talk on a log is known, seconds between its first and its newest line.
KNOWN_S: Final = 60.0


class IdleTimeout:
    """What is known of one container's habit of speaking."""

    __slots__ = ("_first", "_longest", "_newest", "_vain")

    def __init__(self) -> None:
        self._first: float | None = None
        self._newest = 0.0
        self._longest = 0.0
        self._vain = 0

    def heard(self, now: float) -> None:
        """New lines came at this moment, seconds of any clock that does not go back."""
        if self._first is None:
            self._first = self._newest = now
        self._longest = max(self._longest, now - self._newest)
        self._newest = now
        self._vain = 0

    def doubted(self) -> None:
        """The log was opened anew because of its silence."""
        self._vain += 1

    def limit(self) -> float:
        """How long a silence is not doubted, seconds."""
        if self._first is None or self._newest - self._first < KNOWN_S:
            return IDLE_TIMEOUT_S
        return min(IDLE_TIMEOUT_S, max(QUIET_S, TIMES * self._longest) * 2.0 ** min(self._vain, 8))


State = Literal["waiting", "running", "ended", "replaced", "gone"]
End = Literal["complete", "lost"]

# Between two tries: the first at once, then doubling, seconds.
_FIRST_S: Final = 0.1
_MOST_S: Final = 5.0
# While there is no right to read the log of a running container, seconds.
_SELDOM_S: Final = 30.0
# Longest ``Retry-After`` that is honoured, seconds.
_ASKED_S: Final = 60.0
# A stream that ended in order most often did so because its container ended: that long the pod is given to say so, seconds. Opened at once, the
# log might be that of the container that takes its place.
SETTLE_S: Final = 1.0
# A stream is opened anew when nothing more comes where nothing is waited for but what is there already, seconds; and where a container has ended
# and its stream has not. One that waits for what a container will say has ``silence``.
READING_S: Final = 20.0
DRAIN_S: Final = 5.0
# Limits of silence are spread over so much to both sides.
_SPREAD: Final = 1.25
# What a followed log holds already comes within this time after it was opened, seconds. A stream that lived that long was a good one.
LIVE_S: Final = 5.0
# Lines are left to gather this long after each chunk, seconds: reading, storing and committing cost nearly the same for one line as for a
# hundred. The first line after a silence waits for nothing. A person who looks on does not see a tenth of a second; where this process shows
# the lines to nobody, whoever reads the files sees twice that.
GATHER_S: Final = 0.1
UNSEEN_GATHER_S: Final = 0.2
# How long the last reading of an ended container is tried while its kubelet does not answer, seconds since it got on. While the API itself does
# not answer this time stands still: that says nothing of the log.
PATIENCE_S: Final = 60.0
# From so many lines before its end a log is followed that was just read to its end: what a busy job prints until then is less.
_JOIN: Final = 250
# How often a log that is only looked into is opened at most.
_TAKES: Final = 4
# How long a 403 is doubted, seconds: an API server that has just started answers before it has read its roles (seen with 1.34).
DENIED_S: Final = 20.0


class LogTailer:
    """One instance's follower.

    Args:
        kube: the client.
        pod, namespace, container: whose log.
        log: where it goes.
        state: the instance's state by the newest look at its pod; ``look`` is to be called when that may have changed.
        refresh: looks at the pod now; whether it was seen to be there.
        trouble: told of difficulties: name of the kind, words.
        gather_s: how long lines of a followed log are left to gather.
        past: the log holds much already: it is read to its end before it is followed.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        pod: str,
        namespace: str,
        container: str,
        log: InstanceLog,
        state: Callable[[], State],
        refresh: Callable[[], Awaitable[bool]],
        trouble: Callable[[str, str], None],
        gather_s: float = GATHER_S,
        past: bool = False,
    ) -> None:
        self._kube = kube
        self._gather_s = gather_s
        self._past = past
        # The log was just read to its end; and no joining reading was in vain.
        self._joins, self._joinable = False, True
        self._pod = pod
        self._namespace = namespace
        self._container = container
        self._log = log
        self._state = state
        self._refresh = refresh
        self._trouble = trouble
        self._changed = asyncio.Event()
        self._drain: asyncio.Timeout | None = None
        self._idle_timeout = IdleTimeout()
        # When something came last, or the stream was opened.
        self._heard = 0.0
        self._again = False
        self._failures = 0
        self._opened = False
        # When it was asked for first, on the clock of every thread.
        self._first: float | None = None
        self._asked = 0.0
        self._in_order = False
        self._hopeless = False
        self._following = True
        self._denied_since: float | None = None
        self._trying_since: float | None = None
        self._once_more = True
        # What the newest try to read the log met.
        self._why: str | None = None

    @property
    def tried(self) -> bool:
        """Whether the log was opened. A kubelet says nothing of one that is empty, so a while after it was asked for is as good. From any thread."""
        return self._opened or (self._first is not None and time.monotonic() - self._first >= LIVE_S)

    def look(self) -> None:
        """The pod was seen anew."""
        self._changed.set()
        self._limit()

    async def run(self) -> End:
        """Follow to the end.

        Returns:
            ``complete``: all of it is stored; ``lost``: the end could not be had.

        Raises:
            OSError: it could not be stored.
        """
        if self._log.cursor.closed is not None:
            return "lost" if self._log.cursor.closed == "lost" else "complete"
        while True:
            state = self._state()
            if state == "gone":
                return self._close("complete" if self._log.leave() else "lost")
            if state == "waiting":
                await self._wait(None, state)
                continue
            if state != "running" and self._trying_since is None:
                self._trying_since = _clock()
            if await self._tried(state):
                return self._close("complete")
            if state == self._state() != "running" and await self._given_up():
                return self._close("lost")
            if not self._joins:
                await self._pause(state)

    async def take(self) -> End | None:
        """Take what the log holds now.

        Returns:
            As :meth:`run`, where the container has ended; None while it runs, or has not begun: more may come later.

        Raises:
            OSError: it could not be stored.
        """
        self._following = False
        for _ in range(_TAKES):
            state = self._state()
            if state == "waiting":
                return None
            if state != "running":
                return await self.run()
            before = self._failures
            await self._tried(state)
            if self._failures == before or self._hopeless:
                return None
            await self._pause(state)
        return None

    # -- one stream

    async def _tried(self, state: State) -> bool:
        """Read one stream to its end; True when that was the end of the instance's log. Its errors are told, and counted."""
        began, before = _clock(), self._log.standing()
        self._first = self._first or time.monotonic()
        self._in_order = False
        try:
            finished = await self._read(state, before)
        except ObjectNotFound as error:
            # Deleted, as the watch will say; or its kubelet was started anew and does not know its pods yet.
            self._failures, self._why = self._failures + 1, error.message
        except ApiError as error:
            self._failed(error, state)
        except KubeError as error:
            # A connection that ended in the middle: nothing to say of it, the next one goes on where it ended.
            self._log.at_end = False
            self._failures, self._why = self._failures + 1, error.message
            if isinstance(error, CredentialsError):
                self._trouble("log credentials", error.message)
        else:
            if finished:
                return True
        if self._log.cursor.lines > before.lines:
            self._failures = min(self._failures, 1)
            if self._trying_since is not None:
                self._trying_since, self._once_more = _clock(), True
        elif _clock() - began > LIVE_S:
            self._failures = min(self._failures, 1)
        return False

    def _failed(self, error: ApiError, state: State) -> None:
        self._failures, self._why = self._failures + 1, error.message
        self._asked = min(error.retry_after or 0.0, _ASKED_S)
        if not_started(error.message) is not None and state == "running":
            return
        self._log.at_end = False
        self._trouble(f"log {error.status}", error.message)
        # Rights do not come by waiting; while the container runs they are asked for now and then all the same.
        self._hopeless = isinstance(error, Forbidden) and self._denied()

    async def _read(self, state: State, before: Standing) -> bool:
        running = state == "running"
        past, self._past = self._past and running and self._following, False
        follow = running and self._following and not past
        joins, self._joins = self._joins and (follow or not running), False
        newest = (self._log.cursor.newest(_JOIN) if joins else None) or None
        async with open_log(
            self._kube,
            self._pod,
            container=self._container,
            namespace=self._namespace,
            follow=follow,
            previous=state == "replaced",
            since_second=None if newest else self._log.cursor.since,
            tail=_JOIN if newest else None,
            # Of a follow the silence decides, which is watched beside it; its head may take as long.
            read_timeout=IDLE_TIMEOUT_S * _SPREAD if follow else READING_S,
            # A last reading waits for as little as it may; without that it is taken in pieces of 4 KiB, at three times the work.
            gather_s=self._gather_s if follow or past else HURRY_S,
        ) as chunks:
            self._log.opened(newest)
            self._opened = True
            self._denied_since = None
            joins = newest is not None
            whole = await (self._followed(chunks, joins=joins) if follow else self._taken(chunks, state, joins=joins))
        self._hopeless = False
        if not whole:
            self._failures += 1
            # A line that is longer than what comes first cannot be known again: such a log is read from its cursor.
            self._joinable = self._joinable and not joins
            return False
        # A proxy may end a reading in order in its middle: the last one is the one that brought nothing. Before it, as while the container runs,
        # the last line may not be whole yet.
        last = not running and self._log.standing() == before and not (joins and self._log.cursor.expecting)
        found = self._log.finish() if last else self._log.complaint()
        # What was just read to its end is not read as a whole again to see that it was all; where its end did not settle that, it is.
        self._joins = found is None and not running and not last and not joins and self._joinable
        if found is None and running and not follow:
            self._joins = past
            return False
        self._failures += 1
        if found is None:
            self._log.at_end, self._in_order = True, running
            return last
        self._trouble(f"log {found.kind}", f"the log of {self._pod}: {found.text}")
        # What is gone will not come back; for the rest the kubelet may have an answer later.
        self._hopeless = found.kind in {"gone", "file"}
        return False

    async def _followed(self, chunks: AsyncIterator[bytes], *, joins: bool) -> bool:
        """Take a followed stream as ``_taken``; False also when nothing comes, not even its end: its container has ended, or the silence is too long."""
        scope = asyncio.timeout(None)
        watch = asyncio.create_task(self._doubt(scope))
        try:
            async with scope:
                self._drain = scope
                self._limit()
                return await self._taken(chunks, "running", follow=True, joins=joins)
        except TimeoutError:
            if not scope.expired():
                # Of a file system, not of ours.
                raise
            return False
        finally:
            self._drain = None
            watch.cancel()

    async def _doubt(self, scope: asyncio.Timeout) -> None:
        """End a stream that is silent for too long. It looks now and then, and not at every chunk."""
        # Spread, so that streams that began together do not end together.
        share = random.uniform(2 - _SPREAD, _SPREAD)  # noqa: S311 - guards nothing
        self._heard = _clock()
        while (left := self._heard + share * self._idle_timeout.limit() - _clock()) > 0:  # noqa: ASYNC110 - of a clock nobody tells
            # The limit changes with what is heard meanwhile.
            await asyncio.sleep(min(left, QUIET_S))
        self._idle_timeout.doubted()
        if not scope.expired():
            scope.reschedule(_clock())

    async def _taken(
        self, chunks: AsyncIterator[bytes], state: State, *, follow: bool = False, joins: bool = False
    ) -> bool:
        """Take a stream; False when it may be the log of the container that took this one's place, or ``joins`` and does not."""
        opened = _clock()
        unsure, self._again = self._again, True
        async for chunk in chunks:
            if unsure:
                known = self._log.joins(chunk) if joins else self._log.continues(chunk)
                if known is False:
                    # More came meanwhile than was asked for again.
                    if joins:
                        return False
                    await self._refresh()
                    if self._state() != state:
                        return False
                unsure = known is None
            now, lines = _clock(), self._log.cursor.lines
            self._log.live = follow and now - opened > LIVE_S
            self._log.push(chunk)
            self._heard = now
            if self._log.cursor.lines > lines:
                self._idle_timeout.heard(now)
            self._limit()
        return True

    def _limit(self) -> None:
        """From the container's end on its stream may not be silent for long."""
        if self._drain is not None and not self._drain.expired() and self._state() != "running":
            self._drain.reschedule(_clock() + DRAIN_S)

    # -- between streams

    async def _given_up(self) -> bool:
        """Whether the last reading of an ended container is not tried again."""
        if self._hopeless or self._trying_since is None or _clock() - self._trying_since <= PATIENCE_S:
            return self._hopeless
        if not await self._refresh():
            self._trying_since, self._once_more = _clock(), True
            return False
        # An API that answers now may have been away at the last try: the log is given up when another one has failed since.
        again, self._once_more = self._once_more, False
        return not again

    def _denied(self) -> bool:
        if self._denied_since is None:
            self._denied_since = _clock()
        return _clock() - self._denied_since >= DENIED_S

    async def _pause(self, state: State) -> None:
        if self._asked:
            await asyncio.sleep(self._asked)
            self._asked = 0.0
        else:
            pause = _FIRST_S if self._failures <= 1 else min(_MOST_S, _FIRST_S * 2.0 ** min(self._failures, 10))
            if self._in_order:
                pause = max(pause, SETTLE_S)
            elif self._hopeless and state == "running":
                pause = _SELDOM_S
            await self._wait(pause * random.uniform(0.5, 1.0), state)  # noqa: S311 - guards nothing

    async def _wait(self, seconds: float | None, state: State) -> None:
        """Wait for the next look at the pod, or so long; not at all when the state is another one by now."""
        if self._state() != state:
            return
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _close(self, end: End) -> End:
        if end == "lost":
            self._log.lose(self._why)
        self._log.cursor.closed = end
        self._log.cursor.commit({})
        return end


def _clock() -> float:
    return asyncio.get_running_loop().time()
