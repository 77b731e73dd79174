"""Requests to a supervisor as files (cancel, suspend, resume, resize), and ``Control`` of this process.

The first cancel remains; other requests are appended. Requests for foreign jobs are refused.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.model import Diagnosis, RankFacts, Refused, SlotFacts, StoreError, decoding
from rankfall.model.jobspec.sizes import SizeChange
from rankfall.rundir import RunDir
from rankfall.rundir.layout import write_new
from rankfall.rundir.requests import (
    ResizeRequest,
    append_request,
    append_resize,
    read_requests,
    read_resizes,
    requested_sizes,
    who,
)
from rankfall.verdict.diagnose import stopped_on_request

if TYPE_CHECKING:
    from rankfall.supervisor.attempt_facts import BadEnd

CANCEL_NAME: Final = "cancel"
_MAX_REQUEST: Final = 1 << 16
_PIPE: Final = 1 << 12

ReleaseRequest = Literal["release", "hand_over"]


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """User, reason and time (nanoseconds since the epoch) of a cancel."""

    reason: str = ""
    by: str = ""
    at: int = 0

    @property
    def text(self) -> str:
        """The request in one line."""
        who = f"cancelled by {self.by}" if self.by else "cancelled"
        return f"{who}: {self.reason}" if self.reason else who


# A signal handler reads requests; creating a decoder there takes a lock.
_REQUESTS: Final = decoding.decoder(CancelRequest)


def request_cancel(folder: Path, *, reason: str = "") -> CancelRequest:
    """Writes a cancel request; the first one remains.

    Raises:
        StoreError: The request cannot be written.
    """
    made = CancelRequest(reason=reason[:1000], by=who(), at=time.time_ns())
    try:
        write_new(folder / CANCEL_NAME, msgspec.json.encode(made))
    except OSError as error:
        raise StoreError(
            f"cannot request the end of {folder.name}: {error.strerror or error}",
            hint="free space in the run directory, or end its supervisor with SIGTERM",
        ) from error
    return read_cancel(folder) or made


def read_cancel(folder: Path) -> CancelRequest | None:
    """Returns the cancel request of a run, or None. A damaged request counts."""
    try:
        with (folder / CANCEL_NAME).open("rb") as file:
            data = file.read(_MAX_REQUEST)
    except OSError:
        return None
    try:
        return _REQUESTS.decode(data)
    except msgspec.MsgspecError:
        return CancelRequest(reason="the stored request cannot be read")


class Control:
    """Requests of this process to one supervisor; safe in any thread and signal handler.

    ``lost`` names another supervisor of the run, or is None. ``unseen``: this process shows no
    lines of the job, or all of them after a hold. ``writes`` counts stored pieces of pods' logs.
    """

    def __init__(self, *, unseen: bool = False) -> None:
        self.unseen = unseen
        self.lost: str | None = None
        self.writes = 0
        # A pipe, not a lock: a signal handler may run while this thread waits.
        self._wake = _Pipe()
        self._stirred = _Pipe()
        self._handover_lock = threading.Lock()
        self._cancel: str | None = None
        self._cancelled_at: int | None = None
        self._release_request: ReleaseRequest | None = None
        self._signals: deque[int] = deque(maxlen=16)

    def cancel(self, reason: str = "") -> None:
        """Ends the run; the first reason remains."""
        if self._cancel is None:
            self._cancelled_at = time.time_ns()
            self._cancel = reason
        self._wake_waiter()

    def release(self) -> None:
        """Releases the run; slots continue unsupervised."""
        self._release_request = self._release_request or "release"
        self._wake_waiter()

    def hand_over(self) -> None:
        """Releases the run to a detached supervisor."""
        self._release_request = "hand_over" if self.lost is None else "release"
        self._wake_waiter()

    def lose(self, why: str) -> None:
        """Releases the run, because another process supervises it."""
        self.lost = self.lost or why
        self._release_request = "release"
        self._wake_waiter()

    def signalled(self, number: int) -> None:
        """Queues a signal that the supervisor reports to its viewer."""
        self._signals.append(number)
        self._wake_waiter()

    @property
    def cancelled(self) -> str | None:
        """Reason of a cancel; None without one."""
        return self._cancel

    @property
    def cancelled_at(self) -> int | None:
        """Time of the cancel in nanoseconds since the epoch; None without one."""
        return self._cancelled_at

    @property
    def asked(self) -> bool:
        """True after a cancel or an unreported signal."""
        return self._cancel is not None or bool(self._signals)

    @property
    def release_request(self) -> ReleaseRequest | None:
        """Request to release or hand over the run, or None."""
        return self._release_request

    def take_signals(self) -> list[int]:
        """Returns signals since the last call."""
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def stir(self, *, lines: bool = False) -> None:
        """Reports new data to a thread that waits for it, except ``lines`` of a known stream. Not for signal handlers."""
        self.writes += 1
        if lines:
            return
        # The caller may outlive the supervisor and its descriptors.
        with self._handover_lock:
            self._stirred.write()

    def wait(self, seconds: float, *, wake_after: float | None = None) -> None:
        """Waits for a request or time-out; after ``wake_after`` seconds also for new data."""
        if wake_after is not None and wake_after < seconds:
            if not self._ready(wake_after, self._wake):
                self._ready(seconds - wake_after, self._wake, self._stirred)
            return
        self._ready(seconds, self._wake)

    def _ready(self, seconds: float, *pipes: _Pipe) -> bool:
        ready, _, _ = select.select(pipes, [], [], max(0.0, seconds))
        for pipe in ready:
            pipe.drain()
        return bool(ready)

    def close(self) -> None:
        """Closes the descriptors; later requests are lost."""
        with self._handover_lock:
            self._wake.close()
            self._stirred.close()

    def _wake_waiter(self) -> None:
        self._wake.write()


class _Pipe:
    """A non-blocking pipe whose content means nothing but "wake up"; a full one wakes as well."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)

    def fileno(self) -> int:
        return self._out

    def write(self) -> None:
        if self._in >= 0:
            with contextlib.suppress(OSError):
                os.write(self._in, b"w")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._out, _PIPE)) == _PIPE:
                pass

    def close(self) -> None:
        # The numbers go first: a signal handler may write meanwhile, and the descriptors may be reused.
        ends = {self._in, self._out} - {-1}
        self._in = self._out = -1
        for end in ends:
            os.close(end)


@contextlib.contextmanager
def signals_to(control: Control) -> Iterator[None]:
    """Inside the context, SIGHUP hands the run over; SIGINT and SIGTERM become ``signal`` events for the viewer.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        if number == signal.SIGHUP:
            control.hand_over()
        else:
            control.signalled(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


SUSPEND_NAME: Final = "suspend"


class SuspensionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """User, reason and time (nanoseconds since the epoch) of a suspend or resume request.

    ``outside``: by a queue or person in the cluster.
    """

    what: Literal["suspend", "resume"]
    at: int
    by: str = ""
    reason: str = ""
    outside: bool = False

    @property
    def text(self) -> str:
        """The request in one line."""
        words = f"{'suspended' if self.what == 'suspend' else 'resumed'} by {self.by or 'an unknown user'}"
        return f"{words}: {self.reason}" if self.reason else words


class Suspension(msgspec.Struct, frozen=True, kw_only=True):
    """All suspend and resume requests of a run, oldest first.

    Attributes:
        initially: True if the run starts suspended.
    """

    initially: bool = False
    requests: tuple[SuspensionRequest, ...] = ()

    @property
    def suspended(self) -> bool:
        """True if the run is to be suspended now."""
        return self.requests[-1].what == "suspend" if self.requests else self.initially

    @property
    def outside(self) -> bool:
        """True if the run is suspended in the cluster."""
        return self.suspended and bool(self.requests) and self.requests[-1].outside

    @property
    def text(self) -> str:
        """The newest request in one line."""
        return self.requests[-1].text if self.requests else "suspended by its job spec"

    def asked(self, since: int) -> int | None:
        """Returns the time of the suspend request that ends an attempt begun at ``since``, or None.

        Resumed ones count: the slots may have been signaled.
        """
        later = [one.at for one in self.requests if one.what == "suspend" and one.at > since]
        return later[0] if later else since if self.suspended else None

    def stops(
        self, started: int, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd]
    ) -> bool:
        """True if a suspend request precedes the attempt's own end, so that the attempt must stop."""
        asked = self.asked(started)
        return asked is not None and requested_before_end(asked, slots, ranks, bad=bad)

    def paused(self, since: int, until: int) -> int:
        """Returns the nanoseconds of suspension between two times."""
        total, state, begun = 0, self.initially, since
        for one in self.requests:
            at = min(max(one.at, since), until)
            if state:
                total += max(0, at - begun)
            state, begun = one.what == "suspend", max(begun, at)
        return total + (max(0, until - begun) if state else 0)


def requested_before_end(
    asked: int, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd]
) -> bool:
    """True if a request precedes the attempt's own end; arguments as of :meth:`Suspension.stops`."""
    slots = tuple(slots)
    ends = {("slot", s.slot, None): s.ended_at for s in slots} | {("rank", r.rank, r.pid): r.ended_at for r in ranks}
    if any((at := ends.get(end)) is not None and at < asked for end in bad):
        return False
    return not all(s.state == "ended" and s.ended_at is not None and s.ended_at < asked for s in slots)


def read_suspension(folder: Path, *, initially: bool) -> Suspension:
    """Reads the requests; skips unreadable ones."""
    return Suspension(initially=initially, requests=tuple(read_requests(folder / SUSPEND_NAME, SuspensionRequest)))


def request_suspension(folder: Path, what: Literal["suspend", "resume"], *, reason: str = "") -> SuspensionRequest:
    """Requests a suspension or its end (``what``).

    Raises:
        StoreError: The request cannot be written.
    """
    made = SuspensionRequest(what=what, at=time.time_ns(), by=who(), reason=reason[:1000])
    append_suspension_request(folder, made)
    return made


def append_suspension_request(folder: Path, made: SuspensionRequest) -> None:
    """Writes a request.

    Raises:
        StoreError: The request cannot be written.
    """
    append_request(folder / SUSPEND_NAME, made, verb=made.what)


# State of an attempt that ended for a resize.
RESIZED: Final = "resized"
_MAX_REASON: Final = 1000


def request_resize(run_dir: RunDir, *, role: str, nodes: int, reason: str = "") -> ResizeRequest:
    """Requests another size.

    Raises:
        StoreError: The request cannot be written.
    """
    made = ResizeRequest(role=role, nodes=nodes, at=time.time_ns(), by=who(), reason=reason[:_MAX_REASON])
    append_resize(run_dir.path, made)
    return made


def unmet(run_dir: RunDir, sizes: Mapping[str, int]) -> ResizeRequest | None:
    """Returns the newest request that these sizes do not fulfill, or None."""
    requested = requested_sizes(run_dir.path, run_dir.spec)
    open_ones = [one for role, one in read_resizes(run_dir.path).items() if sizes.get(role) != requested.get(role)]
    return max(open_ones, key=lambda one: one.at, default=None)


def changes(
    run_dir: RunDir, *, before: Mapping[str, int], after: Mapping[str, int], done_at: int | None
) -> tuple[SizeChange, ...]:
    """Returns the changes between two sizes with requesters; ``done_at`` None if planned."""
    asked = read_resizes(run_dir.path)
    return tuple(
        SizeChange(
            role=role,
            before=before[role],
            nodes=nodes,
            asked_at=asked[role].at,
            by=asked[role].by,
            reason=asked[role].reason,
            done_at=done_at,
        )
        for role, nodes in after.items()
        if role in asked and before.get(role, nodes) != nodes
    )


def resized_diagnosis(request: ResizeRequest, *, run: str, attempt: int) -> Diagnosis:
    """Returns the diagnosis of an attempt stopped for a resize: nothing failed, and the run continues immediately."""
    return stopped_on_request(request.text, how="resized", run=run, attempt=attempt, role=request.role)


def refuse_foreign(run_dir: RunDir, verb: str) -> None:
    """Refuses to change a job that Rankfall did not start.

    Raises:
        Refused: The job is a foreign job.
    """
    foreign = run_dir.foreign
    if foreign is None:
        return
    label = foreign.target.label
    raise Refused(
        f"rankfall {verb} is for runs that Rankfall started; {label} is not one, so Rankfall only reads it",
        hint=f"use rankfall logs -f {label} to follow it; to change it, use kubectl or the tool that created it",
    )
