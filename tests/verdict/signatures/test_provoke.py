"""Real programs, run here and now, still print what the signatures know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfall.model.causes import cause_info
from rankfall.verdict.signatures.catalogue import Where, default_catalogue
from rankfall.verdict.signatures.matcher import best

FOLDER = Path(__file__).parent / "provoke"


def provoke(program: str, timeout: float) -> list[tuple[str, str, str]]:
    """Run a provoking program; (case, expected slug, text) of each of its cases."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, FOLDER / f"{program}.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Some of these programs give up their rights or room: what the tests' own tools would do in them fails, and prints its own words.
        env=own | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8"},
        timeout=timeout,
        check=True,
    )
    sections = done.stdout.decode("utf-8", "replace").split("### ")[1:]
    return [(*section.partition("\n")[0].split(" ", 1), section.partition("\n")[2]) for section in sections]  # type: ignore[misc]


def check(
    program: str, *, at_least: int, timeout: float = 170, where: tuple[Where, ...] = ("line", "exception")
) -> None:
    catalogue = default_catalogue()
    cases = provoke(program, timeout)
    assert len(cases) >= at_least
    wrong = []
    for name, slug, text in cases:
        hits = list(catalogue.scan(text.encode(), where))
        if cause_info(slug).role == "primary":  # the launcher's words about its own kills are there as well
            hits = [hit for hit in hits if hit.signature.role == "primary"]
        hit = best(hits)
        if hit is None or hit.signature.slug != slug:
            wrong.append((name, slug, hit and hit.signature.id, text[-600:]))
    assert not wrong


@pytest.mark.timeout(180)
def test_python_prints_what_the_signatures_know() -> None:
    check("python_cases", at_least=40)


@pytest.mark.timeout(180)
def test_shell_and_c_library_print_what_the_signatures_know() -> None:
    check("shell_cases", at_least=15)


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_torch_prints_what_the_signatures_know() -> None:
    check("torch_cases", at_least=20)


@pytest.mark.torch
@pytest.mark.timeout(180)
@pytest.mark.full
def test_gloo_prints_what_the_signatures_know() -> None:
    check("gloo_cases", at_least=12)


@pytest.mark.torch
@pytest.mark.timeout(180)
@pytest.mark.full
def test_torchrun_prints_what_the_signatures_know() -> None:
    check("torchrun_cases", at_least=6, where=("line",))
