"""What the bench of node health makes of what it measured: percentiles, whether a rate was held, rows, the page. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bench.common import Row, table

#: Of the rate that was meant so much must have been given, else nothing was measured at that rate.
HELD: Final = 0.95
#: Requests a minute that two equal controllers may differ by: a window begins somewhere between two renewals of the lease.
SLACK_REQUESTS: Final = 3.0
#: Of a core: what a thousand healthy nodes may cost a controller beside ten.
SLACK_CPU: Final = 0.005
#: Parts of the bench, in their order, with the title of each on the page.
PARTS: Final[Mapping[str, str]] = MappingProxyType({
    "agent": "The agent, over its socket",
    "rest": "The agent at rest",
    "kmsg": "The agent, on the real ring",
    "loki": "By Loki",
    "controller": "The controller and healthy nodes",
})  # fmt: skip


def quantile(values: Collection[float], part: float) -> float:
    """The value that this part of all lies below; of few values the next one above.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("nothing was measured")
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def rate_held(records: int, seconds: float, *, wanted: float) -> bool:
    """Whether so many records in so many seconds are the rate that was meant."""
    return seconds > 0 and records / seconds >= HELD * wanted


@dataclass(frozen=True)
class Noise:
    """What was said beside: records, the seconds that it took, and the rate that was meant."""

    records: int
    seconds: float
    wanted: float

    @property
    def held(self) -> bool:
        """Whether it was as loud as it was meant to be."""
        return rate_held(self.records, self.seconds, wanted=self.wanted)

    def __str__(self) -> str:
        rate = self.records / self.seconds if self.seconds > 0 else 0.0
        return f"{rate:,.0f} harmless records a second" + ("" if self.held else f", which is less than the {self.wanted:,.0f} that were meant")  # fmt: skip


def waits_row(what: str, waits: Sequence[float | None], noise: Noise, *, bound_s: float, bound: str, how: str) -> Row:
    """How long something took each time; None = it never came. It holds when all came, the bound was held, and the noise was as loud as meant.

    Args:
        what: was measured.
        waits: seconds.
        noise: that was made meanwhile.
        bound_s: of the 99th percentile.
        bound: the same in words.
        how: it was measured; how many and among what is added.
    """
    came = [each for each in waits if each is not None]
    missed = len(waits) - len(came)
    told = f"{how}; {len(waits)} Xids, {missed} missed, among {noise}"
    if not came:
        return Row(f"{what}, p50, p99, most", "none came", f"p99 {bound}", holds=False, how=told)
    figure = ", ".join(f"{each * 1e3:.0f}" for each in (quantile(came, 0.5), quantile(came, 0.99), max(came)))
    holds = quantile(came, 0.99) < bound_s and not missed and noise.held
    return Row(f"{what}, p50, p99, most", f"{figure} ms", f"p99 {bound}", holds, told)


@dataclass(frozen=True)
class Load:
    """What a controller cost while so many healthy nodes were in its cluster.

    Attributes:
        nodes: that are KWOK's.
        counted: nodes that the controller itself counted, those of the bed among them.
        cpu: part of a core.
        requests: to the API server, a minute.
        memory: most so far, MiB.
        heartbeats: of nodes' status, a minute.
    """

    nodes: int
    counted: int
    cpu: float
    requests: float
    memory: float
    heartbeats: float


def load_rows(found: Sequence[Load]) -> list[Row]:
    """A row for each number of nodes; each is compared with that of the fewest."""
    rows = []
    least = min(found, key=lambda each: each.nodes)
    for each in sorted(found, key=lambda each: each.nodes):
        figure = f"{each.cpu:.2%} of a core, {each.requests:.1f} requests a minute"
        how = f"it counted {each.counted:,} nodes; {each.heartbeats:.0f} heartbeats a minute; VmHWM {each.memory:.0f} MiB so far"
        if each is least:
            rows.append(Row(f"controller, {each.nodes:,} healthy nodes", figure, "-", None, how))
            continue
        flat = each.cpu - least.cpu < SLACK_CPU and each.requests - least.requests <= SLACK_REQUESTS
        bound = f"of {least.nodes} nodes, and {SLACK_CPU:.1%} and {SLACK_REQUESTS:.0f} more"
        rows.append(Row(f"controller, {each.nodes:,} healthy nodes", figure, bound, flat and each.counted >= each.nodes, how))  # fmt: skip
    return rows


def numbers(text: str) -> dict[str, float]:
    """Metrics in Prometheus's text format; the labels of a series are part of its name."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def page(found: Mapping[str, Sequence[Row]], problems: Mapping[str, str], *, head: str, told: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        found: rows by part; a part that was not run is not in it.
        problems: of parts that did not come to their end.
        head: when and on what it was measured.
        told: how each part is measured.
    """
    text = f"# How soon node health acts, and what it costs\n\n{head}\n"
    for part, title in PARTS.items():
        text += f"\n## {title}\n\n"
        if part in problems:
            text += f"**This part did not come to its end**: {problems[part]}.\n\n"
        if found.get(part):
            text += f"{table(found[part])}\n\n{told[part]}\n"
        elif part not in problems:
            text += f"Not measured in this run (`--only {part}` measures it alone).\n"
    return text


def failed(found: Mapping[str, Sequence[Row]], problems: Mapping[str, str]) -> bool:
    """Whether a bound was broken, or a part did not come to its end."""
    return bool(problems) or any(row.holds is False for rows in found.values() for row in rows)
