"""``logs --log-source loki``: what the API no longer has comes into the record, and is shown as everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec
import pytest

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.cli import app
from rankfall.collect.loki.attempt_lines import LokiLive
from rankfall.collect.stores.log_store import AT, StoreCopies, Volume
from rankfall.loki import LokiError
from rankfall.loki.reader import Entry
from rankfall.loki.settings import LokiSettings
from rankfall.model import JobSpec, LockHeld, Record, Refused, StoreError
from rankfall.model.jobspec.kubernetes import Kubernetes
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.log_routes import stamp_text
from rankfall.supervisor.backfill import LokiFollow
from support.feeding import CHANNEL, record_line
from support.helpers import wait_until

BEGAN = 1_800_000_000 * 10**9
URL = ("--log-source", "loki", "--loki-url", "http://loki:3100")


class FakeLoki:
    rows: tuple[Entry, ...] = ()
    error: LokiError | None = None

    def __init__(self, settings, *, keys) -> None:
        assert settings.url == "http://loki:3100"
        assert keys[:3] == ("namespace", "pod", "container")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def query_range(self, query, *, start, end, limit):
        if self.error is not None:
            raise self.error
        return [one for one in self.rows if start <= one.at < end and ("|=" not in query or CHANNEL in one.text)][
            :limit
        ]


@pytest.fixture
def run(home, monkeypatch):
    monkeypatch.setattr("rankfall.loki.client.Loki", FakeLoki)
    made = RunDir.create(JobSpec(name="job", command=("x",), backend="job"), home=home)
    place = ClusterPlan(
        backend="job", object="x", context="c", namespace="here", selector="a=b", container="main",
        token=CHANNEL, bases={"worker": 0},
    )  # fmt: skip
    plan = Plan(attempt=1, launcher="plain", slots=(), cluster=place)
    with made.lease() as writer:
        writer.begin_attempt(1, at=BEGAN, plan=plan.row())
        writer.end_attempt(1, at=BEGAN + 10**10, state="failed")
        writer.set_run("failed", reason=None, at=BEGAN + 10**10)
    labels = {"pod": "job-0"}
    first = record_line(made.id, 0, 1, kind="slot_start", writer="wrapper", pod_uid="u1").decode()
    texts = (first, "[rank 0] hello", "[rank 0] failed with 7")
    FakeLoki.rows = tuple(
        Entry(at=BEGAN + number, key=("here",), text=text, labels=labels) for number, text in enumerate(texts)
    )
    FakeLoki.error = None
    return made


def test_lines_of_pods_that_are_gone_come_from_loki_once(run, capsys):
    for _ in range(2):
        assert app.run(["logs", run.id, *URL, "--timestamps"]) == 0
        out = capsys.readouterr()
        assert [line.split(" ", 1)[1] for line in out.out.splitlines()] == ["[rank 0] hello", "[rank 0] failed with 7"]
    assert stamp_text(BEGAN).startswith("2027-01-15T08:00:00")
    assert app.run(["logs", run.id, "--grep", "hello", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_what_cannot_be_asked_is_said_and_the_record_is_shown(run, capsys):
    assert app.run(["logs", run.id, *URL]) == 0
    capsys.readouterr()
    FakeLoki.error = LokiError("cannot read lines from Loki at loki: no")
    assert app.run(["logs", run.id, *URL]) == 0
    out = capsys.readouterr()
    assert "lines may be missing below: cannot read lines from Loki" in out.err
    assert "hello" in out.out
    with run.lease():
        assert app.run(["logs", run.id, *URL]) == 0
    assert "another process records the run now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--loki-url", "http://x"], "has no effect without --log-source loki"),
        (["--log-source", "loki"], "the address of Loki is missing"),
        (["--log-source", "store", "-f"], "contradict each other"),
    ],
)
def test_flags_that_make_no_sense_are_refused(run, capsys, monkeypatch, words, said):
    monkeypatch.delenv("RANKFALL_LOKI_URL", raising=False)
    assert app.run(["logs", run.id, *words]) == 2
    assert said in capsys.readouterr().err


def running(run, monkeypatch) -> None:
    monkeypatch.setitem(LokiLive.__init__.__kwdefaults__, "clock", lambda: BEGAN + 10**10)
    with run.lease() as writer:
        writer.set_run("running", reason=None, at=BEGAN)


def test_a_run_that_nobody_records_is_followed_out_of_loki_to_the_last_word_of_its_pods(run, capsys, monkeypatch):
    running(run, monkeypatch)
    monkeypatch.setattr("rankfall.collect.loki.attempt_lines.POLL_S", 0.0)
    monkeypatch.setattr("rankfall.collect.loki.attempt_lines.SETTLE_NS", 0)
    monkeypatch.setattr("rankfall.supervisor.backfill.slots_of", lambda row, spec: [0])
    last = record_line(run.id, 0, 2, kind="slot_end", writer="wrapper", pod_uid="u1").decode()
    FakeLoki.rows += (Entry(at=BEGAN + 9, key=("here",), text=last, labels={"pod": "job-0"}),)
    assert app.run(["logs", run.id, *URL, "-f"]) == 0
    out = capsys.readouterr()
    assert out.out == "[rank 0] hello\n[rank 0] failed with 7\n"
    assert "lines come from Loki" in out.err
    assert run.lease_holder() is None
    assert not list(run.records_dir.glob("gap-*"))


def test_a_follow_out_of_loki_that_cannot_begin_or_go_on_is_said(run, capsys, monkeypatch):
    # Of a run that is over all there is, is taken in once.
    assert app.run(["logs", run.id, *URL, "-f"]) == 0
    assert "hello" in capsys.readouterr().out
    running(run, monkeypatch)
    FakeLoki.error = LokiError("cannot read lines from Loki at loki: no")
    assert app.run(["logs", run.id, *URL, "-f"]) == 0
    out = capsys.readouterr()
    assert "lines may be missing below: cannot read lines from Loki" in out.err
    assert "hello" in out.out


def follow_of(run, **more) -> LokiFollow:
    settings = LokiSettings(url="http://loki:3100")
    return LokiFollow(run, settings, attempts=None, say=print, **more)


def test_a_follow_out_of_loki_holds_the_run_until_it_is_stopped(run, monkeypatch):
    running(run, monkeypatch)
    follow = follow_of(run)
    assert not follow.over()
    with pytest.raises(LockHeld):
        follow_of(run)
    follow.stop()
    assert follow.over()
    follow.stop()
    with run.lease():
        pass


def test_a_disk_that_takes_nothing_ends_no_follow_without_a_word(run, monkeypatch):
    running(run, monkeypatch)

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankfall.supervisor.backfill.take_of", full)
    follow = follow_of(run)
    wait_until(follow.over, timeout=30, what="the follow to end by itself")
    with pytest.raises(StoreError, match="No space left on device"):
        follow.stop()


def test_runs_whose_pods_only_the_cluster_tells_apart_are_not_followed_out_of_loki(home):
    spec = JobSpec(name="u", command=("x",), backend="jobset", unattended=True)
    with pytest.raises(Refused, match=r"cannot follow run u-\w+ in Loki: "):
        follow_of(RunDir.create(spec, home=home))
    with pytest.raises(Refused, match="has no pods"):
        follow_of(RunDir.create(JobSpec(name="l", command=("x",)), home=home))


def test_a_run_of_this_machine_has_all_of_its_lines(home, capsys):
    made = RunDir.create(JobSpec(name="here", command=("x",)), home=home)
    with made.lease() as writer:
        writer.begin_attempt(1, at=BEGAN, plan={})
    assert app.run(["logs", made.id, *URL]) == 2
    assert "has no pods" in capsys.readouterr().err


def stored(home, tmp_path, *, place: str) -> tuple[RunDir, Path]:
    """A run whose recorder never saw the store, and its folder there."""
    volume = tmp_path / "volume"
    name = "run/attempt-1/worker-0/u-1"
    (volume / name).mkdir(parents=True)
    spec = JobSpec(name="far", command=("x",), backend="job", kubernetes=Kubernetes(log_store=place))
    made = RunDir.create(spec, home=home)
    with made.lease() as writer:
        writer.begin_attempt(1, at=BEGAN, plan={})
        writer.set_run("failed", reason=None, at=BEGAN)
    target = made.stream_dir(1, "worker", 0)
    target.mkdir(parents=True)
    StoreCopies(made.logs_dir / "attempt-1", Volume(volume)).add(target, name)
    made.records_dir.mkdir(parents=True, exist_ok=True)
    start = Record(
        id="00000001",
        kind="start",
        run=made.id,
        attempt=1,
        role="worker",
        slot=0,
        rank=3,
        ordinal=0,
        pid=7,
        instance="0",
    )
    (made.records_dir / "start-a1-worker-0-00000001.json").write_bytes(msgspec.json.encode(start))
    return made, volume / name


def test_lines_of_a_log_store_that_is_seen_later_come_with_their_rank(home, tmp_path, capsys, monkeypatch):
    made, folder = stored(home, tmp_path, place="volume:/pods/only")
    (folder / "0.out-000000000000000.log").write_bytes(b"hello\nagain\n")
    assert app.run(["logs", made.id, "--log-source", "store"]) == 2
    assert "cannot reach the log store volume:/pods/only" in capsys.readouterr().err
    monkeypatch.setenv(AT, str(tmp_path / "volume"))
    for _ in range(2):
        assert app.run(["logs", made.id, "--log-source", "store"]) == 0
        out = capsys.readouterr()
        assert out.out == "[rank 3] hello\n[rank 3] again\n"
        assert "is not complete yet" in out.err
    (folder / "end.json").write_text('{"sizes": {"0.out": 12}}')
    assert app.run(["logs", made.id, "--log-source", "store", "--rank", "3", "--grep", "again"]) == 0
    out = capsys.readouterr()
    assert (out.out, "has no end" in out.err) == ("again\n", False)


def test_a_log_store_that_cannot_be_read_is_said(home, tmp_path, capsys):
    made, folder = stored(home, tmp_path, place=f"file://{tmp_path / 'volume'}")
    (folder / "0.out-000000000000000.log").symlink_to("/dev/null")
    assert app.run(["logs", made.id, "--log-source", "store"]) == 0
    assert "cannot read everything from the log store" in capsys.readouterr().err


def test_a_run_without_a_log_store(run, capsys):
    assert app.run(["logs", run.id, "--log-source", "store"]) == 2
    assert "has no log store" in capsys.readouterr().err


def test_the_flag_stands_in_the_job(folder, rankfall):
    words = ("--backend", "job", "--image", "i", "--log-store", "gs://bucket")
    done = rankfall("run", *words, "--dry-run", "train.py")
    assert (done.returncode, "has only Python's standard library" in done.stderr) == (2, True)
