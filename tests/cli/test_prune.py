"""``rm``, ``prune`` and retention with real runs: what goes, what stays, and what happens when both meet."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from cli.conftest import Runner, command
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.removal import size_of
from support.patience import scaled


def ended(rankfall: Runner, name: str, *words: str) -> str:
    run = rankfall("submit", "--name", name, "--launcher", "plain", *words, "train.py").stdout.strip()
    rankfall("wait", run)
    return run


def test_an_ended_run_is_removed_and_what_was_freed_is_printed(home: Path, rankfall: Runner) -> None:
    run, other = ended(rankfall, "one"), ended(rankfall, "two")
    unsure = rankfall("rm", run)
    assert unsure.returncode == 2
    assert "-y" in unsure.stderr
    missing = rankfall("rm", "-y", run, "nosuch")
    assert missing.returncode == 66
    assert {one.id for one in list_runs(home)} == {run, other}
    done = rankfall("rm", "--yes", run)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"removed {run} [\d.]+ [KM]iB\n", done.stdout)
    assert "removed 1 run," in done.stderr
    assert [one.id for one in list_runs(home)] == [other]
    assert rankfall("rm").returncode == 2


def test_a_terminal_is_asked(home: Path, rankfall: Runner, folder: Path) -> None:
    run = ended(rankfall, "one")
    for answer, left in ((b"n\n", 1), (b"y\n", 0)):
        leader, follower = pty.openpty()
        started = subprocess.Popen(
            command("rm", run), cwd=folder, stdin=follower, stderr=follower, stdout=subprocess.DEVNULL
        )
        os.close(follower)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(leader, 4096)
        os.write(leader, answer)
        code = started.wait(scaled(50))
        os.close(leader)
        assert code == (130 if left else 0)
        assert b"Delete 1 run " in shown
        assert len(list_runs(home)) == left


def test_a_live_run_and_a_folder_of_the_user_stay(home: Path, folder: Path, rankfall: Runner) -> None:
    old = ended(rankfall, "old")
    live = rankfall("submit", "--name", "live", "--launcher", "plain", "-e", f"GATE={folder / 'gate'}", "train.py").stdout.strip()  # fmt: skip
    mine = home / "runs" / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    refused = rankfall("rm", "-y", live)
    assert refused.returncode == 2
    assert f"rankfall cancel {live}" in refused.stderr
    assert rankfall("rm", "-y", old, live).returncode == 2
    assert rankfall("rm", "-y", "mine").returncode == 2
    assert rankfall("prune", "-y").returncode == 2
    for wrong in (("--older-than", "30"), ("--older-than", "0"), ("--max-size", "10")):
        bare = rankfall("prune", *wrong, "-y")
        assert bare.returncode == 2
        assert f"{wrong[0]} {wrong[1]} has no unit" in bare.stderr
    assert "next: rankfall prune --keep 0 --yes\n" in rankfall("prune", "--keep", "0").stderr
    tried = rankfall("prune", "--keep", "0", "--dry-run")
    assert tried.stdout.startswith(f"{old} ")
    assert "1 of 3 runs" in tried.stderr
    done = rankfall("prune", "--keep", "0", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"removed {old} ")
    assert {path.name for path in (home / "runs").iterdir()} == {live, "mine"}
    (folder / "gate").touch()
    assert rankfall("wait", live).returncode == 0
    assert rankfall("prune", "--older-than", "1h", "-y").stdout == ""
    assert rankfall("prune", "--max-size", "1K", "-y").stdout.startswith(f"removed {live} ")
    assert (mine / "thesis.txt").exists()


def test_a_run_that_begins_while_old_ones_are_removed_is_whole(
    home: Path, folder: Path, rankfall: Runner, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    for name in ("a", "b", "c"):
        ended(rankfall, name)
    running = [
        start(
            "run",
            "-q",
            "--name",
            f"new-{n}",
            "--launcher",
            "plain",
            "train.py",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for n in range(2)
    ]
    pruning = [
        start("prune", "--older-than", "0s", "-y", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    for one in (*pruning, *running):
        _, err = one.communicate(timeout=scaled(100))
        assert b"defect" not in err
        # Of two that meet at one run, one finds it gone.
        assert one.returncode in ({0} if one in running else {0, 2, 66}), err
    left = {run.id.rpartition("-")[0] for run in list_runs(home)}
    # A new run that ended before prune listed it may be gone too; an old one never stays.
    assert left <= {"new-0", "new-1"}
    assert not [path for path in (home / "runs").iterdir() if path.name.startswith(".")]


def test_an_ended_run_stays_until_its_output_is_printed(
    home: Path, folder: Path, rankfall: Runner, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    (folder / "loud.py").write_text("for n in range(20_000):\n    print(f'line {n} ' + 60 * 'x')\n")
    # Nobody reads its standard output yet, so it cannot print the end.
    running = start("run", "--name", "loud", "--launcher", "plain", "loud.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert running.stderr is not None
    while b"run loud-" not in (line := running.stderr.readline()):
        assert line
    run = line.split()[-1].decode()
    assert rankfall("wait", run).returncode == 0
    refused = rankfall("rm", "-y", run)
    assert refused.returncode == 2
    assert f"another process still prints the output of {run}" in refused.stderr
    pruned = rankfall("prune", "--older-than", "0s", "-y")
    assert pruned.returncode == 0
    assert f"{run} stays: " in pruned.stderr
    out, _ = running.communicate(timeout=scaled(50))
    assert running.returncode == 0
    assert out.count(b"line ") == 20_000
    assert rankfall("rm", "-y", run).returncode == 0


def test_retention_of_the_config_is_applied_when_a_run_begins(home: Path, tmp_path: Path, rankfall: Runner) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[retention]\nkeep = 1\n")
    old, newer = ended(rankfall, "old"), ended(rankfall, "newer")
    tried = rankfall("run", "--dry-run", "--launcher", "plain", "train.py", RANKFALL_CONFIG=str(config))
    assert tried.returncode == 0, tried.stderr
    assert len(list_runs(home)) == 2
    done = rankfall("run", "-q", "--name", "next", "--launcher", "plain", "train.py", RANKFALL_CONFIG=str(config))
    assert done.returncode == 0, done.stderr
    assert "retention: removed 1 old runs" in done.stderr
    assert old not in {one.id for one in list_runs(home)}
    assert newer in {one.id for one in list_runs(home)}
    # Without a rule on the command line, prune uses the same ones.
    assert rankfall("prune", "--dry-run", RANKFALL_CONFIG=str(config)).stdout.startswith(newer)


def test_an_empty_run_keeps_at_most_100_kb(home: Path, folder: Path, rankfall: Runner) -> None:
    (folder / "empty.py").write_text("pass\n")
    run = rankfall("submit", "--name", "empty", "--launcher", "plain", "empty.py").stdout.strip()
    assert rankfall("wait", run).returncode == 0
    path = RunDir.open(home, run).path
    # wait may see the end before the supervisor has closed the database.
    while RunDir(path).lease_holder() is not None:
        rankfall("status", run)
    # The content of the files: what a copy of the folder needs, on any file system.
    files = [one for one in path.rglob("*") if one.is_file()]
    assert sum(one.stat().st_size for one in files) <= 100_000, [(one.name, one.stat().st_size) for one in files]
    assert size_of(path) <= 200_000
    assert "succeeded" in rankfall("status", run).stdout


def test_a_run_whose_end_is_incomplete_stays_and_names_a_way_out_of_a_full_disk(home: Path, rankfall: Runner) -> None:
    folder = home.with_name("readable")
    run = ended(rankfall, "kept", "--log-dir", str(folder))
    other = ended(rankfall, "copies")
    for one in (run, other):
        (home / "runs" / one / "closing").touch()
    live = rankfall("submit", "--name", "live", "--suspend", "train.py").stdout.strip()
    # Of the other run only copies in its own folder are missing.
    pruned = rankfall("prune", "--keep", "0", "--yes")
    assert pruned.stdout.startswith(f"removed {other} ")
    assert {one.id for one in list_runs(home)} == {run, live}
    stay = sorted(line for line in pruned.stderr.splitlines() if " stays: " in line)
    assert [line.split()[1] for line in stay] == [run, live]
    assert f"the end of {run} is incomplete; rankfall attach {run} completes it" in stay[0]
    assert f"{live} has not ended: " in stay[1]
    assert stay[1].endswith(f"; rankfall cancel {live}")
    assert rankfall("cancel", live).returncode in {0, 130}
    kept = rankfall("rm", "--yes", run)
    assert kept.returncode != 0
    assert f"rankfall attach {run} completes it" in kept.stderr
    assert f"delete {home / 'runs' / run} yourself" in kept.stderr
    # As the next step says, even from a mark that a full disk left empty.
    assert rankfall("attach", run).returncode == 0
    assert rankfall("rm", "--yes", run).returncode == 0
