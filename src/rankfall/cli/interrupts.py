"""Signals to a verb that stays with a run: counted in a session, or the end of a reading verb."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from rankfall.model import FINAL_STATES
from rankfall.rundir import RunDir

_CODE: Final = 128
# Delay before a dropped signal repeats, seconds.
_AGAIN_S: Final = 0.2
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the signals sent to this process.

    Args:
        at_once: Called in the SIGTERM handler, because blocked output may stop all else.

    Attributes:
        viewing: True while this process does not supervise the run; set by the session.
        as_viewer: True if SIGINT or SIGTERM arrived while viewing.
    """

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        self._at_once = at_once
        self.interrupts = 0
        self.terminated = False
        self.hung_up = False
        self.viewing = False
        self.as_viewer = False

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - handler signature
        """Handles a signal."""
        if number == signal.SIGINT:
            self.interrupts += 1
        elif number == signal.SIGTERM:
            self.terminated = True
        else:
            self.hung_up = True
        self.as_viewer = self.as_viewer or self.viewing
        if number == signal.SIGTERM:
            self._at_once()

    def forget(self) -> None:
        """Sets the count of Ctrl-C to 0, after the user chose to continue."""
        self.interrupts = 0
        self.as_viewer = False

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Counts SIGINT, SIGTERM and SIGHUP inside, instead of ending the process."""
        before = {n: signal.signal(n, self.handle) for n in SIGNALS}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


class Reading:
    """A verb that only reads a run and ends at the first signal.

    Attributes:
        code: 128 + signal number; None = no signal.
    """

    def __init__(self) -> None:
        self.code: int | None = None

    @contextlib.contextmanager
    def until_signal(self) -> Iterator[None]:
        """Ends the body at SIGINT, SIGTERM or SIGHUP, with clean-up; ignored signals stay ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        repeater = _SignalRepeater()
        before = {n: signal.getsignal(n) for n in SIGNALS}
        with _unreported():
            try:
                for number, old in before.items():
                    if old is not signal.SIG_IGN:
                        signal.signal(number, repeater.handle)
                yield
            except _SignalError as ended:
                self.code = code_of(ended.number)
            finally:
                repeater.stop()
                for number, old in before.items():
                    signal.signal(number, old)


def code_of(number: int) -> int:
    """Exit code after a signal."""
    return _CODE + number


def goes_on(directory: RunDir) -> str:
    """Describes the future of a run that this process stops watching, with commands to return or end it."""
    from rankfall.supervisor.requests import read_cancel  # noqa: PLC0415

    run = directory.id
    with directory.reader() as reader:
        state = reader.run().state
    if state in FINAL_STATES:
        return f"{run} is over: {state}"
    if directory.foreign is not None:
        return f"{directory.foreign.target.label} continues"
    if read_cancel(directory.path) is not None:
        return f"{run} is being cancelled. To watch it: rankfall attach {run}"
    if not directory.spec.unattended and directory.lease_holder() is None:
        return f"{run} continues, but has no supervisor now. To supervise it: rankfall attach {run}; to end it: rankfall cancel {run}"
    return f"{run} continues. To watch it: rankfall attach {run}; to end it: rankfall cancel {run}"


class _SignalError(BaseException):
    """Derived from BaseException, so no handler of errors catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _SignalRepeater:
    """Raises a signal's exception until the verb ends.

    Python drops it in finalizers and weak reference callbacks; C code that clears attribute errors does too (msgspec,
    making a decoder). So a thread repeats the signal.
    """

    def __init__(self) -> None:
        self._number = 0
        self._sent = False
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - handler signature
        """Raises for each signal of a person, and for a repeated one whose first was dropped."""
        sent, self._sent = self._sent, False
        if self._over.is_set() or (sent and _on_its_way(sys.exc_info()[1])):
            return
        self._number = number
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_again, name="signal", daemon=True)
            self._thread.start()
        raise _SignalError(number)

    def _send_again(self) -> None:
        main = threading.main_thread().ident
        while main is not None and not self._over.wait(_AGAIN_S):
            self._sent = True
            signal.pthread_kill(main, self._number)

    def stop(self) -> None:
        """Stops repeating and raising."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def _on_its_way(error: BaseException | None) -> bool:
    """True if clean-up after a signal runs now."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, _SignalError):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


@contextlib.contextmanager
def _unreported() -> Iterator[None]:
    """Hides dropped signal exceptions from Python's report."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, _SignalError):
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
