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
def why(tmp_path: Path) -> Callable[..., Verdict]:
    """The verdict on a text."""

    def explain(text: str, name: str = "job.log") -> Verdict:
        (tmp_path / name).write_text(text)
        return explain_files([tmp_path / name]).verdict

    return explain


@pytest.fixture
def answer(why):
    def explain(text):
        verdict = why(text)
        return verdict.cause.slug, verdict.rank

    return explain
