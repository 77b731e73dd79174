"""What is done about a verdict, with the rule and the budget that it used."""

from __future__ import annotations

from typing import Literal

import msgspec

Action = Literal["none", "retry", "retry_elsewhere", "resize", "quarantine", "stop"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. It is written down as ``intent``, carried out, and written down as ``done``.

    Attributes:
        rule: name of the rule of ``rankfall.decide`` that fired.
        budget: name of the budget it drew on, as ``total`` or ``unknown``; empty when it used none.
        left: what is left in the tightest budget after this decision.
        at: RFC 3339 with nanoseconds, UTC.
        delay_s: back-off before the next attempt, seconds.
    """

    action: Action
    rule: str
    because: str
    budget: str | None = None
    left: int | None = None
    at: str | None = None
    state: Literal["intent", "done"] = "intent"
    delay_s: float = 0.0
