"""``rankfall.runs/1`` and ``rankfall.status/1``: what ``ps`` and ``status`` print, and the outcome of a run.

Computed from the run directory, never stored.
"""

from __future__ import annotations

import msgspec

from rankfall.model import numbers
from rankfall.model.verdict import ExitOrigin, RunState, Verdict

RUNS_SCHEMA = "rankfall.runs/1"
STATUS_SCHEMA = "rankfall.status/1"
# Of so many ranks or slots the total is told beside their numbers.
_MANY = 3
FINAL_STATES: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled", "deleted"})


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run as ``ps`` lists it; times RFC 3339; ``cause``, ``rank`` and ``node`` of the newest verdict.

    ``supervised``: somebody decides about it, here; ``unattended``: nobody has to; ``foreign``: the job as ``KIND/NAME``, where Rankfall did
    not start it and only looks.
    """

    run: str
    name: str
    backend: str
    state: RunState
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    cause: str | None = None
    rank: int | None = None
    node: str | None = None
    supervised: bool = False
    unattended: bool = False
    foreign: str | None = None


class RunsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall ps -o json``; newest first."""

    schema: str = RUNS_SCHEMA
    runs: tuple[RunSummary, ...] = ()


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """New starts that followed a fall; a suspension, a new size or a wish of the user's is none.

    Attributes:
        count: of all causes.
        limit: ``policies.max_restarts``; what rules ignore does not count in it.
        by_cause: slug of the cause -> how many.
    """

    count: int = 0
    limit: int = 0
    by_cause: dict[str, int] = {}


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of the newest attempt.

    ``ready`` as :class:`StatusDocument` counts it, ``line_age_s`` seconds since its last line or that of one of its ranks; ``restarts`` is
    how often it was started again alone in this attempt; ``note`` says what its exit alone would tell wrongly, as ``stopped after success``.
    """

    slot: int
    role: str
    state: str
    node: str | None = None
    pod: str | None = None
    pid: int | None = None
    launcher: str | None = None
    ready: bool = False
    exit: str | None = None
    line_age_s: float | None = None
    restarts: int = 0
    note: str | None = None


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the newest round.

    ``exit`` is as people write it (``0``, ``1``, ``SIGKILL``), ``line_age_s`` seconds since its last line, ``note`` as of a slot.
    """

    rank: int
    state: str
    slot: int | None = None
    local_rank: int | None = None
    node: str | None = None
    pod: str | None = None
    pid: int | None = None
    hook: str | None = None
    step: int | None = None
    exit: str | None = None
    line_age_s: float | None = None
    note: str | None = None


class LostLines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one attempt that were printed and are not in the record.

    Attributes:
        attempt: counted from 1.
        lines, bytes: how much; None = nobody counted it, and without ``bytes`` it may be nothing.
        ranks: whose lines; empty where only the slots are known.
        slots: where they were printed.
        after, before: RFC 3339, on both sides of what is missing; None = the beginning, the end.
        why: what kept them from being stored, or from being read; None = not known.
        unread: so many logs of containers could not be read to their end.
    """

    attempt: int
    lines: int | None = None
    bytes: int | None = None
    ranks: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    after: str | None = None
    before: str | None = None
    why: str | None = None
    unread: int = 0

    @property
    def text(self) -> str:
        """One sentence for people."""
        of = ("rank", self.ranks) if self.ranks else ("slot", self.slots)
        total = f" ({len(of[1])} in all)" if len(of[1]) > _MANY else ""
        whose = f"{of[0]}{'s' if len(of[1]) > 1 else ''} {numbers.ranges(of[1])}{total}"
        when = f"between {self.after or 'the beginning'} and {self.before or 'the end'} of attempt {self.attempt}"
        pods = "the log of 1 pod" if self.unread == 1 else f"the logs of {self.unread} pods"
        tail = f"; {pods} could not be read to their end" if self.unread else ""
        why = f"{tail} ({self.why})" if self.why else tail
        if self.lines is None and not self.bytes:
            return f"lines of {whose} {when} may be missing, nobody counted them{why}"
        many = "an unknown number of" if self.lines is None else f"{self.lines}"
        lines = "line" if self.lines == 1 else "lines"
        return f"{many} {lines} of {whose} {when} are missing, {self.bytes or 0} bytes{why}"


class StatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall status -o json``: the run's fields plus slots and ranks of the newest attempt.

    Slots are counted by the same words on every backend, each in at most one of ``active``, ``succeeded``, ``failed`` and ``stopped``.

    Attributes:
        state: the phase.
        supervised: somebody decides about it.
        unattended: nobody has to: its platform restarts and ends it by itself.
        foreign: the job as ``KIND/NAME``, where Rankfall did not start it and only looks.
        recorded: somebody follows its lines and writes them down; of a supervised run its supervisor does.
        ready: active slots that run, whose pod is Ready, and whose ranks have all started; where no rank can be seen (``inside: off``, an image
            without Python) the pod's word is enough.
        active: slots of an attempt that goes on whose end is not known; pods that still wait among them.
        succeeded: slots that ended with 0.
        failed: slots that ended otherwise, or were lost.
        stopped: slots that Rankfall itself ended: after a success, for a suspension, a cancel, or because another part of the gang fell.
        restarts: by cause.
        sizes: nodes by role, as the newest attempt has them.
        sizes_wished: nodes by role, as they are to be; another number is a resize under way.
        incomplete: what the record lacks, in sentences, the text of each of ``lost_lines`` first.
        lost_lines: lines that were printed and are not in the record.
    """

    schema: str = STATUS_SCHEMA
    run: str
    name: str
    backend: str
    state: RunState
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    cause: str | None = None
    rank: int | None = None
    node: str | None = None
    reason: str | None = None
    supervised: bool = False
    unattended: bool = False
    foreign: str | None = None
    recorded: bool = False
    ready: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    stopped: int = 0
    restarts: Restarts = Restarts()
    incomplete: tuple[str, ...] = ()
    lost_lines: tuple[LostLines, ...] = ()
    sizes: dict[str, int] = {}
    sizes_wished: dict[str, int] = {}
    slots: tuple[SlotStatus, ...] = ()
    ranks: tuple[RankStatus, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        code: exit code that ``run`` and ``wait`` end with.
        exit_origin: whether ``code`` is the root-cause rank's own or Rankfall's.
    """

    run: str
    state: RunState
    code: int
    exit_origin: ExitOrigin
    attempts: int
    verdict: Verdict | None = None

    def raise_for_status(self) -> Outcome:
        """This outcome, when the run succeeded.

        Raises:
            JobFailed: the run failed or was cancelled.
        """
        from rankfall.model.errors import JobFailed  # noqa: PLC0415 - keeps this module free of the tree until needed

        if self.state == "succeeded":
            return self
        cause = f"{self.verdict.cause.slug}, rank {self.verdict.rank}" if self.verdict else "no verdict"
        raise JobFailed(f"run {self.run} {self.state}: {cause}", code=self.code, hint=f"rankfall why {self.run}")
