"""When Rankfall itself began to stop the slots of an attempt.

Kept before the request is sent, so that no reader takes our own signals for somebody else's.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The first request to stop: when, nanoseconds since the epoch by this machine's clock, and why."""

    at_ns: int
    reason: str


def stop_path(run: Path, attempt: int) -> Path:
    """Where an attempt's mark lies."""
    return run / "kube" / f"attempt-{attempt}" / "stop.json"


def read_stop(run: Path, attempt: int) -> Stop | None:
    """The mark; None where nothing was stopped."""
    try:
        return msgspec.json.decode(stop_path(run, attempt).read_bytes(), type=Stop)
    except (OSError, msgspec.DecodeError):
        return None


def mark_stop(run: Path, attempt: int, stop: Stop) -> None:
    """Set the mark; the first one stands.

    Raises:
        OSError: it cannot be written.
    """
    path = stop_path(run, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(stop))
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
