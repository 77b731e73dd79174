"""Supervises a run to its end: lease, signals, driver, cleanup.

A thread copies lines into ``log_dir``; a process sends messages. Large streams are compressed at the end. Failures of
all three are harmless.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankfall.backends.protocol import Backend
from rankfall.backends.registry import backend_for, native_of
from rankfall.model import FINAL_STATES, Outcome, RankfallError, StoreError
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.directory import MAKE_ROOM
from rankfall.rundir.incomplete import NEW_RUN_BYTES, disk_trouble
from rankfall.rundir.removal import discard, has_begun
from rankfall.rundir.streams.writer import compress_run, unfinished_compressions
from rankfall.supervisor import spawn_detached
from rankfall.supervisor.attended.driver import Supervised
from rankfall.supervisor.outcome import done, pending_cleanup
from rankfall.supervisor.requests import Control, signals_to
from rankfall.supervisor.run_events import Event, EventLog

if TYPE_CHECKING:
    from rankfall.rundir.lines.log_dir import LogDir
    from rankfall.supervisor.unattended.driver import Unattended


def compress_ended_runs(run_dir: RunDir) -> None:
    """Compresses the streams of a run held by this process, then unfinished ones of other runs."""
    for problem in compress_run(run_dir):
        EventLog(run_dir.path, None).say("raw", problem, at=time.time_ns())
    for path in unfinished_compressions(run_dir.path.parent.parent, but=run_dir):
        _finish(path)


def _finish(path: Path) -> None:
    """Completes a half-compressed run if no process holds it."""
    other = RunDir(path)
    # Its owner handles a held, damaged or unwritable run.
    with contextlib.suppress(RankfallError, OSError), other.lease() as writer:
        if writer.run().state in FINAL_STATES:
            compress_run(other)


_PAUSE_S: Final = 0.5
# Reading thousands of streams takes at most this part of the time.
_SHARE: Final = 10
# Seconds that the end waits for a hanging disk.
_JOIN_S: Final = 10.0


@contextlib.contextmanager
def mirror_to_log_dir(run_dir: RunDir) -> Iterator[None]:
    """Copies new log lines of the run into the folder ``log_dir`` of its spec until the context ends.

    Does nothing if the spec names no ``log_dir``.
    """
    folder = run_dir.spec.log_dir
    if folder is None:
        yield
        return
    from rankfall.rundir.lines.log_dir import LogDir  # noqa: PLC0415

    over = threading.Event()
    thread = threading.Thread(
        target=_keep, args=(run_dir, LogDir(run_dir, Path(folder)), over), name="rankfall-log-dir", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_JOIN_S)


def _keep(run_dir: RunDir, files: LogDir, over: threading.Event) -> None:
    last: str | None = None
    pause = 0.0
    while not over.wait(pause):
        began = time.monotonic()
        problem = files.advance()
        pause = max(_PAUSE_S, _SHARE * (time.monotonic() - began))
        if problem is not None and problem != last:
            text = f"log_dir: {problem}; its lines are stored and are copied there when it is writable"
            EventLog(run_dir.path, None).say("gap", text, at=time.time_ns())
        last = problem


# Seconds that the end waits for the last message.
NOTIFY_WAIT_S: Final = 5.0
_NOTIFY_STEP_S: Final = 0.1
# Kinds of events, with the entry of ``notify.events`` that wants them.
_NOTIFIED: Final = {"decision": "failure", "fall": "failure", "attempt": "restart", "hang": "hang", "ended": "end"}


class Notifier:
    """Starts the process that sends messages (``rankfall.notify``) for an event that needs one; never blocks.

    A thread waits for the process, so that one runs at a time. ``on_event`` gets each event first.
    """

    def __init__(self, run_dir: RunDir, on_event: Callable[[Event], None] | None) -> None:
        self._run_dir = run_dir
        self._on_event = on_event
        self._lock = threading.Lock()
        self._due = False
        self._process: subprocess.Popen[bytes] | None = None
        self._idle = threading.Event()
        self._idle.set()
        # Marks that the process could not store.
        self._done: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Passes an event on; starts a process if a message is due."""
        if self._on_event is not None:
            self._on_event(event)
        first = event.kind == "attempt" and event.data.get("attempt") == 1
        if not first and _NOTIFIED.get(event.kind) in self._run_dir.spec.notify.events:
            self.wake()

    def wake(self) -> None:
        """Sends what is due and was not sent, also by an earlier supervisor."""
        with self._lock:
            self._due = True
            if self._idle.is_set():
                self._idle.clear()
                try:
                    threading.Thread(target=self._serve, name="rankfall-notify", daemon=True).start()
                except RuntimeError as error:
                    self._idle.set()
                    self._say(f"messages cannot be sent: {error}")

    def close(self, control: Control) -> None:
        """Waits for the last message, at most ``NOTIFY_WAIT_S`` or until a release; its process continues alone."""
        until = time.monotonic() + NOTIFY_WAIT_S
        while not self._idle.wait(_NOTIFY_STEP_S):
            if time.monotonic() > until or control.release_request is not None:
                break
        else:
            return
        number = f" (process {self._process.pid})" if self._process is not None else ""
        self._say(
            f"the last message is not delivered yet; its sender{number} tries for a minute more; "
            f"next: rankfall attach {self._run_dir.id} shows a failure"
        )

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._idle.set()
                    return
                self._due = False
            self._send()

    def _send(self) -> None:
        command = [sys.executable, "-P", "-m", "rankfall.notify", str(self._run_dir.path), *sorted(self._done)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._say(f"messages cannot be sent: {error.strerror or error}")
            return
        output, _ = self._process.communicate()
        self._done.update(output.decode("ascii", "replace").split())
        if self._process.returncode:
            self._say(f"the process that sends messages ended with {self._process.returncode}")

    def _say(self, text: str) -> None:
        EventLog(self._run_dir.path, self._on_event).say("notify", text, at=time.time_ns())


@contextlib.contextmanager
def _lease(run_dir: RunDir, *, wait: float) -> Iterator[Writer]:
    """Holds the lease; deletes a new run whose end could not be stored, because it would stay queued for ever."""
    begun = False
    try:
        with run_dir.lease(wait=wait) as writer:
            begun = writer.reserved or has_begun(run_dir)
            if begun:
                yield writer
                return
        found = StoreError("the disk has no room for its database")
    except StoreError as error:
        # sqlite has several errors for a full disk.
        failed = not begun and isinstance(error.__cause__, sqlite3.OperationalError)
        if not failed or disk_trouble(run_dir.path, least=NEW_RUN_BYTES) is None:
            raise
        found = error
    if not discard(run_dir):
        raise found
    raise StoreError(f"{run_dir.id} could not start and was deleted: {found.message}", hint=MAKE_ROOM) from found


def supervise(
    run_dir: RunDir,
    *,
    on_event: Callable[[Event], None] | None = None,
    control: Control | None = None,
    backend: Backend | None = None,
    wait: float = 0.0,
    handle_signals: bool = False,
    on_lease: Callable[[], None] | None = None,
    standby: bool = False,
) -> Outcome:
    """Supervises a run from any state to its end; returns state ``running`` if this process released the run.

    ``on_event`` must be quick. ``handle_signals`` needs the main thread. ``standby`` waits to take over.

    Raises:
        LockHeld: Another process supervises the run.
        HeldElsewhere: Another machine supervises the run.
        Refused: Unsupported backend.
        StoreError: The run directory is not accessible.
    """
    chosen = backend or backend_for(run_dir.spec)
    own = control or Control()
    notifies = bool(run_dir.spec.notify.targets) and not run_dir.spec.unattended
    notifier = Notifier(run_dir, on_event) if notifies else None
    try:
        with signals_to(own) if handle_signals else contextlib.nullcontext():
            with _lease(run_dir, wait=wait) as writer, mirror_to_log_dir(run_dir):
                if notifier is not None and writer.newest_attempt():
                    notifier.wake()
                run = _of(
                    run_dir,
                    writer=writer,
                    on_event=notifier or on_event,
                    control=own,
                    backend=chosen,
                    on_lease=on_lease,
                    standby=standby,
                )
                outcome = run.to_end()
                if outcome.state in FINAL_STATES:
                    if run_dir.foreign is None:
                        # A foreign job's viewer waits for no second copy.
                        compress_ended_runs(run_dir)
                    done(run_dir)
            if own.release_request == "hand_over" and not run_dir.spec.unattended and outcome.state not in FINAL_STATES:
                spawn_detached(run_dir)
            if notifier is not None and outcome.state in FINAL_STATES:
                notifier.close(own)
            return outcome
    finally:
        if control is None:
            own.close()


def finish(run_dir: RunDir) -> None:
    """Completes pending cleanup as the supervisor would, unless another process holds the run."""
    if pending_cleanup(run_dir) is None or run_dir.lease_holder() is not None:
        return
    with run_dir.reader() as reader:
        over = reader.run().state in FINAL_STATES
    if over:
        with contextlib.suppress(RankfallError, OSError):
            supervise(run_dir)


def _of(
    run_dir: RunDir,
    *,
    writer: Writer,
    on_event: Callable[[Event], None] | None,
    control: Control,
    backend: Backend,
    on_lease: Callable[[], None] | None,
    standby: bool,
) -> Supervised | Unattended:
    if not run_dir.spec.unattended:
        return Supervised(
            run_dir,
            writer=writer,
            on_event=on_event,
            control=control,
            backend=backend,
            on_lease=on_lease,
            standby=standby,
        )
    from rankfall.supervisor.unattended.driver import Unattended  # noqa: PLC0415

    # Any number of machines may record an unattended run.
    if on_lease is not None:
        on_lease()
    return Unattended(run_dir, writer=writer, on_event=on_event, control=control, backend=native_of(backend))
