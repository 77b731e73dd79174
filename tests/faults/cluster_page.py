"""The page ``docs/results/faults-cluster.md``, from the rows that the matrix wrote: ``PYTHONPATH=tests:. python -m faults.cluster_page``.

Nothing stands in it that no test has seen: a cell whose test was not run says so.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
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
A cell is **right** (rank or slot, node, cause, victims, retry, nothing done to a node), **weak** (true, but less than could be known), **unknown** or **wrong**; **-** has no test, **not run** has one that was not run since the page was written last.

"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell: its grade, what is wrong with it, and what was said."""

    cell: str
    grade: str
    faults: tuple[str, ...]
    said: str

    @classmethod
    def of(cls, cell: Cell, verdict: Verdict | None, judged: Judged, state: str) -> Row:
        """From a verdict."""
        return cls(cell=cell.id, grade=judged.grade, faults=judged.faults, said=_said(verdict, state))


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
        said = next((row.said for row in rows if row), "")
        fault = next(iter(columns.values())).fault
        lines.append(f"| {' | '.join(cell_text(text) for text in (name, expected(fault), *shown, said))} |")
    known = {cell.id for cell in cells()}
    notes = [
        f"- `{row.cell}`: {'; '.join(row.faults) or row.said}"
        for row in found.values()
        if row.grade != "right" and row.cell in known
    ]
    return "\n".join([_HEAD.rstrip(), "", *lines, "", *(["## Not right", "", *notes, ""] if notes else [])])


if __name__ == "__main__":
    PAGE.write_text(render(Rows().read()), "utf-8")
