"""A whole slot whose records are copied to a store while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.collect.stores.record_store import RecordStore
from rankfall.rundir.records import RecordFolder
from support.object_store import s3_server

from .conftest import Slot, channel


def read(url: str, into: Path) -> dict[str, int]:
    """How many records of each kind are read from there."""
    store = RecordStore(url, run="demo-abc123", attempt=2, into=into)
    store.fetch()
    assert store.problems == ()
    found: dict[str, int] = {}
    for item in RecordFolder(into, run="demo-abc123", attempt=2).poll():
        found[item.record.kind] = found.get(item.record.kind, 0) + 1
    return found


def test_errors_s35_a_slots_records_are_in_the_object_store_when_it_has_ended(
    pod: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as environ:
        done = pod.rank("raise ValueError('bad thing')", **environ, RANKFALL_RECORD_STORE="s3://records/team")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        found = read("s3://records/team", tmp_path / "into")
    assert done.returncode == 1
    assert (found["error"], found["slot_start"], found["slot_end"]) == (1, 1, 1)
    # The other channel has the same ones: by their id they are the same records.
    assert {r.id for r in channel(done.stdout)} == {r.id for r in pod.records()}


def test_errors_s35_a_store_that_is_away_changes_no_exit_code_and_is_said_in_the_end(pod: Slot) -> None:
    done = pod.rank("import sys; sys.exit(3)", RANKFALL_RECORD_STORE="s3://records/team", AWS_ACCESS_KEY_ID="")
    assert done.returncode == 3
    (end,) = [record for record in channel(done.stdout) if record.kind == "slot_end"]
    assert any("are missing in s3://records/team: AWS_ACCESS_KEY_ID" in note for note in end.notes)
