"""Documents about runs: ``rankfall.runs/1``, ``status/1``, ``outcome/1``, ``report/1``, ``notification/1``; ``doctor/1``.

All are computed, never stored.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rankfall.model import numbers
from rankfall.model.jobspec.policies import NotifyEvent
from rankfall.model.verdict import Confidence, Decision, ExitOrigin, RunState, Verdict

RUNS_SCHEMA = "rankfall.runs/1"
STATUS_SCHEMA = "rankfall.status/1"
REPORT_SCHEMA = "rankfall.report/1"
NOTIFICATION_SCHEMA = "rankfall.notification/1"
OUTCOME_SCHEMA = "rankfall.outcome/1"
DOCTOR_SCHEMA = "rankfall.doctor/1"
# Totals appear above this count.
_MANY = 3
FINAL_STATES: frozenset[RunState] = frozenset({"succeeded", "failed", "cancelled", "deleted"})


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in ``ps``; ``cause``, ``rank``, ``node`` of the newest verdict.

    Attributes:
        supervised: A supervisor here decides.
        unattended: It needs none.
        foreign: ``KIND/NAME`` of a job not started by Rankfall.
        seen: Time of ``state`` if the run has not ended and no process watches it, RFC 3339.
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
    seen: str | None = None


def is_unwatched(one: RunSummary | StatusDocument) -> bool:
    """True for a foreign job that no process watches: its stored state may be old."""
    return one.foreign is not None and one.seen is not None


class RunsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall ps -o json``; newest first."""

    schema: str = RUNS_SCHEMA
    runs: tuple[RunSummary, ...] = ()


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """Restarts after failures, not after suspension, resize or user request.

    Attributes:
        count: Restarts for all causes.
        limit: ``policies.max_restarts``, without ignored failures.
        by_cause: Restarts by cause slug.
    """

    count: int = 0
    limit: int = 0
    by_cause: dict[str, int] = {}


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of the newest attempt.

    Attributes:
        ready: As in :class:`StatusDocument`.
        line_age_s: Seconds since the last line of slot or ranks.
        restarts: Restarts of this slot without the others.
        note: Explanation of an exit, as ``stopped after success``.
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

    Attributes:
        hook: ``loaded`` or ``absent``; null if unknown.
        line_age_s: Seconds since its last line.
        note: Explanation of an exit.
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
    """Printed lines of one attempt missing in the record.

    Attributes:
        attempt: Number, from 1.
        lines, bytes: Amount; None = unknown; without ``bytes`` possibly none.
        ranks: Ranks concerned; empty if unknown.
        slots: Slots of origin.
        after, before: Bounds, RFC 3339; None = beginning or end.
        why: Obstacle; None = unknown.
        unread: Container logs not read to their end.
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
            return f"lines of {whose} {when} may be missing; their number is unknown{why}"
        many = "an unknown number of" if self.lines is None else f"{self.lines}"
        lines = "line" if self.lines == 1 else "lines"
        return f"{many} {lines} of {whose} {when} are missing, {self.bytes or 0} bytes{why}"


class StatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall status -o json``: the run, and slots and ranks of the newest attempt.

    Each slot counts in at most one of ``active``, ``succeeded``, ``failed``, ``stopped``.

    Attributes:
        state: Phase.
        reason: Text about the state or the end.
        supervised: True if a supervisor decides about the run.
        unattended: True if the platform restarts and ends the run.
        foreign: ``KIND/NAME`` of a job not started by Rankfall.
        seen: Time of ``state`` if the run has not ended and no process watches it.
        recorded: True if a process records the run's lines.
        ready: Active slots that run, pods Ready, ranks started; Ready suffices for invisible ranks (``inside: off``, no
            Python).
        active: Slots of a live attempt without known end, waiting pods included.
        succeeded: Slots that ended with 0.
        failed: Slots that ended otherwise or were lost.
        stopped: Slots ended by Rankfall after success, suspension, cancel or another failure.
        restarts: Restarts by cause.
        sizes: Nodes by role in the newest attempt.
        sizes_wished: Target nodes by role; differs during a resize.
        incomplete: Deficits as sentences, ``lost_lines`` first.
        lost_lines: Printed lines missing in the record.
        slots: By number.
        ranks: By number; known ones only.
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
    seen: str | None = None
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
    """End of a run; ``rankfall wait -o json`` and ``rankfall run -q -o json``.

    Attributes:
        run: Id of the run.
        state: Final state.
        code: Exit code of ``run`` and ``wait``.
        exit_origin: Root-cause rank or Rankfall.
        attempts: Number of attempts.
        verdict: Newest verdict; None if nothing failed.
    """

    schema: str = OUTCOME_SCHEMA
    run: str
    state: RunState
    code: int
    exit_origin: ExitOrigin
    attempts: int
    verdict: Verdict | None = None

    def raise_for_status(self) -> Outcome:
        """Returns this outcome if the run succeeded.

        Raises:
            JobFailed: The run failed or was canceled.
        """
        from rankfall.model.errors import JobFailed  # noqa: PLC0415

        if self.state == "succeeded":
            return self
        cause = f"{self.verdict.cause.slug}, rank {self.verdict.rank}" if self.verdict else "no verdict"
        raise JobFailed(f"run {self.run} {self.state}: {cause}", code=self.code, hint=f"rankfall why {self.run}")


#: Part of a rank in its attempt: root cause, consequence, stopped by Rankfall, completed, failed otherwise.
RankOutcome = Literal["root", "consequence", "stopped", "completed", "failed", "running", "unknown"]


class RankSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of an attempt on the time line.

    Attributes:
        exit: ``0``, ``1`` or ``SIGKILL``; null if unknown.
        started, ended: RFC 3339, UTC, by its node's clock; ``ended`` is ± ``uncertainty_s`` seconds.
        step: Last training step.
    """

    rank: int
    slot: int | None = None
    node: str | None = None
    outcome: RankOutcome = "unknown"
    exit: str | None = None
    started: str | None = None
    ended: str | None = None
    uncertainty_s: float | None = None
    step: int | None = None


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt; of plain log files the only one, without number.

    Attributes:
        summary: Verdict in one to three sentences.
        frames: Places where the decisive exception was raised, innermost first.
        before: Lines printed before the decisive line, oldest first.
        output: Last lines of the rank that failed first, oldest first; only of the newest attempt.
        advice: Possible next step for a person; empty if none.
    """

    attempt: int | None = None
    state: str | None = None
    started: str | None = None
    ended: str | None = None
    summary: str = ""
    advice: str = ""
    verdict: Verdict | None = None
    frames: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    ranks: tuple[RankSpan, ...] = ()


class ReportDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall report -o FILE.json``: a run with all attempts, verdicts, ranks and decisions.

    Attributes:
        made: Time of the report, RFC 3339.
        version: Rankfall's version.
        source: Run ID, or names of the files.
        run: The run; null for files.
        incomplete: Sentences about lines that the record lacks.
        attempts: Oldest first.
    """

    schema: str = REPORT_SCHEMA
    made: str
    version: str
    source: str
    run: RunSummary | None = None
    incomplete: tuple[str, ...] = ()
    attempts: tuple[AttemptReport, ...] = ()


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One message about a run, as webhooks of shape ``json`` and commands get it; all text is escaped and redacted.

    Attributes:
        id: ``RUN/EVENT-ATTEMPT``; all targets and repetitions get one document for each id.
        event: Null in a test message.
        at: Time of the event, RFC 3339.
        state: State of the run that the event brought.
        text: What happened, in one sentence.
        cause: Slug of the verdict.
        decision: Reaction to the verdict, with reason and budget.
        command: Command that shows more.
        link: ``notify.link``, filled in.
    """

    schema: str = NOTIFICATION_SCHEMA
    id: str
    event: NotifyEvent | None
    at: str
    run: str
    name: str
    state: RunState
    attempt: int | None = None
    text: str
    cause: str | None = None
    confidence: Confidence | None = None
    rank: int | None = None
    node: str | None = None
    decision: str | None = None
    command: str
    link: str | None = None


CheckState = Literal["pass", "note", "warn", "fail"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check.

    Attributes:
        name: Stable name.
        state: ``fail``: jobs cannot run; ``warn``: jobs run with limits; ``note``: worth knowing, no limit here.
        text: Finding.
        next: Remedy; None if not needed.
    """

    name: str
    state: CheckState
    text: str
    next: str | None = None


class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """``rankfall doctor -o json``.

    Attributes:
        state: Worst state of the checks; never ``note``.
        checks: In order of display.
    """

    schema: str = DOCTOR_SCHEMA
    state: CheckState
    checks: tuple[Check, ...] = ()
