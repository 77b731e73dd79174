"""What ``doctor`` looks at. Each check tries the thing itself instead of guessing from versions, and changes nothing that stays."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "rankfall.doctor/1"

State = Literal["pass", "warn", "fail"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one check.

    Attributes:
        name: stable, for machines.
        state: ``fail``: jobs will not run here; ``warn``: they will, with less to tell or under a condition.
        text: what was found.
        next: what to do about it; None when there is nothing to do.
    """

    name: str
    state: State
    text: str
    next: str | None = None


class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall doctor -o json``."""

    schema: str = SCHEMA
    state: State
    checks: tuple[Check, ...] = ()


def worst(checks: tuple[Check, ...]) -> State:
    """The state of all together."""
    states = {check.state for check in checks}
    return "fail" if "fail" in states else "warn" if "warn" in states else "pass"
