"""What a decision needs beside the verdict: how the root ended, and what became of the attempts before."""

from __future__ import annotations

import msgspec


class RootFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the root cause's process ended and what its platform said of it; empty = not known.

    Attributes:
        code: exit code as a shell shows it, 128+N for signal N.
        signal: the signal that ended it, from its wait status; a program that exits with 128+N had none.
        reasons, conditions: of its pod, as ``OOMKilled``, ``DisruptionTarget``; never from text of the job.
    """

    code: int | None = None
    signal: int | None = None
    role: str | None = None
    reasons: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an earlier attempt of the same run, or of a slot of it that fell alone.

    Attributes:
        slot: that fell alone; None = the whole attempt.
        action: what was decided then.
        rule, budget: of that decision.
        progressed: its ranks passed a step that no attempt before it had reached.
    """

    attempt: int
    slot: int | None = None
    fingerprint: str
    slug: str
    family: str
    action: str
    rule: str = ""
    budget: str | None = None
    node: str | None = None
    progressed: bool = False

    @property
    def restarted(self) -> bool:
        """Whether another start followed by decision. What was suspended or resized is no restart."""
        return self.action in {"retry", "retry_elsewhere"}
