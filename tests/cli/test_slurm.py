"""Runs inside an allocation, as a user's sbatch script starts them; Slurm is a stand-in, processes and signals are real."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankfall.rundir import list_runs
from support import fake_slurm
from support.helpers import gone, wait_until, waits_for
from support.patience import scaled

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]
PLAIN = ("--launcher", "plain")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
# n2 has a bad GPU; elsewhere a second attempt ends well.
ECC = """
import os, sys, time
print("on", os.environ["SLURMD_NODENAME"], flush=True)
if os.environ["SLURMD_NODENAME"] == "n2":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
if os.environ["RANKFALL_ATTEMPT"] == "1":
    time.sleep(600)
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    return fake_slurm.install(tmp_path / "slurm", nodes=2)


def wrappers_of(slurm: dict[str, str]) -> list[int]:
    """Process ids of the wrappers of all steps."""
    return [int(path.read_text().split()[0]) for path in (Path(slurm["FAKE_SLURM"]) / "steps").iterdir()]


def ranks_of(folder: Path) -> list[str]:
    """Processes that run in the folder of the job."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_bytes().decode())
    return found


def one_rank(start: Starter, slurm: dict[str, str], folder: Path, code: str) -> subprocess.Popen[bytes]:
    """A run of one rank on one node, which has begun ``code``."""
    (folder / "train.py").write_text(f"import os, sys, time\nopen('ready', 'w').close()\n{code}\n")
    process = start("run", *PLAIN, "--nnodes", "1", "train.py", env=slurm, **PIPES)
    wait_until((folder / "ready").exists, timeout=30, what="the rank")
    return process


def verdict(rankfall: Runner, slurm: dict[str, str], attempt: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rankfall("why", "--attempt", str(attempt), "-o", "json", **slurm).stdout)
    return found


def test_i24_p10_run_in_an_allocation_uses_all_of_its_nodes_and_names_the_one_that_failed(
    rankfall: Runner, slurm: dict[str, str]
) -> None:
    done = rankfall("run", *PLAIN, "train.py", "fail", **slurm)
    assert done.returncode == 1
    assert "Slurm job 77: nodes n1, n2" in done.stderr
    assert "Rank 1 on n2 raised TypeError" in done.stderr
    assert done.stderr.splitlines()[-1] == "rankfall-exit: rank 1"
    found = verdict(rankfall, slurm)
    assert (found["rank"], found["node"], found["cause"]["slug"]) == (1, "n2", "user_code_exception")
    assert not any("srun" in piece["line"] for piece in found["evidence"])
    assert "TypeError" in rankfall("logs", "--rank", "1", **slurm).stdout


def test_i24_p10_tasks_and_gpus_of_the_allocation_are_ranks_and_their_variables_fit(
    rankfall: Runner, slurm: dict[str, str], folder: Path
) -> None:
    names = ("RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK")
    (folder / "show.py").write_text(f"import os\nprint(*(os.environ.get(name) for name in {names!r}), flush=True)\n")
    more = {"SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "6", "SLURM_EXPORT_ENV": "NONE"}
    done = rankfall("run", *PLAIN, "show.py", **slurm, **more)
    assert done.returncode == 0, done.stderr
    assert "2 nodes x 2 ranks" in done.stderr
    lines = rankfall("logs", "--all", **slurm).stdout.splitlines()
    assert sorted(line.partition("] ")[2] for line in lines) == [
        "0 0 0 0 4 6", "1 1 1 0 4 6", "2 2 0 1 4 6", "3 3 1 1 4 6",
    ]  # fmt: skip


@pytest.mark.steady
def test_i24_p10_a_bad_node_is_left_for_a_spare_one(rankfall: Runner, tmp_path: Path, folder: Path) -> None:
    slurm = fake_slurm.install(tmp_path / "slurm")
    (folder / "train.py").write_text(ECC)
    done = rankfall("run", *PLAIN, "--nnodes", "2", "--max-restarts", "1", "train.py", **slurm)
    assert done.returncode == 0, done.stderr
    assert "Slurm job 77: nodes n1, n2" in done.stderr
    assert "Restarting on another node" in done.stderr
    assert "Slurm job 77: nodes n1, n3" in done.stderr
    found = verdict(rankfall, slurm)
    assert (found["node"], found["cause"]["slug"], found["decision"]["action"]) == ("n2", "gpu_ecc", "retry_elsewhere")


def test_i24_p10_without_a_spare_node_the_same_one_is_used_again_and_the_plan_says_so(
    rankfall: Runner, slurm: dict[str, str], folder: Path
) -> None:
    (folder / "train.py").write_text(ECC.replace("time.sleep(600)", "sys.exit()"))
    done = rankfall("run", *PLAIN, "--max-restarts", "1", "train.py", **slurm)
    assert done.returncode == 1
    assert verdict(rankfall, slurm)["decision"]["action"] == "retry"
    assert "Slurm job 77 has no other nodes: n2 again" not in done.stderr


@pytest.mark.parametrize("words", [("--backend", "local"), ("--standalone",)])
def test_i24_p10_this_machine_alone_on_request(rankfall: Runner, slurm: dict[str, str], words: tuple[str, ...]) -> None:
    done = rankfall("run", *words, *PLAIN, "--dry-run", "-o", "json", "train.py", **slurm)
    assert [slot["node"] for slot in json.loads(done.stdout)["slots"]] == ["node0"]


def test_i24_p10_more_nodes_than_the_allocation_has_are_refused(rankfall: Runner, slurm: dict[str, str]) -> None:
    done = rankfall("run", "--nnodes", "5", "train.py", **slurm)
    assert done.returncode == 2
    assert "$.nnodes: the job needs 5 nodes, Slurm job 77 has 2" in done.stderr
    assert "sbatch --nodes 5, or --nnodes 2; --backend local" in done.stderr
    done = rankfall("run", "--backend", "slurm", "train.py", SLURM_JOB_ID="")
    assert done.returncode == 2
    assert "salloc" in done.stderr


@pytest.mark.steady
def test_i24_p10_an_srun_that_is_killed_loses_its_slot_and_leaves_no_process(
    rankfall: Runner, start: Starter, slurm: dict[str, str], folder: Path
) -> None:
    """Two troubles: the client of a step dies, and what it started lives on."""
    ready = [folder / f"ready{rank}" for rank in range(2)]
    (folder / "train.py").write_text(
        "import os, time\nopen('ready' + os.environ['RANK'], 'w').close()\ntime.sleep(600)\n"
    )
    process = start("run", *PLAIN, "--max-restarts", "0", "train.py", env=slurm, **PIPES)
    wait_until(lambda: all(path.exists() for path in ready), timeout=30, what="both ranks")
    steps = Path(slurm["FAKE_SLURM"]) / "steps"
    (client,) = (int(path.name.partition(".")[2]) for path in steps.iterdir() if path.read_text().endswith("-s1"))
    wrappers = wrappers_of(slurm)
    os.kill(client, signal.SIGKILL)
    _, error = process.communicate(timeout=scaled(50))
    text = error.decode()
    assert "slot 1 on n2 is lost: its wrapper vanished without a record of its end" in text
    assert "Slot 1 on n2 was killed" in text, text
    for pid in wrappers:
        wait_until(lambda pid=pid: gone(pid), timeout=10, what=f"the end of process {pid}")  # type: ignore[misc]
    assert not ranks_of(folder)


def test_i24_p10_at_the_time_limit_the_batch_system_is_the_cause_and_no_user(
    rankfall: Runner, start: Starter, slurm: dict[str, str], folder: Path
) -> None:
    """Slurm sends SIGTERM to the steps and to the supervisor; a cancel would look the same."""
    process = one_rank(start, slurm, folder, "time.sleep(600)")
    (Path(slurm["FAKE_SLURM"]) / "job").write_text("JobState=COMPLETING Reason=TimeLimit TimeLimit=01:00:00")
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=scaled(50))
    assert "The job was stopped by the batch system at its time limit" in error.decode()
    found = verdict(rankfall, slurm)
    assert (found["cause"]["slug"], found["cause"]["confidence"], found["retry"]) == (
        "walltime_or_requeue",
        "proven",
        "yes",
    )
    assert found["decisive"]["line"] == "Slurm ends job 77 at its time limit of 01:00:00"


def test_i24_p10_steps_that_slurm_ends_for_another_job_were_preempted(
    rankfall: Runner, start: Starter, slurm: dict[str, str], folder: Path
) -> None:
    """With a grace time Slurm signals the steps, and the batch script only at its end."""
    process = one_rank(start, slurm, folder, "time.sleep(600)")
    (Path(slurm["FAKE_SLURM"]) / "job").write_text("JobState=RUNNING StartTime=2026-01-01 PreemptTime=2026-01-02")
    for pid in wrappers_of(slurm):
        os.kill(pid, signal.SIGTERM)
    _, error = process.communicate(timeout=scaled(50))
    assert "rankfall-exit: rankfall 130" in error.decode()
    found = verdict(rankfall, slurm)
    assert (found["cause"]["slug"], found["state"], found["decisive"]["line"]) == (
        "preempted", "cancelled", "Slurm preempts job 77",
    )  # fmt: skip


def test_i24_p10_a_killed_supervisor_is_replaced_on_its_machine_only(
    rankfall: Runner, start: Starter, slurm: dict[str, str], folder: Path, home: Path
) -> None:
    process = one_rank(start, slurm, folder, f"{waits_for(folder / 'go')}\nprint('went on', flush=True)")
    process.kill()
    process.communicate()
    (run,) = list_runs(home)
    kept = (run.path / "slurm.json").read_bytes()
    (run.path / "slurm.json").write_bytes(json.dumps({"job": "77", "host": "elsewhere"}).encode())
    done = rankfall("attach", run.id, **slurm)
    assert done.returncode == 69
    assert f"run {run.id} runs in Slurm job 77, and only a process on elsewhere can supervise it" in done.stderr
    (run.path / "slurm.json").write_bytes(kept)
    (folder / "go").touch()
    done = rankfall("attach", run.id, **slurm)
    assert done.returncode == 0, done.stderr
    assert "went on" in rankfall("logs", run.id, "--all", **slurm).stdout


def test_i24_p10_srun_with_several_tasks_starts_one_run(
    rankfall: Runner, start: Starter, slurm: dict[str, str], home: Path
) -> None:
    step = slurm | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    other = start("run", *PLAIN, "train.py", "fail", env=step | {"SLURM_PROCID": "1"}, **PIPES)
    first = rankfall("run", *PLAIN, "train.py", "fail", **step, SLURM_PROCID="0")
    assert first.returncode == 1
    out, error = other.communicate(timeout=scaled(60))
    assert (other.returncode, out, error) == (0, b"", b"")
    assert len(list_runs(home)) == 1
