"""What the run directory's tables hold, as frozen structs. Times are integer nanoseconds since the epoch, None = unknown."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rankfall.model import Decision, Diagnosis, RunState


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The run as a whole.

    Attributes:
        reason: why it is in this state, in words.
        incomplete: what could not be recorded, in words; empty = the record is whole.
    """

    state: RunState = "queued"
    reason: str | None = None
    started: int | None = None
    ended: int | None = None
    incomplete: tuple[str, ...] = ()


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. ``plan`` is what the backend wrote down to find its slots again; ``state`` is ``running`` until its end."""

    attempt: int
    started: int | None = None
    ended: int | None = None
    state: str = "running"
    plan: dict[str, Any] = {}


#: In the place of a proof: nobody needs to wait for one.
NO_RANK: Final = "no rank"


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank the bytes ``from_byte`` (included) to ``to_byte`` (excluded, None = open) of a stream belong to.

    Attributes:
        stream: path of the stream relative to the run directory.
        local: process ordinal, or ``slot`` for lines of no rank.
        proof: where that is known from, as ``record`` or ``launcher``; ``NO_RANK`` = the rank will never be known.
    """

    stream: str
    attempt: int
    round: int | None = None
    role: str
    slot: int
    instance: int = 0
    local: str
    rank: int | None = None
    from_byte: int = 0
    to_byte: int | None = None
    proof: str = ""


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One decision with its number; ``done_at`` is None while it is only an intent."""

    id: int
    attempt: int
    decision: Decision
    done_at: int | None = None


class Fall(Decision, frozen=True, kw_only=True):
    """The decision about one slot that fell alone, with what it is about. One row, so that neither is ever there without the other.

    Attributes:
        slot, instance: which start of which slot.
        diagnosis: of that start alone; ``verdict.decision`` is null in it.
        evidence: ids of all that was known of it: none of it is evidence of a later start's fall.
        step: the last step that one of its ranks reported.
        due: when the slot is started again at the earliest, nanoseconds since the epoch.
    """

    slot: int
    instance: int
    diagnosis: Diagnosis
    evidence: tuple[str, ...] = ()
    step: int | None = None
    due: int = 0

    @property
    def again(self) -> bool:
        """Whether the slot is started again."""
        return self.action in {"retry", "retry_elsewhere"}

    @property
    def only_decision(self) -> Decision:
        """The decision alone."""
        return Decision(**{name: getattr(self, name) for name in Decision.__struct_fields__})


class FallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One such decision with its number; ``done_at`` is None while it is only an intent."""

    id: int
    attempt: int
    fall: Fall
    done_at: int | None = None


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an attempt's verdict."""

    attempt: int
    version: int
    diagnosis: Diagnosis
