"""Nanoseconds since the epoch as RFC 3339 text; knows no clock."""

from __future__ import annotations

from datetime import UTC, datetime

_NS = 1_000_000_000


def rfc3339(at: int | None) -> str | None:
    """``2026-11-21T09:00:00.123456789Z``; None stays None. Times outside the years 1-9999 are None as well."""
    if at is None:
        return None
    seconds, ns = divmod(at, _NS)
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"
