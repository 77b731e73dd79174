"""Records why a rank ends: exceptions of all threads, SystemExit with a code, stacks on request.

Chains the user's hooks; reads ``sys.last_exc`` at exit for later ones.
"""

from __future__ import annotations

import os
import sys

from rankfall_inside import private_files
from rankfall_inside.hook.rank_process import is_spawn_child, state, try_claim, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_STACK_SIGNAL_OFFSET = 7
_SEEN = "__rankfall_seen__"


def install() -> None:
    """Chains the exception hooks of this process and enables stack dumps."""
    _chain_excepthook()
    _chain_thread_hook()
    _wrap_exit()
    import atexit

    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_forget_in_child)
    _faulthandler()
    if "multiprocessing.util" in sys.modules or is_spawn_child():
        from rankfall_inside.hook import children

        children.watch(saw)


def _forget_in_child() -> None:
    state.silent = True


def _faulthandler() -> None:
    import faulthandler
    import signal

    try:
        path = os.path.join(state.slot_dir, "stacks", f"{state.ordinal}.txt")
        fd = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        # Main thread only: to read frames of a thread that runs can end the process with SIGSEGV.
        faulthandler.register(signal.SIGRTMIN + _STACK_SIGNAL_OFFSET, file=fd, all_threads=False, chain=False)
        # A crash's Python stack is the best evidence; the user's choice wins.
        if not faulthandler.is_enabled() and "PYTHONFAULTHANDLER" not in os.environ:
            faulthandler.enable(2)
    except (OSError, ValueError, AttributeError, RuntimeError):
        state.notes.append("no stacks on request")


def _chain_excepthook() -> None:
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        saw(error)
        _keep_interrupt(error)
        before(kind, error, trace)

    sys.excepthook = excepthook


def _keep_interrupt(error: BaseException) -> None:
    """Preserves the exit by SIGINT of an unhandled KeyboardInterrupt.

    A later ``eval`` clears CPython's flag (``run_eval_code_obj`` in pythonrun.c).
    """
    if isinstance(error, KeyboardInterrupt):
        try:
            exec("raise KeyboardInterrupt")  # noqa: S102 - a constant  # foreign-text: a constant of ours
        except KeyboardInterrupt:
            return


def _chain_thread_hook() -> None:
    import threading

    before = threading.excepthook

    def excepthook(args: Any) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            saw(args.exc_value, thread=getattr(args.thread, "name", None))
        before(args)

    threading.excepthook = excepthook


def _wrap_exit() -> None:
    """Makes ``sys.exit`` remember the handled exception."""
    before = sys.exit

    def leave(status: Any = None, /) -> NoReturn:
        _remember_exit(status)
        before(status)

    leave.__name__ = leave.__qualname__ = "exit"
    leave.__doc__ = before.__doc__
    sys.exit = leave


# Code, message of ``sys.exit``, and handled exception.
_pending: list[tuple[int, str | None, BaseException | None]] = []


def _remember_exit(status: Any) -> None:
    import _thread

    if state.silent or _thread.get_ident() != _main_ident():
        return
    code = exit_code(status)
    context = sys.exc_info()[1]
    if context is None and _pending and _pending[-1][0] == code:
        # multiprocessing exits again with the same code.
        return
    del _pending[:]
    if code:
        _pending.append((code, status if isinstance(status, str) else None, context))


def _main_ident() -> int:
    import threading

    return threading.main_thread().ident or 0


def exit_code(status: Any) -> int:
    """Returns the exit code of ``SystemExit(status)``."""
    if status is None:
        return 0
    if isinstance(status, int):
        return status & 0xFF
    return 1


def saw(error: BaseException, *, thread: str | None = None) -> None:
    """Records ``error`` of this rank once; never raises."""
    try:
        if not try_claim() or os.getpid() != state.pid or getattr(error, _SEEN, False):
            return
        code = None
        raised = error
        if isinstance(error, SystemExit):
            code = exit_code(error.code)
            if not code:
                return
            raised = error.__context__ or error
            if getattr(raised, _SEEN, False):
                return
        for one in (error, raised):
            try:
                setattr(one, _SEEN, True)
            except Exception:
                continue
        put(raised, thread=thread, code=code, handled=raised is not error)
    except BaseException:
        return


def put(error: BaseException, *, thread: str | None, code: int | None, handled: bool) -> None:
    """Writes the error record."""
    from rankfall_inside.hook import error_record, rank_process

    rank_process.flush()
    state.reported = state.reported or thread is None
    info, flags = error_record.describe(error, thread=thread, exit_code=code, handled=handled)
    fields = dict(state.fields, step=state.step, step_ns=state.step_ns, phase=state.phase, error=info, **flags)
    write("error", fields, sync=True)


def _at_exit() -> None:
    from rankfall_inside.hook import rank_process

    if state.silent or os.getpid() != state.pid:
        return
    rank_process.flush()
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(last, BaseException):
        # A later user hook skipped Rankfall's.
        saw(last)
        _keep_interrupt(last)
        return
    if _pending:
        code, message, context = _pending[-1]
        if context is None or isinstance(context, SystemExit):
            if state.reported:
                # multiprocessing's exit after a recorded exception
                return
            context = SystemExit(code if message is None else message)
        if not getattr(context, _SEEN, False):
            put(context, thread=None, code=code, handled=not isinstance(context, SystemExit))
    elif not state.reported:
        rank_process.mark_exit()
