"""Limits of node health: budgets, rates, breaker, switches."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rankfall.model.node_health.records import TAINT_KEY

_Positive = Annotated[int, msgspec.Meta(ge=1)]
# A hundred years: an overflow of 64-bit nanoseconds would stop the controller.
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=100 * 365 * 86_400)]
# An optional domain and a name.
_Key = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$(?!\n)"
    ),
]
_Value = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$(?!\n)")]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most tainted nodes of a pool: the smaller of ``nodes`` and ``percent``, at least one.

    ``percent`` is of the Ready nodes, rounded up.
    """

    nodes: _Positive = 100
    percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 10.0


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the operator.

    Attributes:
        key, value, effect: Parts of Rankfall's taint.
        pool_label: Label with the pool's name.
        budget, pools: Budget of every pool, and by name.
        rate_nodes, rate_s: Quarantines within this many seconds.
        breaker_nodes, breaker_s: More nodes with one code in these seconds open the breaker until a person closes it.
        quiet_s: Seconds until a suspicion is forgotten.
        defer_s: Seconds that an unknown boot's record is deferred.
        after_job: True if faults like Xid 63 isolate idle nodes.
        validate_after_s: Seconds without evidence before checks; None: only after recovery or remedy.
        clean_rounds, clean_s: Consecutive passed rounds, and seconds they cover.
        probation_s: Seconds in which one warning quarantines again.
        repeat_count, repeat_s: Quarantines in these seconds that require a person.
        accept_injected: Test mode: trusts records that processes wrote.
        pod_codes: Codes trusted from pod output; any user can then taint nodes.
        kill_switch: True to change no taint.
        dry_run: True to write nothing.
    """

    key: _Key = TAINT_KEY
    value: _Value = "true"
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    pool_label: _Key = "rankfall.dev/pool"
    budget: Budget = Budget()
    pools: dict[str, Budget] = {}
    rate_nodes: _Positive = 10
    rate_s: _Seconds = 600
    breaker_nodes: _Positive = 5
    breaker_s: _Seconds = 600
    quiet_s: _Seconds = 3_600
    defer_s: _Seconds = 600
    after_job: bool = False
    validate_after_s: _Seconds | None = None
    clean_rounds: _Positive = 2
    clean_s: _Seconds = 600
    probation_s: _Seconds = 86_400
    repeat_count: Annotated[int, msgspec.Meta(ge=2, le=8)] = msgspec.field(default=3, name="lemon_count")
    repeat_s: _Seconds = msgspec.field(default=7 * 86_400, name="lemon_s")
    accept_injected: bool = False
    pod_codes: frozenset[str] = frozenset()
    kill_switch: bool = False
    dry_run: bool = False

    @property
    def keys(self) -> frozenset[str]:
        """Keys of Rankfall's taints: configured and default."""
        return frozenset({self.key, TAINT_KEY})


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A taint on a Node."""

    key: str
    effect: str
    value: str | None = None


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """Reason of an open breaker."""

    code: str
    nodes: tuple[str, ...]
    at: int


class Safety(msgspec.Struct, frozen=True, kw_only=True):
    """Cluster state that outlives the controller; store it before sending patches.

    Attributes:
        trip: Reason of the open breaker; a ``reset_at`` closes it.
        reset_at: Earlier observations do not reopen it.
        acts: Time and node of each quarantine.
    """

    trip: Trip | None = None
    reset_at: int = 0
    acts: tuple[tuple[int, str], ...] = ()
