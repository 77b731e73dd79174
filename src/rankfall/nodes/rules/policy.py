"""How far node health may go: budgets, rates, the breaker, and the switches that stop it. Numbers only."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from rankfall.model.node_health.records import TAINT_KEY

_Positive = Annotated[int, msgspec.Meta(ge=1)]
# A hundred years at most: times are kept as nanoseconds in 64 bits, and one that cannot be written would stop every turn of the controller.
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=100 * 365 * 86_400)]
# Keys of taints and labels: an optional domain and a name.
_Key = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$(?!\n)"
    ),
]
_Value = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$(?!\n)")]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many nodes of one pool may carry our taint at once: the smaller of both, and never less than one.

    ``percent`` is of the nodes that are Ready, rounded up: a fixed part would otherwise forbid any act in a pool of three.
    """

    nodes: _Positive = 100
    percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 10.0


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator sets.

    Attributes:
        key, value, effect: of the one taint that is ours.
        pool_label: label of nodes whose value is the name of their pool.
        budget, pools: for every pool, and for pools by name.
        rate_nodes, rate_s: most nodes that are quarantined within so many seconds.
        breaker_nodes, breaker_s: more nodes than this with one code within so many seconds is no fault of nodes: nothing more is
            quarantined until a person says so.
        quiet_s: seconds after which a suspicion that was not repeated is forgotten.
        defer_s: how long a record of a boot that the Node does not show yet is held back.
        after_job: faults that need a reset or a check later (Xid 63) take their node out of service as soon as no job runs there.
        validate_after_s: seconds without new evidence after which a quarantined node is checked; None = only after a recovery or a remedy.
        clean_rounds, clean_s: rounds of checks in a row that must pass, and the seconds that they must cover.
        probation_s: seconds after a return in which one warning quarantines again.
        repeat_count, repeat_s: so many quarantines within so many seconds, and only a person gives the node back.
        accept_injected: a record that a process wrote into the kernel's log counts as the kernel's: a test mode.
        pod_codes: codes that are believed although only a pod's own output shows them. Any user who can start a pod can then taint its node.
        kill_switch: observe and write down, change no taint.
        dry_run: decide and tell, write nothing at all.
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
        """Keys of taints that are ours: the one that is set, and the default one, which may be left from before it was set."""
        return frozenset({self.key, TAINT_KEY})


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A taint as it stands on a Node."""

    key: str
    effect: str
    value: str | None = None


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """Why the breaker opened: one code on these nodes, at this time."""

    code: str
    nodes: tuple[str, ...]
    at: int


class Safety(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the cluster and outlives the controller; to be stored before the patches of the same plan are sent.

    Attributes:
        trip: the breaker is open; only ``reset_at`` of a person closes it.
        reset_at: what came before does not open it again.
        acts: when which node was quarantined, for the rate.
    """

    trip: Trip | None = None
    reset_at: int = 0
    acts: tuple[tuple[int, str], ...] = ()
