"""Tails the log of one container instance, reopening it as often as needed.

A stream's end proves nothing, only the container state does. Idle connections are reopened.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, Literal

from rankfall.collect.pods.instance_log import InstanceLog, Standing
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, CredentialsError, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.http.body_stream import HURRY_S
from rankfall.kube.pod_logs import not_started, open_log

# Longest idle timeout in seconds.
IDLE_TIMEOUT_S: Final = 240.0
# Shortest idle timeout in seconds; multiple of the longest silence.
QUIET_S: Final = 20.0
TIMES: Final = 3.0
# Seconds of lines after which intervals count as known; less for a log with this many chunks.
KNOWN_S: Final = 60.0
DENSE_S: Final = 10.0
DENSE: Final = 100


class IdleTimeout:
    """Tracks the intervals between lines of one container and derives its idle timeout."""

    __slots__ = ("_chunks", "_first", "_longest", "_newest", "_vain")

    def __init__(self) -> None:
        self._chunks = 0
        self._first: float | None = None
        self._newest = 0.0
        self._longest = 0.0
        self._vain = 0

    def heard(self, now: float) -> None:
        """Records new lines at this time, in seconds of a monotonic clock."""
        self._chunks += 1
        if self._first is None:
            self._first = self._newest = now
        self._longest = max(self._longest, now - self._newest)
        self._newest = now
        self._vain = 0

    def doubted(self) -> None:
        """Records that the log was reopened because of its silence."""
        self._vain += 1

    def limit(self) -> float:
        """Idle timeout in seconds."""
        known = DENSE_S if self._chunks >= DENSE else KNOWN_S
        if self._first is None or self._newest - self._first < known:
            return IDLE_TIMEOUT_S
        return min(IDLE_TIMEOUT_S, max(QUIET_S, TIMES * self._longest) * 2.0 ** min(self._vain, 8))


State = Literal["waiting", "running", "ended", "replaced", "gone"]
End = Literal["complete", "lost"]

# Seconds before the second retry; doubles.
_FIRST_S: Final = 0.1
_MOST_S: Final = 5.0
# Seconds between retries without the right to read.
_SELDOM_S: Final = 30.0
# Longest accepted ``Retry-After`` in seconds.
_ASKED_S: Final = 60.0
# Seconds for the pod to report an end: a log reopened earlier might be the next container's.
SETTLE_S: Final = 1.0
# Idle timeout in seconds of existing content and ended containers.
READING_S: Final = 20.0
DRAIN_S: Final = 5.0
# Idle timeouts are spread by this factor to both sides.
_SPREAD: Final = 1.25
# Seconds for existing content. A stream that lived this long was good.
LIVE_S: Final = 5.0
# Seconds of accumulation after each chunk: storing one line costs nearly as much as a hundred.
GATHER_S: Final = 0.1
UNSEEN_GATHER_S: Final = 0.2
# Seconds without progress before the final read fails. An unreachable API stops this clock.
PATIENCE_S: Final = 60.0
# Lines before its end from which a log just read is followed.
_JOIN: Final = 250
# Openings of a log for a single read, and seconds after which none is added: a lost node answers late.
_TAKES: Final = 4
_TAKE_S: Final = 8.0
# Bytes of a log's first line that contain its timestamp.
_HEAD: Final = 64
# Bytes written meanwhile above which a reopened log is first read to its end: a kubelet that reads a long file before it
# waits misses rotations.
_MUCH: Final = 1 << 20
# Seconds of retries after a 403: a starting API server answers before it has read its roles (1.34).
DENIED_S: Final = 20.0


class LogTailer:
    """Tails the log of one instance; call ``look`` after a possible state change.

    ``past``: the log has much content, which is read before following.
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
        unheard: Callable[[], bool] = lambda: False,
        refresh: Callable[[], Awaitable[bool]],
        trouble: Callable[[str, str], None],
        gather_s: float = GATHER_S,
        past: bool = False,
    ) -> None:
        self._open = partial(open_log, kube, pod, container=container, namespace=namespace)
        self._gather_s = gather_s
        self._past = past
        # The log was just read to its end; no joining read failed.
        self._joins, self._joinable = False, True
        self._pod = pod
        self._log = log
        self._state = state
        self._unheard = unheard
        self._refresh = refresh
        self._trouble = trouble
        self._changed = asyncio.Event()
        self._drain: asyncio.Timeout | None = None
        self._idle_timeout = IdleTimeout()
        # Time of the last data, or of the opening.
        self._heard = 0.0
        # Time from which a failed check of a pause is retried.
        self._check_at = 0.0
        self._again = False
        self._failures = 0
        self._opened = False
        # Time of the first request, on a clock of all threads.
        self._first: float | None = None
        self._asked = 0.0
        self._in_order = False
        self._hopeless = False
        self._following = True
        self._denied_since: float | None = None
        self._trying_since: float | None = None
        self._once_more = True
        # Error of the newest try.
        self._why: str | None = None

    @property
    def tried(self) -> bool:
        """True if the log was opened, or a few seconds after the request. Thread-safe.

        A kubelet sends nothing for an empty log.
        """
        return self._opened or (self._first is not None and time.monotonic() - self._first >= LIVE_S)

    def look(self) -> None:
        """Notifies the tailer of a new pod snapshot."""
        self._changed.set()
        self._limit()

    async def run(self) -> End:
        """Tails the log to its end; returns ``lost`` if a part of the log is not available.

        Raises:
            OSError: Lines could not be stored.
        """
        if self._log.cursor.closed is not None:
            return "lost" if self._log.cursor.closed == "lost" else "complete"
        while True:
            state = self._state()
            if state == "gone":
                return self._close("complete" if self._log.leave(unheard=self._unheard()) else "lost")
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
        """Reads the log's current content; None if the container may print more.

        Raises:
            OSError: Lines could not be stored.
        """
        self._following = False
        began = _clock()
        for _ in range(_TAKES):
            state = self._state()
            if state == "waiting":
                return None
            if state != "running":
                return await self.run()
            before = self._failures
            await self._tried(state)
            if self._failures == before or self._hopeless or _clock() - began > _TAKE_S:
                return None
            await self._pause(state)
        return None

    # -- one stream

    async def _tried(self, state: State) -> bool:
        """Reads one stream and reports errors; True if the stream was read to its end."""
        began, before = _clock(), self._log.standing()
        self._first = self._first or time.monotonic()
        self._in_order = False
        try:
            finished = await self._read(state, before)
        except ObjectNotFound as error:
            # Deleted, or its restarted kubelet does not know its pods yet.
            self._failures, self._why = self._failures + 1, error.message
        except ApiError as error:
            self._failed(error, state)
        except KubeError as error:
            # The next connection continues there; no report.
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
        # While the container runs, the right is requested occasionally.
        self._hopeless = isinstance(error, Forbidden) and self._denied()

    async def _read(self, state: State, before: Standing) -> bool:
        running = state == "running"
        past, self._past = (self._past or self._behind()) and running and self._following and not self._joins, False
        follow = running and self._following and not past
        joins, self._joins = self._joins and (follow or not running), False
        newest = (self._log.cursor.newest(_JOIN) if joins else None) or None
        async with self._open(
            follow=follow,
            previous=state == "replaced",
            since_second=None if newest else self._log.cursor.since,
            tail=_JOIN if newest else None,
            # The idle timeout decides; headers may take as long.
            read_timeout=IDLE_TIMEOUT_S * _SPREAD if follow else READING_S,
            # A final read would otherwise arrive in pieces of 4 KiB, at three times the work.
            gather_s=self._gather_s if follow or past else HURRY_S,
        ) as chunks:
            self._log.opened(newest, followed=follow)
            self._opened = True
            self._denied_since = None
            joins = newest is not None
            whole = await (self._followed(chunks, joins=joins) if follow else self._taken(chunks, state, joins=joins))
        self._hopeless = False
        if not whole:
            self._failures += 1
            # A line longer than the first data is not recognized.
            self._joinable = self._joinable and not joins
            return False
        # A proxy may end a read in the middle: only a read without new data is the last.
        last = not running and self._log.standing() == before and not (joins and self._log.cursor.expecting)
        found = self._log.finish() if last else self._log.complaint()
        # Content just read is not read again, unless its end left that open.
        self._joins = found is None and not running and not last and not joins and self._joinable
        if found is None and running and not follow:
            self._joins = past
            return False
        self._failures += 1
        if found is None:
            self._log.at_end, self._in_order = True, running
            return last
        self._trouble(f"log {found.kind}", f"the log of {self._pod}: {found.text}")
        # Removed logs do not return; the kubelet may answer later.
        self._hopeless = found.kind in {"gone", "file"}
        return False

    async def _followed(self, chunks: AsyncIterator[bytes], *, joins: bool) -> bool:
        """Returns False also on a time-out: the stream is idle."""
        scope = asyncio.timeout(None)
        watch = asyncio.create_task(self._doubt(scope))
        try:
            async with scope:
                self._drain = scope
                self._limit()
                return await self._taken(chunks, "running", follow=True, joins=joins)
        except TimeoutError:
            if not scope.expired():
                # From a file system.
                raise
            return False
        finally:
            self._drain = None
            watch.cancel()

    async def _doubt(self, scope: asyncio.Timeout) -> None:
        # Streams that began simultaneously must not end simultaneously.
        share = random.uniform(2 - _SPREAD, _SPREAD)  # noqa: S311 - guards nothing
        self._heard = _clock()
        while (left := self._heard + share * self._idle_timeout.limit() - _clock()) > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(min(left, QUIET_S))
        self._idle_timeout.doubted()
        if not scope.expired():
            scope.reschedule(_clock())

    async def _taken(
        self, chunks: AsyncIterator[bytes], state: State, *, follow: bool = False, joins: bool = False
    ) -> bool:
        """Reads a stream. Returns False if it may belong to the next container, or if ``joins`` fails."""
        opened = _clock()
        unsure, self._again = self._again, True
        async for chunk in chunks:
            if unsure:
                known = self._log.joins(chunk) if joins else self._log.continues(chunk)
                if known is False:
                    # More lines arrived than were requested again.
                    if joins:
                        return False
                    await self._refresh()
                    if self._state() != state:
                        return False
                unsure = known is None
            now, lines = _clock(), self._log.cursor.lines
            self._log.live = follow and now - opened > LIVE_S
            self._log.push(chunk)
            if self._log.pauses.suspected is not None and now >= self._check_at:
                await self._check(previous=state == "replaced")
            self._heard = now
            if self._log.cursor.lines > lines:
                self._idle_timeout.heard(now)
            self._limit()
        return True

    def _behind(self) -> bool:
        return self._log.pauses.rate * (_clock() - self._heard) > _MUCH

    async def _check(self, *, previous: bool) -> None:
        """Reads where the log's file begins, to settle a suspected pause; failures are retried later."""
        try:
            async with self._open(previous=previous, limit_bytes=_HEAD, read_timeout=READING_S) as chunks:
                head = b"".join([chunk async for chunk in chunks])
        except KubeError:
            self._check_at = _clock() + _MOST_S
        else:
            self._log.settle(head)

    def _limit(self) -> None:
        if self._drain is not None and not self._drain.expired() and self._state() != "running":
            self._drain.reschedule(_clock() + DRAIN_S)

    # -- between streams

    async def _given_up(self) -> bool:
        """True if the final read of an ended container is not retried."""
        if self._hopeless or self._trying_since is None or _clock() - self._trying_since <= PATIENCE_S:
            return self._hopeless
        if not await self._refresh():
            self._trying_since, self._once_more = _clock(), True
            return False
        # A recovered API gets one more try before the log is lost.
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
        """Waits for the next pod snapshot or the time-out; not at all if the state has changed."""
        if self._state() != state:
            return
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _close(self, end: End) -> End:
        if self._log.pauses.suspected is not None:
            # The beginning of its file could not be read.
            self._log.settle(b"")
        if end == "lost":
            self._log.lose(self._why)
        self._log.cursor.closed = end
        self._log.cursor.commit({})
        return end


def _clock() -> float:
    return asyncio.get_running_loop().time()
