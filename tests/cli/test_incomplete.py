"""A disk that takes nothing for a while, or for good: the job goes on, and every surface says what the record lacks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.conftest import Runner
from rankfall.model import FINAL_STATES, EvidenceLost, JobSpec
from rankfall.rundir import RunDir, list_runs
from rankfall.supervisor import spawn_detached
from support.helpers import wait_until

LINES = 40_000
PRINTS = f"""
import os, time
rank, gate = os.environ["RANK"], os.environ["GATE"]
def lines(first, last):
    for number in range(first, last):
        print(f"rank {{rank}} line {{number:06d}} of a job that prints a lot", flush=number % 100 == 99)
lines(0, {LINES // 2})
open(f"{{gate}}.{{rank}}", "w").close()
while not os.path.exists(gate):
    time.sleep(0.02)
lines({LINES // 2}, {LINES})
print("done", flush=True)
"""
LOST = re.compile(r"record incomplete: (\d+) lines of ranks 0, 1 between \S+Z and \S+Z of attempt 1 are missing")


def mounted(*words: str) -> bool:
    return subprocess.run(("mount", *words), capture_output=True, check=False).returncode == 0


@pytest.fixture
def at_end() -> Iterator[Callable[[Path], None]]:
    """Unmounts at the test's end what it was given."""
    with ExitStack() as stack:

        def take(path: Path) -> None:
            stack.callback(subprocess.run, ("umount", "-l", str(path)), check=True)

        yield take


@pytest.fixture
def tiny(home: Path, at_end: Callable[[Path], None]) -> Path:
    """A home with room for a part of what the job prints."""
    home.mkdir()
    assert mounted("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home))
    at_end(home)
    return home


@pytest.fixture
def job(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job, which waits for this file in its middle."""
    (folder / "prints.py").write_text(PRINTS)
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    return tmp_path / "gate"


WORDS = ("--launcher", "plain", "--nproc-per-node", "2", "prints.py")


def begun(rankfall: Runner, gate: Path) -> None:
    """Start it detached and wait until both ranks have printed the first half."""
    done = rankfall("submit", *WORDS)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: all(Path(f"{gate}.{rank}").exists() for rank in (0, 1)), timeout=40, what="the first half")


def everywhere(rankfall: Runner, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """What each surface says."""
    logs = rankfall("logs", "-o", "json")
    *lines, last = [json.loads(line) for line in logs.stdout.splitlines()]
    assert last["lost_lines"]
    shown = [
        logs.stderr,
        "record incomplete: " + last["incomplete"][0],
        rankfall("status").stdout,
        "record incomplete: " + json.loads(rankfall("status", "-o", "json").stdout)["incomplete"][0],
        " ".join(rankfall("why").stdout.split()),
        json.loads(rankfall("why", "-o", "json").stdout)["missing"][0],
        rankfall("wait").stderr + rankfall("status").stdout,
    ]
    found = [pattern.search(text) for text in shown]
    assert all(found), shown
    assert all("text" in line for line in lines)
    return [one for one in found if one is not None]


@pytest.mark.root
def test_i19_p4_a_full_disk_of_a_local_run_is_told_with_the_exact_number_on_every_surface(rankfall, tiny, job):
    begun(rankfall, job)
    assert subprocess.run(("mount", "-o", "remount,size=200m", str(tiny)), check=True).returncode == 0
    job.touch()
    assert rankfall("wait").returncode == 0
    shown = rankfall("logs", "--no-prefix")
    assert shown.returncode == 65
    lines = shown.stdout.splitlines()
    (lost,) = {int(found[1]) for found in everywhere(rankfall, LOST)}
    # Nothing else is missing, and no line is glued to another one.
    assert lost > 0
    assert len(lines) + lost == 2 * (LINES + 1)
    whole = re.compile(r"rank [01] line \d{6} of a job that prints a lot|done")
    cut = [line for line in lines if not whole.fullmatch(line)]
    assert len(cut) <= 2 * 4
    assert all(line.count("rank") <= 1 for line in cut)


@pytest.mark.root
def test_i19_p4_a_disk_that_stays_full_still_has_room_for_the_end_and_what_is_lost(rankfall, tiny, job):
    job.touch()
    done = rankfall("run", *WORDS)
    assert done.returncode == 0, done.stderr
    found = LOST.search(done.stderr)
    assert found is not None, done.stderr
    everywhere(rankfall, LOST)
    lines = rankfall("logs", "--no-prefix").stdout.splitlines()
    assert len(lines) + int(found[1]) == 2 * (LINES + 1)
    status = json.loads(rankfall("status", "-o", "json").stdout)
    assert [rank["exit"] for rank in status["ranks"]] == ["0", "0"]


@pytest.mark.root
def test_a_home_that_a_job_filled_refuses_the_next_run_until_prune_made_room(rankfall, tiny, job):
    job.touch()
    assert rankfall("run", "--name", "filled", *WORDS).returncode == 0
    waited = rankfall("wait", "filled")
    assert waited.returncode == 0
    assert LOST.search(waited.stderr), waited.stderr
    before = [path.name for path in (tiny / "runs").iterdir()]
    for verb in ("run", "submit"):
        refused = rankfall(verb, "--name", "next", *WORDS)
        assert refused.returncode == 74, refused.stderr
        assert re.search(r"no run can start: .* \d+ KiB free; 2048 KiB are needed\n.*prune --keep 0", refused.stderr)
    assert [path.name for path in (tiny / "runs").iterdir()] == before
    assert rankfall("prune", "--keep", "0", "--yes").stdout.startswith("removed filled-")
    assert (
        rankfall("run", "-q", "--name", "next", "--launcher", "plain", "-e", f"GATE={job}", "train.py").returncode == 0
    )


@pytest.mark.root
@pytest.mark.parametrize("left_kib", [0, 700])
def test_a_home_that_fills_before_the_supervisor_begins_keeps_no_queued_run(tiny, folder, left_kib):
    run = RunDir.create(JobSpec(command=(str(folder / "train.py"),), python=sys.executable), home=tiny)
    found = os.statvfs(tiny)
    (tiny / "fill").write_bytes(bytes(found.f_bavail * found.f_frsize - (left_kib << 10)))
    with pytest.raises(EvidenceLost, match=f"{run.id} could not start and was deleted: .*\n.*prune --keep 0") as caught:
        spawn_detached(run)
    assert "no room" in caught.value.message or "disk is full" in caught.value.message
    assert not list((tiny / "runs").iterdir())


@pytest.mark.root
@pytest.mark.parametrize("left_kib", [0, 36, 40])
def test_a_cancel_that_a_full_home_cannot_store_is_no_success_and_is_repeated_later(rankfall, tiny, left_kib):
    """The supervisor was killed, and its journal with the reserved room is gone."""
    assert rankfall("submit", "--name", "held", "--suspend", "train.py").returncode == 0
    (run,) = list_runs(tiny)
    holder = run.lease_holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: run.lease_holder() is None, timeout=40, what="the supervisor's death")
    with contextlib.closing(sqlite3.connect(run.db_path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    found = os.statvfs(tiny)
    (tiny / "fill").write_bytes(bytes(found.f_bavail * found.f_frsize - (left_kib << 10)))
    done = rankfall("cancel", run.id)
    with run.reader() as reader:
        assert reader.run().state not in FINAL_STATES
    assert done.returncode == 74, done.stderr
    assert "cancelled" not in done.stdout
    assert "next: free space" in done.stderr
    (tiny / "fill").unlink()
    assert rankfall("cancel", run.id).stdout == f"{run.id} cancelled\n"
    with run.reader() as reader:
        assert reader.run().state == "cancelled"


@pytest.mark.root
def test_i19_p4_a_disk_that_becomes_read_only_is_told_and_nothing_is_counted(rankfall, home, job, at_end, tmp_path):
    home.mkdir()
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(("mkfs.ext4", "-q", str(image)), capture_output=True, check=False)
    if made.returncode or not mounted("-o", "loop,errors=remount-ro", str(image), str(home)):
        pytest.skip("needs ext4 and the right to mount a loop device")
    at_end(home)
    device = subprocess.run(("findmnt", "-no", "SOURCE", str(home)), capture_output=True, text=True, check=True)
    trigger = Path("/sys/fs/ext4", Path(device.stdout.strip()).name, "trigger_fs_error")
    if not trigger.exists():
        pytest.skip("needs an ext4 that can be told to fail")
    begun(rankfall, job)
    trigger.write_text("1")
    job.touch()
    lock = next(home.glob("runs/*/slots/attempt-1/*/lock"))
    command = lock.read_text().split()[0]
    wait_until(lambda: not Path(f"/proc/{command}").exists(), timeout=40, what="the wrapper's end")
    pattern = re.compile(r"record incomplete: lines of slot 0 between \S+Z and the end of attempt 1 may be missing")
    found = everywhere(rankfall, pattern)
    assert found
    assert rankfall("logs").returncode == 0
