"""One API request and its retry policy. Pure.

A possibly executed request is never repeated blindly; the caller checks with the server.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from rankfall.kube.resources import Resource
from rankfall.model import numbers

TOO_MANY: Final = 429
_INTERNAL: Final = 500
# Passing states of servers and proxies; 501 and 505 do not improve.
_PASSING: Final = frozenset({502, 503, 504})
# A year: broken headers overflow no sum.
_LONGEST: Final = 365 * 86_400.0


class Risk(enum.Enum):
    """Effect of sending a request twice."""

    READ = "read"
    """Sending twice has no effect."""
    SAME = "same"
    """Sending twice has the same result: an apply, a delete of one UID."""
    TWICE = "twice"
    """Sending twice has another result: never sent again once the server may have received it."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Retry policy.

    Attributes:
        attempts: Total number, including the first.
        first_s: Longest first pause in seconds; doubles.
        cap_s: Longest pause in seconds that the client chooses.
        total_s: Seconds after which no attempt starts; if the server requests a longer pause, its error is raised.
    """

    attempts: int = 6
    first_s: float = 0.2
    cap_s: float = 8.0
    total_s: float = 60.0

    def pause(self, attempt: int, *, retry_after: float | None, rng: random.Random) -> float:
        """Returns the seconds to wait after attempt ``attempt`` (from 1), half fixed, half random.

        Always slightly longer than the server requests.
        """
        ours = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        ours *= 0.5 + rng.random() / 2
        if retry_after is None:
            return ours
        return retry_after + min(ours, 0.1 * retry_after + self.first_s)


def repeats(risk: Risk, *, status: int, retry_after: float | None) -> bool:
    """True if a request with this answer status may be retried."""
    if status == TOO_MANY:
        return True
    if risk is Risk.TWICE:
        return False
    if status == _INTERNAL:
        return risk is Risk.READ or retry_after is not None
    return status in _PASSING


def seconds(header: str | None, *, now: datetime | None = None) -> float | None:
    """Returns the seconds of a ``Retry-After`` number or date, or None."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        found = numbers.real(text)
        return _LONGEST if found is None else min(found, _LONGEST)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(_LONGEST, max(0.0, (moment - (now or datetime.now(UTC))).total_seconds()))


Params = Sequence[tuple[str, str]]
"""Query parameters; names may repeat."""


class Request:
    """Content of a request, independent of the user.

    ``path`` is percent-encoded. ``verb`` and ``what`` are for messages. With ``repeat=False`` the caller retries.
    """

    def __init__(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        what: str,
        risk: Risk,
        params: Params = (),
        body: bytes | None = None,
        kind: str = "application/json",
        repeat: bool = True,
    ) -> None:
        self.method, self.path, self.verb, self.what = method, path, verb, f"{verb} {what}"
        self.risk, self.params, self.body, self.kind, self.repeat = risk, params, body, kind, repeat


Object = dict[str, Any]
"""An API object as decoded JSON."""


def selectors(labels: str | None, fields: str | None) -> list[tuple[str, str]]:
    """Returns the parameters of a list, without empty ones."""
    found = [("labelSelector", labels), ("fieldSelector", fields)]
    return [(name, value) for name, value in found if value]


def pairs(params: Mapping[str, str] | Params | None) -> Params:
    """Converts parameters to one form; a sequence may repeat a name."""
    if params is None:
        return ()
    return list(params.items()) if isinstance(params, Mapping) else params


def labelled(item: Object, resource: Resource) -> Object:
    """Adds kind and apiVersion, which items of a list lack."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **item}


def delete_options(propagation: str, grace: int | None, preconditions: Mapping[str, str]) -> Object:
    """Returns the body of a deletion; ``grace`` in seconds."""
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if preconditions:
        options["preconditions"] = preconditions
    return options


def at_version(body: Mapping[str, Any] | Sequence[Mapping[str, Any]], version: str) -> object:
    """Returns the patch, which the server refuses at another version."""
    if isinstance(body, Mapping):
        return {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
    # A replaced version gives 409; a failed "test" would be 422.
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *body]
