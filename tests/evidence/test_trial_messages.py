"""Messages of users' trials: one word of a line is no cause, and near forms of known lines are read."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files

TRACE = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'
STEPS = "".join(f"step {number} loss 2.1\n" for number in range(0, 60, 10))


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
def test_a_closed_connection_is_no_unreachable_node(why, line, slug, retry):
    found = why(STEPS + line)
    assert (found.cause.slug, found.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("error", "slug", "retry"),
    [
        ("No such file or directory (2)", "file_race", "once"),
        ("No space left on device (28)", "shm_exhausted", "no"),
    ],
)
def test_a_removed_segment_is_no_full_shared_memory(why, error, slug, retry):
    found = why(
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
def test_a_limit_of_locked_memory_is_no_fault_of_the_adapter(why, error, slug, retry):
    found = why(
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
def test_what_no_node_offers_fails_at_each_start(why, line, retry):
    found = why(line)
    assert (found.cause.slug, found.retry) == ("unschedulable", retry)


@pytest.mark.parametrize(
    ("line", "slug", "retry"),
    [
        ("Job 'raysubmit_x' was stopped\n", "cancelled", "no"),
        (
            "[2026-11-30 03:12:52] [INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting\n",
            "cancelled",
            "no",
        ),
        (
            "[2026-11-30 03:12:52] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting\n",
            "external_signal",
            "yes",
        ),
        ("[mpiexec@n1] Sending Ctrl-C to processes as requested\n", "cancelled", "no"),
        (
            "exiting program after receiving SIGTERM.\n[after training is done] datetime: 2026-11-30 03:31:12\n",
            "external_signal",
            "yes",
        ),
        (f"{TRACE}RuntimeError: NCCL communicator was aborted on rank 0.\n", "peer_lost", "once"),
    ],
)
def test_who_stopped_the_job_is_read(why, line, slug, retry):
    found = why(STEPS + line)
    assert (found.cause.slug, found.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("record", "slug", "retry"),
    [
        ("JobId=81 JobName=t\n   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)\n", "walltime_or_requeue", "yes"),
        ("JobId=81 JobName=t\n   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)\n", "node_lost", "elsewhere"),
        ("JobId=81 JobName=t JobState=OUT_OF_MEMORY Reason=OutOfMemory\n", "host_oom", "no"),
        ("JobId=81 JobName=t\n   JobState=PREEMPTED Reason=None Dependency=(null)\n", "preempted", "yes"),
        (
            "JobID|JobName|State|ExitCode|NodeList\n81|t|OUT_OF_MEMORY|0:125|gpu-01\n81.extern|extern|COMPLETED|0:0|gpu-01\n",
            "host_oom",
            "no",
        ),
        ("81|t|TIMEOUT\n81.batch|batch|CANCELLED\n", "walltime_or_requeue", "yes"),
        ("JobId=81 JobName=t\n   JobState=RUNNING Reason=None TimeLimit=1-00:00:00\n", "unknown", "once"),
    ],
)
def test_states_of_slurm_are_read_in_each_form(tmp_path, record, slug, retry):
    (tmp_path / "slurm-81.out").write_text(STEPS)
    (tmp_path / "slurm.txt").write_text(record)
    found = explain_files([tmp_path]).verdict
    assert (found.cause.slug, found.retry) == (slug, retry)


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("[2026-11-30T03:05:00.001] error: Nodes gpu-02 not responding, setting DOWN\n", "gpu-02"),
        ("[2026-11-30T03:05:00.002] requeue job JobId=81 due to failure of node gpu-02\n", "gpu-02"),
        (
            "(raylet) The node with node id: 9f and address: 10.0.0.14 and node name: 10.0.0.14 has been marked dead.\n",
            "10.0.0.14",
        ),
        ("3m  Normal  NodeNotReady  node/gpu-node-9  Node gpu-node-9 status is now: NodeNotReady\n", "gpu-node-9"),
        ("3m  Normal  NodeReady  node/gpu-node-9  Node gpu-node-9 status is now: NodeReady\n", None),
    ],
)
def test_a_lost_node_is_named(why, line, node):
    found = why(STEPS + line)
    assert (found.node, found.cause.slug == "node_lost") == (node, node is not None)


def test_volcano_calls_any_deletion_of_a_pod_an_eviction(why):
    state = "status:\n  state:\n    phase: Aborted\n    reason: {}\n"
    assert why(state.format("PodEvicted"), "job.yaml").cause.slug == "unknown"
    assert why(state.format("Evicted"), "job.yaml").cause.slug == "pod_evicted"


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("dmesg-gpu-02.log", "gpu-02"),
        ("nid001234_kern.log", "nid001234"),
        ("dmesg-ip-10-0-0-12.txt", "ip-10-0-0-12"),
        # A number that is no node's, and the output of a job.
        ("dmesg-rank2.log", None),
        ("dmesg-nov30.log", None),
        ("dmesg-2026-11-30.log", None),
        ("train-gpu-02.log", None),
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        "[Mon Nov 30 03:10:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=4412, name=python3, GPU has fallen off the bus.\n",
        "[1839.000001] python3[8812]: segfault at 0 ip 00007f1c3e5b2a10 sp 00007ffd2a error 4 in libnccl.so.2[7f1c3e500000+1a0000]\n",
    ],
)
def test_a_kernel_file_is_of_the_node_in_its_name(tmp_path, name, node, line):
    (tmp_path / "job.out").write_text(STEPS)
    (tmp_path / name).write_text(line)
    assert explain_files([tmp_path]).verdict.node == node


JOURNAL = "".join(f"Nov 30 03:{minute:02}:00 gpu-01 train[4100]: step {minute}\n" for minute in range(10))


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("gpu-01 systemd[1]: train.service: A process of this unit has been killed by the OOM killer.\n", "gpu-01"),
        (
            "gpu-01 systemd-oomd[700]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 71.2% > 50.00%\n",
            "gpu-01",
        ),
        # The job's own line says nothing about the machine.
        ("gpu-01 train[4100]: slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.\n", None),
    ],
)
def test_the_journal_names_the_machine_of_lines_of_systemd(why, line, node):
    found = why(f"{JOURNAL}Nov 30 03:20:41 {line}")
    assert (found.cause.slug, found.node) == ("host_oom", node)


@pytest.mark.parametrize(("host", "node"), [("gpu-03", "gpu-03"), ("gpu3", None)])
def test_pdsh_names_nodes_with_gpus(why, host, node):
    """One digit may be a device's number."""
    found = why(
        f"gpu-01: step 0\n{host}: bash: torchrun: command not found\npdsh@head: {host}: ssh exited with exit code 127\n"
    )
    assert (found.cause.slug, found.node) == ("command_not_found", node)
