"""The page ``docs/results/conformance.md``, from the rows that the suite wrote: ``PYTHONPATH=tests python -m conformance.report``.

Nothing stands in it that no test has seen: a cell whose test was not run says so.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from conformance.cases import BACKENDS, CASES
from conformance.documents import PATHS

ROOT: Final = Path(__file__).resolve().parents[2]
COLLECTED: Final = ROOT / "build" / "conformance.jsonl"
NOT_RUN: Final = "not run"
PAGE: Final = ROOT / "docs" / "results" / "conformance.md"

_HEAD: Final = """# Conformance

Written by `python -m conformance.report` from what the suite in `tests/conformance` saw; do not edit. Each row is a job file with a scripted failure. It was run as its user would run it, on this machine,
as steps of an allocation of [Slurm](../slurm.md) 22.05 and on the test bed ([Kubernetes 1.34, JobSet 0.8, Kubeflow Trainer 2.0](../testbed.md)), there by an account with the [rights](../kubernetes.md#rights) of that one backend. **holds**: the case did what its row says, and `status -o json` and
`why -o json` of every attempt are equal to those of `local` (where there is none, of `job`), but for the paths listed below. **refused**: before anything was created, in the words below. **-**: there is no such thing. **not run**: its test was not run since the page was written last.

"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell of the table.

    Attributes:
        case: name of the case.
        backend: the column.
        cell: ``holds``, ``refused``, ``-``, or ``does not hold``.
        words: of a refusal, or why there is no such thing.
    """

    case: str
    backend: str
    cell: str
    words: str = ""


class Rows:
    """Results of a session, in a file, so that several sessions and workers fill one table.

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

    def read(self) -> dict[tuple[str, str], Row]:
        """All cells by case and backend."""
        if not self._path.exists():
            return {}
        rows = (Row(**json.loads(line)) for line in self._path.read_text().splitlines())
        return {(row.case, row.backend): row for row in rows}


def render(cells: dict[tuple[str, str], Row]) -> str:
    """The page.

    Args:
        cells: by case and backend.
    """
    lines = [
        f"| case | {' | '.join(f'`{backend}`' for backend in BACKENDS)} | scenarios |",
        f"|{' --- |' * (len(BACKENDS) + 2)}",
    ]
    notes: list[str] = []
    for case in CASES:
        found = [
            cells.get((case.name, backend)) or Row(case=case.name, backend=backend, cell=NOT_RUN)
            for backend in BACKENDS
        ]
        lines.append(f"| {case.feature} | {' | '.join(row.cell for row in found)} | {case.seen_in} |")
        notes += [
            f"| {case.feature} | `{row.backend}` | {row.words.replace('|', chr(92) + '|')} |"
            for row in found
            if row.words
        ]
    paths = [
        f"- {group}: {', '.join(f'`{path}`' for path in found)}"
        for group, found in json.loads(PATHS.read_text()).items()
    ]
    return "\n".join(
        [
            _HEAD.rstrip(),
            "",
            *lines,
            "",
            "## Refused, or not there",
            "",
            "| case | backend | words |",
            "| --- | --- | --- |",
            *notes,
            "",
            "## What is not compared",
            "",
            "From `tests/conformance/ignored_paths.json`:",
            "",
            *paths,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(render(Rows().read()), "utf-8")
