"""Where controller and agent listen, as an operator writes it."""

from __future__ import annotations

from rankfall.model import numbers
from rankfall.model.errors import UsageError


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
