"""Where controller and agent listen, as an operator writes it."""

from __future__ import annotations

from rankfall.model.errors import UsageError


def address_of(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``:PORT``.

    Raises:
        UsageError: it is none.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:  # noqa: PLR2004 - largest port
        raise UsageError(f"{text[:60]!r} is no address", hint="as 127.0.0.1:9090, or :9090 for all of this machine")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - asked for by leaving it out
