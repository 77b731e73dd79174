"""What Slurm's commands and variables say of an allocation, and the words and the environment of a step."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from rankfall.backends.slurm import allocation
from rankfall.backends.slurm.allocation import Allocation, Node
from rankfall.model import InfrastructureError, Refused
from support import fake_slurm
from support.helpers import wait_until

Env = dict[str, str]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Env:
    found = fake_slurm.install(tmp_path)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def says(env: Env, name: str, text: str) -> None:
    (Path(env["FAKE_SLURM"]) / name).write_text(text)


def test_i24_p10_nodes_come_in_slurms_order_with_their_addresses(env: Env) -> None:
    says(env, "nodes", "n2 ALLOCATED+DRAIN\nn3 DOWN*\n")
    found = allocation.read(os.environ)
    assert found == Allocation(
        job="77",
        nodes=(
            Node(name="n1", address="127.0.0.1"),
            Node(name="n2", address="127.0.0.1", troubled=True),
            Node(name="n3", address="127.0.0.1", troubled=True),
        ),
    )


def test_i24_p10_a_site_that_hides_its_nodes_is_asked_for_their_names_only(env: Env) -> None:
    says(env, "nodes", "all HIDDEN\n")
    assert [node.address for node in allocation.read(os.environ).nodes] == ["n1", "n2", "n3"]


NODES = tuple(Node(name=f"n{number}", address="a", troubled=number == 1) for number in range(1, 5))


@pytest.mark.parametrize(
    ("count", "exclude", "names"),
    [
        (4, (), "n1 n2 n3 n4"),
        (3, (), "n2 n3 n4"),
        (2, ("n2",), "n3 n4"),
        (2, ("n2", "n3"), "n1 n4"),
        # Where too few are left, one to avoid is better than no attempt.
        (3, ("n2", "n3"), "n1 n2 n4"),
    ],
)
def test_i24_p10_excluded_and_troubled_nodes_are_the_last_to_be_taken(
    count: int, exclude: tuple[str, ...], names: str
) -> None:
    found = Allocation(job="1", nodes=NODES).chosen(count, exclude=exclude)
    assert " ".join(node.name for node in found) == names


def test_i24_p10_an_allocation_that_is_too_small_is_refused_with_both_numbers() -> None:
    with pytest.raises(Refused, match=r"needs 5 nodes, Slurm job 1 has 4") as caught:
        Allocation(job="1", nodes=NODES).chosen(5)
    assert "sbatch --nodes 5, or --nnodes 4" in (caught.value.hint or "")


def test_i24_p10_without_an_allocation_it_is_refused(env: Env) -> None:
    with pytest.raises(Refused, match="SLURM_JOB_ID is not set"):
        allocation.read({name: value for name, value in env.items() if name != "SLURM_JOB_ID"})


def test_i24_p10_commands_that_are_missing_or_fail_are_named(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfrastructureError, match=r"scontrol failed: exit code 2") as caught:
        allocation.answer("scontrol", "show", "nonsense")
    assert caught.value.hint == "try it by hand: scontrol show nonsense"
    monkeypatch.setenv("PATH", "/nowhere")
    assert not allocation.inside(os.environ)
    with pytest.raises(Refused, match="needs scontrol, which is not in PATH"):
        allocation.read(os.environ)


@pytest.mark.parametrize(
    ("given", "nodes", "ranks"),
    [
        ({}, None, None),
        ({"SLURM_JOB_NUM_NODES": "2"}, 2, None),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "8"}, 2, 8),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "8"}, 2, 4),
        ({"SLURM_JOB_NUM_NODES": "x", "SLURM_NTASKS_PER_NODE": "", "SLURM_GPUS_ON_NODE": "0"}, None, None),
    ],
)
def test_i24_p10_the_allocation_suggests_nodes_and_ranks(given: Env, nodes: int | None, ranks: int | None) -> None:
    assert allocation.size(given) == (nodes, ranks)


def test_i24_p10_words_for_processes_use_what_the_allocation_has_on_a_node() -> None:
    given = {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "64"}
    found = [allocation.processors(given, word=word) for word in ("gpu", "cpu", "auto")]
    assert found == [8, 64, 8]
    assert [allocation.processors({}, word=word) for word in ("gpu", "cpu", "auto")] == [None, None, None]


ALLOCATED = {
    "PATH": "/bin",
    "SLURM_JOB_ID": "5",
    "SLURM_GPUS": "16",
    "SLURM_GPUS_PER_TASK": "1",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CPUS_PER_TASK": "12",
    "SLURM_MEM_PER_CPU": "4000",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_STEP_ID": "0",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_STDOUTMODE": "/dev/null",
    "SRUN_CPUS_PER_TASK": "12",
    "SLURM_SUBMIT_DIR": "/work",
}


def test_i24_p10_srun_gets_no_option_of_the_allocation_and_the_job_reads_them_all_the_same(env: Env) -> None:
    assert allocation.step_environment(ALLOCATED) == {
        name: ALLOCATED[name] for name in ("PATH", "SLURM_JOB_ID", "SLURM_GPUS_ON_NODE", "SLURM_SUBMIT_DIR")
    }
    words = allocation.step_words("5", node="n2", name="run-a1-s0", environ=ALLOCATED)
    assert words[0] == str(Path(env["PATH"].partition(os.pathsep)[0]) / "srun")
    at = words.index("/usr/bin/env")
    assert {"--jobid=5", "--nodelist=n2", "--nodes=1", "--ntasks=1", "--job-name=run-a1-s0", "--overlap"} < set(
        words[:at]
    )
    assert words[at + 1 :] == (
        *("-u", "SLURM_PROCID", "-u", "SLURM_LOCALID"),
        *("SLURM_CPUS_PER_TASK=12", "SLURM_GPUS=16", "SLURM_GPUS_PER_TASK=1", "SLURM_MEM_PER_CPU=4000"),
        "SLURM_NTASKS_PER_NODE=8",
    )


@pytest.mark.parametrize(
    ("fields", "slug"),
    [
        ("JobState=COMPLETING Reason=TimeLimit TimeLimit=00:01:00", "walltime_or_requeue"),
        ("JobState=TIMEOUT Reason=None TimeLimit=1-00:00:00", "walltime_or_requeue"),
        ("JobState=PREEMPTED Reason=None", "preempted"),
        ("JobState=RUNNING Reason=None StartTime=2026-11-27T16:00:00 PreemptTime=2026-11-27T16:13:57", "preempted"),
        ("JobState=RUNNING Reason=None StartTime=2026-11-27T17:00:00 PreemptTime=2026-11-27T16:13:57", None),
        ("JobState=RUNNING Reason=None StartTime=2026-11-27T17:00:00 PreemptTime=None", None),
        ("JobState=COMPLETING Reason=None", None),
        ("JobState=RUNNING Reason=None TimeLimit=00:01:00", None),
    ],
)
def test_i24_p10_why_slurm_ends_a_job(env: Env, fields: str, slug: str | None) -> None:
    says(env, "job", fields)
    found = allocation.end_reason("77")
    assert (found.slug if found else None) == slug
    if slug == "walltime_or_requeue" and found is not None:
        assert re.fullmatch(r"Slurm ends job 77 at its time limit of (00:01:00|1-00:00:00)", found.text)


def test_i24_p10_a_slurm_that_does_not_answer_explains_nothing(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert allocation.end_reason("77") is None


def test_i24_p10_a_job_that_slurm_has_forgotten_runs_no_more(env: Env) -> None:
    assert allocation.runs("77")
    says(env, "job", "JobState=COMPLETED")
    assert not allocation.runs("77")


def test_i24_p10_a_step_that_has_ended_hinders_no_signal_to_the_others(env: Env) -> None:
    allocation.send("TERM", ["77.1", "77.2"])
    assert allocation.steps("77", {"nothing"}) == []


STEP = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}


def test_i24_p10_the_other_tasks_of_an_srun_wait_for_task_0(tmp_path: Path) -> None:
    assert allocation.is_other_task(STEP | {"SLURM_PROCID": "2"})
    assert not allocation.is_other_task(STEP | {"SLURM_PROCID": "0"})
    assert not allocation.is_other_task({"SLURM_JOB_ID": "5", "SLURM_PROCID": "1"})
    assert not allocation.is_other_task(STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    done = threading.Event()

    def other() -> None:
        allocation.wait_for_task_0(STEP, home=tmp_path)
        done.set()

    waiting = threading.Thread(target=other)
    with allocation.other_tasks_waiting(STEP | {"SLURM_PROCID": "0"}, home=tmp_path):
        waiting.start()
        port = int((tmp_path / "slurm" / "task0-5.0").read_text().split()[1])
        wait_until(lambda: f":{port:04X} " in _established(), timeout=20, what="the connection")
        assert not done.is_set()
    waiting.join(20)
    assert done.is_set()
    assert not (tmp_path / "slurm" / "task0-5.0").exists()


def _established() -> str:
    lines = [
        *Path("/proc/self/net/tcp").read_text().splitlines(),
        *Path("/proc/self/net/tcp6").read_text().splitlines(),
    ]
    return "\n".join(line for line in lines if line.split()[3] == "01")


def test_i24_p10_a_task_0_that_never_comes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_FIND_S", 0.0)
    with pytest.raises(InfrastructureError, match="task 0 of this srun") as caught:
        allocation.wait_for_task_0(STEP, home=tmp_path)
    assert "srun --ntasks=1" in (caught.value.hint or "")


def test_i24_p10_one_task_keeps_nobody_waiting(tmp_path: Path) -> None:
    with allocation.other_tasks_waiting({}, home=tmp_path):
        assert not (tmp_path / "slurm").exists()
