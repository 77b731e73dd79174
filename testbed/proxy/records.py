"""What the proxy saw and did: counters and a log of requests. Headers and bodies never get here, so neither do tokens."""

from __future__ import annotations

import time
from collections import Counter, deque

import msgspec

# A fleet test makes some thousands of requests; what is older is only counted.
_KEPT = 20000


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        number: counted from 1.
        method: of HTTP.
        path: without the query.
        query: as the client wrote it.
        user_agent: of the client.
        user: of the client's certificate; empty = none shown.
        status: passed to the client; 0 = none (yet).
        sent: bytes of the answer's body passed to the client (after the switch: of the raw stream).
        seconds: from the request's head to the end, or until now.
        rules: names of those that struck, in order.
        ended: how it ended; ``open`` = it has not.
    """

    number: int
    method: str
    path: str
    query: str
    user_agent: str
    user: str
    status: int
    sent: int
    seconds: float
    rules: tuple[str, ...]
    ended: str


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Sums since the start.

    Attributes:
        connections: of clients, accepted.
        open_connections: of clients, now.
        refused: connections that failed in TLS's handshake.
        requests: heads of requests read.
        open_requests: now.
        sent: bytes of bodies passed to clients.
        by_status: answers passed to clients.
        by_rule: requests that each rule's fault really struck.
    """

    connections: int
    open_connections: int
    refused: int
    requests: int
    open_requests: int
    sent: int
    by_status: dict[int, int]
    by_rule: dict[str, int]


class Entry:
    """A request that runs; becomes a ``Record``."""

    def __init__(self, number: int, *, method: str, path: str, query: str, user_agent: str, user: str) -> None:
        self.number, self.method, self.path, self.query = number, method, path, query
        self.user_agent, self.user = user_agent, user
        self.status = self.sent = 0
        self.rules: list[str] = []
        self.ended = "open"
        self._began = time.monotonic()
        self._seconds: float | None = None

    def close(self, how: str) -> None:
        """It has ended."""
        self.ended = how
        self._seconds = time.monotonic() - self._began

    def record(self) -> Record:
        """As it is now."""
        seconds = self._seconds if self._seconds is not None else time.monotonic() - self._began
        return Record(
            number=self.number,
            method=self.method,
            path=self.path,
            query=self.query,
            user_agent=self.user_agent,
            user=self.user,
            status=self.status,
            sent=self.sent,
            seconds=seconds,
            rules=tuple(self.rules),
            ended=self.ended,
        )


class Records:
    """All of them."""

    def __init__(self) -> None:
        self.connections = self.open_connections = self.refused = 0
        self._requests = self._sent = 0
        self._open: dict[int, Entry] = {}
        self._done: deque[Record] = deque(maxlen=_KEPT)
        self._by_status: Counter[int] = Counter()
        self._by_rule: Counter[str] = Counter()

    def begin(self, *, method: str, path: str, query: str, user_agent: str, user: str) -> Entry:
        """A request has come."""
        self._requests += 1
        entry = Entry(self._requests, method=method, path=path, query=query, user_agent=user_agent, user=user)
        self._open[entry.number] = entry
        return entry

    def struck(self, entry: Entry, rule: str) -> None:
        """A rule's fault has happened to a request (counted once for each request)."""
        if rule not in entry.rules:
            entry.rules.append(rule)
            self._by_rule[rule] += 1

    def end(self, entry: Entry, how: str) -> None:
        """A request is over; what is said after the first time does not count."""
        if self._open.pop(entry.number, None) is None:
            return
        entry.close(how)
        self._done.append(entry.record())
        self._sent += entry.sent
        if entry.status:
            self._by_status[entry.status] += 1

    def log(self) -> list[Record]:
        """The latest requests, also those that run, in the order in which they came."""
        return sorted([*self._done, *(entry.record() for entry in self._open.values())], key=lambda item: item.number)

    def counters(self) -> Counters:
        """Sums."""
        return Counters(
            connections=self.connections,
            open_connections=self.open_connections,
            refused=self.refused,
            requests=self._requests,
            open_requests=len(self._open),
            sent=self._sent + sum(entry.sent for entry in self._open.values()),
            by_status=dict(self._by_status),
            by_rule=dict(self._by_rule),
        )
