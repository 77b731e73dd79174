"""Signals as counts, so that the loop that shows a run decides what they mean, and when."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Counts the signals that a person or a system sent to this process."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.terminated = False
        self.hung_up = False

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        """The handler."""
        if number == signal.SIGINT:
            self.interrupts += 1
        elif number == signal.SIGTERM:
            self.terminated = True
        else:
            self.hung_up = True

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """While inside, SIGINT, SIGTERM and SIGHUP are counted instead of ending the process."""
        before = {n: signal.signal(n, self.handle) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)
