"""``logs --log-source loki``: what the API no longer has comes into the record, and is shown as everything else."""

from __future__ import annotations

from typing import Self

import pytest

from observe.cluster.feeding import CHANNEL, record_line
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.cli import guard
from rankfall.model import JobSpec
from rankfall.observe.cluster.apilines import stamp_text
from rankfall.observe.loki.cursor import Entry
from rankfall.observe.loki.errors import LokiError
from rankfall.store import RunDir

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
    monkeypatch.setattr("rankfall.observe.loki.client.Loki", FakeLoki)
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
        assert guard.run(["logs", run.id, *URL, "--timestamps"]) == 0
        out = capsys.readouterr()
        assert [line.split(" ", 1)[1] for line in out.out.splitlines()] == ["[rank 0] hello", "[rank 0] failed with 7"]
    assert stamp_text(BEGAN).startswith("2027-01-15T08:00:00")
    assert guard.run(["logs", run.id, "--grep", "hello", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_what_cannot_be_asked_is_said_and_the_record_is_shown(run, capsys):
    assert guard.run(["logs", run.id, *URL]) == 0
    capsys.readouterr()
    FakeLoki.error = LokiError("cannot read lines from Loki at loki: no")
    assert guard.run(["logs", run.id, *URL]) == 0
    out = capsys.readouterr()
    assert "what is shown may lack lines: cannot read lines from Loki" in out.err
    assert "hello" in out.out
    with run.lease():
        assert guard.run(["logs", run.id, *URL]) == 0
    assert "somebody records the run now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--loki-url", "http://x"], "says nothing without --log-source loki"),
        (["--log-source", "loki"], "nobody says where Loki is"),
        ([*URL, "-f"], "contradict each other"),
    ],
)
def test_flags_that_make_no_sense_are_refused(run, capsys, monkeypatch, words, said):
    monkeypatch.delenv("RANKFALL_LOKI_URL", raising=False)
    assert guard.run(["logs", run.id, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_of_this_machine_has_all_of_its_lines(home, capsys):
    made = RunDir.create(JobSpec(name="here", command=("x",)), home=home)
    with made.lease() as writer:
        writer.begin_attempt(1, at=BEGAN, plan={})
    assert guard.run(["logs", made.id, *URL]) == 2
    assert "ran on this machine" in capsys.readouterr().err
