"""Sees exceptions in ranks that are multiprocessing children: there they are caught before any excepthook.

No function is replaced: multiprocessing runs finalizers while the exception is still being handled, and tells after-fork callbacks when
a child begins.
"""

from __future__ import annotations

import sys


class _Anchor:
    """Keeps the after-fork callback alive; multiprocessing holds it weakly."""


_anchor = _Anchor()
_installed = False


def watch() -> None:
    """Arm this process, once: its multiprocessing children-to-be, and itself when it is one that has not begun."""
    global _installed
    if _installed:
        return
    _installed = True
    from multiprocessing import util

    util.register_after_fork(_anchor, _arm)


def _arm(_: object) -> None:
    from multiprocessing import util

    # The first of all finalizers.
    util.Finalize(None, _look, exitpriority=1_000_000)


def _look() -> None:
    from rankfall_inside import hook
    from rankfall_inside import watch as watcher

    error = sys.exc_info()[1]
    if error is not None and hook.claim_quietly():
        watcher.saw(error)
