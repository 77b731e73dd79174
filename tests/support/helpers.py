"""What tests of every layer need: they wait for a real condition, and their jobs for a file, instead of a length of time."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from support.patience import scaled

T = TypeVar("T")

_POLL_S = 0.02
# A job whose test was killed ends after so many seconds.
_JOB_LIMIT_S = 600


def wait_until(predicate: Callable[[], T], *, timeout: float, what: str) -> T:
    """The first true value of ``predicate``.

    Args:
        predicate: asked again and again, with pauses of twice the time that it takes.
        timeout: seconds until the wait is given up on an idle machine; the scale of ``patience`` is applied here.
        what: what is waited for, for the failure's message.

    Raises:
        AssertionError: it did not come true in time.
    """
    limit = scaled(timeout)
    deadline = time.monotonic() + limit
    pause = threading.Event()
    asked = time.monotonic()
    while not (value := predicate()):
        now = time.monotonic()
        if now >= deadline:
            raise AssertionError(f"waited {limit:g} s in vain for {what}; last value: {value!r}")
        # A question that starts a process must not take the machine from what it asks about.
        pause.wait(max(_POLL_S, 2 * (now - asked)))
        asked = time.monotonic()
    return value


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


def not_installed(*programs: str) -> str:
    """Words for the reason of a skip: which of these programs are missing; empty if none."""
    absent = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def waits_for(path: Path | str) -> str:
    """A Python expression for the program of a job: it waits until the file ``path`` exists.

    The program has imported ``os``, ``sys`` and ``time``. Where nobody makes the file, the program fails after ten minutes.
    """
    looks = int(_JOB_LIMIT_S / _POLL_S)
    seen = f"any(os.path.exists({str(path)!r}) or time.sleep({_POLL_S}) for _ in range({looks}))"
    return f"({seen} or sys.exit({f'nobody made {path}'!r}))"
