"""How an exchange ends when it does not simply end."""

from __future__ import annotations

from testbed.proxy.book import Armed
from testbed.proxy.rules import Cut, EndStream, HalfOpen, WatchError
from testbed.proxy.status import error_event


class Ending(Exception):
    """How the exchange ends.

    Args:
        how: ``rst``, ``fin``, ``clean`` or ``half-open``.
        why: for the log.
        armed: rule that wants it; None = it was the server's doing.
        tail: last bytes of the body.
    """

    def __init__(self, how: str, why: str, armed: Armed | None = None, tail: bytes = b"") -> None:
        super().__init__(why)
        self.how, self.why, self.armed, self.tail = how, why, armed, tail


def ending(armed: Armed, action: Cut | HalfOpen | EndStream | WatchError) -> Ending:
    """How this action ends an exchange."""
    match action:
        case Cut(how=how):
            return Ending(how.value, f"cut with {how.value.upper()}", armed)
        case HalfOpen():
            return Ending("half-open", "left half-open", armed)
        case EndStream():
            return Ending("clean", "ended in order", armed)
        case WatchError(code=code, reason=reason, message=message):
            return Ending(
                "clean", f"ended with an ERROR event {code}", armed, error_event(code, reason=reason, message=message)
            )
