"""Short ways to build cases for tests of the pure layers."""

from __future__ import annotations

from typing import Any

from rankfall.model import Case, Evidence, RankFacts, SlotFacts
from rankfall.model.evidence import digest

S = 1_000_000_000
T0 = 1_790_000_000 * S


def at(seconds: float) -> int:
    return T0 + round(seconds * S)


def rank(number: int, *, per_node: int = 2, **fields: Any) -> RankFacts:
    slot = number // per_node
    values: dict[str, Any] = {
        "slot": slot,
        "node": f"node{slot}",
        "local_rank": number % per_node,
        "pid": 1000 + number,
        "round": 0,
        "state": "ended",
        "ended_uncertainty": 0.05,
        "hook": "loaded",
    }
    return RankFacts(rank=number, **(values | fields))


def died(number: int, signal: int, *, seconds: float | None = 1.0, by: str = "foreign", **fields: Any) -> RankFacts:
    ended = None if seconds is None else at(seconds)
    return rank(number, signal=signal, killed_by=by, ended_at=ended, **fields)


def left(number: int, code: int, *, seconds: float | None = 1.0, **fields: Any) -> RankFacts:
    return rank(number, exit_code=code, ended_at=None if seconds is None else at(seconds), **fields)


def piece(
    slug: str, number: int | None, *, role: str = "primary", seconds: float | None = 1.0, **fields: Any
) -> Evidence:
    values: dict[str, Any] = {
        "source": "record",
        "trust": "inside",
        "specificity": 20 if slug == "user_code_exception" else 60,
        "line": f"{slug} said rank {number}",
        "where": f"records/{slug}-{number}.json",
        "fingerprint": f"{slug}:{fields.get('line', '')}",
        "uncertainty": 0.001 if seconds is not None else None,
        "slot": None if number is None else number // 2,
        "pid": None if number is None else 1000 + number,
    }
    merged = values | fields
    identity = digest(slug, role, number, seconds, sorted(merged.items(), key=str))
    stamp = None if seconds is None else at(seconds)
    return Evidence(id=identity, slug=slug, role=role, rank=number, at=stamp, **merged)  # type: ignore[arg-type]


def slots(count: int = 2, **fields: Any) -> tuple[SlotFacts, ...]:
    values: dict[str, Any] = {"state": "ended", "exit_code": 1, "launcher": "torchrun"}
    return tuple(SlotFacts(slot=n, node=f"node{n}", **(values | fields)) for n in range(count))


def case(ranks: list[RankFacts], evidence: list[Evidence], **fields: Any) -> Case:
    values: dict[str, Any] = {
        "run": "job-abc123",
        "attempt": 1,
        "world_size": len(ranks) or None,
        "slots": slots(max(1, len(ranks) // 2)),
    }
    return Case(ranks=tuple(ranks), evidence=tuple(evidence), **(values | fields))
