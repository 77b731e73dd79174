"""Checks addresses as people and files give them: ``HOST:PORT`` to listen on, and HTTP URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

from rankfall.model import numbers
from rankfall.model.errors import UsageError


def is_http(text: str) -> bool:
    """Whether something can be asked at this address over HTTP: a scheme that is http or https, a host, and no port that is none."""
    try:
        found = urlsplit(text)
        return found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
    except ValueError:  # of a bracket without its other half, or a port that is no number of one
        return False


def address_of(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``:PORT``.

    Raises:
        UsageError: it is none.
    """
    host, colon, port = text.rpartition(":")
    number = numbers.clamped(port, least=0, most=65_535)
    if not colon or number is None or not port.isdigit():
        raise UsageError(f"{text[:60]!r} is no address", hint="as 127.0.0.1:9090, or :9090 for all of this machine")
    return host.strip("[]") or "0.0.0.0", number  # noqa: S104 - asked for by leaving it out
