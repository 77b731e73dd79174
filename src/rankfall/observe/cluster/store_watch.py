"""Copies the lines of ranks out of a log store while an attempt's pods are followed, in threads: a store may be slow, the feed must not be.

The log of an instance is over when its copy is, too. Where this machine does not see the store, or its writer never wrote the end, that is
said once, and the log counts as lost in part: the lines may be there still, and ``rankfall logs --log-source store`` takes them in later.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rankfall.observe.cluster.troubles import Troubles, in_words
from rankfall.observe.log_store import Copy, StoreCopies, how_to_see, source_of
from rankfall.store import RunDir

# Between two looks at all folders, seconds; more where a look takes long.
LOOK_S: Final = 1.0
# How long an ended container's folder may stand still without an end, or give no answer, before it is given up, seconds.
PATIENCE_S: Final = 75.0


class StoreWatch:
    """The copies of one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        troubles: takes difficulties.
    """

    def __init__(self, run_dir: RunDir, *, attempt: int, troubles: Troubles) -> None:
        self.copies = StoreCopies(run_dir.logs_dir / f"attempt-{attempt}", source_of(run_dir.spec))
        self._how = how_to_see(run_dir.spec)
        self._where = run_dir.spec.kubernetes.log_store
        self._troubles = troubles
        # When each grew, and when the newest look at it that got an answer began.
        self._grew: dict[Path, float] = {}
        self._looked: dict[Path, float] = {}
        # Since when each look at it has got none.
        self._deaf: dict[Path, float] = {}
        if self._where is not None:
            self.copies.load()

    @property
    def accepting(self) -> StoreCopies | None:
        """Takes the folders that records name; None for a job without a store, whatever its records say."""
        return None if self._where is None else self.copies

    async def run(self) -> None:
        """Copy until cancelled."""
        source = self.copies.source
        if self._where is None or source is None:
            return
        with ThreadPoolExecutor(source.at_once, thread_name_prefix="rankfall-store") as pool:
            while True:
                began = time.monotonic()
                done = await asyncio.gather(*(self._look(copy, pool) for copy in self.copies.open))
                if all(done):
                    self._troubles.over("log store")
                await asyncio.sleep(max(LOOK_S, source.rest * (time.monotonic() - began)))

    async def _look(self, copy: Copy, pool: ThreadPoolExecutor) -> bool:
        """Copy what is new of one; false = it could not be had."""

        def look() -> tuple[float, int]:
            return time.monotonic(), self.copies.poll_one(copy)

        try:
            began, count = await asyncio.get_running_loop().run_in_executor(pool, look)
        except OSError as error:
            text = f"{copy.name} of the log store cannot be copied: {in_words(error)}; it is tried again"
            self._troubles.say("log store", text)
            self._deaf.setdefault(copy.target, time.monotonic())
            return False
        self._deaf.pop(copy.target, None)
        self._looked[copy.target] = began
        if count:
            self._grew[copy.target] = time.monotonic()
        return True

    async def ended(self, folder: Path) -> bool:
        """Wait for the copy of an instance whose container has ended; false = it is not all here."""
        if self.copies.unseen(folder):
            self._troubles.say(
                "log store",
                f"lines of ranks are in {self._where}, which this machine does not see: {self._how}; "
                "rankfall logs --log-source store takes them in then",
            )
            return False
        copy = self.copies.of(folder)
        return copy is None or copy.complete or await self._finished(copy)

    async def _finished(self, copy: Copy) -> bool:
        ended = time.monotonic()
        source = self.copies.source
        patience = PATIENCE_S if source is None else min(PATIENCE_S, source.patience_s)
        while not copy.complete:
            quiet = max(ended, self._grew.get(copy.target, 0.0))
            if self._looked.get(copy.target, 0.0) - quiet > patience:
                self._troubles.say(
                    "log store end",
                    f"{copy.name} in the log store has no end that its writer wrote: lines of ranks may be missing",
                )
                return False
            deaf = self._deaf.get(copy.target)
            if deaf is not None and time.monotonic() - max(deaf, quiet) > PATIENCE_S:
                self._troubles.say(
                    "log store end",
                    f"{copy.name} in the log store cannot be read to its end; rankfall logs --log-source store takes in what it has later",
                )
                return False
            await asyncio.sleep(LOOK_S / 4)
        return True
