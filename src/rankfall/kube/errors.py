"""Errors of the Kubernetes client. Each names verb, resource, object and the next step, never a credential.

    InfrastructureError
    +-- KubeError
        +-- KubeConfigError    kubeconfig missing, broken, contradictory                      exit 69
        +-- CredentialsError   plug-in failed, file unreadable, 401 after a refresh           exit 77
        +-- Unreachable        no connection, TLS, time-out; retries are spent                exit 69
        +-- ApiError           the server answered with an error status
            +-- Unauthorized 401, Forbidden 403, ObjectNotFound 404, Conflict 409, Expired 410, Invalid 422,
                TooManyRequests 429, ServerError 5xx

"Not found", "forbidden" and "unknown" are different classes on purpose: code that treats them alike shows a
deleted job as pending. Imports nothing heavy, so that readers can catch these errors without loading the
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankfall.model import InfrastructureError


class KubeError(InfrastructureError):
    """Root of all errors of the Kubernetes client."""


class KubeConfigError(KubeError):
    """The kubeconfig is missing, broken or contradictory, or asks for what is refused here."""


class CredentialsError(KubeError):
    """We cannot prove who we are: a plug-in failed, a file cannot be read, or the server refused renewed credentials.

    It has an exit code of its own (77, ``EX_NOPERM``), because the job itself is untouched and logging in again is the whole cure.
    """

    exit_code = 77


class Unreachable(KubeError):  # noqa: N818 - reads as the answer that it is
    """No answer: no connection, TLS refused, time-out.

    Args:
        maybe_done: the request may have reached the server, which may have done what it asked for; the caller has to look.
        tls: the other side's certificate was refused, or ours was; repeating does not help.
    """

    def __init__(self, message: str, *, hint: str | None = None, maybe_done: bool = False, tls: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.maybe_done = maybe_done
        self.tls = tls
        self.passing = not tls


class ApiError(KubeError):
    """The server answered with an error.

    Args:
        status: of HTTP.
        reason: of the Status object, as ``AlreadyExists``; empty where there was none.
        details: of the Status object; empty where there were none.
        retry_after: seconds after which the server would like to be asked again.
        maybe_done: a write that may have been carried out although its answer is an error (5xx of something on the way).
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


class Unauthorized(ApiError):  # noqa: N818 - Kubernetes's own word
    """401: the server does not know us."""

    exit_code = 77


class Forbidden(ApiError):  # noqa: N818 - Kubernetes's own word
    """403: it knows us and says no. Never repeated."""


class ObjectNotFound(ApiError):  # noqa: N818 - reads as the answer that it is
    """404: no such object, or no such kind of object."""


class Conflict(ApiError):  # noqa: N818 - Kubernetes's own word
    """409: the object exists already, has another version or UID than asked for, or another manager owns the field."""

    @property
    def already_exists(self) -> bool:
        """Whether an object of this name is in the way of a new one."""
        return self.reason == "AlreadyExists"


class Expired(ApiError):  # noqa: N818 - Kubernetes's own word
    """410: this resourceVersion, or this page of a list, is too old."""


class Invalid(ApiError):  # noqa: N818 - Kubernetes's own word
    """422: a field is wrong; ``details["causes"]`` says which."""


class TooManyRequests(ApiError):  # noqa: N818 - Kubernetes's own word
    """429: the server is busy, or an eviction would break a disruption budget."""

    passing = True


class ServerError(ApiError):
    """5xx: the server, or something on the way to it, failed."""

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
    """The class for a status of HTTP (or the ``code`` of a Status object in a watch)."""
    return _BY_STATUS.get(status, ServerError if status >= _SERVER_SIDE else ApiError)
