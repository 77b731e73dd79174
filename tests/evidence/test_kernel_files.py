"""Kernel logs beside a job's text: lines belong to ranks by process and host."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files

REPORT = """============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_03:12:43
  host      : {host}
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 4101)
  error_file: <N/A>
============================================================
"""
XID = "[Mon Nov 30 03:12:41 2026] NVRM: Xid (PCI:0000:4e:00): 79, pid=4101, name=python3, GPU has fallen off the bus.\n"
OOM = "[88123.1] Memory cgroup out of memory: Killed process 4101 (python3) total-vm:221384kB, anon-rss:40704kB\n"
RAISED = "[rank9]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"


@pytest.mark.parametrize(
    ("kernel", "job", "code", "slug"),
    [(XID, RAISED, 1, "gpu_fallen_off_bus"), (OOM, "step 1\n", -9, "host_oom")],
)
def test_a_kernel_s_line_belongs_to_the_rank_of_its_process(tmp_path, kernel, job, code, slug):
    (tmp_path / "dmesg.txt").write_text(kernel)
    (tmp_path / "train.log").write_text(job + REPORT.format(host="gpu-02", code=code))
    found = explain_files([tmp_path]).verdict
    assert (found.cause.slug, found.cause.confidence, found.rank, found.node) == (slug, "likely", 9, "gpu-02")


def test_a_process_of_another_node_is_another_one(tmp_path):
    """Processes of two nodes may have one number, so the host in the file's name decides."""
    (tmp_path / "dmesg-gpu-01.log").write_text(XID)
    (tmp_path / "train.log").write_text(RAISED + REPORT.format(host="gpu-02.cluster", code=1))
    found = explain_files([tmp_path]).verdict
    assert (found.cause.slug, found.cause.confidence, found.rank, found.node) == (
        "gpu_fallen_off_bus",
        "suspected",
        None,
        "gpu-01",
    )


def test_a_line_of_the_kernel_that_a_rank_prints_proves_nothing(tmp_path):
    (tmp_path / "train.log").write_text(f"[rank9]: {XID}{RAISED}{REPORT.format(host='gpu-02', code=1)}")
    assert explain_files([tmp_path]).verdict.cause.slug != "gpu_fallen_off_bus"


def test_a_task_that_waits_for_its_file_server_is_no_stuck_node(tmp_path):
    file = tmp_path / "dmesg.txt"
    file.write_text(
        "Nov 30 03:12:45 n1 kernel: nfs: server fs-1 not responding, still trying\n"
        "Nov 30 03:14:45 n1 kernel: INFO: task python3:4100 blocked for more than 120 seconds.\n"
    )
    assert explain_files([file]).verdict.cause.slug == "shared_fs_error"


def test_a_job_of_ray_that_succeeded_did_not_fail(tmp_path):
    file = tmp_path / "driver.log"
    file.write_text(
        "2026-11-30 03:12:40,010\tWARNING worker.py:2065 -- A worker died or was killed while executing a task by an"
        " unexpected system error.\n(train pid=3) step 1000\n\nJob 'raysubmit_abc' succeeded\n"
    )
    assert explain_files([file]).verdict.cause.slug == "unknown"
