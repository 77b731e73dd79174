"""The one writer of an attempt's pods: watches them, follows their logs, writes everything into the run directory.

It runs in a thread with an event loop of its own, so that neither a slow disk nor a busy supervisor keeps it from reading, and it decides
nothing. Two feeds of one attempt must not run at once: the run's lease guards that. What it wrote is taken up again by the next one.
Whatever goes wrong is told and tried again: only ``stop`` ends a feed, but for one that is to look once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from rankfall.kube.client import Kube
from rankfall.observe.cluster.follower import GATHER_S
from rankfall.observe.cluster.log_tasks import AGAIN_S
from rankfall.observe.cluster.session import Session
from rankfall.observe.cluster.source import PodSource
from rankfall.observe.cluster.troubles import Troubles, in_words
from rankfall.observe.endable import Endable
from rankfall.store import RunDir

_JOIN_S: Final = 10.0


class PodFeed:
    """Feed of one attempt.

    Args:
        run_dir: where everything goes.
        attempt: counted from 1.
        source: which pods.
        connect: makes a client; called in the feed's thread.
        trouble: told of difficulties in words, from the feed's thread: what lasts once, what comes and goes once a minute at most.
        once: take what is there now and end.
        gather_s: how long lines are left to gather.
        stir: called from its thread when there is more to see than further lines.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource,
        connect: Callable[[], Kube],
        trouble: Callable[[str], None],
        once: bool = False,
        gather_s: float = GATHER_S,
        stir: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._connect = connect
        self._once = once
        self._gather_s = gather_s
        self._stir = stir
        self._troubles = Troubles(trouble)
        self._thread = threading.Thread(target=self._thread_main, name=f"rankfall-pods-a{attempt}", daemon=True)
        self._endable = Endable()
        self._session: Session | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has come to its end by itself: only one that was to look once does."""
        return self._thread.ident is not None and not self._thread.is_alive()

    @property
    def following(self) -> bool:
        """Whether all pods are known and the log of each container that runs is open, or was tried in vain."""
        session = self._session
        return session is not None and session.following

    @property
    def blind(self) -> bool:
        """Whether the pods cannot be watched at present."""
        session = self._session
        return session is None or session.blind

    def stop(self) -> None:
        """End; what is in flight is dropped and comes again with the next feed. May be called again."""
        self._endable.end()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    # -- the thread

    def _thread_main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._endable.run(self._work()))

    async def _work(self) -> None:
        while True:
            try:
                async with self._connect() as kube:
                    session = self._session = Session(
                        kube,
                        run_dir=self._run_dir,
                        attempt=self._attempt,
                        source=self._source,
                        troubles=self._troubles,
                        once=self._once,
                        gather_s=self._gather_s,
                        stir=self._stir,
                    )
                    await (session.take() if self._once else session.run())
            except Exception as error:  # noqa: BLE001 - a feed that dies without a word would leave the run waiting for ever
                self._troubles.say(
                    f"feed {type(error).__name__}",
                    f"the pods of attempt {self._attempt} are not followed: {in_words(error)}",
                )
            if self._once:
                return
            await asyncio.sleep(AGAIN_S)
