"""Records from hostile hands, by each way that one can come: bounded, passed over with a word about it, never followed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfall.collect.pods.instance_folders import MAX_LINE, MAX_RECORDS, RecordIntake
from rankfall.collect.stores import record_store
from rankfall.collect.stores.record_store import FOLDER, RecordStore
from rankfall.evidence.attempt.activity import read_steps
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.model import JobSpec, Verdict
from rankfall.render.verdict import Details, render_verdict
from rankfall.rundir import RunDir
from rankfall.rundir.records import MAX_RECORD, read_untrusted_file
from rankfall.verdict.diagnose import diagnose
from support.cases import T0, S
from support.object_store import put_many, s3_server
from support.patience import scaled

HUGE = 200 << 20
# More than a line of it is kept nowhere: what the reader may take for a record, and as much for what it makes of it.
MEMORY = 8 * MAX_RECORD
CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x00\x08"


class Folder:
    """A run of two slots of one rank each whose rank 1 fell of a KeyError, and the folder that its records lie in.

    Args:
        home: of the run.
        store: a shared folder for the records instead of the run's own.
        bucket: they are in this one of an object store's instead, as soon as somebody looks.
    """

    def __init__(self, home: Path, *, store: Path | None = None, bucket: str | None = None) -> None:
        where = f"s3://{bucket}/team" if bucket else f"file://{store}" if store is not None else None
        self._bucket = bucket
        self.spec = JobSpec(command=("train.py",), nnodes=2, nproc_per_node=1, record_store=where)
        self.run = RunDir.create(self.spec, home=home)
        self.run.records_dir.mkdir(parents=True, exist_ok=True)
        self.path = store / self.run.id / FOLDER if store is not None else self.run.records_dir
        self.path.mkdir(parents=True, exist_ok=True)
        for slot in range(2):
            self.write("slot_start", slot)
            self.write("start", slot, rank=slot, world_size=2, ordinal=0, pid=9)
        self.error(1, "builtins.KeyError", "'vocab'", at=1)
        self.error(0, "builtins.ConnectionResetError", "Connection reset by peer", at=2)
        for slot in range(2):
            self.write("end", slot, at=3, rank=slot, pid=9, exit={"code": 1, "how": "pidfd"})
            self.write("slot_end", slot, at=4, exit={"code": 1})

    def record(self, kind: str, slot: int, *, at: float = 0.0, **fields: Any) -> dict[str, Any]:
        stamp = T0 + round(at * S)
        said = {
            "schema": "rankfall.record/1",
            "id": f"{kind}-{slot}-id",
            "kind": kind,
            "run": self.run.id,
            "attempt": 1,
        }
        return said | {"slot": slot, "role": "worker", "node": f"n{slot}", "at_ns": stamp, "writer": "hook"} | fields

    def write(self, kind: str, slot: int, *, name: str = "own", at: float = 0.0, **fields: Any) -> Path:
        path = self.path / f"{kind}-a1-worker-{slot}-{name}.json"
        path.write_text(json.dumps(self.record(kind, slot, at=at, **fields)))
        os.utime(path, ns=(T0 + round(at * S),) * 2)
        return path

    def error(self, slot: int, kind: str, text: str, *, at: float, name: str = "own", **fields: Any) -> Path:
        error = {"types": [kind], "chain": [text], "message": text, "raised_ns": T0 + round(at * S)}
        own = {"rank": slot, "pid": 9, "error": error, "id": f"error-{slot}-{name}"} | fields
        return self.write("error", slot, at=at, name=name, **own)

    def send(self) -> None:
        """Put what is in the folder where it is read from."""
        for path in self.path.iterdir() if self._bucket else ():
            put_many(self._bucket or "", [f"team/{self.run.id}/{FOLDER}/{path.name}"], path.read_bytes())
            path.unlink()

    def fetched(self) -> RecordStore:
        """The store after one look at it."""
        made = RecordStore(self.spec.record_store or "", run=self.run.id, attempt=1, into=self.run.records_dir)
        made.fetch()
        return made

    def verdict(self) -> Verdict:
        self.send()
        observer = AttemptObserver(
            self.run,
            spec=self.spec,
            attempt=1,
            record_store=record_store.record_store_of(self.run, self.spec, attempt=1),
        )
        observer.poll(T0 + 60 * S)
        return diagnose(observer.case()).verdict


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server("hostile") as environ:
        yield environ


@pytest.fixture(params=["folder", "store", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The folder of the run itself, that of a shared record store, and an object store."""
    if request.param == "folder":
        return Folder(tmp_path / "home")
    if request.param == "store":
        return Folder(tmp_path / "home", store=tmp_path / "shared")
    for name, value in request.getfixturevalue("server").items():
        monkeypatch.setenv(name, value)
    # A look waits no longer on a machine that has other things to do.
    monkeypatch.setattr(record_store, "LIMIT_S", 40.0)
    return Folder(tmp_path / "home", store=tmp_path / "to-send", bucket="hostile")


def right(verdict: Verdict, *words: str) -> None:
    """The verdict is as without the stranger, and says of it what it should."""
    assert (verdict.rank, verdict.cause.slug, [one.rank for one in verdict.consequences]) == (
        1,
        "user_code_exception",
        [0],
    )
    said = "\n".join(verdict.missing)
    for word in words:
        assert word in said


# Looks at the run in a process of its own: what the server of the object store takes in this one is not the reader's.
LOOK = """
import json, re, sys, tracemalloc
from pathlib import Path
from rankfall.verdict.diagnose import diagnose
from rankfall.collect.stores import record_store
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.rundir import RunDir

def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

record_store.LIMIT_S = 40.0
run = RunDir(Path(sys.argv[1]))
if sys.argv[3] == "python":
    tracemalloc.start()
observer = AttemptObserver(run, spec=run.spec, attempt=1, record_store=record_store.record_store_of(run, run.spec, attempt=1))
observer.poll(int(sys.argv[2]))
verdict = diagnose(observer.case()).verdict
memory = tracemalloc.get_traced_memory()[1] if sys.argv[3] == "python" else most()
said = [verdict.rank, verdict.cause.slug, [one.rank for one in verdict.consequences], list(verdict.missing)]
print(json.dumps({"memory": memory, "said": said}))
"""


def looked(run: RunDir, way: str) -> tuple[int, list[Any]]:
    """The most memory that a look took, and what it found.

    Args:
        run: looked at.
        way: ``python`` = what Python's own objects took; ``process`` = the whole process, with its libraries.
    """
    done = subprocess.run(
        (sys.executable, "-c", LOOK, str(run.path), str(T0 + 60 * S), way),
        capture_output=True,
        timeout=scaled(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    return found["memory"], found["said"]


def test_errors_s15_a_record_of_200_mb_is_named_and_costs_no_memory(folder: Folder) -> None:
    folder.send()
    ways = ("python", "process")
    without = {way: looked(folder.run, way)[0] for way in ways}
    path = folder.path / "error-a1-worker-0-huge.json"
    with path.open("wb") as file:
        file.write(b'{"schema": "rankfall.record/1", "id": "huge", "kind": "error", "notes": ["')
        file.truncate(HUGE)
    folder.send()
    for way in ways:
        memory, (rank, slug, followed, missing) = looked(folder.run, way)
        assert (rank, slug, followed) == (1, "user_code_exception", [0])
        assert any(path.name in text and f"larger than {MAX_RECORD} bytes" in text for text in missing)
        assert memory < without[way] + MEMORY, way


def test_errors_s15_a_trace_of_a_million_lines_is_used_or_named_and_never_kept(folder: Folder) -> None:
    trace = "  File train.py\n" * 1_000_000
    error = {"types": ["builtins.ConnectionError"], "chain": ["lost"], "message": "lost", "traceback": trace}
    folder.error(0, "", "", at=2.5, name="long", error=error)
    verdict = folder.verdict()
    right(verdict, "larger than")
    # One that just fits is read, and what is kept of it is a line.
    fits = error | {"traceback": trace[: MAX_RECORD // 2].replace("\n", " ")}
    folder.error(0, "", "", at=2.5, name="fits", error=fits)
    verdict = folder.verdict()
    right(verdict)
    assert max(len(piece.line or "") for piece in verdict.evidence) <= 2000


def test_errors_s24_records_of_other_runs_and_attempts_in_the_same_folder_are_not_used(folder: Folder) -> None:
    early = {"kind": "builtins.ValueError", "text": "of another", "at": 0.1}
    folder.error(0, early["kind"], early["text"], at=early["at"], name="run", run="other-000000")
    folder.error(0, early["kind"], early["text"], at=early["at"], name="attempt", attempt=2)
    right(folder.verdict())


def test_errors_s24_a_slot_that_the_job_has_not_is_named_and_not_followed(folder: Folder) -> None:
    folder.write("slot_start", 99, name="forged")
    folder.write("start", 99, name="forged", rank=7, pid=3, world_size=2)
    folder.error(99, "builtins.ValueError", "forged", at=0.1, name="forged")
    folder.send()
    observer = AttemptObserver(
        folder.run,
        spec=folder.spec,
        attempt=1,
        record_store=record_store.record_store_of(folder.run, folder.spec, attempt=1),
    )
    observer.poll(T0 + 60 * S)
    case = observer.case()
    assert {facts.slot for facts in case.slots} == {0, 1}
    assert {facts.rank for facts in case.ranks} == {0, 1}
    assert case.ended
    right(diagnose(case).verdict, "slot 99", "which this job does not have")


@pytest.mark.parametrize("folder", ["folder", "store"], indirect=True)
def test_links_pipes_and_folders_are_named_and_not_followed(folder: Folder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(folder.record("error", 0, id="secret", error={"types": ["builtins.ValueError"]})))
    (folder.path / "error-a1-worker-0-link.json").symlink_to(secret)
    os.mkfifo(folder.path / "error-a1-worker-0-pipe.json")
    (folder.path / "error-a1-worker-0-folder.json").mkdir()
    verdict = folder.verdict()
    right(verdict)
    assert "secret" not in json.dumps([piece.line for piece in verdict.evidence])
    if folder.spec.record_store is None:
        right(verdict, "links are not followed", "not a regular file")


@pytest.mark.parametrize("folder", ["bucket"], indirect=True)
def test_errors_s24_names_that_no_recorder_gives_are_not_read_and_thousands_hide_no_record(folder: Folder) -> None:
    forged = json.dumps(folder.record("error", 0, id="forged", error={"types": ["builtins.ValueError"]})).encode()
    below = f"team/{folder.run.id}/{FOLDER}"
    strange = [
        "a b.json",
        "error-a1-worker-0-\x1b[2J.json",
        "error-a1-worker-0-\x00.json",
        "error-a1-worker-0-\u202e.json",
        "../error-a1-worker-0-up.json",
        "/error-a1-worker-0-root.json",
        "x/error-a1-worker-0-deep.json",
        "error-a1-worker-0-x",
        "error-a1-worker-0-%41.json",
        "%2e%2e/e",
        "%2e%2e",
        "&#x1b;.json",
        "\ufffe.json",
        "\U0001f600.json",
        "<Key>error-a1-worker-0-xml.json</Key>",
    ]
    put_many("hostile", [f"{below}/{name}" for name in strange], forged)
    put_many("hostile", (f"{below}/{number:06d}.json" for number in range(3000)), forged)
    # Beside the folder, under a name that begins as its own, and of another run.
    put_many(
        "hostile", [f"{below}-more/error-a1-worker-0-a.json", "team/other/errors/error-a1-worker-0-b.json"], forged
    )
    verdict = folder.verdict()
    # Of the strange names five are in folders below, which are not listed.
    right(
        verdict, "3010 objects in s3://hostile/team without the name of a record were not read; the first is '%2e%2e'"
    )
    kept = {path.name for path in folder.run.records_dir.iterdir()}
    assert len(kept) == 10
    assert "forged" not in "".join(path.read_text() for path in folder.run.records_dir.iterdir())


@pytest.mark.parametrize("folder", ["bucket"], indirect=True)
def test_a_listing_without_end_is_left_at_the_limit_and_that_is_said(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many("hostile", (f"team/{folder.run.id}/{FOLDER}/zz-{number:06d}" for number in range(1500)), b"x")
    folder.send()
    monkeypatch.setattr(record_store, "LIMIT_S", 0.0)
    *_, problem = folder.fetched().problems
    assert "the rest of the records in s3://hostile/team: reading them took more than 0 s" in problem


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[" * 100_000, b"\xff\xfe{", b'{"id": 7}', b'{"id": "x", "kind": "error", "rank": "0"}', b"{" * 9],
)
def test_what_is_no_record_is_passed_over(folder: Folder, data: bytes) -> None:
    (folder.path / "error-a1-worker-0-bad.json").write_bytes(data)
    right(folder.verdict(), "error-a1-worker-0-bad.json")


def test_control_bytes_of_a_record_reach_no_terminal(folder: Folder) -> None:
    folder.error(
        1, "builtins.ValueError", f"a{CONTROLS}b", at=0.5, name="evil", node=f"n1{CONTROLS}", pod=f"p{CONTROLS}"
    )
    details = Details(frames=(f"f{CONTROLS}.py:1 in g",), before=(f"line{CONTROLS}",))
    shown = render_verdict(folder.verdict(), source=f"run{CONTROLS}", details=details, width=100)
    assert not set(CONTROLS) & set(shown) - {"\n"} - set("]0;owned[2J31m")


def test_numbers_out_of_range_stop_nothing(folder: Folder) -> None:
    lost = ("builtins.ConnectionResetError", "Connection reset by peer")
    folder.error(0, *lost, at=2, name="far", at_ns=1 << 70)
    folder.error(0, *lost, at=2, name="rank", rank=10**12, pid=-5)
    folder.write("start", 0, name="rank", id="rank", rank=-7, pid=-5, world_size=10**9)
    verdict = folder.verdict()
    assert (verdict.rank, verdict.cause.slug) == (1, "user_code_exception")


# -- one file


def test_a_plain_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_untrusted_file(path, limit=1000)[0] == b"x" * 100
    assert read_untrusted_file(path, limit=10)[0] == b"x" * 10
    with pytest.raises(FileNotFoundError):
        read_untrusted_file(tmp_path / "none", limit=1)


def test_a_pipe_among_the_signs_of_life_is_waited_for_by_nobody(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    progress.mkdir()
    os.mkfifo(progress / "0.json")
    (progress / "1.json").write_text('{"step": 4}')
    assert [step.ordinal for step in read_steps(tmp_path)] == [1]


# -- the log channel and the termination message

CHANNEL = "t0k3n"


@pytest.fixture
def intake(tmp_path: Path) -> RecordIntake:
    folder = tmp_path / "records"
    folder.mkdir()
    return RecordIntake(
        folder,
        token=CHANNEL,
        run="train-1",
        attempt=1,
        role="worker",
        slot=0,
        uid="u0",
        on_progress=lambda record: None,
    )


def said(**fields: Any) -> bytes:
    record = {
        "schema": "rankfall.record/1",
        "id": "0123456789",
        "kind": "error",
        "run": "train-1",
        "attempt": 1,
    } | fields
    return json.dumps(record).encode()


def line(data: bytes, *, channel: str = CHANNEL) -> bytes:
    return b"\x1erankfall/1 " + channel.encode() + b" " + base64.urlsafe_b64encode(data)


@pytest.mark.parametrize(
    "data",
    [
        line(said(), channel="other"),
        line(said(run="other-000000")),
        line(said(attempt=2)),
        line(said(slot=5)),
        line(said(role="ps")),
        line(said(id="../../../etc/passwd")),
        line(said(id="x" * 65)),
        line(said(notes=["x" * MAX_LINE])),
        line(b"[" * 5000),
        line(b"\xff\xfe"),
        b"\x1erankfall/1 t0k3n ====\x1b]0;owned\x07",
        b"\x1erankfall/1 t0k3n ",
    ],
)
def test_errors_s24_a_line_that_is_no_record_of_this_slot_stays_a_line(intake: RecordIntake, data: bytes) -> None:
    assert not intake.take(data, T0)
    assert intake.refused == 1
    assert list(intake._folder.iterdir()) == []


def test_a_worker_that_names_another_pod_is_told_by_the_pod_whose_log_it_is(intake: RecordIntake) -> None:
    assert intake.take(line(said(pod="other-pod", pod_uid="forged")), T0)
    (path,) = intake._folder.iterdir()
    kept = json.loads(path.read_bytes())
    assert (kept["pod_uid"], kept["slot"], path.parent) == ("u0", 0, intake._folder)


def test_a_job_that_found_the_token_does_not_fill_the_disk(intake: RecordIntake) -> None:
    intake._taken = MAX_RECORDS
    assert not intake.take(line(said()), T0)


def test_a_termination_message_gives_two_records_at_most_and_nothing_of_others(intake: RecordIntake) -> None:
    hostile = [said(id=f"0123456789-{number}", message=CONTROLS) for number in range(50)]
    text = b"\n".join([b"\x1b[2J", said(run="other-000000"), said(slot=3), b"[" * 3000, *hostile]).decode()
    assert intake.take_message(text) == 2
    assert len(list(intake._folder.iterdir())) == 2
