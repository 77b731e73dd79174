"""Nanoseconds since the epoch as RFC 3339 text and back; knows no clock."""

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


def nanoseconds(text: str) -> int | None:
    """The moment that RFC 3339 text names, to the microsecond; None = it names none, or one that signed nanoseconds cannot hold."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    found = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    return found if 0 <= found < 1 << 63 else None
