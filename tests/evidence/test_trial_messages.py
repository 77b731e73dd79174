"""Messages of users' trials: one word of a line is no cause, and near forms of known lines are read."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files

TRACE = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'
STEPS = "".join(f"step {number} loss 2.1\n" for number in range(0, 60, 10))


@pytest.fixture
def verdict(tmp_path):
    def explain(text, name="job.out"):
        file = tmp_path / name
        file.write_text(text)
        return explain_files([file]).verdict

    return explain


@pytest.mark.parametrize(
    ("line", "slug", "retry"),
    [
        # The node had been connected: nothing says that its ssh is out of order.
        ("Connection to gpu-01 closed by remote host.\n", "peer_lost", "once"),
        ("ssh: connect to host gpu-01 port 22: No route to host\n", "ssh_unreachable", "no"),
        ("pdsh@head: gpu-01: ssh exited with exit code 255\n", "ssh_unreachable", "no"),
        # OpenSSH on the user's terminal, no file server.
        ("Timeout, server gpu-01 not responding.\n", "unknown", "once"),
        ("nfs: server fs-1 not responding, timed out\n", "shared_fs_error", "yes"),
    ],
)
def test_a_closed_connection_is_no_unreachable_node(verdict, line, slug, retry):
    found = verdict(STEPS + line)
    assert (found.cause.slug, found.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("error", "slug", "retry"),
    [
        ("No such file or directory (2)", "file_race", "once"),
        ("No space left on device (28)", "shm_exhausted", "no"),
    ],
)
def test_a_removed_segment_is_no_full_shared_memory(verdict, error, slug, retry):
    found = verdict(
        f"{STEPS}{TRACE}RuntimeError: unable to open shared memory object </torch_44_88_0> in read-write mode: {error}\n"
    )
    assert (found.cause.slug, found.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("error", "slug", "retry"),
    [
        ("ibv_reg_mr failed with error Cannot allocate memory", "host_alloc_failed", "no"),
        ("ibv_modify_qp failed with error Connection timed out", "nccl_ib_error", "elsewhere"),
    ],
)
def test_a_limit_of_locked_memory_is_no_fault_of_the_adapter(verdict, error, slug, retry):
    found = verdict(
        f"{STEPS}gpu-02:41:43 [3] misc/ibvwrap.cc:262 NCCL WARN Call to {error}\n"
        f"{TRACE}RuntimeError: NCCL error in: x.cpp:2, unhandled system error, NCCL version 2.19.3\n"
    )
    assert (found.cause.slug, found.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("line", "retry"),
    [
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available\n", "no"),
        ("srun: error: Unable to create step for job 81: Memory required by task is not available\n", "no"),
        ("Warning  FailedScheduling  1m  default-scheduler  0/1 nodes are available: 1 Insufficient cpu.\n", "yes"),
    ],
)
def test_what_no_node_offers_fails_at_each_start(verdict, line, retry):
    found = verdict(line)
    assert (found.cause.slug, found.retry) == ("unschedulable", retry)
