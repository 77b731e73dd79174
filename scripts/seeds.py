"""Writes the last column of ``docs/seeds.md``: which command runs the tests that a row names. ``--check`` only compares.

A test belongs to a command by its markers (``scripts/gate/stages.py``); a name with several cases can belong to more than one. Rows that name no test have a
dash.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "seeds.md"
COLUMN = "run by"
ORDER = ("test", "test-cluster", "test-all")
# A test function, or one case of the fault matrix.
_NAME = re.compile(r"\btest_[a-zA-Z0-9_]+|\[[a-z]+-[a-z0-9-]+\]")


class Collected:
    """A plugin that remembers which command runs each test function."""

    def __init__(self) -> None:
        self.commands: dict[str, set[str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Read the markers of all tests."""
        for item in items:
            name = getattr(item, "originalname", None) or item.name
            case = f"[{item.callspec.id}]" if hasattr(item, "callspec") else name
            for known in (name, case):
                self.commands.setdefault(known, set()).add(command_of(item))


def command_of(item: pytest.Item) -> str:
    """The first command that runs a test."""
    if item.get_closest_marker("full"):
        return "test-all"
    return "test-cluster" if item.get_closest_marker("cluster") or item.get_closest_marker("root") else "test"


def collected() -> dict[str, set[str]]:
    """The commands of each test function of the project.

    Raises:
        SystemExit: the tests cannot be read.
    """
    plugin = Collected()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests")], plugins=[plugin])
    if code:
        sys.exit(f"seeds.py: pytest cannot read the tests:\n{out.getvalue()[-2000:]}")
    return plugin.commands


def with_column(text: str, commands: dict[str, set[str]]) -> str:
    """The page, each of its tables with the column."""
    lines: list[str] = []
    before = ""
    has_it = False
    for line in text.splitlines():
        if not line.startswith("| "):
            lines.append(line)
        else:
            is_head, is_rule = not before.startswith("| "), set(line) <= set("| -")
            has_it = line.endswith(f" | {COLUMN} |") if is_head else has_it
            row = line.removesuffix(" |").rpartition(" | ")[0] + " |" if has_it else line
            found = {command for name in _NAME.findall(row) for command in commands.get(name, ())}
            value = ", ".join(one for one in ORDER if one in found) or "-"
            lines.append(f"{row} {COLUMN if is_head else '---' if is_rule else value} |")
        before = line
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or compare; the exit code."""
    before = PAGE.read_text()
    after = with_column(before, collected())
    if "--check" in sys.argv[1:]:
        if before != after:
            print("docs/seeds.md does not show which command runs which test: run scripts/seeds.py", file=sys.stderr)
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
