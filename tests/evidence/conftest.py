"""Readers of foreign bytes: every test here runs under a limit on memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankfall.explain import explain_files
from rankfall.model import Verdict
from support.memory_limit import limited


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    with limited():
        yield


@pytest.fixture
def why(tmp_path: Path) -> Callable[[str], Verdict]:
    """The verdict on a text."""

    def explain(text: str) -> Verdict:
        (tmp_path / "job.log").write_text(text)
        return explain_files([tmp_path / "job.log"]).verdict

    return explain


@pytest.fixture
def answer(why):
    def explain(text):
        verdict = why(text)
        return verdict.cause.slug, verdict.rank

    return explain
