"""Records exceptions of multiprocessing children, which catch them before any excepthook.

Up to Python 3.12 by a finalizer, then by a guard: one line ``File "<rankfall>"`` in tracebacks.
"""

from __future__ import annotations

import sys

from rankfall_inside.hook.rank_process import is_spawn_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_GUARD = """\
def guard(function, saw):
    def run():
        try:
            function()
        except BaseException as error:
            saw(error)
            raise
    return run
"""


class _Anchor:
    """Keeps the after-fork callback alive; multiprocessing's reference is weak."""


_anchor = _Anchor()
_saw: Callable[[BaseException], None] | None = None


def watch(saw: Callable[[BaseException], None]) -> None:
    """Prepares multiprocessing children, also this process if it is one; once.

    ``saw`` records an exception and never raises.
    """
    global _saw
    if _saw is not None:
        return
    _saw = saw
    from multiprocessing import util

    if sys.version_info >= (3, 13):
        _guard(saw)
        return
    util.register_after_fork(_anchor, _arm)
    if is_spawn_child():
        # Newer Pythons call nothing at a spawned child's start but keep finalizers.
        _arm(None)


def _guard(saw: Callable[[BaseException], None]) -> None:
    from multiprocessing.process import BaseProcess

    before = BaseProcess._bootstrap  # type: ignore[attr-defined]  # noqa: SLF001 - the one place between begin and run
    names: dict[str, Any] = {}
    exec(compile(_GUARD, "<rankfall>", "exec"), names)  # noqa: S102 - a constant  # foreign-text: a constant of ours

    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = names["guard"](self.run, saw)
        return before(self, *args, **kwargs)

    BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]  # noqa: SLF001


def _arm(_: object) -> None:
    from multiprocessing import util

    util.Finalize(None, _look, exitpriority=1_000_000)


def _look() -> None:
    error = sys.exc_info()[1]
    if error is not None and _saw is not None:
        _saw(error)
