"""How others steer a running supervisor: another thread, a signal handler, or a request file in the run directory.

Only two wishes exist: cancel the run, or let go of it (the job goes on, somebody else supervises).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import msgspec

from rankfall.model import StoreError, decoding
from rankfall.store.home import write_new
from rankfall.store.who import who

CANCEL_NAME: Final = "cancel"
_MAX_REQUEST: Final = 1 << 16

Wish = Literal["release", "hand_over"]


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
        self._closing = threading.Lock()
        self._cancel: str | None = None
        self._wish: Wish | None = None
        self._signals: deque[int] = deque(maxlen=16)

    def cancel(self, reason: str = "") -> None:
        """End the run. The first reason stands."""
        if self._cancel is None:
            self._cancel = reason
        self._poke()

    def release(self) -> None:
        """Let go of the run: its slots go on without a supervisor."""
        self._wish = self._wish or "release"
        self._poke()

    def hand_over(self) -> None:
        """Let go of the run and leave it to a detached supervisor."""
        self._wish = "hand_over" if self.lost is None else "release"
        self._poke()

    def lose(self, why: str) -> None:
        """Let go of the run, because somebody else supervises it."""
        self.lost = self.lost or why
        self._wish = "release"
        self._poke()

    def signalled(self, number: int) -> None:
        """Remember a signal for the supervisor to tell its viewer."""
        self._signals.append(number)
        self._poke()

    @property
    def cancelled(self) -> str | None:
        """The reason of a cancel; None when there is none."""
        return self._cancel

    @property
    def asked(self) -> bool:
        """Whether a cancel was asked for, or a signal came that nobody was told of yet."""
        return self._cancel is not None or bool(self._signals)

    @property
    def wish(self) -> Wish | None:
        """What is wished other than the end."""
        return self._wish

    def take_signals(self) -> list[int]:
        """Signals that came since the last call."""
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def stir(self) -> None:
        """There is something to see: whoever waits until something stirs looks now. Not for signal handlers."""
        # The thread that calls may outlive the supervisor: by then the descriptor may be somebody else's.
        with self._closing:
            _write(self._stirred)

    def wait(self, seconds: float, *, unstirred: float | None = None) -> None:
        """Wait until something is wished or the time is over.

        Args:
            seconds: at most.
            unstirred: after so many of them the wait ends too as soon as something stirs, or has stirred since the last such wait; None = never.
        """
        if unstirred is not None and unstirred < seconds:
            if not self._ready(unstirred, self._wake):
                self._ready(seconds - unstirred, self._wake, self._stirred)
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
        with self._closing:
            for event in (self._wake, self._stirred):
                if event >= 0:
                    os.close(event)
            self._wake = self._stirred = -1

    def _poke(self) -> None:
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
