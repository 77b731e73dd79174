"""The table of threats names tests that exist, and every threat has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Threats\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def tests() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text()))


def rows() -> list[list[str]]:
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.splitlines() if "|" in line]
    return [row for row in found[2:] if not row[0].startswith("**")]


def test_every_test_of_the_table_exists(tests: frozenset[str]) -> None:
    for name in re.findall(r"`(test_[^`]*)`", TABLE):
        if name.endswith("…"):
            assert any(one.startswith(name[:-1]) for one in tests), name
        else:
            assert name in tests, name


def test_every_threat_has_a_defence_and_a_test() -> None:
    assert len(rows()) >= 25
    for row in rows():
        assert len(row) == 3, row
        assert row[1], row[0]
        assert re.fullmatch(r"`test_[^`]+`(, `test_[^`]+`)*", row[2]), row


def test_every_point_of_the_issue_has_a_row() -> None:
    for point in range(1, 11):
        assert f"test_i18_p{point}_" in TABLE, point


def test_the_pages_name_each_other_and_no_address() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    assert "(docs/security.md)" in policy
    assert "(../SECURITY.md)" in PAGE
    for text in (policy, PAGE):
        assert not re.search(r"[\w.]+@[\w-]+\.\w+", text)
