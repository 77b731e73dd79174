"""A database that is damaged or lost while the job runs and its supervisor is dead: nothing of the job is forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import Runner
from rankfall.rundir import RunDir, database, list_runs
from support.helpers import wait_until, waits_for

WAIT = 40
# The first attempt fails; processes of the second one ignore SIGTERM and wait for the gate.
JOB = """
import os, signal, sys, time
rank, attempt = os.environ["RANK"], os.environ["RANKFALL_ATTEMPT"]
if attempt == "1":
    if rank == "1":
        os.kill(os.getpid(), 9)
    time.sleep(600)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({begun!r} + rank, "w").write(str(os.getpid()))
{waits}
"""


@pytest.fixture
def second_attempt(rankfall: Runner, folder: Path, home: Path, tmp_path: Path) -> Iterator[RunDir]:
    """A run in its second attempt, whose supervisor was killed."""
    begun, gate = tmp_path / "begun-", tmp_path / "gate"
    (folder / "twice.py").write_text(JOB.format(begun=str(begun), waits=waits_for(gate)))
    (folder / "job.yaml").write_text(
        f"command: [twice.py]\npython: {sys.executable}\nlauncher: plain\nnnodes: 2\npolicies: {{grace_s: 0.5}}\n"
    )
    done = rankfall("submit", "-f", "job.yaml", "--name", "twice")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: all(Path(f"{begun}{rank}").exists() for rank in (0, 1)), timeout=WAIT, what="both ranks")
    (run,) = list_runs(home)
    kill_supervisor(run)
    yield run
    gate.touch()
    wait_until(lambda: not processes_of(run), timeout=WAIT, what="the job's end")


def kill_supervisor(run: RunDir) -> None:
    holder = run.lease_holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: run.lease_holder() is None, timeout=WAIT, what="the supervisor's death")


def processes_of(run: RunDir) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(f"RANKFALL_SLOT_DIR={run.path}/") in text:
                found.append(int(entry.name))
    return found


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(80_000))


def cut(path: Path) -> None:
    os.truncate(path, 9000)


def overwrite_middle(path: Path) -> None:
    """The first page, with the schema, stays."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


def remove(path: Path) -> None:
    path.unlink()


def older_copy(path: Path) -> None:
    """A valid database from the time of the first attempt."""
    plan = database.open_for_reading(path)
    first = plan.execute("SELECT started, plan FROM attempts WHERE attempt = 1").fetchone()
    plan.close()
    path.unlink()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    copy, _ = database.open_for_writing(path, journal="DELETE")
    copy.execute("INSERT INTO attempts (attempt, started, state, plan) VALUES (1, ?, 'running', ?)", first)
    copy.execute("UPDATE run SET state = 'running'")
    copy.close()


Damage = Callable[[Path], None]
DAMAGE = (overwrite, overwrite_middle, remove, older_copy)


def damage(run: RunDir, how: Damage, *, journal: bool = False) -> None:
    """Without ``journal``, the journal is lost too, except where the damage needs it."""
    how(run.db_path)
    for suffix in () if journal or how is older_copy else ("-wal", "-shm"):
        run.db_path.with_name(run.db_path.name + suffix).unlink(missing_ok=True)


@pytest.mark.parametrize("how", [DAMAGE[0], *(pytest.param(how, marks=pytest.mark.full) for how in DAMAGE[1:])])
def test_cancel_ends_the_processes_of_an_attempt_that_the_database_lost(
    rankfall: Runner, second_attempt: RunDir, how: Damage
) -> None:
    run = second_attempt
    damage(run, how)
    # A killed wrapper leaves its rank, and a lock whose process number another process may get.
    lock = run.slot_dir(2, "worker", 1) / "lock"
    pid, *rest = lock.read_text().split()
    os.kill(int(pid), signal.SIGKILL)
    stranger = subprocess.Popen(
        ("sleep", "600"), env={"RANKFALL_RUN": run.id, "RANKFALL_SLOT_DIR": f"{run.path}.other"}
    )
    lock.write_text(" ".join((str(stranger.pid), *rest)) + "\n")
    try:
        done = rankfall("cancel", run.id)
        assert done.returncode == 0, done.stderr
        assert f"{run.id} cancelled" in done.stdout
        assert not processes_of(run)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert f"run.db lost attempt{' 2' if how is older_copy else 's 1, 2'}, restored from" in done.stderr
    assert "run.db lost attempt" in rankfall("status", run.id).stdout
    with run.reader() as reader:
        assert [row.state for row in reader.attempts()] == ["unknown", "cancelled"]


@pytest.mark.parametrize("how", [cut, older_copy])
def test_attach_goes_on_with_an_attempt_that_the_database_lost(
    rankfall: Runner, second_attempt: RunDir, how: Damage, tmp_path: Path
) -> None:
    run = second_attempt
    damage(run, how, journal=True)
    (tmp_path / "gate").touch()
    done = rankfall("attach", run.id)
    assert done.returncode == 0, done.stderr
    assert "run.db lost attempt" in done.stderr
    waited = rankfall("wait", run.id)
    assert waited.returncode == 0
    assert "run.db lost attempt" in waited.stderr
    with run.reader() as reader:
        assert [row.state for row in reader.attempts()] == ["unknown", "succeeded"]
    if how is cut:
        assert list(run.path.glob("run.db.damaged-1-wal"))


def test_a_lost_attempt_that_cannot_be_planned_again_is_kept_and_can_be_cancelled(
    rankfall: Runner, second_attempt: RunDir, folder: Path
) -> None:
    run = second_attempt
    damage(run, overwrite)
    (folder / "twice.py").unlink()
    refused = rankfall("attach", run.id)
    assert refused.returncode == 74, refused.stderr
    assert "lost attempt 1, which cannot be planned again" in refused.stderr
    assert f"rankfall cancel {run.id}" in refused.stderr
    assert processes_of(run)
    done = rankfall("cancel", run.id)
    assert done.returncode == 0, done.stderr
    assert not processes_of(run)


def test_a_slot_that_restarted_alone_is_found_in_its_newest_start(
    rankfall: Runner, folder: Path, home: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "begun-"
    (folder / "alone.py").write_text(
        f"""
import os, time
open({str(begun)!r} + os.environ["RANKFALL_SLOT"] + os.environ.get("RANKFALL_INSTANCE", "0"), "w").close()
if os.environ["RANKFALL_SLOT"] == "1" and os.environ.get("RANKFALL_INSTANCE", "0") == "0":
    os.kill(os.getpid(), 9)
time.sleep(600)
"""
    )
    (folder / "job.yaml").write_text(
        f"command: [alone.py]\npython: {sys.executable}\nlauncher: exec\nnnodes: 2\nrestart_scope: replica\n"
    )
    assert rankfall("submit", "-f", "job.yaml", "--name", "alone").returncode == 0
    wait_until(lambda: Path(f"{begun}11").exists() and Path(f"{begun}00").exists(), timeout=WAIT, what="the restart")
    (run,) = list_runs(home)
    kill_supervisor(run)
    damage(run, remove)
    done = rankfall("cancel", run.id)
    assert done.returncode == 0, done.stderr
    assert not processes_of(run)
    with run.reader() as reader:
        assert {facts.slot: (facts.instance, facts.state) for facts in reader.slots(1)} == {
            0: (0, "ended"),
            1: (1, "ended"),
        }
