"""What Slurm's lines name: cause, tasks and node. The texts are the format strings of SchedMD/slurm (src/slurmd/slurmstepd/req.c
and mgr.c, src/srun/launch.c, src/srun/signals.c, src/api/step_launch.c at 284c3b9), and shortened public logs.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from rankfall.explain import explain_files
from rankfall.render.verdict import render_verdict

AT = "2026-01-01T00:00:00"
STEPD = "slurmstepd: error: "
OOM = f"{STEPD}Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.\n"
TASK_OOM = "srun: error: gpu-17: task 6: Out Of Memory\n"
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
KILLED = "srun: error: gpu-17: tasks 4-7: Killed\n"
KEY_ERROR = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n    x[1]\nKeyError: 1\n'


def end(why: str = "", *, step: str = "STEP 77.0") -> str:
    return f"{STEPD}*** {step} ON gpu-11 CANCELLED AT {AT}{why} ***\n"


@pytest.fixture
def verdict(tmp_path):
    def explain(text, name="job.log"):
        (tmp_path / name).write_text("step 1 loss 2.0\n" + text)
        return explain_files([tmp_path / name]).verdict

    return explain


LIMIT, PREEMPTED, REQUEUED = " DUE TO TIME LIMIT", " DUE TO PREEMPTION", " DUE TO JOB REQUEUE"
NODE = " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
ENDS = [
    (LIMIT, "walltime_or_requeue"),
    (PREEMPTED, "preempted"),
    (REQUEUED, "walltime_or_requeue"),
    (NODE, "node_lost"),
    ("", "cancelled"),
    (" DUE to SIGNAL Terminated", "cancelled"),
    (" DUE to SIGNAL Killed", "cancelled"),
]


@pytest.mark.parametrize("step", ["JOB 77", "STEP 77.0", "STEP 77.0+1", "STEP 77.interactive"])
@pytest.mark.parametrize("before", ["", "0: ", " 12: "])
@pytest.mark.parametrize(("why", "slug"), ENDS)
def test_i32_p6_the_end_of_a_step_blames_neither_rank_nor_node(verdict, why, slug, before, step):
    found = verdict(before + end(why, step=step))
    # The printed node is the first of the step, and the label that of the node's first task.
    assert (found.cause.slug, found.rank, found.node, found.exclude) == (slug, None, None, msgspec.UNSET)


def test_i32_p6_the_file_of_a_task_does_not_name_who_ended(verdict):
    found = verdict(end(LIMIT), "rank-3.log")
    assert (found.cause.slug, found.rank) == ("walltime_or_requeue", None)
    assert verdict(f"4: {OOM}").rank is None
    assert verdict(OOM, "rank-4.log").rank is None
    assert verdict(KEY_ERROR, "rank-4.log").rank == 4


@pytest.mark.parametrize("why", [LIMIT, PREEMPTED, REQUEUED, NODE])
def test_i32_p6_what_slurm_killed_afterwards_is_a_consequence(verdict, why):
    found = verdict(ABORTED + end(why) + KILLED + "srun: error: gpu-11: task 0: Exited with exit code 137\n")
    assert (found.cause.slug, found.rank) == (dict(ENDS)[why], None)
    assert [(one.rank, one.slug) for one in found.consequences] == [(n, "peer_teardown") for n in (0, 4, 5, 6, 7)]


@pytest.mark.parametrize("why", [LIMIT, PREEMPTED, REQUEUED, NODE])
def test_i32_p6_memory_events_at_the_end_of_a_step_that_was_taken_are_not_its_cause(verdict, why):
    assert verdict(end(why) + OOM + TASK_OOM).cause.slug == dict(ENDS)[why]
    found = verdict(OOM + TASK_OOM + end(why))
    assert (found.cause.slug, found.rank, found.node) == ("host_oom", 6, "gpu-17")


def test_i32_p6_a_time_limit_is_no_hang_and_a_failure_before_it_stays_the_cause(verdict):
    wait = "[rank1]: RuntimeError: [/w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete\n"
    assert verdict(wait + end(LIMIT)).cause.slug == "walltime_or_requeue"
    assert verdict(KEY_ERROR + end(LIMIT) + KILLED).cause.slug == "user_code_exception"


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: StepId=77.0+1 exceeded memory limit (52917772 > 20971520), being killed",
        "slurmstepd: error: Job 77 exceeded virtual memory limit (52917772 > 20971520), being killed",
        "slurmstepd-node7: error: Exceeded job memory limit",
        "srun: Exceeded job memory limit",
        "slurmstepd: error: Detected 2 oom_kill events in StepId=77.batch. Some of the step tasks have been OOM Killed.",
    ],
)
def test_i32_p6_memory_limits_of_slurm(verdict, line):
    found = verdict(f"{line}\n{end()}{ABORTED}srun: error: node7: task 0: Killed\n")
    assert (found.cause.slug, found.rank, found.exclude) == ("host_oom", None, msgspec.UNSET)


@pytest.mark.parametrize(
    ("end", "slug", "rank"),
    [
        ("Killed", "killed_unknown", 6),
        ("Terminated", "external_signal", 6),
        ("User defined signal 1", "external_signal", 6),
        ("Interrupt", "external_signal", 6),
        ("Bus error (core dumped)", "shm_exhausted", 6),
        ("Bad system call", "native_abort", 6),
        ("Out Of Memory", "host_oom", 6),
        ("Exited with exit code 143", "external_signal", 6),
    ],
)
def test_i32_p6_a_task_and_its_node(verdict, end, slug, rank):
    found = verdict(f"srun: error: gpu-17: task 6: {end}\n")
    assert (found.cause.slug, found.rank, found.node) == (slug, rank, "gpu-17")
    # Several tasks name no rank, several nodes no node, and the rank of a heterogeneous step is unknown.
    found = verdict(f"srun: error: gpu-17: tasks 4-7: {end}\n")
    assert (found.cause.slug, found.rank, found.node) == (slug, None, "gpu-17")
    found = verdict(f"srun: error: gpu-[01-03,17]: tasks 0-15: {end}\n")
    assert (found.cause.slug, found.rank, found.node) == (slug, None, None)
    found = verdict(f"srun: error: gpu-17: task 6: {end}\nsrun: Terminating StepId=77.0+1\n")
    assert (found.cause.slug, found.rank) == (slug, None)
    assert verdict(f"srun: error: Unknown: task 6: {end}\n").node is None


@pytest.mark.parametrize(
    "text",
    [
        f"srun: error: gpu-17: task 3: Exited with exit code 3\nsrun: Terminating StepId=77.0\n{end(' DUE TO TASK FAILURE')}",
        f"srun: error: gpu-17: task 3: Exited with exit code 3\n{STEPD}*** STEP 77.0 ON gpu-11 FAILED (non-zero exit code or other failure mode) ***\n",
        "srun: error: gpu-17: task 3: Exited with exit code 3\nsrun: First task exited 60s ago\nsrun: Force Terminated StepId=77.0\n",
    ],
)
def test_i32_p6_kill_on_bad_exit_and_wait(verdict, text):
    found = verdict(text + "srun: error: gpu-11: tasks 0-2: Killed\n")
    assert (found.cause.slug, found.rank, found.node) == ("user_exit", 3, "gpu-17")
    assert [(one.rank, one.slug) for one in found.consequences] == [(n, "peer_teardown") for n in range(3)]


@pytest.mark.parametrize("late", [end(LIMIT), end(PREEMPTED), end(NODE), "srun: error: Node failure on gpu-17\n"])
def test_i32_p6_an_exception_of_the_job_before_the_end_of_the_step_is_the_cause(verdict, late):
    ranked = "".join(f"3: {line}\n" for line in KEY_ERROR.splitlines())
    for text, rank in ((KEY_ERROR, None), (ranked, 3)):
        found = verdict(text + late)
        assert (found.cause.slug, found.rank, found.retry) == ("user_code_exception", rank, "no")
        assert verdict(late + text).cause.slug != "user_code_exception"


def test_the_line_with_the_reason_is_shown_and_the_task_is_named(tmp_path):
    reason = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0 cgroup. Some of your processes may have been killed."
    (tmp_path / "job.log").write_text(f"{reason}\nsrun: error: n1: task 2: Out Of Memory\n")
    verdict = explain_files([tmp_path / "job.log"]).verdict
    assert (verdict.cause.slug, verdict.rank) == ("host_oom", 2)
    assert verdict.decisive is not None
    assert verdict.decisive.line == reason


def test_the_only_task_that_srun_did_not_terminate_is_the_suspect(tmp_path):
    def rank(tasks, why="DUE TO TASK FAILURE "):
        step = f"slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-04-29T22:46:37 {why}***"
        (tmp_path / "job.log").write_text(f"{step}\nsrun: error: n1: tasks {tasks}: Terminated\n")
        return explain_files([tmp_path / "job.log"]).verdict.rank

    assert rank("0-57,59-63") == 58
    assert rank("0-57,60-63") is None
    assert rank("0-63") is None
    assert rank("0-57,59-63", why="") is None


def test_i32_p6_processes_that_do_not_end_are_no_cause(verdict):
    stuck = f"{STEPD}*** STEP 77.0 STEPD TERMINATED ON gpu-17 AT {AT} DUE TO JOB NOT ENDING WITH SIGNALS ***\n"
    found = verdict(KEY_ERROR + end(" DUE TO TASK FAILURE") + stuck)
    assert found.cause.slug == "user_code_exception"
    assert any(proof.slug == "node_stuck" and proof.node == "gpu-17" for proof in found.evidence)


EXCLUDED = [
    ("srun: error: Node failure on gpu-17\n", "gpu-17", "gpu-17"),
    (end(NODE) + "srun: error: Node failure on gpu-17\nsrun: error: gpu-11: tasks 0-3: Killed\n", "gpu-17", "gpu-17"),
    ("srun: error: Node failure on gpu-[01-03,17]\n", None, "gpu-[01-03,17]"),
    ("salloc: error: Node failure on worker-1\n", "worker-1", "worker-1"),
    ("salloc: Prolog failure on node k003-006\nsalloc: error: Job allocation 77 has been revoked\n",)
    + ("k003-006",) * 2,
    ("srun: error: Task launch for 36.0 failed on node cn131: Job credential expired\n", "cn131", "cn131"),
    (
        "".join(
            f"srun: error: Task launch for StepId=20.0 failed on node c-{n}: Socket timed out on send/recv operation\n"
            for n in (33, 38)
        )
        + "srun: error: Application launch failed: Socket timed out on send/recv operation\n",
        None,
        "c-33,c-38",
    ),
]


@pytest.mark.parametrize(("text", "node", "exclude"), EXCLUDED)
def test_i32_p6_the_next_sbatch_excludes_the_suspected_node(verdict, text, node, exclude):
    found = verdict(text)
    assert (found.retry, found.node, found.exclude) == ("elsewhere", node, exclude)
    quoted = f"'{exclude}'" if "[" in exclude else exclude
    assert f"sbatch --exclude={quoted} SCRIPT" in render_verdict(found)
    assert json.loads(msgspec.json.encode(found))["exclude"] == exclude


@pytest.mark.parametrize(
    "text",
    [
        # A rank that was killed is no lost node: saforem2/ezpz#234.
        KILLED + "srun: error: gpu-16: tasks 0-3: Terminated\n",
        "srun: error: gpu-17: task 6: Exited with exit code 1\n",
        OOM + TASK_OOM,
        end(NODE),
        "srun: error: Aborting, io error and missing step on node 3\n",
        "srun: error: Cannot communicate with node 3.  Aborting job.\n",
        "srun: error: Node failure on $(reboot)\n",
        "srun: error: Node failure on a;b\n",
        KEY_ERROR + "srun: error: Node failure on gpu-17\n",
        # Not of Slurm.
        "Warning  NodeNotReady  1m  node-controller  Node is not ready\n",
    ],
)
def test_i32_p6_no_node_is_excluded_where_none_is_suspected(verdict, text):
    found = verdict(text)
    assert found.exclude is msgspec.UNSET
    assert "--exclude" not in render_verdict(found)
    assert b'"exclude"' not in msgspec.json.encode(found)


@pytest.mark.parametrize("guess", [KILLED, "srun: error: gpu-[01-04]: tasks 0-15: Terminated\n", ABORTED])
def test_i32_p6_without_a_named_cause_no_node_is_guessed(verdict, guess):
    # A blind swap takes a healthy node away: saforem2/ezpz#233; a missing sign of progress proves nothing: #232.
    found = verdict(guess)
    assert (found.node_action, found.exclude) == ("none", msgspec.UNSET)
    assert found.cause.slug in {"killed_unknown", "external_signal", "unknown"}


def test_i32_p6_tasks_that_a_line_names_together_contradict_a_smaller_world_size(verdict):
    wait = "RuntimeError: [/w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
    text = "world_size=3\n" + "".join(
        f"[rank{n}]: {line}\n"
        for n in (0, 1)
        for line in (
            "Traceback (most recent call last):",
            '  File "/w/t.py", line 3, in f',
            "    dist.all_reduce(x)",
            wait,
        )
    )
    assert (verdict(text).cause.slug, verdict(text).rank) == ("rank_stuck", 2)
    found = verdict(text + "srun: error: gpu-1: tasks 6-7: Exited with exit code 1\n")
    assert (found.cause.slug == "rank_stuck", found.rank == 2) == (False, False)


@pytest.mark.parametrize(
    ("killed", "expected"),
    [
        ("srun: error: gpu-17: task 6: Killed\n", (6, "gpu-17")),
        # Two were killed: the memory limit of either.
        ("srun: error: gpu-17: task 6: Killed\nsrun: error: gpu-18: task 9: Killed\n", (None, None)),
    ],
)
def test_the_only_killed_task_is_that_of_the_step_that_ran_out_of_memory(verdict, killed, expected):
    """Another task lost its peer meanwhile."""
    lost = "7: RuntimeError: [../gloo/transport/tcp/pair.cc:545] Connection closed by peer [10.0.0.2]:4242\n"
    found = verdict(f"{lost}{killed}{OOM}{end()}srun: error: gpu-11: tasks 0-3: Terminated\n")
    assert found.cause.slug == "host_oom"
    assert (found.rank, found.node) == expected
    if found.rank is not None:
        assert "killed_unknown" not in {one.slug for one in found.alternatives}


VICTIM = (
    "2: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:22188\n"
)


def test_a_victim_that_srun_names_by_its_code_does_not_take_the_memory_event_of_the_killed_task(verdict):
    found = verdict(f"{VICTIM}{OOM}{TASK_OOM}srun: error: gpu-11: task 2: Exited with exit code 1\n")
    assert (found.cause.slug, found.cause.confidence, found.rank, found.node) == ("host_oom", "likely", 6, "gpu-17")
