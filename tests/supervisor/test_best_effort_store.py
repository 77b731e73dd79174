"""The writer of a supervisor on a disk that is full: what could not be written is written later, all of it and once."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from rankfall.supervisor.best_effort_store import BestEffortStore
from support.cases import piece


def test_evidence_of_two_failed_writes_is_stored_with_the_third(tmp_path: Path) -> None:
    run = RunDir.create(msgspec.convert({"command": ("x",)}, JobSpec), home=tmp_path)
    gaps: list[str] = []
    with run.lease() as writer:
        store = BestEffortStore(writer, on_gap=gaps.append)
        writer.begin_attempt(1, at=1, plan={})
        (pages,) = writer._connection.execute("PRAGMA page_count").fetchone()
        writer._connection.execute(f"PRAGMA max_page_count={pages}")
        pieces = [piece("host_oom", number, line="x" * 1_000_000) for number in range(3)]
        store.add_evidence(1, pieces[:1])
        store.add_evidence(1, pieces[1:2])
        assert [gap.partition(" could not")[0] for gap in gaps] == ["evidence of attempt 1"]
        assert not writer.evidence(1)
        writer._connection.execute(f"PRAGMA max_page_count={pages + 3000}")
        store.add_evidence(1, pieces[2:])
        assert {each.id for each in writer.evidence(1)} == {each.id for each in pieces}
