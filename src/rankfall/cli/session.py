"""Staying with a run: supervise it here or watch another supervisor do it, until its end, a detach or a cancel.

A thread supervises, the main thread shows what happens and takes signals. Whatever dies here, the job goes on: its slots hang on nobody.
"""

from __future__ import annotations

import contextlib
import select
import sys
import threading
from collections.abc import Callable
from typing import Final

from rankfall.cli import emit
from rankfall.cli.interrupts import Interrupts
from rankfall.cli.viewer import Viewer
from rankfall.model import FINAL_STATES, LockHeld, Outcome
from rankfall.store import RunDir
from rankfall.supervise import Control, request_cancel, spawn_detached
from rankfall.supervise.events import Event
from rankfall.supervise.loop import finish, supervise
from rankfall.supervise.outcome import outcome_of

_TICK_S: Final = 0.05
# How long nobody may hold a run that is not over before it is taken over: longer than a hand-over takes.
_ORPHANED_TICKS: Final = 20


class Supervision:
    """A supervisor in a thread of this process.

    Args:
        directory: the run.
        standby: wait for as long as another machine supervises it.
        on_event: called with each piece of news, in its thread.
        unseen: this process shows the job's lines to nobody.
    """

    def __init__(
        self,
        directory: RunDir,
        *,
        standby: bool = False,
        on_event: Callable[[Event], None] | None = None,
        unseen: bool = False,
    ) -> None:
        self.control = Control(unseen=unseen)
        self._on_event = on_event
        self._standby = standby
        self._directory = directory
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._done.is_set()

    def pause(self, seconds: float = _TICK_S) -> None:
        """Wait a moment, or until it ends."""
        self._done.wait(seconds)

    def result(self) -> Outcome | None:
        """What it ended with; None when another process turned out to hold the run.

        Raises:
            RankfallError: what ended it.
        """
        self._thread.join()
        self.control.close()
        if isinstance(self._error, LockHeld):
            return None
        if self._error is not None:
            raise self._error
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = supervise(
                self._directory, control=self.control, standby=self._standby, on_event=self._on_event
            )
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            self._error = error
        finally:
            self._done.set()


class Session:
    """One person (or script) with one run.

    Args:
        directory: the run.
        viewer: what they see.
        own: supervise in this process from the start; else only when nobody does.
        standby: stay also while another machine supervises the run.
    """

    def __init__(self, directory: RunDir, viewer: Viewer, *, own: bool, standby: bool = False) -> None:
        self._directory = directory
        self._viewer = viewer
        self._signals = Interrupts()
        self._asked = 0
        self._cancelled = False
        self._orphaned = 0
        self._patience = 0
        self._standby = standby
        # Nothing hangs on who watches such a run: who leaves it neither ends it nor hands it on.
        self._unattended = directory.spec.unattended
        self._own = Supervision(directory) if own else None

    def stay(self) -> Outcome | None:
        """Stay until the run is over.

        Returns:
            How it ended; None when it goes on without us.
        """
        with self._signals.caught():
            try:
                return self._stay()
            except BaseException:
                # A defect of the view must not cost the job its supervisor.
                if self._own is not None:
                    self._detach()
                raise

    def _stay(self) -> Outcome | None:
        while True:
            outcome = self._ended()
            if outcome is not None:
                self._show(final=outcome)
                return outcome
            if not self._show() or self._asked != self._signals.interrupts:
                self._pause()
            if self._leave():
                return self._detach()

    def _ended(self) -> Outcome | None:
        if self._own is not None:
            if not self._own.over:
                return None
            own, self._own = self._own, None
            outcome = own.result()
            if outcome is not None and outcome.state in FINAL_STATES:
                return outcome
        with self._directory.reader() as reader:
            row = reader.run()
            if row.state in FINAL_STATES and self._directory.lease_holder() is None:
                finish(self._directory)
                return outcome_of(self._directory, reader)
        self._adopt()
        return None

    def _adopt(self) -> None:
        """Take the run over when nobody supervises it."""
        if self._directory.lease_holder() is not None:
            # A supervisor that lets go now is probably followed by another one.
            self._orphaned, self._patience = 0, _ORPHANED_TICKS
            return
        self._orphaned += 1
        if self._orphaned > self._patience:
            self._own = Supervision(self._directory, standby=self._standby)

    def _show(self, *, final: Outcome | None = None) -> bool:
        """Show what is new. A stdout that takes no more (its reader went away, its disk is full) does not end the job."""
        try:
            if final is None:
                return self._viewer.step()
            self._viewer.finish(final)
        except OSError as error:
            self._viewer.mute()
            emit.close_quietly()
            if not isinstance(error, BrokenPipeError):
                emit.say(f"rankfall: stdout takes no more ({error.strerror}); the record has everything")
            if final is not None:
                self._viewer.finish(final)
        return True

    def _pause(self) -> None:
        if self._own is not None:
            self._own.pause()
        else:
            threading.Event().wait(_TICK_S)

    def _leave(self) -> bool:
        """Act on signals; whether we leave the run to itself."""
        signals = self._signals
        if signals.hung_up:
            return True
        if self._unattended and (signals.terminated or signals.interrupts > self._asked):
            return True
        if signals.terminated:
            signals.terminated = False
            self._cancel("SIGTERM to rankfall")
        if signals.interrupts == self._asked:
            return False
        before, self._asked = self._asked, signals.interrupts
        if before > 0 or signals.interrupts > 1:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._cancel("SIGINT to rankfall")
            return False
        answer = self._ask()
        if answer == "c":
            self._cancel("Ctrl-C")
        elif answer not in {"d", None}:
            self._asked = signals.interrupts = 0
            emit.say("rankfall: going on")
        return answer in {"d", None}

    def _ask(self) -> str | None:
        """Detach, cancel or go on; None = Ctrl-C again, or the terminal went away."""
        sys.stderr.write(
            f"\nrankfall: detach and leave {self._directory.id} running (d), cancel it (c), or go on (Enter)? "
        )
        sys.stderr.flush()
        count = self._signals.interrupts
        while True:
            if self._signals.interrupts > count or self._signals.hung_up:
                emit.say()
                return None
            if self._own is not None and self._own.over:
                emit.say()
                return ""
            ready, _, _ = select.select([sys.stdin], [], [], 0.1)
            if ready:
                line = sys.stdin.readline()
                return line.strip().lower()[:1] if line else None

    def _cancel(self, reason: str) -> None:
        """In the directory, so that it holds whoever supervises."""
        if not self._cancelled:
            self._cancelled = True
            emit.say(f"rankfall: cancelling {self._directory.id}; Ctrl-C leaves it to finish alone")
            request_cancel(self._directory.path, reason=reason)
            if self._own is not None:
                self._own.control.cancel(reason)

    def _detach(self) -> Outcome | None:
        """Leave; the run gets a supervisor of its own when this process was it."""
        if self._own is not None:
            self._own.control.release()
            outcome = self._own.result()
            if outcome is not None and outcome.state in FINAL_STATES:
                self._show(final=outcome)
                return outcome
            if not self._unattended:
                with contextlib.suppress(LockHeld):
                    spawn_detached(self._directory)
        emit.say(f"rankfall: detached; {self._directory.id} goes on. Come back: rankfall attach {self._directory.id}")
        return None


def tell_exit(outcome: Outcome) -> int:
    """Say whose exit code it is, as the last line of stderr; the code."""
    emit.say(f"rankfall-exit: {outcome.exit_origin} {outcome.code}")
    return outcome.code
