"""What ends a connection of a watch, sorted by what helps: the same version again, a new list, or nothing."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rankfall.kube import answers
from rankfall.kube.errors import ApiError, Expired, KubeError, ServerError, TooManyRequests

_DENIED: Final = frozenset({401, 403})


class Gap(Exception):  # noqa: N818 - not an error: the server's history has a hole, a list closes it
    """The next try has to begin with a list.

    Args:
        error: that said so.
    """

    def __init__(self, error: KubeError) -> None:
        super().__init__(error.message)
        self.error = error


def of_answer(error: ApiError) -> ApiError | Gap:
    """Whether an answer calls for a new list."""
    return Gap(error) if isinstance(error, Expired) or _from_the_future(error) else error


def of_body(status: Any, line: bytes, *, what: str) -> ApiError | Gap:
    """The error for an ``ERROR`` in the body.

    A server that breaks off there with anything but a refusal or a wish for patience cannot go on from this version; a new list always can.

    Args:
        status: the Status object, or whatever stands in its place.
        line: the whole line.
        what: verb and object, for the message.
    """
    code = status.get("code") if isinstance(status, dict) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return unreadable(line, what=what)
    error = answers.refused(answers.Refusal(code, {}, msgspec.json.encode(status)), what=what)
    return error if isinstance(error, TooManyRequests) or code in _DENIED else Gap(error)


def unreadable(line: bytes, *, what: str) -> ServerError:
    """The error for what no API server writes: something on the way did, and may stop doing so."""
    error = answers.unreadable(200, line, what=what)
    return ServerError(error.message, status=error.status, hint=error.hint)


def _from_the_future(error: ApiError) -> bool:
    """The version is newer than the server's newest: its storage went back in time."""
    causes = error.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge" for cause in causes
    )
