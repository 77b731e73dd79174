"""What confirms a death or a standstill: kernel lines of killed ranks, flight-recorder dumps of a slot."""

from __future__ import annotations

import json
import time

import pytest

from rankfall.evidence.attempt import evidence_set
from rankfall.evidence.attempt.evidence_set import dump_evidence, kernel_evidence
from rankfall.evidence.readers import kernel_log
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.cases import died


def entries(*calls, members="[0, 1]"):
    rows = [
        {
            "process_group": ["0", "x"],
            "collective_seq_id": n,
            "profiling_name": op,
            "state": "scheduled",
            "is_p2p": False,
        }
        for n, op in calls
    ]
    return json.dumps({"entries": rows, "pg_config": {"0": {"ranks": members}}})


def test_dumps_of_all_slots_are_put_together(tmp_path):
    for slot, calls in enumerate([((1, "nccl:all_reduce"), (2, "nccl:all_reduce")), ((1, "nccl:all_reduce"),)]):
        folder = tmp_path / f"slot{slot}"
        folder.mkdir()
        (folder / f"nccl_trace_rank_{slot}").write_text(entries(*calls))
    (tmp_path / "slot0" / "notes.txt").write_text("no dump")
    (tmp_path / "slot1" / "nccl_trace_rank_7").write_bytes(b"no pickle")
    found, problems = dump_evidence([tmp_path / "slot0", tmp_path / "slot1"], relative_to=tmp_path, attempt=1)
    assert [(e.rank, e.slug, e.where) for e in found] == [(1, "rank_stuck", "slot1/nccl_trace_rank_1")]
    assert len(problems) == 1
    assert "nccl_trace_rank_7" in problems[0]


def test_a_dump_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / "nccl_trace_rank_0").mkdir()
    found, problems = dump_evidence([tmp_path], relative_to=tmp_path, attempt=1)
    assert found == []
    assert "cannot be read" in problems[0]


@pytest.fixture
def kmsg(tmp_path, monkeypatch):
    """A ring buffer of the kernel with one line about pid 1002, in its own format."""
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    stamp = (time.time_ns() - boot) // 1000
    path = tmp_path / "kmsg"
    path.write_text(
        f"3,9,{stamp};Memory cgroup out of memory: Killed process 1002 (python3) total-vm:1kB, anon-rss:2kB\n"
    )

    def read(catalogue, *, since):
        return kernel_log.read_kernel(catalogue, since=since, path=path)

    monkeypatch.setattr(evidence_set, "read_kernel", read)


@pytest.mark.usefixtures("kmsg")
def test_only_a_line_that_names_a_killed_rank_is_its_proof():
    ours = died(2, 9, started_at=time.time_ns() - 10**9)
    found, problem = kernel_evidence({1002: ours}, default_catalogue(), attempt=1)
    assert problem is None
    assert [(e.rank, e.slug, e.trust, e.source) for e in found] == [(2, "host_oom", "kernel", "kernel")]
    other, _ = kernel_evidence({4711: ours}, default_catalogue(), attempt=1)
    assert other == []
