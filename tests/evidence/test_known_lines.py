"""Lines in the words of many tools, each the only line of a text, keep their cause: a table beside the signatures' examples."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

import pytest

from rankfall.explain import explain_files

TABLE = Path(__file__).with_name("known_lines.csv")
TRACEBACK = """Traceback (most recent call last):
  File "/app/train.py", line 207, in main
    out = step(batch)
{}
"""


def rows() -> list[tuple[str, list[dict[str, str]]]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [(cause, [*group]) for cause, group in groupby(csv.DictReader(file), key=lambda row: row["cause"])]


@pytest.mark.parametrize(("cause", "lines"), [pytest.param(*row, id=row[0]) for row in rows()])
def test_i23_p3_a_line_in_the_words_of_any_tool_has_its_cause(
    cause: str, lines: list[dict[str, str]], tmp_path: Path
) -> None:
    other = {}
    for number, line in enumerate(lines):
        text = line["text"].replace("\\n", "\n")
        path = tmp_path / f"{number}.log"
        path.write_text(TRACEBACK.format(text) if line["form"] == "exception" else f"{text}\n", encoding="utf-8")
        if (slug := explain_files([path]).verdict.cause.slug) != cause:
            other[line["text"]] = slug
    assert not other


def test_the_table_of_known_lines_is_sorted_and_has_each_line_once() -> None:
    with TABLE.open(newline="", encoding="utf-8") as file:
        table = [(row["cause"], row["form"], row["text"]) for row in csv.DictReader(file)]
    assert table == sorted(table)
    assert len({text for *_, text in table}) == len(table) > 500
