"""The strategy that docs/architecture.md teaches to write works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.cases import case, left, piece
from rankfall import strategy_registry
from rankfall.strategy_registry import GROUP, diagnose_by, known_strategies

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text("utf-8")
SECTION = PAGE.partition("\n## Strategies\n")[2].partition("\n## ")[0]


def test_errors_s11_the_strategy_of_the_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy_registry, "_registered", {})
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "architecture.md", "exec"), names)  # noqa: S102 - the page's own example
    ranks = [left(0, 1), left(1, 1)]
    both = [piece("user_code_exception", 1, seconds=1), piece("bad_sample", 0, seconds=2)]
    assert diagnose_by("coordinator-first", case(ranks, both)).verdict.rank == 0
    found = diagnose_by("coordinator-first", case(ranks, both[:1])).verdict
    assert found.rank == 1
    assert "the strategy causal was used" in found.missing[0]


def test_the_page_names_every_strategy_and_the_group_of_entry_points() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", SECTION, re.MULTILINE)) == set(known_strategies()[:3])
    assert f'[project.entry-points."{GROUP}"]' in SECTION
