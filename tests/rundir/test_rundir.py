"""Home, run directories, and the lease of the one writer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall.model import JobSpec, LockHeld, NotFound, StoreError, UsageError
from rankfall.model.jobspec.policies import Policies
from rankfall.rundir import Holder, RunDir, lease, list_runs
from rankfall.rundir.layout import default_home, home, prepare
from rankfall.rundir.lease import FileSystem, file_system
from support.helpers import wait_until
from support.patience import scaled

SPEC = JobSpec(name="train", command=("train.py",))
REQUEST, OTHER = "request-1", "request-2"


def test_home_is_made_with_its_layout_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFALL_HOME", str(tmp_path / "a" / "b"))
    assert home() == home() == tmp_path / "a" / "b"
    assert (home() / "layout").read_text() == "1\n"
    assert sorted(entry.name for entry in home().iterdir()) == ["inside", "layout", "runs"]


def test_home_without_the_variable_is_the_platforms_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKFALL_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_home() == tmp_path / "rankfall"
    assert not default_home().exists()


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "layout").write_text("2\n")
    with pytest.raises(StoreError, match=r"layout '2'; this Rankfall knows layout 1\n  next: "):
        prepare(tmp_path)


@pytest.mark.parametrize("where", ["/proc/rankfall-home", "/dev/null/home"])
def test_a_home_that_cannot_be_written_says_what_to_do(where: str) -> None:
    with pytest.raises(StoreError, match=r"cannot use .* as Rankfall's home: .*\n  next: set RANKFALL_HOME"):
        prepare(Path(where))
    with pytest.raises(StoreError):
        RunDir.create(SPEC, home=Path(where))


def test_a_home_that_may_only_be_read_can_be_read(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    made = RunDir.create(SPEC, home=open_folder)
    open_folder.chmod(0o555)
    for path in open_folder.rglob("*"):
        path.chmod(0o555)
    with as_user():
        assert RunDir.open(prepare(open_folder), made.id).spec == SPEC
        with pytest.raises(StoreError, match="cannot create a run directory"):
            RunDir.create(SPEC, home=open_folder)
        with pytest.raises(StoreError, match="cannot take the writer lock"), made.lease():
            pass


def test_a_folder_of_runs_that_cannot_be_read_is_said(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    prepare(open_folder)
    (open_folder / "runs").chmod(0)
    with as_user(), pytest.raises(StoreError, match=r"cannot read .*runs: Permission denied"):
        list_runs(open_folder)


def test_a_run_directory_has_its_paths(tmp_path: Path) -> None:
    run_dir = RunDir.create(SPEC, home=tmp_path)
    assert run_dir.id.startswith("train-")
    assert len(run_dir.id) == len("train-") + 6
    assert RunDir.open(tmp_path, run_dir.id).spec == SPEC
    assert run_dir.slot_dir(2, "worker", 3) == run_dir.path / "slots/attempt-2/worker-3"
    assert run_dir.stream_dir(2, "worker", 3) == run_dir.path / "logs/attempt-2/worker-3/0"
    assert run_dir.records_dir.is_dir()
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == [run_dir.id]


def test_the_same_request_makes_one_run(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(RunDir.create(SPEC, home=tmp_path, request_token=REQUEST).id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert RunDir.create(SPEC, home=tmp_path, request_token=OTHER).id != found[0]
    assert len(list_runs(tmp_path)) == 2


def test_launch_s56_launches_at_once_and_a_torn_file_cost_no_entry(tmp_path: Path) -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(RunDir.create(SPEC, home=tmp_path).id)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16
    for torn, name in zip(made, ("spec.json", "meta.json"), strict=False):
        path = tmp_path / "runs" / torn / name
        path.write_bytes(path.read_bytes()[:10])
    assert {run.id for run in list_runs(tmp_path)} == set(made)
    assert RunDir.open(tmp_path, made[5]).spec == SPEC


def test_a_run_is_opened_by_a_unique_beginning(tmp_path: Path) -> None:
    prepare(tmp_path)
    for name in ("train-aaaaaa", "train-aabbbb", "eval-cccccc"):
        (tmp_path / "runs" / name).mkdir()
    assert RunDir.open(tmp_path, "eval").id == "eval-cccccc"
    assert RunDir.open(tmp_path, "train-aab").id == "train-aabbbb"
    with pytest.raises(UsageError, match="several runs begin with train: train-aaaaaa, train-aabbbb"):
        RunDir.open(tmp_path, "train")
    with pytest.raises(NotFound, match="near it: train-aaaaaa"):
        RunDir.open(tmp_path, "trian-aaaaaa")
    (tmp_path / "runs" / "eval-big-dddddd").mkdir()
    assert RunDir.open(tmp_path, "eval").id == "eval-cccccc"
    with pytest.raises(UsageError, match="several runs begin with eva"):
        RunDir.open(tmp_path, "eva")
    for wrong in ("", "..", "../runs/eval-cccccc", "x" * 5000, "nothing\n"):
        with pytest.raises(NotFound):
            RunDir.open(tmp_path, wrong)


def test_runs_are_listed_newest_first_and_damaged_ones_too(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []
    made = [RunDir.create(SPEC, home=tmp_path) for _ in range(3)]
    (tmp_path / "runs" / "empty-000000").mkdir()
    (tmp_path / "runs" / ".new-leftover").mkdir()
    (tmp_path / "runs" / "file").write_text("x")
    (made[0].path / "meta.json").write_bytes(b"\xff")
    (made[1].path / "spec.json").write_text('{"command": 3}')
    listed = list_runs(tmp_path)
    assert [run.id for run in listed][-1] == "empty-000000"
    assert {run.id for run in listed} == {run.id for run in made} | {"empty-000000"}
    assert [run.id for run in listed][:2] == [made[2].id, made[1].id]
    with pytest.raises(StoreError, match=r"cannot read .*spec\.json"):
        _ = RunDir.open(tmp_path, made[1].id).spec
    summaries = []
    for run in listed:
        with run.reader() as reader:
            summaries.append(reader.summary())
    assert [one.state for one in summaries] == ["unknown"] * 4
    assert summaries[1].name == "train"


@pytest.fixture(params=["flock", "link"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "link":
        for module in ("rankfall.rundir.lease", "rankfall.rundir.directory"):
            monkeypatch.setattr(f"{module}.file_system", lambda _: FileSystem(name="nfs4", network=True))
    return str(request.param)


HOLD = """
import sys
from pathlib import Path
from rankfall.rundir import RunDir
if sys.argv[2] == "link":
    import rankfall.rundir.lease as lease, rankfall.rundir.directory as rundir
    from rankfall.rundir.lease import FileSystem
    lease.file_system = rundir.file_system = lambda _: FileSystem(name="nfs4", network=True)
with RunDir(Path(sys.argv[1])).lease() as writer:
    writer.set_run("running", at=1)
    print("held", flush=True)
    sys.stdin.read()
"""


def holding(run_dir: RunDir, kind: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, run_dir.path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_the_lease_is_refused_to_a_second_process_and_outlives_a_sigkill(run_dir: RunDir, kind: str) -> None:
    assert run_dir.lease_holder() is None
    with holding(run_dir, kind) as process:
        try:
            with pytest.raises(LockHeld, match=rf"is locked by process {process.pid} on ") as refused, run_dir.lease():
                pass
            assert run_dir.id in str(refused.value)
            holder = run_dir.lease_holder()
            assert holder is not None
            assert holder.pid == process.pid
            with run_dir.reader() as reader:
                assert reader.status(0).supervised
                assert reader.run().state == "running"
        finally:
            process.send_signal(signal.SIGKILL)
        process.communicate()
    assert run_dir.lease_holder() is None
    with run_dir.lease() as writer:
        assert writer.run().state == "running"
        holder = run_dir.lease_holder()
        assert holder is not None
        assert holder.pid == os.getpid()
    assert run_dir.lease_holder() is None
    with run_dir.reader() as reader:
        assert not reader.status(0).supervised


def test_who_waits_gets_the_lease_when_it_is_free(run_dir: RunDir, kind: str) -> None:
    process = holding(run_dir, kind)
    got = threading.Event()

    def wait() -> None:
        with run_dir.lease(wait=30):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        assert not got.is_set()
        process.communicate(b"")
        wait_until(got.is_set, timeout=20, what="the lease")
    finally:
        thread.join()
    assert not list(run_dir.path.glob(".lease*"))


COUNT = (
    HOLD[: HOLD.index("with ")]
    + """
path = Path(sys.argv[1])
for _ in range(15):
    with RunDir(path).lease(wait=60):
        number = int((path / "count").read_text())
        (path / "count").write_text(str(number + 1))
"""
)


def test_only_one_of_many_processes_writes_at_a_time(run_dir: RunDir, kind: str) -> None:
    (run_dir.path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, run_dir.path, kind]) for _ in range(3)]
    assert [process.wait(timeout=scaled(50)) for process in processes] == [0, 0, 0]
    assert (run_dir.path / "count").read_text() == "45"


@pytest.fixture
def orphaned(run_dir: RunDir) -> Iterator[Path]:
    """A lease whose holder was killed while it started a slot, and whose child has not come to its exec: it hangs on opening this pipe."""
    pipe = run_dir.path / "pipe"
    os.mkfifo(pipe)
    text = """
import os, sys
from pathlib import Path
from rankfall.rundir import RunDir
with RunDir(Path(sys.argv[1])).lease():
    print("held", flush=True)
    os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[2], os.O_RDONLY, 0)])
"""
    with subprocess.Popen(
        [sys.executable, "-c", text, str(run_dir.path), str(pipe)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        # Not killed before the child is there: only then does it have the file.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text().split(), timeout=20, what="the child")
        process.kill()
    yield pipe
    # Whoever still waits for a writer gets one.
    os.close(os.open(pipe, os.O_RDWR))


def test_a_lock_that_only_the_child_of_a_killed_holder_keeps_is_waited_for(
    run_dir: RunDir, orphaned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            os.close(os.open(orphaned, os.O_WRONLY))
        real(seconds)

    real = time.sleep
    monkeypatch.setattr(lease.time, "sleep", sleep)
    with run_dir.lease():
        assert len(slept) >= 3
        holder = run_dir.lease_holder()
        assert holder is not None
        assert holder.pid == os.getpid()


def test_a_lock_that_such_a_child_never_gives_back_is_refused_in_the_end(
    run_dir: RunDir, orphaned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_ORPHANED_S", 0.2)
    with pytest.raises(LockHeld), run_dir.lease():
        pass


def test_a_second_lease_in_the_same_process_is_refused_too(run_dir: RunDir, kind: str) -> None:
    with run_dir.lease(), pytest.raises(LockHeld), run_dir.lease(wait=0.1):
        pass


def test_a_link_of_another_host_is_never_broken(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "file_system", lambda _: FileSystem(name="nfs4", network=True))
    run_dir.lease_path.write_text('{"pid": 1, "host": "elsewhere.example", "start": 1}')
    with pytest.raises(LockHeld, match=r"process 1 on elsewhere\.example"), run_dir.lease():
        pass
    assert run_dir.lease_holder() == Holder(pid=1, host="elsewhere.example", start=1)


def test_another_boot_holds_nothing(run_dir: RunDir) -> None:
    with run_dir.lease():
        found = run_dir.lease_holder()
    assert found is not None
    gone = Holder(pid=found.pid, host=found.host, start=found.start, boot="another")
    assert found.alive()
    assert not gone.alive()
    assert not Holder(pid=found.pid, host=found.host, start=1).alive()


def test_a_lease_of_a_run_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no longer exists"), RunDir(tmp_path / "nothing").lease():
        pass


MOUNTS = r"""21 1 0:5 / / rw - ext4 /dev/a rw
22 21 0:6 / /data rw shared:1 - nfs4 server:/x rw
23 21 0:7 / /with\040space rw - fuse.sshfs me@x rw
24 22 {own} / /elsewhere rw - {kind} none rw
nonsense
"""


@pytest.mark.parametrize(
    ("kind", "network"), [("nfs4", True), ("fuse.sshfs", True), ("lustre", True), ("ext4", False), ("tmpfs", False)]
)
def test_network_file_systems_get_the_link_lock_and_no_wal(tmp_path: Path, kind: str, network: bool) -> None:  # noqa: FBT001 - a table
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(own=f"{os.major(device)}:{os.minor(device)}", kind=kind))
    found = file_system(tmp_path, mountinfo=mounts)
    assert found == FileSystem(name=kind, network=network)
    assert (found.lock, found.journal) == (("link", "DELETE") if network else ("flock", "WAL"))


def test_the_longest_mount_point_decides_where_no_device_number_fits(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    escaped = str(tmp_path).replace(" ", r"\040")
    mounts.write_text(
        f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / {escaped} rw - ceph b rw\n3 1 0:3 / {escaped}x rw - xfs c rw\n"
    )
    assert file_system(tmp_path, mountinfo=mounts).name == "ceph"
    assert file_system(tmp_path, mountinfo=tmp_path / "absent") == FileSystem(name="", network=False)
    assert not file_system(tmp_path).network


def test_a_token_of_another_job_is_refused_whoever_is_first(tmp_path: Path) -> None:
    names = [f"job-{number}" for number in range(8)]
    made: list[str] = []
    refused: list[str] = []

    def create(name: str) -> None:
        try:
            made.append(
                RunDir.create(msgspec.structs.replace(SPEC, name=name), home=tmp_path, request_token=REQUEST).id
            )
        except UsageError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=create, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.id for run in list_runs(tmp_path)] == made
    assert len(made) == 1
    assert len(refused) == 7
    assert all(f"run {made[0]} has this request token" in text for text in refused), refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": ("train.py", "--lr", "5")}, 'command[1] is "--lr", in the run nothing'),
        ({"command": ("other.py",)}, 'command[0] is "other.py", in the run "train.py"'),
        ({"env": {"A": "1", "TOKEN": "hunter2"}}, 'env.A is "1", in the run nothing; env.TOKEN is "***"'),
        ({"policies": Policies(max_restarts=7)}, "policies.max_restarts is 7, in the run 3"),
        ({"command": tuple("abcdefgh")}, "; and 3 more"),
    ],
)
def test_a_refused_token_names_run_and_differences(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    spec = JobSpec(name="train", command=("train.py",), env={"A_SECRET": "one"})
    first = RunDir.create(spec, home=tmp_path, request_token=REQUEST)
    change = change | ({"env": spec.env | change["env"]} if "env" in change else {})
    with pytest.raises(UsageError) as found:
        RunDir.create(msgspec.structs.replace(spec, **change), home=tmp_path, request_token=REQUEST)
    assert f"run {first.id} has this request token" in found.value.message
    assert said in found.value.message
    assert "hunter2" not in str(found.value)
    assert first.id in (found.value.hint or "")
    # Another Python, a rotated secret and changed messages are no other job.
    again = msgspec.structs.replace(spec, python="/usr/bin/python3", env={"A_SECRET": "two"})
    assert RunDir.create(again, home=tmp_path, request_token=REQUEST).id == first.id
    assert [run.id for run in list_runs(tmp_path)] == [first.id]
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == [first.id]


def test_a_run_of_an_earlier_version_under_the_same_token_is_found_by_its_name(tmp_path: Path) -> None:
    runs = [RunDir.create(msgspec.structs.replace(SPEC, name=name), home=tmp_path) for name in ("aaa", "train")]
    for run in runs:
        meta = json.loads((run.path / "meta.json").read_text())
        (run.path / "meta.json").write_text(json.dumps(meta | {"request_token": REQUEST}))
        run.path.rename(
            run.path.with_name(f"{run.spec.name}-{hashlib.sha256(f'0:{REQUEST}'.encode()).hexdigest()[:6]}")
        )
    found = RunDir.create(msgspec.structs.replace(SPEC, name="train"), home=tmp_path, request_token=REQUEST)
    assert found.spec.name == "train"
    with pytest.raises(UsageError, match="run aaa-"):
        RunDir.create(msgspec.structs.replace(SPEC, name="new"), home=tmp_path, request_token=REQUEST)
    assert len(list_runs(tmp_path)) == 2


def test_a_disk_without_room_for_a_run_is_refused_and_a_repeated_request_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunDir.create(SPEC, home=tmp_path, request_token="t1")  # noqa: S106 - no password
    monkeypatch.setattr("rankfall.rundir.directory.NEW_RUN_BYTES", 1 << 62)
    assert RunDir.create(SPEC, home=tmp_path, request_token="t1").path == first.path  # noqa: S106 - no password
    for token in (None, "other"):
        with pytest.raises(StoreError, match=r"no run can start: .* are needed\n  next: free space there"):
            RunDir.create(SPEC, home=tmp_path, request_token=token)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [first.id]
