"""One API request: method, path, query and body, what a repeat of it may do, and when it is sent again. Pure.

A request that the server may already have carried out is never repeated blindly: a second create would make a
second object, a second delete by name could remove another one. The caller is told that it may be done, and
asks the server.
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
# Of something that is overloaded, restarts, or cannot reach what is behind it. 501 and 505 do not get better.
_PASSING: Final = frozenset({502, 503, 504})
# A year: what a broken header may say at most, so that no sum overflows.
_LONGEST: Final = 365 * 86_400.0


class Risk(enum.Enum):
    """What a second sending may do."""

    READ = "read"
    """Nothing."""
    SAME = "same"
    """The same again: an apply, a delete of one UID."""
    TWICE = "twice"
    """Something else: never sent again once the server may have seen it."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long.

    Attributes:
        attempts: in all, the first one included.
        first_s: longest pause before the second one; doubled each time.
        cap_s: longest pause that we choose ourselves.
        total_s: no new attempt is begun after so long; a server that asks for more patience gets its error raised.
    """

    attempts: int = 6
    first_s: float = 0.2
    cap_s: float = 8.0
    total_s: float = 60.0

    def pause(self, attempt: int, *, retry_after: float | None, rng: random.Random) -> float:
        """Seconds to wait after the ``attempt``-th one (from 1): half of it certain, half by chance.

        What the server asked for is never undercut, and gets a little on top, so that a thousand clients do not come back at once.
        """
        ours = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        ours *= 0.5 + rng.random() / 2
        if retry_after is None:
            return ours
        return retry_after + min(ours, 0.1 * retry_after + self.first_s)


def repeats(risk: Risk, *, status: int, retry_after: float | None) -> bool:
    """Whether an answer with this status may be asked for again."""
    if status == TOO_MANY:
        return True  # refused before anything was done
    if risk is Risk.TWICE:
        return False
    if status == _INTERNAL:
        return risk is Risk.READ or retry_after is not None
    return status in _PASSING


def seconds(header: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for: a number or a date; None when it says nothing that can be read.

    Args:
        header: as it came.
        now: for dates; the clock of the server's date is taken for ours.
    """
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
"""Of a query; a name may come more than once."""


class Request:
    """What is asked, apart from who asks.

    Args:
        method: of HTTP.
        path: below the server's address, already percent-encoded.
        verb: for the counters and messages: ``get``, ``watch`` …
        what: the object, for messages.
        risk: of sending it twice.
        params: of the query.
        body: with ``kind`` as its content type.
        repeat: False = the caller has a pace of its own for repeats.
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
"""An object of the API, as JSON has it."""


def selectors(labels: str | None, fields: str | None) -> list[tuple[str, str]]:
    """Parameters of a list; what is empty is left out."""
    found = [("labelSelector", labels), ("fieldSelector", fields)]
    return [(name, value) for name, value in found if value]


def pairs(params: Mapping[str, str] | Params | None) -> Params:
    """Parameters in one form; a sequence may have a name more than once."""
    if params is None:
        return ()
    return list(params.items()) if isinstance(params, Mapping) else params


def labelled(item: Object, resource: Resource) -> Object:
    """The items of a list come without kind and apiVersion."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **item}


def delete_options(propagation: str, grace: int | None, preconditions: Mapping[str, str]) -> Object:
    """Body of a deletion.

    Args:
        propagation: what happens to what the object owns.
        grace: seconds that pods have to end; None = their own.
        preconditions: ``uid`` and ``resourceVersion`` that the object must have.
    """
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if preconditions:
        options["preconditions"] = preconditions
    return options


def at_version(body: Mapping[str, Any] | Sequence[Mapping[str, Any]], version: str) -> object:
    """The same patch, refused by the server when the object has another version by now."""
    if isinstance(body, Mapping):
        return {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
    # Setting the version to what it should be is the server's own test for it: its answer is 409, where a failed "test" would be 422.
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *body]
