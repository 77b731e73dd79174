"""Records exceptions in ranks that are multiprocessing children, which catch them before any excepthook.

Up to Python 3.12 multiprocessing runs finalizers while the exception is still handled, so a finalizer sees it
and nothing is replaced. From 3.13 ``run`` is called through a guard: one line ``File "<rankfall>"`` in the
child's traceback. Loaded without the rest of the hook.
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
    """Keeps the after-fork callback alive; multiprocessing holds it weakly."""


_anchor = _Anchor()
_saw: Callable[[BaseException], None] | None = None


def watch(saw: Callable[[BaseException], None]) -> None:
    """Arm this process, once: its multiprocessing children-to-be, and itself when it is one that has not begun.

    Args:
        saw: is given each exception that ends such a child; never raises.
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
        # Newer Pythons call nothing when a spawned child begins, and keep the finalizers that are there.
        _arm(None)


def _guard(saw: Callable[[BaseException], None]) -> None:
    from multiprocessing.process import BaseProcess

    before = BaseProcess._bootstrap  # type: ignore[attr-defined]  # noqa: SLF001 - the one place between begin and run
    names: dict[str, Any] = {}
    # A file name of its own, so that nobody takes the frame for the user's or for a file to look at.
    exec(compile(_GUARD, "<rankfall>", "exec"), names)  # noqa: S102 - a constant  # foreign-text: a constant of ours

    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.run = names["guard"](self.run, saw)
        return before(self, *args, **kwargs)

    BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]  # noqa: SLF001 - as above


def _arm(_: object) -> None:
    from multiprocessing import util

    # The first of all finalizers.
    util.Finalize(None, _look, exitpriority=1_000_000)


def _look() -> None:
    error = sys.exc_info()[1]
    if error is not None and _saw is not None:
        _saw(error)
