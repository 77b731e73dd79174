"""The committed page is that of the suite: exactly its cases and backends, and nothing in it that does not hold."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.cases import BACKENDS, CASES
from conformance.documents import comparable, differences, ignored
from conformance.report import NOT_RUN, PAGE, Row, Rows, render


def table() -> tuple[list[str], list[list[str]]]:
    """Head and rows of the page's first table."""
    block = re.findall(r"(?:^\|.*\n)+", PAGE.read_text("utf-8"), re.MULTILINE)[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
    return head, rows


def test_the_page_has_exactly_the_cases_and_backends_of_the_suite() -> None:
    head, rows = table()
    assert head[1:-1] == [f"`{backend}`" for backend in BACKENDS]
    assert [row[0] for row in rows] == [case.feature for case in CASES]


def test_every_cell_of_the_page_is_what_its_case_demands() -> None:
    _, rows = table()
    for case, row in zip(CASES, rows, strict=True):
        expected = ["-" if one in case.absent else "refused" if one in case.refused else "holds" for one in BACKENDS]
        shown = [held if cell == NOT_RUN else cell for cell, held in zip(row[1:-1], expected, strict=True)]
        assert shown == expected, case.name


def test_a_page_is_made_of_cells_that_were_seen(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl")
    for case in CASES:
        for backend in BACKENDS:
            rows.add(Row(case=case.name, backend=backend, cell="does not hold"))
            rows.add(Row(case=case.name, backend=backend, cell="holds"))
    cells = rows.read()
    assert "| does not hold |" not in render(cells)
    assert f"| {NOT_RUN} |" not in render(cells)
    del cells[CASES[0].name, "job"]
    assert render(cells).count(f"| {NOT_RUN} |") == 1
    assert Rows(tmp_path / "absent").read() == {}


def test_only_what_is_listed_is_ignored() -> None:
    one = {"status": {"run": "a-1", "state": "failed", "slots": [{"slot": 0, "pod": "p"}]}, "verdicts": {}}
    other = {"status": {"run": "b-2", "state": "succeeded", "slots": [{"slot": 0, "pod": "q"}]}, "verdicts": {}}
    assert list(differences(comparable(one), comparable(other))) == ["status.state: 'failed' | 'succeeded'"]
    piece = {"line": "rank 1 (pid 7) ended", "evidence": [{"id": "x", "line": "b"}, {"id": "y", "line": "a"}]}
    same = {"line": "rank 1 (pid 812) ended", "evidence": [{"id": "z", "line": "a"}, {"id": "w", "line": "b"}]}
    assert list(differences(comparable({"verdicts": {"1": piece}}), comparable({"verdicts": {"1": same}}))) == []
    assert not [path for path in ignored() if path.endswith(("state", "cause", "rank", "slot", "exit", "retry"))]
