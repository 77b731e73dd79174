"""What the parts of one exchange work on together."""

from __future__ import annotations

from dataclasses import dataclass, field

import h11

from testbed.proxy.book import Armed, Facts
from testbed.proxy.change import Plan
from testbed.proxy.headers import Identity
from testbed.proxy.hub import Hub
from testbed.proxy.passer import Passer, Stage
from testbed.proxy.records import Entry
from testbed.proxy.rules import Cut, EndStream, HalfOpen, Slow, Stall, WatchError, Way
from testbed.proxy.server_side import ServerSide, as_bytes
from testbed.proxy.sinks import ClientSink, ServerSink
from testbed.proxy.stream import TlsStream


@dataclass
class Job:
    """One exchange.

    Attributes:
        hub: of the proxy.
        client: connection to the client.
        wire: HTTP's state of it.
        server: our side of the server.
        who: the client's certificate says.
        request: of the client.
        facts: what rules look at.
        entry: of the log.
        struck: rules that struck, in order.
        plan: what is changed in the answer.
        body: the answer's sink.
        down: passes the answer on.
        up: passes the request's body on.
    """

    hub: Hub
    client: TlsStream
    wire: h11.Connection
    server: ServerSide
    who: Identity | None
    request: h11.Request
    facts: Facts
    entry: Entry
    struck: list[Armed]
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        self.body = ClientSink(self.client, self.wire)
        slow = [armed for armed in self.struck if isinstance(armed.action, Slow)]
        self.down = Passer(self.body, self._stages(Way.DOWN), slow, self.note)
        self.up = Passer(ServerSink(self.server), self._stages(Way.UP), (), self.note)

    def note(self, armed: Armed) -> None:
        """A rule's fault happened."""
        self.hub.records.struck(self.entry, armed.name)

    def count(self) -> None:
        """Bring the log up to date."""
        self.entry.sent = self.down.passed

    def say(self, event: h11.Event) -> None:
        """Something for the client; leaves with the next flush."""
        self.client.put(as_bytes(self.wire.send(event)))

    async def say_end(self, end: h11.EndOfMessage, how: str) -> None:
        """End the answer. It is in the log before the client has it: who asks after its answer finds it there."""
        self.say(end)
        self._record(how)
        await self.client.flush()

    def close(self, how: str) -> None:
        """It is over."""
        self.down.close()
        self.up.close()
        self._record(how)

    def _record(self, how: str) -> None:
        self.count()
        self.hub.records.end(self.entry, how)

    def _stages(self, way: Way) -> list[Stage]:
        return [
            Stage(armed, armed.action)
            for armed in self.struck
            if isinstance(armed.action, Cut | Stall | HalfOpen | EndStream | WatchError)
            and not armed.action.at.at_once
            and not armed.action.at.answered
            and (armed.action.way if isinstance(armed.action, Stall) else Way.DOWN) is way
        ]
