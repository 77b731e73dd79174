"""The API for training scripts: ``progress``, ``record``, and the exceptions ``Retryable`` and ``Final``.

Everything works, and does nothing, where no wrapper runs.
"""

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
    # Python was told to load no sitecustomize (-I, -S), but the script asks for us itself.
    try:
        rank_process.install()
    except Exception:
        state.silent = True

_monotonic = time.monotonic
_time_ns = time.time_ns


class _Marked(Exception):  # noqa: N818 - a base for two words of the product
    """An exception that carries the user's word about retrying; an exception given as first argument becomes its cause."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if args and isinstance(args[0], BaseException):
            self.__cause__ = args[0]


class Retryable(_Marked):
    """Raise or wrap with it: the same attempt may succeed when it is repeated."""

    rankfall_mark = "retryable"


class Final(_Marked):
    """Raise or wrap with it: repeating cannot help."""

    rankfall_mark = "final"


def progress(step: int | None = None, phase: str | None = None) -> None:
    """Say that ``step`` is done. Cheap enough for every step; stored at most once a second, and when the phase changes.

    Args:
        step: number of the step, counted by the caller; the last one when left out.
        phase: ``import``, ``rendezvous``, ``init``, ``step``, ``checkpoint``, ``teardown``, ``done``; ``step`` when left out.
    """
    state.step = step if step is not None else state.step or 0
    state.step_ns = _time_ns()
    before, state.phase = state.phase, phase or "step"
    if state.phase != before or _monotonic() >= state.progress_due:
        store()


def record(function: F) -> F:
    """Decorator for a main function: an exception that leaves it is recorded, also where a caller catches it, and goes on unchanged."""
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
