"""What a person sees by default of lines whose rank is known late, or never."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.cli import live_area
from rankfall.cli.run_output import unknown_ranks
from rankfall.cli.values import Ranks
from rankfall.cli.viewer import Viewer
from rankfall.model import JobSpec, Outcome, RankFacts, Role, SlotFacts
from rankfall.render.line_selection import LateRankFilter
from rankfall.rundir import RunDir
from rankfall.rundir.lines import LineQuery, LineTail
from support.stream_files import FakeStream, row, stream

SECOND = 1_000_000_000


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir.create(JobSpec(name="job", command=("a",), nnodes=2, nproc_per_node=1), home=tmp_path)
    with made.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        writer.put_slots(1, [SlotFacts(slot=number, role="worker", state="running") for number in range(2)])
    return made


def tell(run_dir: RunDir, found: FakeStream, rank: int, *, first: int = 0) -> None:
    with run_dir.lease() as writer:
        writer.put_streams([row(run_dir, found, rank, first=first)])


class Screen:
    """The default view of ranks 0 and 1, with a clock that the test moves."""

    def __init__(self, run_dir: RunDir) -> None:
        self.now = 100 * SECOND
        self.follower = LineTail(run_dir, LineQuery(), clock=lambda: self.now)
        self.choose = LateRankFilter(self.follower, lambda line: line.rank in {0, 1})

    def look(self) -> list[tuple[int | None, bytes, bool]]:
        self.now += 10 * SECOND
        return [(line.rank, line.data, line.late) for line in self.choose.pick(self.follower.poll())]


def test_lines_of_a_rank_that_is_known_late_come_from_the_first_before_live_ones(run_dir: RunDir) -> None:
    found, other = stream(run_dir, "slot"), stream(run_dir, "slot", slot=1)
    other.write(b"of slot 1\n", at=SECOND)
    found.write(b"step 1\nstep 2\n", at=SECOND)
    screen = Screen(run_dir)
    assert screen.look() == []
    found.write(b"OSError: bad\n", at=4 * SECOND)
    assert screen.look() == [(None, b"OSError: bad", False)]
    tell(run_dir, found, 0)
    found.write(b"step 3\n", at=5 * SECOND)
    assert screen.look() == [(0, b"step 1", True), (0, b"step 2", True), (0, b"step 3", False)]
    found.write(b"step 4\n", at=6 * SECOND)
    assert screen.look() == [(0, b"step 4", False)]


def test_they_come_also_when_the_rank_prints_nothing_more(run_dir: RunDir) -> None:
    found = stream(run_dir, "slot")
    found.write(b"step 1\n", at=SECOND)
    screen = Screen(run_dir)
    assert screen.look() == []
    tell(run_dir, found, 0)
    assert screen.look() + screen.look() == [(0, b"step 1", False)]
    assert screen.look() == []


def test_lines_from_before_the_rank_began_stay_of_no_rank(run_dir: RunDir) -> None:
    found = stream(run_dir, "slot")
    found.write(b"launcher\nstep 1\n", at=SECOND)
    screen = Screen(run_dir)
    assert screen.look() == []
    tell(run_dir, found, 1, first=len(b"launcher\n"))
    assert screen.look() + screen.look() == [(1, b"step 1", False)]


def test_a_rank_that_is_not_shown_brings_nothing_back(run_dir: RunDir) -> None:
    found = stream(run_dir, "slot")
    found.write(b"step 1\nOSError: bad\n", at=SECOND)
    screen = Screen(run_dir)
    assert screen.look() == [(None, b"OSError: bad", False)]
    tell(run_dir, found, 7)
    assert screen.look() + screen.look() == []


def finished(run_dir: RunDir, capfd: pytest.CaptureFixture[str], **fields: bool) -> tuple[str, str]:
    viewer = Viewer(run_dir, ranks=Ranks(), show_outcome=False, **fields)
    viewer.finish(Outcome(run=run_dir.id, state="succeeded", code=0, exit_origin="rankfall", attempts=1))
    shown = capfd.readouterr()
    return shown.out, shown.err


def test_the_end_of_each_slot_is_shown_when_its_ranks_never_became_known(
    run_dir: RunDir, capfd: pytest.CaptureFixture[str]
) -> None:
    for slot in range(2):
        stream(run_dir, "slot", slot=slot).write_all((n, b"%d: line %d\n" % (slot, n)) for n in range(30))
    out, err = finished(run_dir, capfd)
    assert out.splitlines() == [
        f"[slot {slot}, rank unknown] {slot}: line {n}" for slot in range(2) for n in range(10, 30)
    ]
    assert "the ranks of slots 0, 1 are unknown; last lines of any rank there:" in err
    assert finished(run_dir, capfd, quiet=True) == ("", "")
    assert "unknown" not in "".join(finished(run_dir, capfd, everything=True))


def test_a_slot_whose_rank_is_known_is_not_among_them(run_dir: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    known, other = stream(run_dir, 0), stream(run_dir, "slot", slot=1)
    known.write(b"step\n", at=1)
    other.write(b"word\n", at=1)
    tell(run_dir, known, 0)
    out, err = finished(run_dir, capfd)
    assert out.splitlines() == ["[rank 0] step", "[slot 1, rank unknown] word"]
    assert "the ranks of slot 1 are unknown" in err
    with run_dir.lease() as writer:
        writer.put_ranks(1, [RankFacts(rank=1, slot=1, state="ended")])
    assert unknown_ranks(run_dir) is None


def test_of_many_slots_the_first_are_shown_and_all_are_counted(run_dir: RunDir) -> None:
    with run_dir.lease() as writer:
        writer.put_slots(1, [SlotFacts(slot=number, role="worker", state="ended") for number in range(40)])
    for slot in range(40):
        stream(run_dir, "slot", slot=slot).write(b"word\n", at=1)
    found = unknown_ranks(run_dir)
    assert found is not None
    assert (len(found.slots), len(found.lines)) == (40, 16)
    assert "slots 0-39 are unknown; last lines of any rank there (of the first 16)" in found.text


def test_roles_outside_the_world_have_no_ranks_to_know(tmp_path: Path) -> None:
    roles = (Role(name="ps", nnodes=1, launcher="exec"), Role(name="worker", nnodes=1))
    made = RunDir.create(JobSpec(name="job", command=("a",), roles=roles), home=tmp_path)
    assert unknown_ranks(made) is None
    with made.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        writer.put_slots(1, [SlotFacts(slot=0, role="ps", state="ended")])
    FakeStream(made.stream_dir(1, "ps", 0) / "slot.out.log").write(b"word\n", at=1)
    assert unknown_ranks(made) is None
    (made.path / "spec.json").write_text("{")
    assert unknown_ranks(RunDir(made.path)) is None


def test_a_run_that_just_began_is_queued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = live_area.LiveView(RunDir.create(JobSpec(command=("a",)), home=tmp_path))
    try:
        view.refresh(None)
        shown = capsys.readouterr().err
    finally:
        view.close()
    assert " queued, " in shown
    assert "unknown" not in shown


def test_an_area_without_news_opens_no_database_and_writes_nothing(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_REREAD_S", "_DRAW_S", "_SLOWEST_S"):
        monkeypatch.setattr(live_area, name, 0.0)
    monkeypatch.setattr(live_area.time, "time_ns", lambda: 100 * SECOND)
    opened: list[RunDir] = []
    reader = RunDir.reader
    monkeypatch.setattr(RunDir, "reader", lambda self: (opened.append(self), reader(self))[1])
    view = live_area.LiveView(run_dir)
    try:
        for _ in range(3):
            view.refresh(None)
        begun = len(opened)
        assert begun
        assert capsys.readouterr().err.count("# 2 running") == 0
        with run_dir.lease() as writer:
            writer.put_ranks(1, [RankFacts(rank=rank, slot=rank, state="running") for rank in range(2)])
        for _ in range(3):
            view.refresh(None)
        assert capsys.readouterr().err.count("# 2 running") == 1
        changed = len(opened)
        for _ in range(10):
            view.refresh(None)
        assert len(opened) == changed > begun
        print("a line of the job")
        view.refresh(None)
        shown = capsys.readouterr()
        assert shown.out == "a line of the job\n"
        assert shown.err.startswith("\r\x1b[J")
        assert shown.err.count("# 2 running") == 1
    finally:
        view.close()
    assert capsys.readouterr().err == "\r\x1b[J"
