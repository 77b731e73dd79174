"""The ``Status`` object with which a Kubernetes API server says no."""

from __future__ import annotations

import http
from typing import Any

import msgspec

# apimachinery, pkg/api/errors: the reason that a server gives with each status.
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    502: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

_MESSAGES = {
    401: "Unauthorized",
    403: "forbidden: the fault proxy says so",
    409: "the object has been modified; please apply your changes to the latest version and try again",
    410: "too old resource version: 1 (2)",
    429: "the server has received too many requests and has asked us to try again later",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}


def status(
    code: int, *, reason: str | None = None, message: str | None = None, retry_after_s: int | None = None
) -> dict[str, Any]:
    """A ``Status``.

    Args:
        code: of HTTP.
        reason: one word for programs; None = the usual one.
        message: for people; None = the usual one.
        retry_after_s: for ``details``.
    """
    found: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message if message is not None else _MESSAGES.get(code, _phrase(code)),
        "reason": reason if reason is not None else REASONS.get(code, ""),
    }
    if retry_after_s is not None:
        found["details"] = {"retryAfterSeconds": retry_after_s}
    return found | {"code": code}


def answer(code: int, body: dict[str, Any]) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of an answer with a ``Status``."""
    text = msgspec.json.encode(body)
    headers = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(text))),
        ("Cache-Control", "no-cache, private"),
    ]
    retry = body.get("details", {}).get("retryAfterSeconds")
    if retry is not None:
        headers.append(("Retry-After", str(retry)))
    if code == http.HTTPStatus.UNAUTHORIZED:
        headers.append(("Www-Authenticate", 'Bearer realm="kubernetes"'))
    return headers, text


def error_event(code: int, *, reason: str | None = None, message: str | None = None) -> bytes:
    """The line with which a watch ends in an error."""
    event = {"type": "ERROR", "object": status(code, reason=reason, message=message)}
    return msgspec.json.encode(event) + b"\n"


def _phrase(code: int) -> str:
    try:
        return http.HTTPStatus(code).phrase
    except ValueError:
        return f"status {code}"
