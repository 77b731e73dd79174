"""The page ``docs/results/faults-cluster.md``, from the rows that the matrix wrote: ``PYTHONPATH=tests:. python -m faults.cluster_page``.

Nothing stands in it that no test has seen: a cell whose test was not run says so. What the page holds already is kept for cells that were not run
since, with the day on which each was seen: the whole matrix takes hours.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from faults.cluster_table import BACKENDS, Cell, cells
from faults.report import cell_text, expected
from faults.run import GRADES, Judged
from rankfall.model import Verdict

ROOT: Final = Path(__file__).resolve().parents[2]
COLLECTED: Final = ROOT / "build" / "faults-cluster.jsonl"
PAGE: Final = ROOT / "docs" / "results" / "faults-cluster.md"
COLUMNS: Final = (*BACKENDS, "torchrun")
_HEAD: Final = """# The fault matrix on Kubernetes

Written by `python -m faults.cluster_page` from what `tests/cluster/test_fault_matrix.py` saw; do not edit. Each row is a fault that was really injected into a job of 2 pods x 2 ranks on the two nodes of the
[test bed](../testbed.md), run by `rankfall run` with an account of the product's own [rights](../kubernetes.md#rights). `job`, `jobset` and `trainjob` are the backends, their ranks started by Rankfall's own launcher and joined by plain sockets, or by
gloo where the fault is one of torch; `torchrun` is a TrainJob with the real torchrun and gloo. The faults of [the local matrix](faults.md) come from the same table; the rest is what only a cluster does.
A cell is **right** (rank or slot, node, cause, victims, retry, nothing done to a node), **weak** (true, but less than could be known), **unknown** or **wrong**; **-** has no test, **not run** has one that was never run. A cell keeps what was seen of it until it is run
again; the days stand at the end.

"""
_CUT_HEAD: Final = """## With channels of evidence cut

The verdict of these was made again without one channel after the other: no error records, no records of ends, no lines, no records at all, and
pairs of them. The number is of verdicts, each of which was the same or said less, and none of which was wrong."""
_DAY: Final = re.compile(r"- (\d{4}-\d\d-\d\d): `")
_CUT: Final = re.compile(r"- `([^`]+)`: (\d+)$")
_NOTE: Final = re.compile(r"- `([^`]+)`: (?!\d+$)(.*)")
# The page as it was before it told days was written on this one.
_BEFORE_DAYS: Final = "2026-11-22"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell: its grade, what is wrong with it, what was said, the day on which that was (UTC), and how many verdicts with a channel cut were right."""

    cell: str
    grade: str
    faults: tuple[str, ...]
    said: str
    day: str = ""
    cut: int = 0

    @classmethod
    def of(cls, cell: Cell, verdict: Verdict | None, judged: Judged, state: str, *, cut: int = 0) -> Row:
        """From a verdict, today."""
        return cls.seen(cell.id, verdict, judged, state, cut=cut)

    @classmethod
    def seen(cls, cell: str, verdict: Verdict | None, judged: Judged, state: str, *, cut: int = 0) -> Row:
        """The same of a cell of this name."""
        day = datetime.now(UTC).date().isoformat()
        return cls(cell=cell, grade=judged.grade, faults=judged.faults, said=_said(verdict, state), day=day, cut=cut)


def _said(verdict: Verdict | None, state: str) -> str:
    if verdict is None or verdict.state == "succeeded":
        return f"no failure; the run {state}"
    who = (
        f"rank {verdict.rank}"
        if verdict.rank is not None
        else f"slot {verdict.slot}"
        if verdict.slot is not None
        else "no rank"
    )
    victims = f", {len(verdict.consequences)} victims" if verdict.consequences else ""
    cause = verdict.cause
    return f"{who}, {verdict.node or 'no node'}: {cause.slug} ({cause.confidence}), retry {verdict.retry}{victims}"


class Rows:
    """Results of a session, in a file, so that an interrupted one loses nothing and several fill one table.

    Args:
        path: JSON lines; appended to.
    """

    def __init__(self, path: Path = COLLECTED) -> None:
        self._path = path

    def add(self, row: Row) -> None:
        """Keep one cell; the newest row of a cell counts."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def read(self) -> dict[str, Row]:
        """All cells by id."""
        if not self._path.exists():
            return {}
        rows = (Row(**json.loads(line)) for line in self._path.read_text().splitlines())
        return {row.cell: row for row in rows}


def held(page: str) -> dict[str, Row]:
    """The rows that a page holds, by id of the cell. Of a fault it has the words of its first cell alone."""
    by_fault: dict[str, dict[str, Cell]] = {}
    for cell in cells():
        by_fault.setdefault(cell.fault.name, {})[cell.column] = cell
    days = {
        cell: found[1]
        for line in page.splitlines()
        if (found := _DAY.match(line))
        for cell in re.findall(r"`([^`]+)`", line)
    }
    cuts = {found[1]: int(found[2]) for line in page.splitlines() if (found := _CUT.match(line))}
    notes = {found[1]: found[2] for line in page.splitlines() if (found := _NOTE.match(line))}
    rows: dict[str, Row] = {}
    for line in page.splitlines():
        name, _, *rest = [text.strip() for text in line.strip("| ").split(" | ")] if line.startswith("| ") else ("", "")
        for column, grade in zip(COLUMNS, rest, strict=False):
            if (known := by_fault.get(name, {}).get(column)) is not None and grade in GRADES:
                said = notes.get(known.id) or (rest[len(COLUMNS)] if len(rest) > len(COLUMNS) else "")
                rows[known.id] = Row(
                    cell=known.id,
                    grade=grade,
                    faults=(),
                    said=said,
                    day=days.get(known.id, _BEFORE_DAYS),
                    cut=cuts.get(known.id, 0),
                )
    return rows


def render(found: dict[str, Row]) -> str:
    """The page.

    Args:
        found: by id of the cell.
    """
    by_fault: dict[str, dict[str, Cell]] = {}
    for cell in cells():
        by_fault.setdefault(cell.fault.name, {})[cell.column] = cell
    counted = Counter(found[cell.id].grade for cell in cells() if cell.id in found)
    lines = [
        f"{len(by_fault)} faults, {sum(map(len, by_fault.values()))} cells, {sum(counted.values())} of them run: "
        + ", ".join(f"{counted[grade]} {grade}" for grade in GRADES)
        + ".",
        "",
        f"| fault | expected | {' | '.join(f'`{column}`' for column in COLUMNS)} | Rankfall said |",
        f"|{' --- |' * (len(COLUMNS) + 3)}",
    ]
    for name, columns in by_fault.items():
        rows = [found.get(columns[column].id) if column in columns else None for column in COLUMNS]
        shown = [
            row.grade if row else "not run" if column in columns else "-"
            for row, column in zip(rows, COLUMNS, strict=True)
        ]
        said = max((row for row in rows if row), key=lambda row: row.day, default=None)
        words = said.said if said else ""
        fault = next(iter(columns.values())).fault
        lines.append(f"| {' | '.join(cell_text(text) for text in (name, expected(fault), *shown, words))} |")
    known = {cell.id for cell in cells()}
    notes = [
        f"- `{row.cell}`: {'; '.join(row.faults) or row.said}"
        for row in found.values()
        if row.grade != "right" and row.cell in known
    ]
    cut = [f"- `{row.cell}`: {row.cut}" for row in found.values() if row.cut and row.cell in known]
    days: dict[str, list[str]] = {}
    for row in sorted(found.values(), key=lambda row: (row.day, row.cell)):
        if row.cell in known:
            days.setdefault(row.day, []).append(f"`{row.cell}`")
    parts = [_HEAD.rstrip(), "", *lines, ""]
    parts += ["## Not right", "", *notes, ""] if notes else []
    parts += [_CUT_HEAD, "", *cut, ""] if cut else []
    parts += ["## When each cell was seen", "", *(f"- {day}: {', '.join(names)}" for day, names in days.items()), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(held(PAGE.read_text("utf-8")) | Rows().read()), "utf-8")
