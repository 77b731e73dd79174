"""Several steps at the same time. Starting a bed is mostly waiting for answers, so its parts start side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(*works: Callable[[], object]) -> None:
    """Do all of them at once, and wait for all.

    Raises:
        Exception: the first one that failed, after the others have come to their end.
    """
    failures: list[Exception] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again by the one who waits
            failures.append(error)

    # Daemons: who interrupts the wait need not wait for the rest.
    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
