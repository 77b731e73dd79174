"""Addresses of HTTP servers and proxies, as people and files give them."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http(text: str) -> bool:
    """Whether something can be asked at this address over HTTP: a scheme that is http or https, a host, and no port that is none."""
    try:
        found = urlsplit(text)
        return found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
    except ValueError:  # of a bracket without its other half, or a port that is no number of one
        return False
