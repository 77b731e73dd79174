"""``scripts/prose.py`` finds what a stranger would not understand: each rule on a small file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import prose  # noqa: E402 - scripts is no package of the project

LONG = "The reader reads " + "one more line and " * 10 + "the end."


def findings(source: str) -> set[tuple[str, str]]:
    return {(one.text.kind, one.rule) for text in prose.texts(source) for one in prose.check(Path("a.py"), text)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Reads one line."""\n', set()),
        ('"""What one line holds."""\n', {("docstring", "first")}),
        ('"""Reads what it was told."""\n', {("docstring", "private"), ("docstring", "vague")}),
        ('"""Reads ``told`` and `wish`."""\n', set()),
        (f'"""{LONG}"""\n', {("docstring", "long")}),
        ("# Nobody reads it.\nx = 1\n", {("comment", "private")}),
        ("x = 1  # noqa: S603 - the rank fell\n", {("comment", "private")}),
        ("# fmt: off\nx = 1\n", set()),
        ('x = "the lines are kept here"\n', {("message", "vague")}),
        ('x = "told"\n', set()),
        ('x = "for p in 1 2; do say told to p; done"\n', set()),
        ('x = "usage: prog tell the wrapper"\n', set()),
        ('x = """Run the job.\n\n```yaml\nname: nobody is told\n```\n"""\n', set()),
        ('def f(x):\n    """Falls back to x."""\n', set()),
        ('def f(x):\n    """A rank falls."""\n', {("docstring", "private")}),
    ],
)
def test_each_rule_has_its_finding(source, expected):
    assert findings(source) == expected


def test_a_sentence_ends_at_an_entry_and_at_an_empty_line():
    text = "One two three\n\nArgs:\n    name: four five.\n    other: six. Seven\n        eight\n\n- nine\n- ten"
    assert [" ".join(one.split()) for one in prose.sentences(text)] == [
        "One two three",
        "Args:",
        "four five.",
        "six.",
        "Seven eight",
        "- nine",
        "- ten",
    ]


def test_neighbouring_comments_are_one_text_and_a_gap_or_code_ends_it():
    found = [one for one in prose.texts("# one\n# two\nx = 1  # three\n\n# four\n") if one.kind == "comment"]
    assert [(one.line, one.text) for one in found] == [(1, "one\ntwo"), (3, "three"), (5, "four")]


def test_a_finding_fails_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prose.py", str(tmp_path)])
    (tmp_path / "a.py").write_text('x = "one two three"\n')
    assert prose.main() == 0
    (tmp_path / "b.py").write_text('"""What is told."""\n')
    assert prose.main() == 1
    printed = capsys.readouterr().out
    assert "b.py:1: docstring: first: what" in printed
    assert "1, 100.0 % begin with" in printed
