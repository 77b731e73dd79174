"""Converts error responses and failed connections to bounded errors without credentials.

Library errors are never passed on: they contain request headers.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp
import msgspec

from rankfall.kube import request
from rankfall.kube.errors import ApiError, Unreachable, error_class
from rankfall.kube.secret import excerpt, masked
from rankfall.model import decoding
from rankfall.model.patterns import bounded

_HINTS: Final[dict[int, str]] = {
    400: "check the server's version: it may be too old for this request",
    401: "log in again; the job itself is not affected",
    403: "request this right from the cluster's administrator; kubectl auth can-i lists your rights, rankfall config rights those that Rankfall needs",
    404: "check name, namespace and context; a missing kind may need its controller installed",
    409: "check the existing object, then decide",
    410: "list again",
    413: "make the object smaller",
    422: "correct the field that the message names",
    429: "try again later: the server is busy",
}
_NOT_THERE: Final = 404
_NAMESPACE_HINT: Final = (
    "create the namespace (kubectl create namespace), or name another one (-n NAMESPACE, or kubernetes.namespace)"
)
_SERVER_SIDE: Final = 500
_SERVER_HINT: Final = "try again later: the API server, or a proxy before it, has problems"
_TITLE: Final = bounded(rb"<title[^>]{0,200}>([^<]{1,500})</title", limit=1 << 16, flags=re.IGNORECASE)
# Characters of a Status message: a field error fits.
_MESSAGE: Final = 1500


class Refusal(Exception):
    """An answer with an error status, independent of its connection."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


def refused(refusal: Refusal, *, what: str, secrets: Iterable[str] = (), maybe_done: bool = False) -> ApiError:
    """Error for an answer; with ``maybe_done`` a 5xx must not be repeated blindly."""
    status = _status_object(refusal.body)
    secrets = tuple(secrets)
    details: dict[str, Any] = {}
    if status is None:
        reason = ""
        text = _excerpt_of(refusal, secrets)
    else:
        reason = excerpt(_text(status.get("reason")), secrets=secrets, limit=100)
        found = status.get("details")
        if isinstance(found, dict):
            details = masked(found, secrets)
        text = excerpt(_text(status.get("message")), secrets=secrets, limit=_MESSAGE) or "no reason given"
    code = refusal.status
    hint = _NAMESPACE_HINT if code == _NOT_THERE and details.get("kind") == "namespaces" else _HINTS.get(code)
    name = f"{code} {reason}" if reason else str(code)
    return error_class(code)(
        f"cannot {what}: {text} ({name})",
        status=code,
        reason=reason,
        details=details,
        retry_after=retry_after(refusal.headers, details),
        maybe_done=maybe_done and code >= _SERVER_SIDE,
        hint=hint or (_SERVER_HINT if code >= _SERVER_SIDE else None),
    )


def unreadable(status: int, body: bytes, *, what: str, secrets: Iterable[str] = ()) -> ApiError:
    """Error for a successful answer (2xx) whose body is not Kubernetes JSON."""
    text = excerpt(body, secrets=secrets) or "nothing"
    return ApiError(
        f"cannot {what}: the answer is not a JSON object but: {text} ({status})",
        status=status,
        hint="check that the address is that of a Kubernetes API server, and that no proxy answers instead",
    )


def retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    """Requested wait in seconds from header (number or date) or Status; None without one."""
    now = None
    try:
        # A date is relative to the server's Date.
        now = parsedate_to_datetime(headers["Date"])
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        now = None
    if now is not None and now.tzinfo is None:
        now = None
    found = request.seconds(headers.get("Retry-After"), now=now)
    if found is not None:
        return found
    seconds = details.get("retryAfterSeconds")
    return request.seconds(str(seconds)) if isinstance(seconds, int | float) and seconds > 0 else None


def lost(error: BaseException, *, what: str, server: str, repeatable: bool = True) -> Unreachable:
    """Returns the error for a request without an answer.

    ``repeatable``: sending it again does no harm, even if the server executed it.
    """
    sent = not isinstance(
        error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.ClientHttpProxyError
    )
    cause, tls = _cause(error)
    hint = (
        "check the certificate authority, the server's name and the clock of this machine"
        if tls
        else "check the address, the network and the proxy; kubectl get --raw /readyz sends a request to the same server"
    )
    return Unreachable(
        f"cannot {what}: no answer from {server}: {cause}", hint=hint, maybe_done=sent and not repeatable, tls=tls
    )


def _cause(error: BaseException) -> tuple[str, bool]:
    """Cause without credentials, and True if it is a TLS error."""
    inner = _innermost(error)
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {excerpt(inner.verify_message or 'unknown')}", True
    if _cut(inner) or isinstance(inner, ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return "it closed the connection", False
    if isinstance(inner, ssl.SSLError):
        return f"TLS: {excerpt(inner.reason or type(inner).__name__)}", True
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "its name does not resolve", False
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refused with status {error.status}", False
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection in time", False
    if isinstance(error, TimeoutError):
        return "no answer in time", False
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection", False
    if isinstance(inner, OSError) and (inner.errno or inner.strerror):
        # asyncio's text repeats the address instead of the reason.
        return os.strerror(inner.errno) if inner.errno else excerpt(inner.strerror or ""), False
    return type(error).__name__, False


def _innermost(error: BaseException) -> BaseException:
    """Error inside aiohttp's wrappers, which only imitate those of ssl."""
    while isinstance(error, aiohttp.ClientError):
        wrapped = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error.__cause__
        if not isinstance(wrapped, BaseException):
            break
        error = wrapped
    return error


def _status_object(body: bytes) -> dict[str, Any] | None:
    try:
        found = decoding.decode(body)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) and found.get("kind") == "Status" else None


def _excerpt_of(refusal: Refusal, secrets: Iterable[str]) -> str:
    title = _TITLE.search(refusal.body)
    if title is not None:
        return f"a page named {excerpt(title[1], secrets=secrets)!r}"
    return excerpt(refusal.body, secrets=secrets) or "an empty answer"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _cut(error: BaseException) -> bool:
    """True if TCP ended without a TLS close; Python 3.11.2 has no class for it."""
    return isinstance(error, ssl.SSLEOFError) or (
        isinstance(error, ssl.SSLError) and error.reason == "UNEXPECTED_EOF_WHILE_READING"
    )


def broken(error: aiohttp.ClientError | OSError, *, what: str, server: str) -> Unreachable:
    """Error; raise it outside the block of ``error``, to avoid chaining."""
    if isinstance(error, aiohttp.ClientPayloadError | ConnectionError) or _cut(error):
        hint = "if this repeats, check network, proxy and load balancer; a reader reconnects after a single cut"
        return Unreachable(f"cannot {what}: the connection to {server} broke off", hint=hint)
    return lost(error, what=what, server=server)
