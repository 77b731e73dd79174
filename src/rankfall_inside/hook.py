"""The hook: makes a process that is a rank say so, and say why it ended.

``install`` runs in every Python of a job, so it is cheap where there is no rank. Where there is one, or comes to be one later, the process
becomes it (becoming.py) and stays to see exceptions (watch.py). Everything it does may fail; then the job goes on without it.
"""

from __future__ import annotations

import os
import sys

from rankfall_inside import identity
from rankfall_inside.becoming import claim, claim_quietly, may_claim_late
from rankfall_inside.rank_state import is_spawn_child, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = frozenset(source[0] for source in identity.SOURCES) | {"TF_CONFIG"}


def install() -> None:
    """Start the hook in this process. Called by sitecustomize, at most once."""
    environ = os.environ
    state.installed = True
    state.then = _stay
    state.slot_dir = environ["RANKFALL_SLOT_DIR"]
    holder = environ.get("RANKFALL_CLAIMED", "").partition(":")[0]
    if holder and holder != str(os.getpid()):
        # A child of a rank, started by exec.
        state.silent = True
        return
    if identity.has_rank(environ):
        claim()
    if state.claimed or state.silent:
        return
    _watch_environment()
    os.register_at_fork(after_in_child=_forked)
    if is_spawn_child():
        _watch_children()


def _stay() -> None:
    from rankfall_inside import watch

    watch.install()


def _watch_children() -> None:
    from rankfall_inside import children

    children.watch(_saw)


def _saw(error: BaseException) -> None:
    from rankfall_inside import watch

    watch.saw(error)


def _watch_environment() -> None:
    """Notice that RANK is set later (function launch): os.environ raises an audit event for each putenv."""

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.putenv":
            if not state.claimed and not state.silent and os.fsdecode(args[0]) in _NAMES:
                state.pending = True
        elif state.pending and not state.claimed and not state.silent and may_claim_late():
            # The first thing that happens after the launcher has set its variables, all of them by now.
            state.pending = False
            claim_quietly()

    sys.addaudithook(audit)


def _forked() -> None:
    if state.claimed:
        state.silent = True
        state.pid = os.getpid()
        return
    state.pid = os.getpid()
    if "multiprocessing.util" in sys.modules:
        _watch_children()
