"""What can be asked of a proxy, in the same words here and over the control socket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from testbed.pki import Pair
from testbed.proxy.records import Counters, Record
from testbed.proxy.rules import Action, Match, Rule
from testbed.proxy.server import Server


class _Command(msgspec.Struct, frozen=True, tag=True, tag_field="do", forbid_unknown_fields=True):
    pass


class Add(_Command, frozen=True):
    """Add or replace a rule."""

    name: str
    rule: Rule


class Remove(_Command, frozen=True):
    """Remove a rule."""

    name: str


class Clear(_Command, frozen=True):
    """Remove all rules."""


class Fire(_Command, frozen=True):
    """Call a rule's moment."""

    name: str


class Release(_Command, frozen=True):
    """Let what a rule holds up go on."""

    name: str


class CutAll(_Command, frozen=True):
    """Reset all open connections."""


class Present(_Command, frozen=True):
    """Show another certificate."""

    cert: str
    key: str


class Pods(_Command, frozen=True):
    """``NAMESPACE/POD`` -> node."""

    nodes: dict[str, str]


class GetRules(_Command, frozen=True):
    """Rules that hold."""


class GetCounters(_Command, frozen=True):
    """Counters."""


class GetLog(_Command, frozen=True):
    """The log."""


Command: TypeAlias = Add | Remove | Clear | Fire | Release | CutAll | Present | Pods | GetRules | GetCounters | GetLog


async def carry_out(server: Server, command: Command) -> Any:
    """Carry a command out, on the proxy's loop."""
    hub = server.hub
    match command:
        case Add(name, rule):
            hub.book.add(name, rule)
        case Remove(name):
            hub.book.remove(name)
        case Clear():
            hub.book.clear()
        case Fire(name):
            hub.book.named(name).fire()
        case Release(name):
            hub.book.named(name).release()
        case CutAll():
            await server.cut_all()
        case Present(cert, key):
            hub.present(Pair(Path(cert), Path(key)))
        case Pods(nodes):
            hub.node_of = lambda namespace, pod: nodes.get(f"{namespace}/{pod}")
        case GetRules():
            return hub.book.rules()
        case GetCounters():
            return hub.records.counters()
        case GetLog():
            return hub.records.log()
    return None


class Face(ABC):
    """Orders faults and asks what happened; in this process (``Proxy``) or over a socket (``Remote``)."""

    @abstractmethod
    def order(self, command: Command) -> Any:
        """Have a command carried out; its answer."""

    def add(self, name: str, action: Action, match: Match | None = None) -> None:
        """Add a rule, or replace the one of this name; requests that come from now on are struck.

        Args:
            name: of the rule; also in counters and log.
            action: what happens.
            match: which requests; None = all.
        """
        self.order(Add(name, Rule(action=action, match=match or Match())))

    def remove(self, name: str) -> None:
        """Remove a rule; what it holds up goes on, what it had not struck yet is left alone."""
        self.order(Remove(name))

    def clear(self) -> None:
        """Remove all rules: a proxy that changes nothing."""
        self.order(Clear())

    @contextmanager
    def fault(self, name: str, action: Action, match: Match | None = None) -> Iterator[None]:
        """A rule that holds as long as the block."""
        self.add(name, action, match)
        try:
            yield
        finally:
            self.remove(name)

    def fire(self, name: str) -> None:
        """The moment ``When(called=True)`` of this rule is now, for every request that waits for it."""
        self.order(Fire(name))

    def release(self, name: str) -> None:
        """Let go on what this rule holds up (stall, delay); a half-open connection gets its reset."""
        self.order(Release(name))

    def cut_all(self) -> None:
        """Reset all connections that are open now."""
        self.order(CutAll())

    def present(self, pair: Pair) -> None:
        """Show another certificate to those who connect from now on."""
        self.order(Present(str(pair.cert), str(pair.key)))

    def pods(self, nodes: Mapping[str, str]) -> None:
        """Tell which node a pod is on: ``NAMESPACE/POD`` -> node."""
        self.order(Pods(dict(nodes)))

    def rules(self) -> dict[str, Rule]:
        """Rules that hold."""
        return msgspec.convert(self.order(GetRules()), dict[str, Rule])

    def counters(self) -> Counters:
        """Sums since the start."""
        return msgspec.convert(self.order(GetCounters()), Counters, str_keys=True)

    def log(self) -> list[Record]:
        """The latest requests, also those that run."""
        return msgspec.convert(self.order(GetLog()), list[Record])
