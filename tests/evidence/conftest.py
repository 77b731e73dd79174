"""Readers of foreign bytes: every test here runs under a limit on memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankfall.explain import explain_files
from support.memory_limit import limited


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    with limited():
        yield


@pytest.fixture
def answer(tmp_path):
    def explain(text):
        (tmp_path / "job.log").write_text(text)
        verdict = explain_files([tmp_path / "job.log"]).verdict
        return verdict.cause.slug, verdict.rank

    return explain
