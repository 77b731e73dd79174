"""Which run directories are removed, and which never."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.removal import Ended, Kept, Rules, chosen, ended, remove, remove_remains, size_of

_NS = 1_000_000_000


def made(
    home: Path,
    name: str = "job",
    *,
    state: str | None = "succeeded",
    at: int = 5 * _NS,
    log_dir: str | None = None,
) -> RunDir:
    run = RunDir.create(JobSpec(name=name, command=("true",), log_dir=log_dir), home=home)
    if state is not None:
        with run.lease() as writer:
            writer.set_run(state, at=at)  # type: ignore[arg-type]
    return run


def test_an_ended_run_is_removed_whole(tmp_path: Path) -> None:
    run = made(tmp_path)
    locked = run.path / "code" / "sub"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    locked.chmod(0o500)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (run.path / "link").symlink_to(outside)
    size = size_of(run.path)
    assert remove(run) == size > 0
    assert list(tmp_path.glob("runs/*")) == list(tmp_path.glob("runs/.removed-*")) == []
    assert (outside / "kept").exists()


@pytest.mark.parametrize("state", ["starting", "running", "restarting", "suspended", "queued", None])
def test_a_run_that_lives_stays(tmp_path: Path, state: str | None) -> None:
    run = made(tmp_path, state=state)
    with pytest.raises(Kept):
        remove(run)
    assert run.path.is_dir()


def test_a_run_with_a_holder_or_an_unfinished_end_stays(tmp_path: Path) -> None:
    held, cluster = made(tmp_path, "held"), made(tmp_path, "cluster")
    half, copies = made(tmp_path, "half", log_dir=str(tmp_path / "readable")), made(tmp_path, "copies")
    for run in (half, copies):
        run.end_lock_path.write_bytes(b"files\n")
    (cluster.path / "kube").mkdir()
    with held.lease(), (cluster.path / "kube" / "expiry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for run in (held, half, cluster):
            with pytest.raises(Kept):
                remove(run)
    # It lacks only copies in its own folder.
    remove(copies)
    assert len(list_runs(tmp_path)) == 3
    remove(held)
    remove(cluster)


def test_a_folder_that_is_no_run_stays(tmp_path: Path) -> None:
    real = made(tmp_path)
    folder, link = tmp_path / "runs" / "mine", tmp_path / "runs" / "linked"
    folder.mkdir()
    (folder / "thesis.txt").write_text("x")
    link.symlink_to(real.path)
    for path in (folder, link):
        with pytest.raises(Kept):
            remove(RunDir(path))
    assert (folder / "thesis.txt").exists()
    assert real.path.is_dir()


def test_a_damaged_run_stays(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.db_path.write_bytes(b"no database" * 1000)
    with pytest.raises(Kept, match="cannot be read"):
        remove(run)


def test_an_interrupted_removal_is_completed(tmp_path: Path) -> None:
    made(tmp_path).path.rename(tmp_path / "runs" / ".removed-0123")
    assert list_runs(tmp_path) == []
    assert remove_remains(tmp_path) > 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_of_two_removals_at_once_one_wins_and_the_other_says_so(tmp_path: Path) -> None:
    run = made(tmp_path)
    results: list[object] = []
    barrier = threading.Barrier(2)

    def go() -> None:
        barrier.wait()
        try:
            results.append(remove(RunDir(run.path)))
        except Exception as error:  # noqa: BLE001
            results.append(error)

    threads = [threading.Thread(target=go) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum(isinstance(one, int) for one in results) == 1
    assert sum(isinstance(one, Kept) for one in results) == 1, results
    assert list((tmp_path / "runs").iterdir()) == []


def rows(*ages: int) -> list[Ended]:
    return [Ended(run=RunDir(Path(f"/nowhere/run-{age:06x}")), at=(1000 - age) * _NS) for age in ages]


def names(found: list[Ended]) -> list[int]:
    return [int(one.run.id[-6:], 16) for one in found]


def test_rules_narrow_each_other() -> None:
    now = 1000 * _NS
    runs = rows(10, 20, 30, 40)
    assert names(chosen(Rules(older_than=15), runs, now=now)) == [40, 30, 20]
    assert names(chosen(Rules(keep=3), runs, now=now)) == [40]
    assert names(chosen(Rules(keep=0), runs, now=now)) == [40, 30, 20, 10]
    assert names(chosen(Rules(keep=9), runs, now=now)) == []
    assert names(chosen(Rules(keep=2, older_than=15), runs, now=now)) == [40, 30]


def test_the_oldest_go_until_all_runs_fit(tmp_path: Path) -> None:
    runs = [made(tmp_path, name, at=at * _NS) for name, at in (("a", 1), ("b", 2), ("c", 3))]
    live = made(tmp_path, "live", state="running")
    for run in (*runs, live):
        (run.path / "big").write_bytes(os.urandom(200_000))
    sizes = [size_of(run.path) for run in (*runs, live)]
    found = [ended(run) for run in runs]
    limit = sum(sizes) - sizes[0] - 1
    assert [one.run.id for one in chosen(Rules(max_size=limit), found, others=[live], now=0)] == [
        runs[0].id,
        runs[1].id,
    ]
    assert [one.run.id for one in chosen(Rules(max_size=limit, keep=2), found, others=[live], now=0)] == [runs[0].id]
    assert chosen(Rules(max_size=sum(sizes)), found, others=[live], now=0) == []
    assert chosen(Rules(max_size=0), found, others=[live], now=0, go_on=lambda: False) == []


@given(
    ages=st.lists(st.integers(0, 900), unique=True, max_size=12),
    keep=st.none() | st.integers(0, 14),
    older=st.none() | st.integers(0, 900),
)
def test_the_newest_stay_whatever_else_is_asked(ages: list[int], keep: int | None, older: int | None) -> None:
    if keep is None and older is None:
        return
    found = names(chosen(Rules(keep=keep, older_than=older), rows(*ages), now=1000 * _NS))
    assert not set(found) & set(sorted(ages)[: keep or 0])
    assert all(older is None or age > older for age in found)
    assert found == sorted(found, reverse=True)
