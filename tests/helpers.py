"""What tests of every layer need: waiting for a real condition instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.02


def wait_until(predicate: Callable[[], T], *, timeout: float, what: str) -> T:
    """The first true value of ``predicate``.

    Args:
        predicate: asked again and again, with pauses of twice the time that it takes.
        timeout: seconds until the wait is given up.
        what: what is waited for, for the failure's message.

    Raises:
        AssertionError: it did not come true in time.
    """
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    asked = time.monotonic()
    while not (value := predicate()):
        now = time.monotonic()
        if now >= deadline:
            raise AssertionError(f"waited {timeout} s in vain for {what}; last value: {value!r}")
        # A question that starts a process must not take the machine from what it asks about.
        pause.wait(max(_POLL_S, 2 * (now - asked)))
        asked = time.monotonic()
    return value
