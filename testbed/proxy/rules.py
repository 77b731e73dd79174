"""Faults as data: which requests (``Match``), what happens to them (an action), at which moment (``When``).

Nothing in here acts. All of it is plain frozen data that goes over the control socket as JSON, so that a test in this process and another
program order the same faults with the same words.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Match(_Data, frozen=True):
    """Which requests; what is left out matches everything.

    Attributes:
        method: in capitals.
        path: regular expression, found anywhere in the path (without the query).
        query: regular expression, found anywhere in the query as the client wrote it.
        watch: whether the request is a watch.
        follow: whether it follows a log.
        user_agent: regular expression, found anywhere in the client's User-Agent.
        nth: only the n-th request that fits all of the above, counted from 1 when the rule is added.
        probability: of being struck, drawn for each request that fits.
        seed: of all dice of the rule.
        times: at most so many requests are struck.
    """

    method: str | None = None
    path: str | None = None
    query: str | None = None
    watch: bool | None = None
    follow: bool | None = None
    user_agent: str | None = None
    nth: int | None = None
    probability: float = 1.0
    seed: int = 0
    times: int | None = None


class When(_Data, frozen=True):
    """The moment of a fault in one request. Nothing given: at once, before the server hears of the request.

    Attributes:
        answered: the server has answered and nothing of the answer has been passed on: what it did stays done.
        after_bytes: so many bytes of the answer's body have been passed on; 0 = its head alone.
        random_bytes: as ``after_bytes``, drawn evenly between these two.
        after_s: so many seconds after the request came.
        mean_life_s: as ``after_s``, drawn from the exponential distribution with this mean.
        called: when ``fire`` is called.
    """

    answered: bool = False
    after_bytes: int | None = None
    random_bytes: tuple[int, int] | None = None
    after_s: float | None = None
    mean_life_s: float | None = None
    called: bool = False

    def __post_init__(self) -> None:
        if sum(value is not None and value is not False for value in msgspec.structs.astuple(self)) > 1:
            raise ValueError("a fault has one moment; add a second rule for a second moment")

    @property
    def at_once(self) -> bool:
        """Whether nothing is waited for."""
        return self == When()


class How(StrEnum):
    """How a connection ends."""

    RST = "rst"
    """A reset, as of a machine that knows nothing of the connection."""
    FIN = "fin"
    """A bare FIN in the middle of a chunk, without TLS's good-bye, as of a process that died."""


class Place(StrEnum):
    """Where in a stream of lines it ends."""

    ANYWHERE = "anywhere"
    BOUNDARY = "boundary"
    """After the next newline."""
    INSIDE = "inside"
    """Inside a line."""


class Way(StrEnum):
    """Direction of bytes."""

    DOWN = "down"
    """From the server to the client."""
    UP = "up"
    """From the client to the server."""


class _Action(_Data, frozen=True, tag=True):
    pass


class Cut(_Action, frozen=True):
    """End the connection. A reset also throws away what the client's kernel has not taken yet, as resets do."""

    how: How = How.RST
    at: When = When()


class Stall(_Action, frozen=True):
    """Stop forwarding in one direction; the connection stays open and the sender is no longer read from.

    Attributes:
        way: that stops.
        for_s: it goes on by itself after so long; None = when released.
    """

    way: Way = Way.DOWN
    for_s: float | None = None
    at: When = When(after_bytes=0)


class HalfOpen(_Action, frozen=True):
    """The server's side goes away without a word: nothing is sent to the client any more and its socket is not closed.

    Ends when the client closes, or with a reset when the rule is released or removed (what a machine that came back would send).
    """

    at: When = When()


class Delay(_Action, frozen=True):
    """Hold the answer back for so many seconds after the server gave it."""

    seconds: float


class Slow(_Action, frozen=True):
    """Pass the answer's body on at this many bytes a second."""

    bytes_per_second: int


class EndStream(_Action, frozen=True):
    """A proper end of the body though the stream goes on: what a client sees when the server restarts in order, or a log rotates."""

    at: When = When(after_bytes=0)
    place: Place = Place.BOUNDARY


class Answer(_Action, frozen=True):
    """Answer instead of the server, with a Kubernetes ``Status``.

    Attributes:
        status: of HTTP.
        reason: of the Status; None = the one that belongs to the status.
        message: for people; None = an ordinary one.
        retry_after_s: for the header Retry-After and ``details.retryAfterSeconds``.
    """

    status: int
    reason: str | None = None
    message: str | None = None
    retry_after_s: int | None = None


class WatchError(_Action, frozen=True):
    """An ERROR event in a watch with status 200, after which the stream ends in order. At once: instead of the server.

    A stream that is not of JSON is left alone: an event of JSON in it would be a fault that no server has.
    """

    code: int = 410
    reason: str | None = None
    message: str | None = None
    at: When = When()


class ShiftTimes(_Action, frozen=True):
    """Shift the time stamps that a node's clock made: its pods' logs and statuses, its leases, heartbeats and events.

    What other clocks made (creationTimestamp, PodScheduled) stays. ``sinceTime`` of a log request is shifted back: on a node whose
    clock is wrong, that comparison happens with the wrong clock.

    Attributes:
        node: whose clock is wrong.
        seconds: later (or, negative, earlier) than the truth.
    """

    node: str
    seconds: float


class OldServer(_Action, frozen=True):
    """Answer version, discovery and OpenAPI as an older server does, from a folder that ``old_answers`` made.

    API groups that are no part of Kubernetes itself (custom resources) are passed on from the real server.
    """

    folder: str


Action: TypeAlias = Cut | Stall | HalfOpen | Delay | Slow | EndStream | Answer | WatchError | ShiftTimes | OldServer


class Rule(_Data, frozen=True):
    """One fault: what happens, to which requests. All rules that match a request strike it, in the order in which they were added."""

    action: Action
    match: Match = Match()
