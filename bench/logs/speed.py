"""Lines per CPU second of each client on the same pods: a replay of what is there, and live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.common import Row
from bench.logs import numbers
from bench.logs.clients import NAMES, OURS, Cost, measured, settled, start
from bench.logs.scene import LENGTH, Scene, scene
from testbed.client import Kubectl
from testbed.ondemand import kwok
from testbed.ondemand.fake import Fleet

PODS, LINES = 8, 60_000
FLEET_PODS, FLEET_LINES = 200, 2_400
LIVE_LINES, LIVE_PAUSE_S = 6_000, 0.005
# In turn, so that what else the machine does hits all alike. A start takes half of the CPU of a replay, so it is measured as often.
ROUNDS: Final = 5
# The official client, which has no bound, in one of them.
_ITS_ROUND: Final = 2
# How often the start of each is measured where that cannot be done in turn.
_STARTS: Final = 3
TIMES_KUBECTL, TIMES_KUBECTL_FLEET = 2.0, 1.0
# A terminal or a file gets each line besides.
TIMES_KUBECTL_TYPED: Final = 1.5
_LIMIT_S: Final = 600.0
_CONNECT_S: Final = 60.0


@dataclass(frozen=True)
class Where:
    """What all measurements share."""

    kubectl: Kubectl
    config: Path
    namespace: str
    folder: Path


def replay_rows(where: Where) -> list[Row]:
    """Replay at 8 pods."""
    lines = PODS * LINES
    with (
        _scene(where, "quiet", pods=PODS, burst=1) as quiet,
        _scene(where, "replay", pods=PODS, burst=LINES) as pods,
    ):
        begin: dict[str, list[float]] = {}
        costs: dict[str, list[Cost]] = {}
        for number, tool in _turns():
            begin.setdefault(tool, []).append(_start_of(tool, quiet, where.folder / f"quiet-{number}-{tool}"))
            folder = where.folder / f"replay-{number}-{tool}"
            costs.setdefault(tool, []).append(_replay(tool, pods, folder, lines=lines, whole=_counted(PODS, LINES)))
    return _compared(f"replay of {PODS} x {LINES:,} lines", costs, begin, lines, TIMES_KUBECTL)


def fleet_rows(where: Where, fleet: Fleet) -> list[Row]:
    """Replay at 200 pods, which are KWOK's: their logs come from one file."""
    text = [f"[rank 0] {numbers.said(0, number, length=LENGTH)}" for number in range(FLEET_LINES)]
    fleet.say(None, text[0])
    lines = FLEET_PODS * FLEET_LINES
    section = {
        "node_selector": dict(kwok.SELECTOR),
        "tolerations": [kwok.TOLERATION],
    }
    with _scene(where, "fleet", pods=FLEET_PODS, section=section, spec=FLEET_SPEC) as pods:
        begin = {
            tool: [_start_of(tool, pods, where.folder / f"quiet-{number}-{tool}") for number in range(_STARTS)]
            for tool in NAMES
        }
        fleet.say(None, *text[1:])
        costs: dict[str, list[Cost]] = {}
        for number, tool in _turns():
            folder = where.folder / f"fleet-{number}-{tool}"
            cost = _replay(tool, pods, folder, lines=lines, whole=lambda text: text.count(b"count ") == lines)
            costs.setdefault(tool, []).append(cost)
    return _compared(f"replay of {FLEET_PODS} x {FLEET_LINES:,} lines (KWOK)", costs, begin, lines, TIMES_KUBECTL_FLEET)


FLEET_SPEC: Final[dict[str, Any]] = {"inside": "off", "launcher": "exec", "command": ["train"]}


@contextmanager
def _scene(where: Where, name: str, **how: Any) -> Iterator[Scene]:
    folder = where.folder / f"{name}-scene"
    folder.mkdir()
    with scene(where.kubectl, config=where.config, namespace=where.namespace, folder=folder, **how) as found:
        yield found


def _turns() -> Iterator[tuple[int, str]]:
    """Who runs after whom."""
    for number in range(ROUNDS):
        for tool in NAMES:
            if tool != "official" or number == _ITS_ROUND:
                yield number, tool


def _start_of(tool: str, pods: Scene, folder: Path) -> float:
    """CPU that a client uses until it follows pods that have said one line each, seconds."""
    client = start(tool, pods, folder)
    try:
        return settled(client, limit_s=_LIMIT_S)
    finally:
        client.end()


def _replay(tool: str, pods: Scene, folder: Path, *, lines: int, whole: Callable[[bytes], bool]) -> Cost:
    """What a client uses for what the pods have written, from their first line on."""
    client = start(tool, pods, folder)
    try:
        (cost,) = measured([client], until=whole, least=lines * 100, limit_s=_LIMIT_S)
    finally:
        client.end()
    return cost


def live_rows(where: Where) -> list[Row]:
    """Live at 8 pods, all clients at once."""
    # One line at once, by which a client is seen to follow.
    lines = PODS * (LIVE_LINES + 1)
    how = {"burst": 1, "paced": LIVE_LINES, "pause_s": LIVE_PAUSE_S}
    with _scene(where, "live", pods=PODS, **how) as pods:
        clients = [start(tool, pods, where.folder / "live" / tool) for tool in NAMES]
        try:
            # Connected, and silent: what comes from here on is following.
            begin = {client.tool: [settled(client, limit_s=_CONNECT_S)] for client in clients}
            pods.go()
            whole = _counted(PODS, LIVE_LINES + 1)
            found = measured(clients, until=whole, least=lines * 100, limit_s=_LIMIT_S)
            costs = {client.tool: [cost] for client, cost in zip(clients, found, strict=True)}
        finally:
            for client in clients:
                client.end()
    rate = f"{1 / LIVE_PAUSE_S:.0f} lines a second each"
    return _compared(f"live, {PODS} pods, {rate}", costs, begin, lines, TIMES_KUBECTL)


def _counted(writers: int, lines: int) -> Any:
    def whole(text: bytes) -> bool:
        return numbers.count(text, writers=writers, lines=lines).lost == 0

    return whole


def _compared(
    what: str, costs: dict[str, list[Cost]], begin: dict[str, list[float]], lines: int, bound: float
) -> list[Row]:
    starts = {tool: median(found) for tool, found in begin.items()}
    each = {tool: [cost.rate(lines, start_s=starts[tool]) for cost in found] for tool, found in costs.items()}
    rows = []
    for tool, found in costs.items():
        times, told = times_kubectl(each[tool], each["kubectl"])
        mine = tool in OURS
        least = min(bound, TIMES_KUBECTL_TYPED) if tool == "typed" else bound
        rows.append(
            Row(
                f"{what}: {NAMES[tool]}",
                f"{median(each[tool]):,.0f} lines per CPU second, {times:.2f} x kubectl{told}",
                f"{least:g} x kubectl" if mine else "-",
                times >= least if mine else None,
                f"{median(c.cpu_s for c in found):.2f} s CPU, {starts[tool]:.2f} s of it to start, "
                f"peak {max(c.peak_kib for c in found) / 1024:.0f} MiB",
            )
        )
    return rows


def times_kubectl(rates: Sequence[float], kubectl: Sequence[float]) -> tuple[float, str]:
    """How many times kubectl's rate, by the medians, and how much the runs that followed each other differ in that.

    Args:
        rates: lines per CPU second of each run of a client, in order.
        kubectl: the same of kubectl's.
    """
    times = median(rates) / median(kubectl)
    if rates is kubectl or len(rates) != len(kubectl) or len(rates) == 1:
        return times, ""
    ratios = [one / other for one, other in zip(rates, kubectl, strict=True)]
    return times, f" ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs)"
