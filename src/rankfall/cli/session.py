"""Stays with a run until end, detach or cancel; supervises it in a thread if no process does.

The main thread shows the run and counts signals. No failure here stops the job. ``Recording`` records an unattended run
during ``logs -f``; a second process reads, then takes over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from rankfall.cli import console
from rankfall.cli.interrupts import SIGNALS, Interrupts, code_of, goes_on
from rankfall.cli.viewer import Viewer
from rankfall.model import FINAL_STATES, LockHeld, Outcome, RankfallError
from rankfall.render.escape import one_line
from rankfall.rundir import RunDir
from rankfall.rundir.removal import in_use
from rankfall.supervisor import Control, read_cancel, request_cancel, spawn_detached
from rankfall.supervisor.outcome import outcome_of
from rankfall.supervisor.run_events import Event
from rankfall.supervisor.supervise import finish, supervise

_TICK_S: Final = 0.05
_TERMINATED: Final = "SIGTERM to rankfall"
# Answers to Ctrl-C; other lines, as a shell command typed out of habit, decide nothing.
_ANSWERS: Final = {"": "", "c": "c", "cancel": "c", "d": "d", "detach": "d"}
# Ticks without supervisor before a takeover, longer than a hand-over.
_ORPHANED_TICKS: Final = 20
# Opening the database at each tick costs; a change within one tick of the file system's clock is invisible.
_REREAD_S: Final = 0.25
# A round of the loop may cost one part in 100 of the time.
_SHARE: Final = 100
_MAX_UNWRITTEN: Final = 256


class Supervision:
    """A supervisor in a thread of this process.

    Args:
        directory: Run.
        standby: Wait while another machine supervises.
        on_event: Called with each event, in the supervisor's thread.
        unseen: This process shows no lines of the job, or all of them after a hold.
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
        # Events without room in the run directory; the viewer removes them.
        self.unwritten: deque[Event] = deque(maxlen=_MAX_UNWRITTEN)
        self._standby = standby
        self._directory = directory
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._mask: set[int] = set()

    def begin(self) -> None:
        """Starts the thread; handlers of signals run only after the start has succeeded or failed."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property
    def over(self) -> bool:
        """True after the thread's end, for any reason."""
        return self._done.is_set()

    @property
    def holds(self) -> bool:
        """True while this thread is the run's only supervisor, across machines."""
        return self._held.is_set() and not self.over

    def pause(self, seconds: float = _TICK_S) -> None:
        """Waits ``seconds``, or until the thread ends."""
        self._done.wait(seconds)

    def result(self) -> Outcome | None:
        """Returns the outcome; None if another process supervises the run or the thread never began.

        Raises:
            RankfallError: Supervision failed.
        """
        if self._thread.ident is not None:
            self._thread.join()
        self.control.close()
        if isinstance(self._error, LockHeld):
            return None
        if self._error is not None:
            raise self._error
        return self._outcome

    def _heard(self, event: Event) -> None:
        if event.data.get("unwritten"):
            self.unwritten.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def _run(self) -> None:
        # Child processes inherit the signals blocked during this thread's start.
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            self._outcome = supervise(
                self._directory,
                control=self.control,
                standby=self._standby,
                on_event=self._heard,
                on_lease=self._held.set,
            )
        except BaseException as error:  # noqa: BLE001 - for the main thread
            self._error = error
        finally:
            self._done.set()


class Session:
    """One user (or script) with one run.

    Args:
        directory: Run.
        viewer: Output.
        own: Supervise from the start; else only if no process does.
        standby: Stay while another machine supervises.
    """

    def __init__(self, directory: RunDir, viewer: Viewer, *, own: bool, standby: bool = False) -> None:
        self._directory = directory
        self._viewer = viewer
        self._signals = Interrupts(self._terminated)
        # A signal may come before the first query of the lease.
        self._signals.viewing = not own
        self._asked = 0
        self._cancelled = False
        self._orphaned = 0
        self._patience = 0
        self._standby = standby
        # Viewers of such a run neither end it nor hand it on.
        self._unattended = directory.spec.unattended
        self._own: Supervision | None = None
        self._announced = own
        self._started = own
        # The initial supervision.
        self._first = own
        self._left = 0
        self._mark: object = None
        self._reread = 0.0
        self._final = False

    def begin(self) -> None:
        """Starts the initial supervision, if any; ``stay`` does so too."""
        if self._first and self._own is None:
            self._own = Supervision(self._directory)
            self._own.begin()

    def stay(self) -> Outcome | None:
        """Stays until the run ends; returns None if it continues without this process."""
        with self._signals.caught(), in_use(self._directory):
            # Only with caught signals: else slots may remain without supervisor.
            self.begin()
            try:
                return self._stay()
            except BaseException:
                # A defect of the view must not cost the supervisor.
                if self._own is not None:
                    self._detach()
                raise
            finally:
                self._viewer.close()

    def exit_code(self, outcome: Outcome | None) -> int:
        """Returns the verb's exit code; the last line of stderr names its origin.

        A run left behind gives 0 after a detach; 128 + N after signal N as a viewer, or after the hangup of ``run``.
        """
        if outcome is not None:
            return print_exit_origin(outcome)
        if self._left:
            console.say(f"rankfall-exit: rankfall {self._left}")
        return self._left

    def _stay(self) -> Outcome | None:
        while True:
            before = time.thread_time()
            outcome = self._ended()
            if outcome is not None:
                self._show(final=outcome)
                return outcome
            supervises = self._supervises()
            self._signals.viewing = supervises is False
            self._announce(supervises=supervises is True)
            if not self._show() or self._asked != self._signals.interrupts:
                self._pause(max(_TICK_S, min(_REREAD_S, _SHARE * (time.thread_time() - before))))
            if self._leave():
                return self._detach()

    def _ended(self) -> Outcome | None:
        if self._own is not None:
            if not self._own.over:
                return None
            own, self._own, self._first = self._own, None, False
            outcome = own.result()
            while own.unwritten:
                self._viewer.tell(own.unwritten.popleft())
            if outcome is not None and outcome.state in FINAL_STATES:
                return outcome
        mark, now = self._directory.tables_mark(), time.monotonic()
        if mark != self._mark or now >= self._reread:
            self._mark, self._reread = mark, now + _REREAD_S
            with self._directory.reader() as reader:
                self._final = reader.run().state in FINAL_STATES
                if self._final and self._directory.lease_holder() is None:
                    finish(self._directory)
                    return outcome_of(self._directory, reader)
        if self._final:
            # The holder lets go of the lease without a change of the database.
            self._reread = now
        self._adopt()
        return None

    def _adopt(self) -> None:
        """Takes over an unsupervised run, unless a signal ended this viewer."""
        if self._signals.as_viewer:
            return
        if self._directory.lease_holder() is not None:
            # A hand-over probably follows a release.
            self._orphaned, self._patience = 0, _ORPHANED_TICKS
            return
        self._orphaned += 1
        if self._orphaned > self._patience:
            self._own = Supervision(self._directory, standby=self._standby)
            self._own.begin()

    def _show(self, *, final: Outcome | None = None) -> bool:
        """Shows new output; True if more is ready. A failing stdout (ended reader, full disk) does not end the job."""
        try:
            while self._own is not None and self._own.unwritten:
                self._viewer.tell(self._own.unwritten.popleft())
            if final is None:
                return self._viewer.step()
            self._viewer.finish(final)
        except OSError as error:
            self._viewer.stop_printing()
            console.close_quietly()
            if not isinstance(error, BrokenPipeError):
                console.say(f"rankfall: cannot write to stdout ({error.strerror}); the run directory has all output")
            if final is not None:
                self._viewer.finish(final)
        return True

    def _pause(self, seconds: float) -> None:
        if self._own is not None:
            self._own.pause(seconds)
        else:
            threading.Event().wait(seconds)

    def _supervises(self) -> bool | None:
        """True if this process has the lease; None until the initial supervision has it or is refused."""
        own = self._own
        if own is None or own.over or own.control.lost is not None:
            return False
        if own.holds or not self._first:
            return own.holds
        holder = self._directory.lease_holder()
        return True if holder is not None and holder.pid == os.getpid() else None

    def _announce(self, *, supervises: bool) -> None:
        """Prints once that this process supervises the run now."""
        if not supervises or self._announced or self._unattended:
            return
        self._announced = True
        if read_cancel(self._directory.path) is None:
            console.say(
                f"rankfall: {self._directory.id} had no supervisor: this process supervises it now, and SIGTERM to it cancels the run"
            )

    def _leave(self) -> bool:
        """Handles signals; True if this process shall leave the run."""
        signals = self._signals
        if signals.hung_up:
            # With 0 a script would continue as after a successful job; for attach a hangup is a detach.
            return self._left_by(signal.SIGHUP) if self._started else True
        if not signals.terminated and signals.interrupts == self._asked:
            return False
        if self._unattended:
            return True
        supervises = self._supervises()
        if supervises is None:
            # A cancel would also end a run of another supervisor.
            return False
        viewing = signals.as_viewer or not supervises
        if signals.terminated:
            if viewing:
                return self._left_by(signal.SIGTERM)
            signals.terminated = False
            self._cancel(_TERMINATED)
        if signals.interrupts == self._asked:
            return False
        before, self._asked = self._asked, signals.interrupts
        if before > 0 or signals.interrupts > 1:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            if viewing:
                return self._left_by(signal.SIGINT)
            self._cancel("SIGINT to rankfall")
            return False
        answer = self._ask()
        if answer == "c":
            self._cancel("Ctrl-C")
        elif answer == "t":
            return False
        elif answer not in {"d", None}:
            self._asked = 0
            signals.forget()
            console.say("rankfall: continuing")
        return answer in {"d", None}

    def _left_by(self, number: int) -> bool:
        self._left = code_of(number)
        return True

    def _ask(self) -> str | None:
        """Prompts; returns "d", "c", or "" to continue; "t" after SIGTERM; None after Ctrl-C or without a terminal."""
        sys.stderr.write(
            f"\nrankfall: detach and leave {self._directory.id} running (d+Enter), cancel it (c+Enter), or continue (Enter)? "
        )
        sys.stderr.flush()
        count = self._signals.interrupts
        while True:
            if self._signals.interrupts > count or self._signals.hung_up:
                console.say()
                return None
            if self._signals.terminated:
                console.say()
                return "t"
            if self._own is not None and self._own.over:
                console.say()
                return ""
            ready, _, _ = select.select([sys.stdin], [], [], 0.1)
            if ready:
                line = sys.stdin.readline()
                answer = _ANSWERS.get(line.strip().lower()) if line else None
                if answer is not None or not line:
                    return answer
                console.say("rankfall: type d, c or nothing, then Enter")

    def _terminated(self) -> None:
        """Handles SIGTERM: the supervisor stops the run even if output blocks."""
        own = self._own
        if own is not None and own.holds and not self._unattended and not self._signals.as_viewer:
            # The loop writes what fails here.
            with contextlib.suppress(RankfallError, RuntimeError):
                self._cancel(_TERMINATED)

    def _cancel(self, reason: str) -> None:
        """Cancels through the directory, for any supervisor."""
        if not self._cancelled:
            self._cancelled = True
            try:
                request_cancel(self._directory.path, reason=reason)
            finally:
                if self._own is not None:
                    self._own.control.cancel(reason)
                console.say(f"rankfall: cancelling {self._directory.id}; Ctrl-C exits while the cancel continues")

    def _detach(self) -> Outcome | None:
        self._viewer.close()
        if self._own is not None:
            supervised = (self._own.holds or self._first) and self._own.control.lost is None
            self._own.control.release()
            outcome = self._own.result()
            if outcome is not None and outcome.state in FINAL_STATES:
                self._show(final=outcome)
                return outcome
            if supervised and outcome is not None and not self._unattended:
                with contextlib.suppress(LockHeld):
                    spawn_detached(self._directory)
        console.say(f"rankfall: detached; {goes_on(self._directory)}")
        return None


def print_exit_origin(outcome: Outcome) -> int:
    """Prints the exit code's origin as last line of stderr; returns the code."""
    console.say(f"rankfall-exit: {outcome.exit_origin} {outcome.code}")
    return outcome.code


_TEXT: Final = 400


class Recording:
    """The recorder of an unattended run during a view."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._own: Supervision | None = None

    def over(self) -> bool:
        """True if the run ended and is stored; restarts the recorder until then.

        Raises:
            RankfallError: The recorder failed.
        """
        if self._own is not None:
            if not self._own.over:
                return False
            own, self._own = self._own, None
            own.result()
        with self._directory.reader() as reader:
            ended = reader.run().state in FINAL_STATES
        if self._directory.lease_holder() is not None:
            # Another recorder still writes.
            return False
        if not ended:
            self._own = Supervision(self._directory, on_event=_tell, unseen=True)
            self._own.begin()
        return ended

    def writes(self) -> int | None:
        """Number that changes with each stored piece of a log; None if another process records."""
        return self._own.control.writes if self._own is not None else None

    def stop(self) -> None:
        """Releases the run, which continues."""
        own, self._own = self._own, None
        if own is not None:
            own.control.release()
            own.result()


def _tell(event: Event) -> None:
    """Prints events of the job: lines do not show a new gang."""
    later = event.kind == "attempt" and event.data.get("attempt") != 1
    if later or event.kind in {"gap", "decision", "suspended"}:
        console.say(f"rankfall: {one_line(event.text, width=_TEXT)}")
