"""Stays with a run until its end, a detach or a cancel; supervises it in a thread where nobody else does.

The main thread shows the run and counts signals. Whatever fails here, the job goes on. ``Recording``
records an unattended run beside ``logs -f``: a second process only reads, and takes over when the first
ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rankfall.cli import console
from rankfall.cli.interrupts import SIGNALS, Interrupts, code_of, goes_on
from rankfall.cli.viewer import Viewer
from rankfall.model import FINAL_STATES, LockHeld, Outcome, RankfallError
from rankfall.render.escape import one_line
from rankfall.rundir import RunDir
from rankfall.supervisor import Control, read_cancel, request_cancel, spawn_detached
from rankfall.supervisor.outcome import outcome_of
from rankfall.supervisor.run_events import Event
from rankfall.supervisor.supervise import finish, supervise

_TICK_S: Final = 0.05
_TERMINATED: Final = "SIGTERM to rankfall"
# How long nobody may hold a run that is not over before it is taken over: longer than a hand-over takes.
_ORPHANED_TICKS: Final = 20
_MAX_UNWRITTEN: Final = 256


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
        # Events of this supervisor that its run directory has no room for; whoever shows them takes them off.
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
        """Start.

        A step of its own: when a signal ends the caller meanwhile, the caller already holds this object and can end it. The thread starts wholly or not at all.
        """
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._done.is_set()

    @property
    def holds(self) -> bool:
        """Whether it became the run's supervisor, among machines too, and has not ended."""
        return self._held.is_set() and not self.over

    def pause(self, seconds: float = _TICK_S) -> None:
        """Wait a moment, or until it ends."""
        self._done.wait(seconds)

    def result(self) -> Outcome | None:
        """What it ended with; None when another process turned out to hold the run, or it never began.

        Raises:
            RankfallError: what ended it.
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
        # Processes that are started here would inherit what is blocked while this thread starts.
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            self._outcome = supervise(
                self._directory,
                control=self.control,
                standby=self._standby,
                on_event=self._heard,
                on_lease=self._held.set,
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
        self._signals = Interrupts(self._terminated)
        # True before the first look at the lease too: a signal may come between its handler and that look.
        self._signals.viewing = not own
        self._asked = 0
        self._cancelled = False
        self._orphaned = 0
        self._patience = 0
        self._standby = standby
        # Nothing hangs on who watches such a run: who leaves it neither ends it nor hands it on.
        self._unattended = directory.spec.unattended
        self._own: Supervision | None = None
        self._announced = own
        # Its first supervision is the one that it was started with.
        self._first = own
        self._left = 0

    def begin(self) -> None:
        """Supervise from now on, if this session was made for that; ``stay`` does so too. Of an unattended run nothing depends on it."""
        if self._first and self._own is None:
            self._own = Supervision(self._directory)
            self._own.begin()

    def stay(self) -> Outcome | None:
        """Stay until the run is over.

        Returns:
            How it ended; None when it goes on without us.
        """
        with self._signals.caught():
            # Not before: a signal that nobody catches would leave slots that nobody supervises.
            self.begin()
            try:
                return self._stay()
            except BaseException:
                # A defect of the view must not cost the job its supervisor.
                if self._own is not None:
                    self._detach()
                raise

    def exit_code(self, outcome: Outcome | None) -> int:
        """The exit code of a verb that stayed until ``outcome``; whose it is stands in the last line of stderr.

        Who leaves a run that goes on has 0, and 128 + N where signal N ended a viewer: its caller must not take that for a run that succeeded.
        """
        if outcome is not None:
            return print_exit_origin(outcome)
        if self._left:
            console.say(f"rankfall-exit: rankfall {self._left}")
        return self._left

    def _stay(self) -> Outcome | None:
        while True:
            outcome = self._ended()
            if outcome is not None:
                self._show(final=outcome)
                return outcome
            supervises = self._supervises()
            self._signals.viewing = supervises is False
            self._announce(supervises=supervises is True)
            if not self._show() or self._asked != self._signals.interrupts:
                self._pause()
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
        with self._directory.reader() as reader:
            row = reader.run()
            if row.state in FINAL_STATES and self._directory.lease_holder() is None:
                finish(self._directory)
                return outcome_of(self._directory, reader)
        self._adopt()
        return None

    def _adopt(self) -> None:
        """Take the run over when nobody supervises it; not when a signal told this viewer to let go."""
        if self._signals.as_viewer:
            return
        if self._directory.lease_holder() is not None:
            # A supervisor that lets go now is probably followed by another one.
            self._orphaned, self._patience = 0, _ORPHANED_TICKS
            return
        self._orphaned += 1
        if self._orphaned > self._patience:
            self._own = Supervision(self._directory, standby=self._standby)
            self._own.begin()

    def _show(self, *, final: Outcome | None = None) -> bool:
        """Show what is new. A stdout that takes no more (its reader went away, its disk is full) does not end the job."""
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
                console.say(f"rankfall: stdout takes no more ({error.strerror}); the record has everything")
            if final is not None:
                self._viewer.finish(final)
        return True

    def _pause(self) -> None:
        if self._own is not None:
            self._own.pause()
        else:
            threading.Event().wait(_TICK_S)

    def _supervises(self) -> bool | None:
        """Whether this process holds the run's lease; None until the supervision that it was started with has taken it or been refused."""
        own = self._own
        if own is None or own.over or own.control.lost is not None:
            return False
        if own.holds or not self._first:
            return own.holds
        holder = self._directory.lease_holder()
        return True if holder is not None and holder.pid == os.getpid() else None

    def _announce(self, *, supervises: bool) -> None:
        """Say once that a viewer became the supervisor: from then on signals mean something else."""
        if not supervises or self._announced or self._unattended:
            return
        self._announced = True
        if read_cancel(self._directory.path) is None:
            console.say(
                f"rankfall: nobody supervised {self._directory.id}: this process does now, and SIGTERM to it cancels the run"
            )

    def _leave(self) -> bool:
        """Act on signals; whether we leave the run to itself."""
        signals = self._signals
        if signals.hung_up:
            return True
        if not signals.terminated and signals.interrupts == self._asked:
            return False
        if self._unattended:
            return True
        supervises = self._supervises()
        if supervises is None:
            # A request for the end would also end a run that another process supervises.
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
            console.say("rankfall: going on")
        return answer in {"d", None}

    def _left_by(self, number: int) -> bool:
        self._left = code_of(number)
        return True

    def _ask(self) -> str | None:
        """Detach, cancel or go on; None = Ctrl-C again, or the terminal went away; "t" = SIGTERM came meanwhile."""
        sys.stderr.write(
            f"\nrankfall: detach and leave {self._directory.id} running (d), cancel it (c), or go on (Enter)? "
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
                answer = line.strip().lower()[:1] if line else None
                return answer if answer in {"d", "c", None} else ""

    def _terminated(self) -> None:
        """SIGTERM, in its handler: the supervisor of this process stops the run, although the view may wait for a reader of its output."""
        own = self._own
        if own is not None and own.holds and not self._unattended and not self._signals.as_viewer:
            # What cannot be written from here is written by the loop.
            with contextlib.suppress(RankfallError, RuntimeError):
                self._cancel(_TERMINATED)

    def _cancel(self, reason: str) -> None:
        """In the directory, so that it holds whoever supervises."""
        if not self._cancelled:
            self._cancelled = True
            try:
                request_cancel(self._directory.path, reason=reason)
            finally:
                if self._own is not None:
                    self._own.control.cancel(reason)
                console.say(f"rankfall: cancelling {self._directory.id}; Ctrl-C leaves it to finish alone")

    def _detach(self) -> Outcome | None:
        """Leave; the run gets a supervisor of its own when this process was it."""
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
    """Say whose exit code it is, as the last line of stderr; the code."""
    console.say(f"rankfall-exit: {outcome.exit_origin} {outcome.code}")
    return outcome.code


_TEXT: Final = 400


class Recording:
    """The recorder beside a view.

    Args:
        directory: of a run that its platform ends by itself.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._own: Supervision | None = None

    def over(self) -> bool:
        """Whether the run has ended and all of it is stored; keeps the recorder going until then.

        Raises:
            RankfallError: what ended the recorder.
        """
        if self._own is not None:
            if not self._own.over:
                return False
            own, self._own = self._own, None
            own.result()
        with self._directory.reader() as reader:
            ended = reader.run().state in FINAL_STATES
        if self._directory.lease_holder() is not None:
            # Somebody else records it; that one writes its last words still.
            return False
        if not ended:
            self._own = Supervision(self._directory, on_event=_tell)
            self._own.begin()
        return ended

    def stop(self) -> None:
        """Let go of the run, which goes on."""
        own, self._own = self._own, None
        if own is not None:
            own.control.release()
            own.result()


def ended_text(directory: RunDir) -> str:
    """How a job that Rankfall did not start ended, with the command that says more; empty while it goes on."""
    foreign = directory.foreign
    with directory.reader() as reader:
        row = reader.run()
    if foreign is None or row.state not in FINAL_STATES:
        return ""
    reason = f": {row.reason}" if row.reason else ""
    why = "" if row.state == "succeeded" else f"; rankfall why {directory.id}"
    return one_line(f"{foreign.target.label} {row.state}{reason}{why}", width=_TEXT)


def _tell(event: Event) -> None:
    """Show what happens to the job itself: lines do not say that they are those of another gang."""
    later = event.kind == "attempt" and event.data.get("attempt") != 1
    if later or event.kind in {"gap", "decision", "suspended"}:
        console.say(f"rankfall: {one_line(event.text, width=_TEXT)}")
