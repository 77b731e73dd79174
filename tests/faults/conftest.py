"""Keeps the results of the matrix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.report import Rows, render

ROOT = Path(__file__).resolve().parents[2]
COLLECTED = ROOT / "build" / "faults.jsonl"


def _page() -> Path | None:
    wanted = os.environ.get("RANKFALL_FAULTS_REPORT")
    return ROOT / wanted if wanted else None


@pytest.fixture(scope="session")
def rows() -> Rows:
    if _page() is None:
        return Rows(None)
    COLLECTED.parent.mkdir(exist_ok=True)
    return Rows(COLLECTED)


def pytest_sessionfinish() -> None:
    page = _page()
    if page is not None and COLLECTED.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(render(COLLECTED))
