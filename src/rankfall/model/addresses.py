"""Checks given ``HOST:PORT`` addresses and HTTP URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

from rankfall.model import numbers
from rankfall.model.errors import UsageError


def is_http(text: str) -> bool:
    """True for an HTTP(S) URL with a host and valid port."""
    try:
        found = urlsplit(text)
        return found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
    except ValueError:  # unpaired bracket or invalid port
        return False


def address_of(text: str) -> tuple[str, int]:
    """Parses ``HOST:PORT`` or ``:PORT``; without a host ``0.0.0.0``.

    Raises:
        UsageError: The text is not an address.
    """
    host, colon, port = text.rpartition(":")
    number = numbers.clamped(port, least=0, most=65_535)
    if not colon or number is None or not port.isdigit():
        raise UsageError(f"{text[:60]!r} is not an address", hint="as 127.0.0.1:9090, or :9090 for all of this machine")
    return host.strip("[]") or "0.0.0.0", number  # noqa: S104 - no host means all
