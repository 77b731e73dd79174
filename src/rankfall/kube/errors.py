"""Errors of the Kubernetes client, never with a credential.

    InfrastructureError
    |-- KubeError
        |-- KubeConfigError    kubeconfig missing, broken        exit 69
        |   |-- NoKubeConfig   no cluster is named anywhere
        |-- CredentialsError   plug-in failed, or 401           exit 77
        |-- Unreachable        no answer; retries are spent      exit 69
        |-- ApiError           error status of the server

"Not found", "forbidden" and "unknown" are separate classes: merged, a deleted job would appear pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankfall.model import InfrastructureError


class KubeError(InfrastructureError):
    """Base class of all errors of the Kubernetes client."""


class KubeConfigError(KubeError):
    """The kubeconfig is missing, broken, contradictory or unsupported."""


class NoKubeConfig(KubeConfigError):
    """There is neither a kubeconfig nor a pod's service account."""


class CredentialsError(KubeError):
    """The client cannot authenticate.

    Exit code 77 (``EX_NOPERM``): the job is unaffected and a login fixes it.
    """

    exit_code = 77


class Unreachable(KubeError):
    """No answer: no connection, TLS refused, time-out.

    ``maybe_done``: the server may have executed it. ``tls``: a certificate was refused; retries do not help.
    """

    def __init__(self, message: str, *, hint: str | None = None, maybe_done: bool = False, tls: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.maybe_done = maybe_done
        self.tls = tls
        self.passing = not tls


class ApiError(KubeError):
    """The server answered with an error.

    ``maybe_done``: a write may have succeeded despite a proxy's 5xx. ``retry_after`` is in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
        maybe_done: bool = False,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after = retry_after
        self.maybe_done = maybe_done


class Unauthorized(ApiError):
    """401: unrecognized credentials."""

    exit_code = 77


class Forbidden(ApiError):
    """403: missing permission. Never retried."""


class ObjectNotFound(ApiError):
    """404: the object or its kind does not exist."""


class Conflict(ApiError):
    """409: the object exists, has another version or UID, or a field has another manager."""

    @property
    def already_exists(self) -> bool:
        """True if an object of this name already exists."""
        return self.reason == "AlreadyExists"


class Expired(ApiError):
    """410: the resource version, or the list page, is too old."""


class Invalid(ApiError):
    """422: a field is wrong; ``details["causes"]`` names it."""


class TooManyRequests(ApiError):
    """429: the server is busy, or a disruption budget forbids an eviction."""

    passing = True


class ServerError(ApiError):
    """5xx: the server or a proxy failed."""

    passing = True


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: ObjectNotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}
_SERVER_SIDE: Final = 500


def error_class(status: int) -> type[ApiError]:
    """Class for an HTTP status or a Status object's ``code``."""
    return _BY_STATUS.get(status, ServerError if status >= _SERVER_SIDE else ApiError)
