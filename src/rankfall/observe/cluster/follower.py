"""Follows the log of one container instance to its end. An end of the stream says nothing: only the container's state does.

Whatever ends a stream (end of file, error, silence), the next step is the same: look at the container. It runs: the log is opened again from
the cursor. It has ended: one last reading from the cursor, then the log is closed. Another instance took its place: the last reading is of
the previous instance. The pod is gone: what was not read by then is lost, and said to be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, CredentialsError, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.podlogs import not_started, open_log
from rankfall.observe.cluster.instance import InstanceLog

State = Literal["waiting", "running", "ended", "replaced", "gone"]
End = Literal["complete", "lost", "none"]

# Between two tries: the first at once, then doubling, seconds.
_FIRST_S: Final = 0.1
_MOST_S: Final = 5.0
# A silent stream is opened anew after this long: a connection that lost its other side looks the same, seconds.
SILENCE_S: Final = 240.0
# What a followed log holds already comes within this time after it was opened, seconds.
LIVE_S: Final = 5.0
# How long the last reading of an ended container is tried while the API or the kubelet does not answer, seconds.
PATIENCE_S: Final = 60.0


class Follower:
    """One instance's follower.

    Args:
        kube: the client.
        pod, namespace, container: whose log.
        log: where it goes.
        state: the instance's state by the newest look at its pod.
        changed: waits until that state may have changed, or for so many seconds.
        trouble: told once of each kind of difficulty, in words.
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
        changed: Callable[[float | None], Awaitable[None]],
        trouble: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._pod = pod
        self._namespace = namespace
        self._container = container
        self._log = log
        self._state = state
        self._changed = changed
        self._trouble = trouble
        self._failures = 0
        self._gone = False
        self._ended_since: float | None = None

    async def run(self) -> End:
        """Follow to the end.

        Returns:
            ``complete``: all of it is stored; ``lost``: the end could not be had; ``none``: the container never started.

        Raises:
            OSError: it could not be stored.
        """
        if self._log.cursor.closed is not None:
            return "lost" if self._log.cursor.closed == "lost" else "complete"
        while True:
            state = self._state()
            if state == "waiting":
                await self._changed(None)
                continue
            if state == "gone" and self._ended_since is None and self._log.cursor.last is None:
                # It may have printed and ended between two looks; one reading tells.
                self._ended_since = asyncio.get_running_loop().time()
            try:
                finished = await self._read(state)
            except ObjectNotFound:
                return self._close("complete" if self._drained(state) else "lost")
            except (Forbidden, CredentialsError) as error:
                self._trouble(error.message)
                await self._back_off()
                continue
            except ApiError as error:
                if not_started(error.message) is not None and state != "ended":
                    await self._changed(1.0)
                    continue
                finished = False
                self._failures += 1
                self._trouble(error.message)
            except KubeError:
                # A connection that ended in the middle: nothing to say of it, the next one goes on where it ended.
                finished = False
                self._failures += 1
            if finished:
                return self._close("complete")
            if self._gone or self._spent():
                return self._close("lost")
            await self._back_off()

    # -- one stream

    async def _read(self, state: State) -> bool:
        """Read one stream to its end; True when that was the end of the instance's log."""
        follow = state == "running"
        self._since_ended(state)
        before = self._log.bytes
        async with open_log(
            self._kube,
            self._pod,
            container=self._container,
            namespace=self._namespace,
            follow=follow,
            previous=state == "replaced",
            since_second=self._log.cursor.since,
            read_timeout=SILENCE_S * (0.75 + 0.5 * random.random()),  # noqa: S311 - spreads reconnects, guards nothing
        ) as chunks:
            self._log.opened()
            opened = asyncio.get_running_loop().time()
            async for chunk in chunks:
                self._log.live = follow and asyncio.get_running_loop().time() - opened > LIVE_S
                self._log.feed(chunk)
                self._failures = 0
        if self._log.bytes > before:
            self._failures = 0
        if follow:
            self._log.at_end = True
            # At the end of a container the stream ends a moment before its state says so.
            self._failures += 1
            return False
        found = self._log.finish()
        if found is None:
            return True
        self._trouble(f"the log of {self._pod}: {found.text}")
        self._failures += 1
        # What is gone will not come back; for the rest the kubelet may have an answer later.
        self._gone = found.kind in {"gone", "file"}
        return False

    def _since_ended(self, state: State) -> None:
        if state in {"ended", "replaced", "gone"} and self._ended_since is None:
            self._ended_since = asyncio.get_running_loop().time()

    def _spent(self) -> bool:
        return (
            self._ended_since is not None
            and self._state() != "running"
            and asyncio.get_running_loop().time() - self._ended_since > PATIENCE_S
        )

    def _drained(self, state: State) -> bool:
        """Whether a pod that is gone had been read to the end of its stream: it ended, and the stream ended by itself after that."""
        return state in {"gone", "ended"} and self._log.at_end

    async def _back_off(self) -> None:
        if self._failures <= 1:
            await self._changed(_FIRST_S)
            return
        pause = min(_MOST_S, _FIRST_S * 2 ** min(self._failures, 10))
        await self._changed(pause * (0.5 + 0.5 * random.random()))  # noqa: S311 - spreads reconnects, guards nothing

    def _close(self, end: End) -> End:
        self._log.cursor.closed = end
        self._log.cursor.commit({})
        return end
