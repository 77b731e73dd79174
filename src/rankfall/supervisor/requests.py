"""Requests to a supervisor: cancel, suspend, resume and resize files in the run directory, and ``Control``.

Anybody may write one: the first cancel stands, suspend and resize requests are appended. The supervisor of
the run, or the next one, carries it out. ``Control`` holds the requests of this process (cancel, release,
hand over) and wakes its waits; it may be used from any thread and from signal handlers. Requests for jobs
that Rankfall did not start are refused. Loads no observer and no backend.
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

ReleaseRequest = Literal["release", "hand_over"]


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for the end, why, and when (nanoseconds since the epoch)."""

    reason: str = ""
    by: str = ""
    at: int = 0

    @property
    def text(self) -> str:
        """The request in one line."""
        who = f"cancelled by {self.by}" if self.by else "cancelled"
        return f"{who}: {self.reason}" if self.reason else who


# Made here: a signal handler reads requests, and making a decoder takes a lock that the interrupted thread may hold.
_REQUESTS: Final = decoding.decoder(CancelRequest)


def request_cancel(folder: Path, *, reason: str = "") -> CancelRequest:
    """Leave a cancel request in a run directory; the first one stands.

    Raises:
        StoreError: it cannot be written.
    """
    made = CancelRequest(reason=reason[:1000], by=who(), at=time.time_ns())
    try:
        write_new(folder / CANCEL_NAME, msgspec.json.encode(made))
    except OSError as error:
        raise StoreError(
            f"cannot ask for the end of {folder.name}: {error.strerror or error}",
            hint="free space in the run directory, or end its supervisor with SIGTERM",
        ) from error
    return read_cancel(folder) or made


def read_cancel(folder: Path) -> CancelRequest | None:
    """The cancel request of a run; None when nobody asked. A damaged one counts: somebody did ask."""
    try:
        with (folder / CANCEL_NAME).open("rb") as file:
            data = file.read(_MAX_REQUEST)
    except OSError:
        return None
    try:
        return _REQUESTS.decode(data)
    except msgspec.MsgspecError:
        return CancelRequest(reason="the request itself cannot be read")


class Control:
    """Wishes of this process for one supervisor. All methods may be called from any thread and from signal handlers.

    Args:
        unseen: this process shows the job's lines to nobody.

    Attributes:
        unseen: as given.
        lost: who else supervises the run by now, in words; None = nobody.
    """

    def __init__(self, *, unseen: bool = False) -> None:
        self.unseen = unseen
        self.lost: str | None = None
        # An eventfd, not a lock: a signal handler may run while this very thread waits.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stirred = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._handover_lock = threading.Lock()
        self._cancel: str | None = None
        self._release_request: ReleaseRequest | None = None
        self._signals: deque[int] = deque(maxlen=16)

    def cancel(self, reason: str = "") -> None:
        """End the run. The first reason stands."""
        if self._cancel is None:
            self._cancel = reason
        self._wake_waiter()

    def release(self) -> None:
        """Let go of the run: its slots go on without a supervisor."""
        self._release_request = self._release_request or "release"
        self._wake_waiter()

    def hand_over(self) -> None:
        """Let go of the run and leave it to a detached supervisor."""
        self._release_request = "hand_over" if self.lost is None else "release"
        self._wake_waiter()

    def lose(self, why: str) -> None:
        """Let go of the run, because somebody else supervises it."""
        self.lost = self.lost or why
        self._release_request = "release"
        self._wake_waiter()

    def signalled(self, number: int) -> None:
        """Remember a signal for the supervisor to tell its viewer."""
        self._signals.append(number)
        self._wake_waiter()

    @property
    def cancelled(self) -> str | None:
        """The reason of a cancel; None when there is none."""
        return self._cancel

    @property
    def asked(self) -> bool:
        """Whether a cancel was asked for, or a signal came that nobody was told of yet."""
        return self._cancel is not None or bool(self._signals)

    @property
    def release_request(self) -> ReleaseRequest | None:
        """What is wished other than the end."""
        return self._release_request

    def take_signals(self) -> list[int]:
        """Signals that came since the last call."""
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def stir(self) -> None:
        """There is something to see: whoever waits until something stirs looks now. Not for signal handlers."""
        # The thread that calls may outlive the supervisor: by then the descriptor may be somebody else's.
        with self._handover_lock:
            _write(self._stirred)

    def wait(self, seconds: float, *, wake_after: float | None = None) -> None:
        """Wait until something is wished or the time is over.

        Args:
            seconds: at most.
            wake_after: after so many of them the wait ends too as soon as something stirs, or has stirred since the last such wait; None = never.
        """
        if wake_after is not None and wake_after < seconds:
            if not self._ready(wake_after, self._wake):
                self._ready(seconds - wake_after, self._wake, self._stirred)
            return
        self._ready(seconds, self._wake)

    def _ready(self, seconds: float, *events: int) -> bool:
        ready, _, _ = select.select(events, [], [], max(0.0, seconds))
        for event in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(event)
        return bool(ready)

    def close(self) -> None:
        """Give the descriptors back; wishes after this are lost."""
        with self._handover_lock:
            for event in (self._wake, self._stirred):
                if event >= 0:
                    os.close(event)
            self._wake = self._stirred = -1

    def _wake_waiter(self) -> None:
        _write(self._wake)


def _write(event: int) -> None:
    if event >= 0:
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_write(event, 1)


@contextlib.contextmanager
def signals_to(control: Control) -> Iterator[None]:
    """While inside: SIGHUP hands the run over; SIGINT and SIGTERM become ``signal`` events, and the viewer decides.

    Outside the main thread Python allows no handlers; then nothing is changed.
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
    """Who asked for the suspension or for its end, why, and when (nanoseconds since the epoch).

    ``outside``: it was seen in the cluster, where a queue or a person did it; no user of the run asked.
    """

    what: Literal["suspend", "resume"]
    at: int
    by: str = ""
    reason: str = ""
    outside: bool = False

    @property
    def text(self) -> str:
        """The request in one line."""
        words = f"{'suspended' if self.what == 'suspend' else 'resumed'} by {self.by or 'somebody'}"
        return f"{words}: {self.reason}" if self.reason else words


class Suspension(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of a run, oldest first.

    Attributes:
        initially: whether the run began suspended, by its spec.
    """

    initially: bool = False
    requests: tuple[SuspensionRequest, ...] = ()

    @property
    def suspended(self) -> bool:
        """Whether the run is to stand still now."""
        return self.requests[-1].what == "suspend" if self.requests else self.initially

    @property
    def outside(self) -> bool:
        """Whether the run stands still because of somebody in the cluster."""
        return self.suspended and bool(self.requests) and self.requests[-1].outside

    @property
    def text(self) -> str:
        """The newest request in one line."""
        return self.requests[-1].text if self.requests else "suspended by its job spec"

    def asked(self, since: int) -> int | None:
        """When the suspension was asked for that ends an attempt begun at ``since``; None when none does.

        What was resumed meanwhile counts too: its slots may have been told to stop.
        """
        later = [one.at for one in self.requests if one.what == "suspend" and one.at > since]
        return later[0] if later else since if self.suspended else None

    def stops(
        self, started: int, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd]
    ) -> bool:
        """Whether an attempt is to be stopped for a suspension: one was asked for before it was decided how the attempt ends.

        Args:
            started: when the attempt began, nanoseconds since the epoch.
            slots: all slots of the attempt.
            ranks: all its ranks.
            bad: the ends among them that count as failures.
        """
        asked = self.asked(started)
        return asked is not None and requested_before_end(asked, slots, ranks, bad=bad)

    def paused(self, since: int, until: int) -> int:
        """Nanoseconds between two moments in which the run was suspended."""
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
    """Whether something was asked for before it was decided how the attempt ends; arguments as of :meth:`Suspension.stops`."""
    slots = tuple(slots)
    ends = {("slot", s.slot, None): s.ended_at for s in slots} | {("rank", r.rank, r.pid): r.ended_at for r in ranks}
    if any((at := ends.get(end)) is not None and at < asked for end in bad):
        return False
    return not all(s.state == "ended" and s.ended_at is not None and s.ended_at < asked for s in slots)


def read_suspension(folder: Path, *, initially: bool) -> Suspension:
    """The requests of a run; those that cannot be read are left out."""
    return Suspension(initially=initially, requests=tuple(read_requests(folder / SUSPEND_NAME, SuspensionRequest)))


def request_suspension(folder: Path, what: Literal["suspend", "resume"], *, reason: str = "") -> SuspensionRequest:
    """Ask for a run to be suspended or to go on.

    Raises:
        StoreError: it cannot be written.
    """
    made = SuspensionRequest(what=what, at=time.time_ns(), by=who(), reason=reason[:1000])
    append_suspension_request(folder, made)
    return made


def append_suspension_request(folder: Path, made: SuspensionRequest) -> None:
    """Write a request down.

    Raises:
        StoreError: it cannot be written.
    """
    append_request(folder / SUSPEND_NAME, made, verb=made.what)


# How an attempt is called in the store that ended because the next one has another size.
RESIZED: Final = "resized"
_MAX_REASON: Final = 1000


def request_resize(run_dir: RunDir, *, role: str, nodes: int, reason: str = "") -> ResizeRequest:
    """Ask for another size.

    Raises:
        StoreError: it cannot be written.
    """
    made = ResizeRequest(role=role, nodes=nodes, at=time.time_ns(), by=who(), reason=reason[:_MAX_REASON])
    append_resize(run_dir.path, made)
    return made


def unmet(run_dir: RunDir, sizes: Mapping[str, int]) -> ResizeRequest | None:
    """The newest request that these sizes do not fulfil; None where all are as they are to be."""
    wished = requested_sizes(run_dir.path, run_dir.spec)
    open_ones = [one for role, one in read_resizes(run_dir.path).items() if sizes.get(role) != wished.get(role)]
    return max(open_ones, key=lambda one: one.at, default=None)


def changes(
    run_dir: RunDir, *, before: Mapping[str, int], after: Mapping[str, int], done_at: int | None
) -> tuple[SizeChange, ...]:
    """What leads from one size to the other, with who asked for it.

    Args:
        run_dir: the run.
        before: nodes by role until then.
        after: nodes by role from then on.
        done_at: when it held, nanoseconds since the epoch; None while it is only meant.
    """
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
    """What is said of an attempt that was stopped for another size: nothing fell, and the run goes on at once."""
    return stopped_on_request(request.text, how="resized", run=run, attempt=attempt, role=request.role)


def refuse_foreign(run_dir: RunDir, verb: str) -> None:
    """Refuse to change a job that Rankfall did not start.

    Args:
        run_dir: the run.
        verb: of the command line.

    Raises:
        Refused: it is another one's.
    """
    foreign = run_dir.foreign
    if foreign is None:
        return
    label = foreign.target.label
    raise Refused(
        f"rankfall {verb} is for runs that Rankfall started; {label} is only looked at",
        hint=f"rankfall logs -f {label} follows it; kubectl, or the tool that made it, changes it",
    )
