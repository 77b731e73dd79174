"""The one error file of a worker without recorder: when it counts, and when it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankfall.evidence.readers.torchrun import single_file_evidence
from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.cases import T0, piece, rank

SECONDS = T0 // 1_000_000_000


def text(stamp: object = SECONDS + 5) -> str:
    stack = "Traceback (most recent call last):\n  File 't.py', line 1, in <module>\nKeyError: 'vocab'\n"
    extra = {"py_callstack": stack, "timestamp": str(stamp)}
    return json.dumps({"message": {"message": "KeyError: 'vocab'", "extraInfo": extra}})


def read(
    folder: Path, facts: RankFacts, *, content: str | None = None, known: tuple[Evidence, ...] = (), **slot: Any
) -> tuple[list[Evidence], list[str]]:
    errors = folder / "worker-0" / "errors"
    errors.mkdir(parents=True)
    if content is not None:
        (errors / "1.json").write_text(content)
    place = SlotFacts(slot=0, started_at=T0, **slot)
    return single_file_evidence(
        [facts], slots={0: (place, folder / "worker-0")}, known=known, catalogue=default_catalogue(), attempt=1
    )


def fallen(**fields: Any) -> RankFacts:
    return rank(1, **({"hook": "absent", "exit_code": 1} | fields))


def test_it_speaks_for_a_rank_that_fell_without_a_word(tmp_path: Path) -> None:
    (found,), problems = read(tmp_path, fallen(), content=text())
    assert (found.rank, found.slot, found.slug, found.source) == (1, 0, "user_code_exception", "record")
    assert (found.at, found.uncertainty, found.trust) == (T0 + 5_000_000_000, 1.0, "job")
    assert found.where.endswith("worker-0/errors/1.json")
    assert problems == []


@pytest.mark.parametrize(
    "facts",
    [
        fallen(hook="loaded"),
        fallen(exit_code=0),
        rank(1, state="running", hook="absent"),
        fallen(local_rank=None),
        fallen(slot=None),
    ],
)
def test_it_is_not_asked_where_there_is_better_or_nothing_fell(tmp_path: Path, facts: RankFacts) -> None:
    assert read(tmp_path, facts, content=text()) == ([], [])


def test_a_word_of_its_own_is_worth_more_and_a_victims_word_is_not(tmp_path: Path) -> None:
    said = piece("user_code_exception", 1, source="log", trust="job")
    assert read(tmp_path / "a", fallen(), content=text(), known=(said,)) == ([], [])
    complaint = piece("peer_lost", 1, role="secondary", source="log", trust="job")
    assert len(read(tmp_path / "b", fallen(), content=text(), known=(complaint,))[0]) == 1


def test_one_that_is_older_than_its_slot_is_named_and_not_used(tmp_path: Path) -> None:
    found, (problem,) = read(tmp_path, fallen(), content=text(SECONDS - 3600))
    assert found == []
    assert "older than its slot" in problem


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"message": 3}', "x" * ((1 << 20) + 1)])
def test_a_damaged_one_is_a_problem_and_no_crash(tmp_path: Path, content: str) -> None:
    found, problems = read(tmp_path, fallen(), content=content)
    assert found == []
    assert len(problems) == 1


def test_none_is_no_problem(tmp_path: Path) -> None:
    assert read(tmp_path, fallen()) == ([], [])
