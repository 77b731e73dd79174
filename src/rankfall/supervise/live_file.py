"""Keeps the file of all ranks in the user's folder (``--log-dir``) up to date while a run is supervised, apart from supervision: a slow or full disk delays only it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankfall.store import RunDir
from rankfall.supervise.events import EventLog

if TYPE_CHECKING:
    from rankfall.store.log_dir import LogDir

_PAUSE_S: Final = 0.5
# A look at thousands of streams costs: no more of the time than one part in so many.
_SHARE: Final = 10
# How long the end of supervision waits for a disk that does not answer, seconds.
_JOIN_S: Final = 10.0


@contextlib.contextmanager
def live_file(run_dir: RunDir) -> Iterator[None]:
    """While in the context, lines of the run come into its folder's file; nothing where it has no folder."""
    folder = run_dir.spec.log_dir
    if folder is None:
        yield
        return
    from rankfall.store.log_dir import LogDir  # noqa: PLC0415 - most jobs name none

    over = threading.Event()
    thread = threading.Thread(
        target=_keep, args=(run_dir, LogDir(run_dir, Path(folder)), over), name="rankfall-log-dir", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_S)


def _keep(run_dir: RunDir, files: LogDir, over: threading.Event) -> None:
    told: str | None = None
    pause = 0.0
    while not over.wait(pause):
        began = time.monotonic()
        problem = files.advance()
        pause = max(_PAUSE_S, _SHARE * (time.monotonic() - began))
        if problem is not None and problem != told:
            text = f"log_dir: {problem}; its lines are kept and come there when it can be written"
            EventLog(run_dir.path, None).say("gap", text, at=time.time_ns())
        told = problem
