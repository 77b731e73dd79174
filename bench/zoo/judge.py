"""Compares what `why` says of each text with what was done to the job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench.common import machine
from bench.zoo.jobs import STRUCK
from bench.zoo.launchers import LAUNCHERS
from bench.zoo.programs.faults import FAULTS
from rankfall.explain import explain_files

# The least share of texts whose cause and rank are right.
RIGHT: Final = 0.97

Grade = Literal["right", "unknown", "wrong"]


@dataclass(frozen=True)
class Cell:
    """What is said of one text."""

    launcher: str
    fault: str
    slug: str
    confidence: str
    named: int | None
    cause: Grade
    rank: Grade
    action: Grade

    @property
    def right(self) -> bool:
        """Cause and rank are right; a rank that the text does not show may be unknown."""
        launcher, fault = LAUNCHERS[self.launcher], FAULTS[self.fault]
        missing_allowed = not launcher.names_rank or (fault.silent and bool(launcher.without_words))
        return self.cause == "right" and (self.rank == "right" or (missing_allowed and self.rank == "unknown"))


def judge(folder: Path, launchers: Sequence[str], faults: Sequence[str]) -> list[Cell]:
    """Explain each text of the folder."""
    return [
        _cell(launcher, fault, path)
        for launcher in launchers
        for fault in faults
        if (path := folder / f"{launcher}.{fault}.log").exists()
    ]


def _cell(launcher: str, name: str, path: Path) -> Cell:
    verdict = explain_files([path]).verdict
    fault = FAULTS[name]
    slug = verdict.cause.slug
    causes = fault.causes + (LAUNCHERS[launcher].without_words if fault.silent else ())
    cause: Grade = "right" if slug in causes else "unknown" if slug == "unknown" else "wrong"
    # All ranks are on one node: the local rank is the global one, and some launchers name no other.
    named = verdict.local_rank if verdict.rank is None else verdict.rank
    rank: Grade = "right" if named == STRUCK else "unknown" if named is None else "wrong"
    allowed = {"no": {"no", "once"}, "maybe": {"no", "once", "yes"}, "elsewhere": {"once", "elsewhere"}}[fault.retry]
    # A cautious stop is wrong only with a wrong cause; no text makes a node suspect that others may need.
    ok = verdict.retry in allowed and (verdict.retry != "no" or fault.retry == "no" or cause == "right")
    blamed = verdict.node_action != "none" and fault.retry != "elsewhere"
    action: Grade = "right" if ok and not blamed else "wrong"
    return Cell(launcher, name, slug, verdict.cause.confidence, named, cause, rank, action)


def holds(cells: Sequence[Cell]) -> bool:
    """Whether enough is right and no action is wrong."""
    return sum(cell.right for cell in cells) >= RIGHT * len(cells) and not any(c.action == "wrong" for c in cells)


def page(cells: Sequence[Cell], left_out: dict[str, str]) -> str:
    """Totals a launcher, then each text that is not right."""
    day = dt.datetime.now(tz=dt.UTC).date()
    lines = [
        "# What is said of the text of real launchers",
        "",
        f"Written by `make zoo` on {day} ({machine()}): {len(cells)} jobs of three or four ranks; one fault strikes rank {STRUCK} of each.",
        "",
        "| launcher | jobs | right | cause wrong | rank wrong | rank unknown | action wrong |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in (*LAUNCHERS, "all"):
        mine = [cell for cell in cells if name in (cell.launcher, "all")]
        if mine:
            lines.append(f"| {name} | {len(mine)} | {' | '.join(map(str, _counts(mine)))} |")
    lines += [f"| {name} | 0 | left out: {why} | | | | |" for name, why in left_out.items()]
    lines += ["", "| launcher | fault | supported | said | rank | action |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {c.launcher} | {c.fault} | {', '.join(FAULTS[c.fault].causes)} | {c.slug}, {c.confidence} | {c.named} | {c.action} |"
        for c in cells
        if not c.right or c.action == "wrong"
    ]
    return "\n".join(lines) + "\n"


def _counts(cells: Sequence[Cell]) -> tuple[int, ...]:
    return (
        sum(c.right for c in cells),
        sum(c.cause == "wrong" for c in cells),
        sum(c.rank == "wrong" for c in cells),
        sum(c.rank == "unknown" for c in cells),
        sum(c.action == "wrong" for c in cells),
    )
