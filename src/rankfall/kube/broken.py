"""The error for a body that broke off: whoever reads a stream gets one of ours, never one of the HTTP library, which carries the headers that were sent."""

from __future__ import annotations

import ssl

import aiohttp

from rankfall.kube import answers
from rankfall.kube.errors import Unreachable


def broken(error: aiohttp.ClientError | OSError, *, what: str, server: str) -> Unreachable:
    """The error; to be raised outside the block that caught the other one, so that it is not chained to it.

    Args:
        error: out of the body.
        what: verb and object.
        server: its address.
    """
    if isinstance(error, aiohttp.ClientPayloadError | ConnectionError | ssl.SSLEOFError):
        hint = "it is opened anew by who reads on; a cut that comes again and again has its cause on the way: network, proxy, load balancer"
        return Unreachable(f"cannot {what}: the connection to {server} broke off", hint=hint)
    return answers.lost(error, what=what, server=server)
