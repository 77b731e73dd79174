"""API for training scripts; does nothing without a wrapper."""

from __future__ import annotations

import os
import time

from rankfall_inside.hook import rank_process
from rankfall_inside.hook.rank_process import state, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

if TYPE_CHECKING:
    F = TypeVar("F", bound=Callable[..., Any])

if not state.installed and "RANKFALL_WRAPPER" in os.environ and "RANKFALL_SLOT_DIR" in os.environ:
    # Python ran without sitecustomize (-I, -S).
    try:
        rank_process.install()
    except Exception:
        state.silent = True

_monotonic = time.monotonic
_time_ns = time.time_ns


class _Marked(Exception):
    """Exception with a retry mark; a first argument that is an exception becomes its cause."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if args and isinstance(args[0], BaseException):
            self.__cause__ = args[0]


class Retryable(_Marked):
    """Marks a failure that a repeat may fix; raise it or wrap with it."""

    rankfall_mark = "retryable"


class Final(_Marked):
    """Marks a failure that a repeat cannot fix; raise it or wrap with it."""

    rankfall_mark = "final"


def progress(step: int | None = None, phase: str | None = None) -> None:
    """Reports that ``step`` has ended; cheap, stored once a second and when the phase changes.

    Args:
        step: Caller's step number; default the last one.
        phase: ``import``, ``rendezvous``, ``init``, ``step``, ``checkpoint``, ``teardown``, ``done``; default ``step``.
    """
    state.step = step if step is not None else state.step or 0
    state.step_ns = _time_ns()
    before, state.phase = state.phase, phase or "step"
    if state.phase != before or _monotonic() >= state.progress_due:
        store()


def record(function: F) -> F:
    """Decorates a main function: records an exception that leaves it, even if caught later."""
    import functools

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            from rankfall_inside.hook import exceptions

            exceptions.saw(error)
            raise

    return recorded  # type: ignore[return-value]
