"""The log store in a slot's life: opened before the command starts, watched while it runs, given time to write all at the end.

Lines are better in a log that is slow than nowhere, so a store that can take nothing is none.
"""

from __future__ import annotations

import time

from rankfall_inside.say import say
from rankfall_inside.store import LogStore, folder_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from rankfall_inside.loop import Loop
    from rankfall_inside.slot import SlotFiles
    from rankfall_inside.streams import Gap

# How long the end waits for a store that takes nothing any more.
_MOST_S = 60.0
_STEP_S = 0.25


def opened(root: str, environ: Mapping[str, str], notes: list[str]) -> LogStore | None:
    """The log store below ``root``; None where there is none, or it can take nothing: that is said and noted."""
    if not root:
        return None
    store = LogStore(root, folder_name(environ), environ)
    refusal = store.refusal()
    if refusal:
        notes.append(f"lines of ranks stay on stdout: nothing can be stored in {root}: {refusal}")
        say(notes[-1])
        return None
    return store


class Storing:
    """One slot's log store.

    Args:
        store: None where there is none.
        files: of the slot; takes what is lost.
    """

    def __init__(self, store: LogStore | None, files: SlotFiles) -> None:
        self._store = store
        self._files = files
        self._told_trouble = self._told_lost = False

    def begin(self) -> dict[str, str]:
        """Say where lines go; fields of the slot's start record."""
        if self._store is None:
            return {}
        say(f"lines of ranks go to the log store: {self._store.path}")
        return {"log_store": self._store.name}

    def watch(self) -> None:
        """Say once, where people look, that lines are lost, or that they wait."""
        store = self._store
        if store is None:
            return
        if store.trouble and not self._told_trouble:
            self._told_trouble = True
            say(f"the log store {store.path} takes nothing: {store.trouble}; it is tried again")
        if store.lost and not self._told_lost:
            self._told_lost = True
            text = f"the log store {store.path} is too slow: lines of ranks are lost"
            say(text)
            self._files.write("gap", {"notes": [text]}, False)

    def finish(self, loop: Loop, hopeless: Callable[[], bool]) -> list[tuple[str, Gap]]:
        """Let the store write what it has.

        Args:
            loop: of the wrapper; serves others meanwhile.
            hopeless: whether somebody wants the end, and the time for it is over.

        Returns:
            Stream and size of each gap.
        """
        store = self._store
        if store is None:
            return []
        began = time.monotonic()
        while True:
            gaps = store.finish(_STEP_S)
            if store.done or hopeless() or time.monotonic() - began > _MOST_S:
                break
            loop.turn(0.0)
        if not store.done:
            store.give_up()
            gaps = store.finish(0.0)
        self.watch()
        return gaps
