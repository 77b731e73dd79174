"""Policies of a job: restarts, budgets, success, deadlines, failure rules, notifications.

Data only; :mod:`rankfall.model.jobspec.check` refuses contradictions.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from rankfall.model.errors import SpecError

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

SuccessPolicy = Literal["all", "rank0", "fraction"]
RuleAction = Literal["fail", "restart", "restart_elsewhere", "ignore"]
NotifyEvent = Literal["failure", "restart", "hang", "end"]
NotifyShape = Literal["json", "slack", "teams"]


# Fields by words of flags and other tools.
_MEANT: Final = {
    "script": "command",
    "args": "command",
    "nproc": "nproc_per_node",
    "max_restarts": "policies.max_restarts",
    "hang_timeout": "policies.hang_timeout_s",
    "deadline": "deadlines.total_s",
    "timeout": "deadlines.total_s",
    "image": "kubernetes.image",
    "namespace": "kubernetes.namespace",
    "queue": "kubernetes.queue",
}


def nearest(word: str, known: Collection[str]) -> str | None:
    """Hints at a similar name."""
    import difflib  # noqa: PLC0415

    meant = _MEANT.get(word.replace("-", "_"), "")
    if meant.partition(".")[0] in known:
        return f"did you mean {meant}?"
    near = difflib.get_close_matches(word[:60], known, n=1)
    return f"did you mean {near[0]}?" if near else None


if TYPE_CHECKING:

    class JobStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Part of a job."""

else:

    class _Arguments(type(msgspec.Struct)):
        def __call__(cls, *args: Any, **fields: Any) -> Any:
            try:
                return super().__call__(*args, **fields)
            except TypeError as error:
                raise _wrong(cls, args, fields, error) from None

    class JobStruct(msgspec.Struct, metaclass=_Arguments, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Part of a job."""


def _wrong(kind: type[msgspec.Struct], args: Any, fields: dict[str, Any], error: TypeError) -> SpecError:
    known = kind.__struct_fields__
    for name in fields:
        if name not in known:
            message = f"is not a field of {kind.__name__}; allowed: {', '.join(known)}"
            return SpecError(f"$.{name}", message, hint=nearest(name, known))
    if args:
        return SpecError("$", f"{kind.__name__} takes fields by name", hint=f"as: {kind.__name__}(FIELD=VALUE)")
    return SpecError("$", f"{kind.__name__}: {error}")


class Policies(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reaction to failures.

    Attributes:
        max_restarts: Restarts over all causes, of gang and single slots; 0 = none, also after an eviction.
        budgets: New attempts by cause slug, family or rule's budget, as ``{"network": 5, "host_oom": 0}``; the tightest
            counts.
        retryable, final: Exception types: ``package.Name``, or ``Name`` of any module.
        hang_timeout_s: Least seconds without progress (step records, output, CPU time) before a hang, at least five
            step times; null = never.
        settle_quiet_s: Quiet seconds after a first failure before the verdict, unless proven and final.
        settle_min_s: Minimum wait after the first failure.
        settle_max_s: Maximum wait after the first failure.
        grace_s: Seconds between SIGTERM and SIGKILL.
        backoff_s: Seconds before the first restart; doubled for each further one.
        backoff_max_s: Longest wait before a restart, seconds.
    """

    max_restarts: Count = 3
    budgets: dict[str, Count] = {}
    retryable: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    hang_timeout_s: Seconds | None = 1800.0
    settle_quiet_s: Seconds = 2.0
    settle_min_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    settle_max_s: Seconds = 30.0
    grace_s: Seconds = 10.0
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    backoff_max_s: Seconds = 60.0


class Success(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Condition of success.

    Attributes:
        policy: ``all``: every slot ended with 0. ``rank0``: global rank 0 did. ``fraction``: ``ceil(fraction * slots)``
            slots (pods or nodes) did.
        fraction: Only for policy ``fraction``: above 0, at most 1.
        role: For ``all`` and ``fraction``: only this role counts, its success stops all other roles. Null = all slots.
        drain_s: Seconds for the other slots, as for a checkpoint, after success. They never count as failed.
    """

    policy: SuccessPolicy = "all"
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    role: str | None = None
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0

    def wanted(self, slots: int) -> int:
        """Number of ``slots`` that must end with 0; ``rank0``: one certain rank."""
        if self.policy == "rank0":
            return 1
        # Exact: 0.07 * 100 is 7.000000000000001 in floats.
        return ceil(Fraction(str(self.fraction)) * slots) if self.fraction is not None else slots


class Deadlines(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time limits in seconds; null = none. A deadline accuses no rank.

    Attributes:
        total_s: All attempts and waits, without suspension.
        attempt_s: Each attempt.
        startup_s: Start of an attempt until all ranks started.
    """

    total_s: Seconds | None = None
    attempt_s: Seconds | None = None
    startup_s: Seconds | None = None


class FailureRule(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Action for one kind of failure; the first matching rule decides.

    All non-empty lists must match, each by one value. Exit codes or signals alone mean a bare code: a proven other
    cause beats it.

    Attributes:
        exit_codes: Root-cause rank's codes, 1-255, ascending; signal N counts as 128+N.
        signals: Signals that ended the root-cause rank.
        causes: Slugs or families.
        roles: Roles of the root-cause rank.
        reasons, conditions: Root cause's pod, as ``OOMKilled`` and ``DisruptionTarget``.
        action: ``fail`` ends the run; ``restart`` and ``restart_elsewhere`` begin a new attempt; ``ignore`` too,
            outside ``max_restarts``, so it needs a budget.
        budget: Key in ``policies.budgets``; null = the cause's budgets.
        exclude_node: Later attempts avoid the root cause's node.
    """

    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    action: RuleAction
    budget: str | None = None
    exclude_node: bool = False


class NotifyTarget(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver of notifications: exactly one of ``webhook``, ``email``, ``command``.

    Attributes:
        webhook: URL that gets a POST; a secret.
        shape: Body of the POST: ``json`` (``rankfall.notification/1``), ``slack``, ``teams`` (an adaptive card, for a
            workflow).
        email: One address; this machine's ``sendmail`` sends the mail.
        command: Program and arguments; it gets the JSON on stdin.
    """

    webhook: str | None = None
    shape: NotifyShape = "json"
    email: str | None = None
    command: tuple[str, ...] = ()


class Notify(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages about the run; they never delay it.

    Attributes:
        events: ``failure`` (its verdict and decision), ``restart`` (a new attempt began), ``hang`` (before its
            verdict), ``end`` (of the run, also success).
        targets: Receivers; empty = no messages.
        link: URL in each message, with ``{run}``, ``{name}``, ``{attempt}``, ``{rank}``, ``{node}``.
    """

    events: tuple[NotifyEvent, ...] = ("failure", "end")
    targets: tuple[NotifyTarget, ...] = ()
    link: str | None = None
