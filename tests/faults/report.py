"""The table of a full run: what was expected, what Rankfall said, and what plain torchrun left to a person."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
from collections import Counter
from pathlib import Path
from typing import Any

from faults.run import GRADES, Judged, Theirs
from faults.table import ALLOWED_LESS, FAULTS, Fault
from faults.variants import Variant
from rankfall.model import Verdict

COLUMNS = ("static", "c10d", "plain", "4x2", "hook absent")
# What `why` says of text alone: of the lines that a run under torchrun kept, and of plain torchrun's own output.
TEXTS = ("kept lines", "torchrun's text")


class Rows:
    """Collects the results of a session in a file, so that an interrupted one loses nothing.

    Args:
        path: JSON lines; appended to.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def add(self, variant: Variant, said: str, judged: Judged) -> None:
        """One run of ours; the page is of jobs with torch."""
        if not variant.torch:
            return
        self._write(
            {
                "fault": variant.fault.name,
                "column": variant.key,
                "said": said,
                "grade": judged.grade,
                "why": judged.faults,
            }
        )

    def add_text(self, fault: Fault, column: str, verdict: Verdict, judged: Judged) -> None:
        """What was said of text alone."""
        said = f"rank {verdict.rank}, {verdict.cause.slug} ({verdict.cause.confidence})"
        self._write({"fault": fault.name, "column": column, "said": said, "grade": judged.grade, "why": judged.faults})

    def compare(self, fault: Fault, theirs: Theirs) -> None:
        """One run of plain torchrun."""
        self._write(
            {
                "fault": fault.name,
                "column": "torchrun",
                "nodes": theirs.nodes,
                "ranks": theirs.ranks,
                "earliest": theirs.earliest,
                "earliest_rank": theirs.earliest_rank,
                "tie": theirs.tie,
            }
        )

    def _write(self, row: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def render(path: Path) -> str:
    """The page, from the collected rows; the newest row of each cell counts."""
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        cells[row["fault"], row["column"]] = row
    names = [fault for fault in FAULTS if any((fault.name, column) in cells for column in (*COLUMNS, "torchrun"))]
    lines = [
        "# The fault matrix",
        "",
        "Written by `make test-all` from `tests/faults`. Each row is a fault that was really injected into a job of real processes. `static` and `c10d` are the",
        "real torchrun, `plain` is Rankfall's own launcher, all on 2 nodes x 2 ranks; `4x2` is 4 nodes x 2 ranks; `hook absent` keeps Rankfall's recorder out of the ranks.",
        "The last three columns are the same worker under plain torchrun: the root cause that it printed on each node, and the record with the earliest time in",
        "torchelastic's own error.json files of all nodes. `-` was not run. A cell is **right** (rank, cause, victims, retry), **weak** (true, but less than could be known), **unknown** or **wrong**.",
        "",
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {os.cpu_count()} cores, {_memory_gib()} GiB, Python {platform.python_version()}, {_torch()}, {platform.system()} {platform.machine()}.",
        "",
        *_totals(names, cells),
        "",
        f"| fault | expected | {' | '.join(COLUMNS)} | Rankfall said | torchrun, node 0 | torchrun, node 1 | earliest error.json |",
        f"|{' --- |' * (len(COLUMNS) + 6)}",
        *(_line(fault, cells) for fault in names),
        "",
        "## What text alone does not show",
        "",
        "`why` over nothing but the lines that a run on two nodes kept, and over the output of both nodes under plain torchrun. A process that ends without a word leaves none.",
        "",
        "| fault | expected | text | said | grade |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {fault.name} | {expected(fault)} | {column} | {cell_text(row['said'])} | {row['grade']} |"
            for fault in names
            for column in TEXTS
            if (row := cells.get((fault.name, column))) and row["grade"] != "right"
        ),
        "",
        "## Where less than everything is allowed",
        "",
        *(f"- `{name}` ({where}): {reason}" for (name, where), reason in sorted(ALLOWED_LESS.items())),
        "",
    ]
    return "\n".join(lines)


def expected(fault: Fault) -> str:
    """What the table demands, in a few words."""
    if not fault.slugs:
        return "success"
    whose = (
        f"rank {fault.rank}"
        if fault.rank is not None
        else f"slot {fault.slot}"
        if fault.slot is not None
        else "all ranks"
    )
    return f"{whose}, {' or '.join(fault.slugs)}"


def _line(fault: Fault, cells: dict[tuple[str, str], dict[str, Any]]) -> str:
    ours = [cells.get((fault.name, column)) for column in COLUMNS]
    said = next((row["said"] for row in ours if row), "-")
    theirs = cells.get((fault.name, "torchrun"))
    other = [*theirs["nodes"], theirs["earliest"] + (" (tie)" if theirs["tie"] else "")] if theirs else ["-", "-", "-"]
    shown = [row["grade"] if row else "-" for row in ours]
    return f"| {' | '.join(cell_text(text) for text in (fault.name, expected(fault), *shown, said, *other))} |"


def cell_text(text: str) -> str:
    """A text in a cell of a table: nothing of one machine, nothing that breaks the table."""
    # Folders are those of one machine and one run.
    text = re.sub(r"/[\w.+-]+(?:/[\w.+-]+)*/", ".../", text)
    return (
        "".join(char if char.isprintable() and char.isascii() else "?" for char in text)
        .replace("|", "\\|")
        .replace("<", "&lt;")
    )


def _totals(names: list[Fault], cells: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    lines = ["| reader | runs | right | weak | unknown | wrong |", "| --- | --- | --- | --- | --- | --- |"]
    for column in (*COLUMNS, *TEXTS):
        counted = Counter(cells[fault.name, column]["grade"] for fault in names if (fault.name, column) in cells)
        lines.append(
            f"| Rankfall, {column} | {counted.total()} | {' | '.join(str(counted[grade]) for grade in GRADES)} |"
        )
    lines += [
        "",
        "Of plain torchrun the rank alone is counted, not the cause:",
        "",
        "| reader | runs | right rank | a tie | nothing | wrong |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    failing = [fault for fault in names if fault.slugs and (fault.name, "torchrun") in cells]
    for title, pick in (
        ("torchrun's root cause on the culprit's own node (which nobody tells)", _own),
        ("the same block on the other node", _other),
        ("the earliest error.json of all nodes", _first),
    ):
        counted = Counter(pick(fault, cells[fault.name, "torchrun"]) for fault in failing)
        lines.append(
            f"| {title} | {counted.total()} | {' | '.join(str(counted[grade]) for grade in ('right', 'tie', 'nothing', 'wrong'))} |"
        )
    return lines


def _grade(fault: Fault, rank: int | None) -> str:
    if rank is None:
        return "nothing"
    return "right" if rank == fault.rank or fault.decides_all else "wrong"


def _home(fault: Fault) -> int:
    return fault.slot if fault.slot is not None else (fault.rank or 0) // 2


def _own(fault: Fault, row: dict[str, Any]) -> str:
    return _grade(fault, row["ranks"][_home(fault)])


def _other(fault: Fault, row: dict[str, Any]) -> str:
    return _grade(fault, row["ranks"][1 - _home(fault)])


def _first(fault: Fault, row: dict[str, Any]) -> str:
    grade = _grade(fault, row["earliest_rank"])
    return "tie" if grade != "nothing" and row["tie"] and not fault.decides_all else grade


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _torch() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - only a report needs it

    return f"torch {version('torch')}"
