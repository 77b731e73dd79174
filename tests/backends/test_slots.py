"""Slots as processes: started exactly once, seen alive without a lock, told, and ended with all they left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall.backends.local import processes
from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.model import InfrastructureError, JobSpec, Policies
from rankfall.rundir import RunDir
from rankfall.rundir.lease import boot_id, start_ticks
from support.helpers import wait_until

WAIT = 20.0
# One process stays in the slot's session, one leaves it, both ignore SIGTERM once they are there.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
print("here", flush=True)
time.sleep(600)
"""


class Started:
    """A plan whose slots run."""

    def __init__(self, folder: Path, code: str, **fields: Any) -> None:
        (folder / "job.py").write_text(code)
        policies = Policies(grace_s=fields.pop("grace", 3.0))
        spec = JobSpec(command=("job.py",), launcher="plain", cwd=str(folder), policies=policies, **fields)
        self.run = RunDir.create(spec, home=folder / "home")
        self.backend = LocalBackend()
        self.plan: Plan = self.backend.plan(spec, self.run, 1)
        self.folders = [Path(slot.slot_dir) for slot in self.plan.slots]

    def submit(self) -> tuple[int, ...]:
        return self.backend.submit(self.plan)

    def until(self, life: str, slot: int = 0) -> None:
        wait_until(lambda: self.backend.life(self.plan, slot) == life, timeout=WAIT, what=f"slot {slot} {life}")

    def output(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.run.logs_dir.rglob("*.log")))

    def close(self) -> None:
        for folder in self.folders:
            processes.end_members(folder, grace=0.0)
        self.backend.release()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    made: list[Started] = []

    def make(code: str, **fields: Any) -> Started:
        made.append(Started(tmp_path, code, **fields))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_slot_lives_and_ends(start: Any) -> None:
    job = start("input_is_closed = input")
    assert job.backend.life(job.plan, 0) == "absent"
    assert job.submit() == (0,)
    job.until("ended")
    assert not job.backend.alive(job.plan, 0)


def test_a_slot_is_started_once_however_often_it_is_asked_for(start: Any) -> None:
    job = start("print('once')", nnodes=2)
    assert job.submit() == (0, 1)
    assert job.submit() == ()
    assert LocalBackend().submit(job.plan) == ()
    for slot in (0, 1):
        job.until("ended", slot)
    assert LocalBackend().submit(job.plan) == ()
    assert job.output() == b"once\nonce\n"


def test_standard_input_is_empty_and_the_folder_is_the_jobs(start: Any, tmp_path: Path) -> None:
    job = start("import os, sys; print(repr(sys.stdin.read()), os.getcwd())")
    job.submit()
    job.until("ended")
    assert job.output().decode() == f"'' {tmp_path}\n"


def test_i18_p9_a_stored_plan_starts_slots_with_the_values_of_its_secrets(start: Any) -> None:
    value = "abcdefgh-secret"
    job = start("import os; print(os.environ['A_TOKEN'][::-1])", env={"A_TOKEN": value})
    stored = msgspec.json.encode(job.plan.row())
    assert value.encode() not in stored + repr(job.plan).encode()
    # As a supervisor that takes over has it: from the stored row, and the spec without values.
    plan = Plan.of_row(msgspec.json.decode(stored), RunDir(job.run.path).spec)
    assert plan == job.plan
    kept = (job.run.path / "secrets.json").read_bytes()
    (job.run.path / "secrets.json").unlink()
    with pytest.raises(InfrastructureError, match="is masked and not in secrets"):
        LocalBackend().submit(plan)
    (job.run.path / "secrets.json").write_bytes(kept)
    strange = msgspec.structs.replace(plan, env={"A_TOKEN": "***\0/env/OTHER"})
    with pytest.raises(InfrastructureError, match="no secret value for /env/OTHER"):
        LocalBackend().submit(strange)
    assert job.backend.life(plan, 0) == "absent"
    assert LocalBackend().submit(plan) == (0,)
    job.until("ended")
    assert job.output().decode() == f"{value[::-1]}\n"
    # What runs, or has run, is taken over without them.
    (job.run.path / "secrets.json").unlink()
    assert LocalBackend().submit(plan) == ()


def test_a_stop_is_heard_and_its_reason_kept(start: Any) -> None:
    job = start("import time\nprint('here', flush=True)\ntime.sleep(600)")
    job.submit()
    wait_until(job.output, timeout=WAIT, what="a line")
    assert job.backend.stop(job.plan, [0], grace=2.0, reason="enough is\nenough") == (0,)
    job.until("ended")
    assert b"enough is enough" in (job.folders[0] / "kills.jsonl").read_bytes()
    # The wrapper writes its end first and leaves a moment later.
    wait_until(
        lambda: job.backend.stop(job.plan, [0], grace=2.0, reason="again") == (), timeout=WAIT, what="a deaf slot"
    )


def test_nobody_hears_in_a_slot_that_does_not_run(start: Any) -> None:
    job = start("pass")
    assert job.backend.stop(job.plan, [0], grace=1.0, reason="x") == ()
    assert job.backend.request_stacks(job.plan, [0]) == ()


def test_a_wrapper_that_is_killed_is_dead_and_what_it_left_is_ended(start: Any) -> None:
    job = start(STUBBORN)
    job.submit()
    wait_until(lambda: job.output().count(b"here") == 2, timeout=WAIT, what="both processes")
    wrapper = int((job.folders[0] / "lock").read_bytes().split()[0])
    os.kill(wrapper, signal.SIGKILL)
    job.until("dead")
    assert len(processes.members(job.folders[0])) == 2
    assert job.backend.end(job.plan, [0], grace=0.2) == 2
    assert processes.members(job.folders[0]) == []
    assert LocalBackend().submit(job.plan) == ()


def test_a_wrapper_that_never_came_up_is_dead(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = start("pass")
    monkeypatch.setattr(processes, "_UNSEEN_S", 0.0)
    broken = Plan.of_row(job.plan.row(), job.run.spec)
    words = (*broken.slots[0].argv[:3], "/nowhere", "wrap")
    pid = processes.start(words, env=dict(os.environ), cwd=broken.slots[0].cwd, slot_dir=job.folders[0])
    assert pid is not None
    os.waitpid(pid, 0)
    assert processes.life(job.folders[0]) == "dead"
    assert b"nowhere" in (job.folders[0] / processes.MARK).read_bytes()


def test_a_process_that_is_unseen_for_a_moment_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows no environment of a process while it begins another program."""
    env = os.environ | {"RANKFALL_SLOT_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env) as process:
        wait_until(lambda: processes.members(tmp_path), timeout=WAIT, what="the process")
        real = processes.members
        looks = [list[int]()]
        monkeypatch.setattr(processes, "members", lambda folder: looks.pop() if looks else real(folder))
        assert processes.end_members(tmp_path, grace=5.0) == 1
    assert process.returncode == -signal.SIGTERM


def test_members_are_only_those_of_this_slot(start: Any) -> None:
    job = start("pass")
    folder = job.folders[0]
    code = "import time; print(1, flush=True); time.sleep(600)"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=os.environ | {"RANKFALL_SLOT_DIR": value}, stdout=subprocess.PIPE
        )
        for value in (str(folder), f"{folder}0", str(folder.parent))
    ]
    try:
        for one in others:
            assert one.stdout is not None
            assert one.stdout.readline() == b"1\n"
        assert processes.members(folder) == [others[0].pid]
    finally:
        for one in others:
            one.kill()
            one.communicate()


def test_a_slot_that_cannot_be_started_says_why(start: Any) -> None:
    job = start("pass")
    job.folders[0].parent.mkdir(parents=True)
    job.folders[0].write_text("a file where the folder should be")
    with pytest.raises(InfrastructureError, match="could not be started") as caught:
        job.submit()
    assert caught.value.hint
    job.folders[0].unlink()


@pytest.mark.parametrize("text", ["", "x", "1", "99999999 5 -", "OWN 1 -", "OWN 0 another-boot"], ids=str)
def test_a_lock_that_names_nobody_alive_is_no_life(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(
        text.replace("OWN", str(os.getpid()))
    )  # ids of tests must not differ between workers
    (tmp_path / "end.json").write_text("{}")
    assert processes.life(tmp_path) == "ended"


def test_a_living_holder_is_life_even_when_its_start_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"{os.getpid()} 0 -\n")
    assert processes.life(tmp_path) == "running"
    (tmp_path / "lock").write_text(f"{os.getpid()} {start_ticks(os.getpid())} {boot_id()}\n")
    assert processes.life(tmp_path) == "running"
