"""Copies the lines of ranks out of a log store while an attempt's pods are followed, in a thread: a volume may be slow, the feed must not be.

The log of an instance is over when its copy is, too. Where this machine does not see the store, or its writer never wrote the end, that is
said once, and the log counts as lost in part: the lines may be there still, and ``rankfall logs --log-source store`` takes them in later.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from rankfall.model import JobSpec
from rankfall.model.log_store import log_store_place
from rankfall.observe.cluster.troubles import Troubles, in_words
from rankfall.observe.log_store import AT, StoreCopies, StoreCopy
from rankfall.store import RunDir

# Between two looks at all folders, seconds; a look may take a tenth of the time.
LOOK_S: Final = 1.0
# How long an ended container's folder may stand still without an end before it is given up, seconds: NFS shows what is new after a minute.
PATIENCE_S: Final = 75.0


def store_root(spec: JobSpec) -> Path | None:
    """Where this machine looks for the job's log store; None = the job has none, or only its pods see it."""
    if spec.kubernetes.log_store is None:
        return None
    given = os.environ.get(AT)
    place = log_store_place(spec.kubernetes.log_store)
    if given:
        return Path(given)
    return Path(place.path) if place.kind == "file" else None


class StoreWatch:
    """The copies of one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        troubles: takes difficulties.
    """

    def __init__(self, run_dir: RunDir, *, attempt: int, troubles: Troubles) -> None:
        self.copies = StoreCopies(run_dir.logs_dir / f"attempt-{attempt}", store_root(run_dir.spec))
        self._where = run_dir.spec.kubernetes.log_store
        self._troubles = troubles
        self._grew: dict[Path, float] = {}
        if self._where is not None:
            self.copies.load()

    @property
    def accepting(self) -> StoreCopies | None:
        """Takes the folders that records name; None for a job without a store, whatever its records say."""
        return None if self._where is None else self.copies

    async def run(self) -> None:
        """Copy until cancelled."""
        if self._where is None or not self.copies.visible:
            return
        while True:
            began = time.monotonic()
            failed = False
            for copy in self.copies.open:
                try:
                    if await asyncio.to_thread(self.copies.poll_one, copy):
                        self._grew[copy.target] = time.monotonic()
                except OSError as error:
                    failed = True
                    self._troubles.say(
                        "log store",
                        f"{copy.name} of the log store cannot be copied: {in_words(error)}; it is tried again",
                    )
            if not failed:
                self._troubles.over("log store")
            await asyncio.sleep(max(LOOK_S, 9 * (time.monotonic() - began)))

    async def ended(self, folder: Path) -> bool:
        """Wait for the copy of an instance whose container has ended; false = it is not all here."""
        copy = self.copies.of(folder)
        if copy is None or copy.complete:
            return True
        if not self.copies.visible:
            self._troubles.say(
                "log store",
                f"lines of ranks are in {self._where}, which this machine does not see: {AT}=DIR says where it does, "
                "and rankfall logs --log-source store takes them in",
            )
            return False
        return await self._finished(copy)

    async def _finished(self, copy: StoreCopy) -> bool:
        since = time.monotonic()
        while not copy.complete:
            if time.monotonic() - max(since, self._grew.get(copy.target, 0.0)) > PATIENCE_S:
                self._troubles.say(
                    "log store end",
                    f"{copy.name} in the log store has no end that its writer wrote: lines of ranks may be missing",
                )
                return False
            await asyncio.sleep(LOOK_S / 4)
        return True
