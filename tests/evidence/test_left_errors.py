"""Error files in Flyte's form that workers of a run left: whose they are, and when they count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankfall.evidence.readers.flyte_errors import FlyteErrorFiles
from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.cases import T0, S, piece, rank
from support.flyte_errors import document


class Place:
    """Two slots of one rank each, and the folder that they share."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.shared = folder / "records"
        self.slots: Mapping[int, tuple[SlotFacts, Path]] = {
            n: (SlotFacts(slot=n, pod=f"job-{n}", node=f"n{n}", started_at=T0, **fields), folder / f"worker-{n}")
            for n in range(2)
        }
        self.left = FlyteErrorFiles(self.shared, catalogue=default_catalogue(), attempt=2)

    def write(self, data: bytes, *, slot: int | None = None, name: str = "error-1.pb", at: int = T0 + 9 * S) -> None:
        folder = (self.shared if slot is None else self.slots[slot][1]) / "errors"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        os.utime(folder / name, ns=(at, at))

    def read(self, *known: Evidence, ranks: tuple[RankFacts, ...] = ()) -> list[Evidence]:
        return self.left.evidence(slots=self.slots, ranks=ranks, known=known)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_file_in_a_slots_directory_is_that_slots_and_its_only_ranks(place: Place) -> None:
    place.write(document(at=T0 + 5 * S, worker="forged"), slot=1)
    (found,) = place.read(ranks=(rank(7, slot=1), rank(6, slot=0)))
    assert (found.slot, found.rank, found.node, found.pod, found.attempt) == (1, 7, "n1", "job-1", 2)
    assert found.where.endswith("worker-1/errors/error-1.pb")


def test_a_slot_of_several_ranks_is_named_and_none_of_its_ranks(place: Place) -> None:
    place.write(document(at=T0 + 5 * S), slot=1)
    (found,) = place.read(ranks=(rank(2, slot=1), rank(3, slot=1)))
    assert (found.slot, found.rank) == (1, None)


def test_errors_s10_a_shared_file_is_its_workers(place: Place) -> None:
    place.write(document(at=T0 + 5 * S, worker="job-1"))
    (found,) = place.read()
    assert (found.slot, found.pod) == (1, "job-1")


def test_errors_s24_forged_and_old_workers_are_named_and_not_followed(place: Place) -> None:
    place.write(document(at=T0 + 5 * S, worker="some-other-pod"), name="error-a.pb")
    place.write(document("KeyError: 1", at=T0 - 60 * S, worker="job-1"), name="error-b.pb")
    place.write(document("KeyError: 2", worker="job-1"), name="error-c.pb", at=T0 - 60 * S)
    place.write(b"\x0a\x05", name="error-d.pb")
    place.write(b"", name="not-an-error.pb")
    assert place.read() == []
    for name, words in {
        "a": "not a worker of this attempt",
        "b": "older",
        "c": "older",
        "d": "damaged: 5 bytes",
    }.items():
        assert any(f"error-{name}.pb" in text and words in text for text in place.left.problems)
    assert place.read() == []
    assert len(place.left.problems) == 4


def test_who_said_it_better_is_not_asked_twice(place: Place) -> None:
    place.write(document(at=T0 + 5 * S), slot=1)
    place.write(document("KeyError: 3", at=T0 + 5 * S), name="error-2.pb")
    assert place.read(piece("user_code_exception", 2, slot=1)) == []
    victim = piece("peer_lost", 2, slot=1, role="secondary")
    assert [e.slot for e in place.read(victim)] == [1, None]


def test_one_that_is_half_written_is_read_at_the_next_look(place: Place) -> None:
    whole = document(at=T0 + 5 * S)
    place.write(whole[:-3], slot=0)
    assert place.read() == []
    place.write(whole, slot=0)
    assert [e.slot for e in place.read()] == [0]
    place.write(b"rewritten", slot=0)
    assert [e.slot for e in place.read()] == [0]


def test_what_cannot_be_read_is_named(place: Place, tmp_path: Path) -> None:
    folder = place.slots[0][1] / "errors"
    folder.mkdir(parents=True)
    (folder / "error.pb").mkdir()
    assert place.read() == []
    assert "cannot be read" in place.left.problems[0]


def test_nothing_there_is_no_problem(place: Place) -> None:
    assert place.read() == []
    assert place.left.problems == []
