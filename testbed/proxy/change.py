"""What rules change in a request and its answer: shifted time stamps, answers of older servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from testbed.errors import TestbedError
from testbed.proxy import old
from testbed.proxy.book import Armed, Facts
from testbed.proxy.headers import shifted_target
from testbed.proxy.rules import OldServer, ShiftTimes
from testbed.proxy.shift import DocumentShift, LogShift, NodeOf, ObjectShift, Rewriter, WatchShift

_LOG = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/]+)/log$")
_OBJECTS = re.compile(
    r"^/(api/v1|apis/(coordination|events)\.k8s\.io/v1)/(watch/)?(namespaces/[^/]+/)?(pods|nodes|leases|events)(/[^/]+)?(/status)?$"
)

Instead = tuple[int, list[tuple[str, str]], bytes]


@dataclass(frozen=True)
class Plan:
    """What is changed.

    Attributes:
        rules: that change something.
        instead: answer in the server's place.
        back_s: seconds by which ``sinceTime`` is moved back.
        plain: makes a rewriter for a body of any kind.
        json: makes a rewriter for a body of JSON.
    """

    rules: tuple[Armed, ...] = ()
    instead: Instead | None = None
    back_s: float = 0.0
    plain: Callable[[], Rewriter] | None = None
    json: Callable[[], Rewriter] | None = None

    @property
    def readable(self) -> bool:
        """Whether the proxy must be able to read the answer."""
        return self.plain is not None or self.json is not None

    def target(self, facts: Facts, target: bytes) -> bytes:
        """The request's target for the server."""
        return shifted_target(facts, target, self.back_s) if self.back_s else target

    def rewriter(self, *, json: bool) -> Rewriter | None:
        """Changes the body of an answer; None = nothing to change."""
        if self.plain is not None:
            return self.plain()
        return self.json() if self.json is not None and json else None


def plan(facts: Facts, struck: Sequence[Armed], node_of: NodeOf) -> Plan:
    """What the rules that struck change in this exchange.

    Args:
        facts: of the request.
        struck: rules, in order.
        node_of: namespace and pod -> node.
    """
    for armed in struck:
        if isinstance(armed.action, OldServer):
            found = old.answers(armed.action.folder).find(facts.path)
            if isinstance(found, old.Merge):
                return Plan((armed,), json=partial(DocumentShift, found))
            if found is not None:
                return Plan((armed,), instead=found)
    shifts = [armed for armed in struck if isinstance(armed.action, ShiftTimes)]
    log = _LOG.match(facts.path)
    if log is not None:
        node = _ask(node_of, log[1], log[2]) if shifts else None
        shifts = [armed for armed in shifts if _action(armed).node == node]
        seconds = sum(_action(armed).seconds for armed in shifts)
        stamped = shifts and facts.flag("timestamps")
        return Plan(tuple(shifts), back_s=seconds, plain=partial(LogShift, seconds) if stamped else None)
    if not shifts or _OBJECTS.match(facts.path) is None:
        return Plan()
    change = _all([ObjectShift(_action(armed).node, _action(armed).seconds) for armed in shifts])
    return Plan(tuple(shifts), json=partial(WatchShift if facts.watch else DocumentShift, change))


def _ask(node_of: NodeOf, namespace: str, pod: str) -> str | None:
    try:
        return node_of(namespace, pod)
    except Exception as error:  # it is the test's own code, and anything may be wrong with it
        raise TestbedError(
            f"which node {namespace}/{pod} is on could not be told: {error!r}",
            hint="mend the function given to nodes()",
        ) from error


def _action(armed: Armed) -> ShiftTimes:
    assert isinstance(armed.action, ShiftTimes)  # noqa: S101 - chosen by this very type above
    return armed.action


def _all(changes: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    def change(thing: Any) -> None:
        for one in changes:
            one(thing)

    return change
