"""The file of all ranks while a run goes on: each line once whoever is killed when, never taken back, its format that of the derived one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from rankfall.rundir.lines.derived_files import ALL_RANKS, STATE, AllRanksFile, write_derived
from support.stream_files import FakeStream, row, stream

NOW = 10**18


class Tail:
    """Who reads the file as it grows, as ``tail -f`` does."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ALL_RANKS
        self.text = b""

    def look(self) -> None:
        found = self._path.read_bytes()
        assert found.startswith(self.text), "what was shown is never taken back"
        self.text = found


class KilledError(Exception):
    """Stands for the death of the process."""


class Mortal(AllRanksFile):
    """Dies in the middle of its next batch, when so many of its bytes are written."""

    die_after: int | None = None

    def _text(self) -> Iterator[bytes]:
        left = self.die_after
        for text in super()._text():
            if left is not None and left < len(text):
                yield text[:left]
                raise KilledError
            left = None if left is None else left - len(text)
            yield text
        if left is not None:
            raise KilledError


def made(home: Path) -> tuple[RunDir, Path]:
    folder = home.parent / "logs"
    folder.mkdir(exist_ok=True)
    return RunDir.create(JobSpec(command=("a",)), home=home), folder


def file_of(run_dir: RunDir, folder: Path) -> Mortal:
    """With a clock that goes on by ten seconds whenever it is asked: no line is held, no table is taken for fresh."""
    return Mortal(run_dir, folder, clock=count(NOW, 10**10).__next__)


def test_logs_s4_lines_are_there_while_the_run_goes_on_and_the_end_is_that_of_the_derived_file(home: Path) -> None:
    run_dir, folder = made(home)
    file, tail = file_of(run_dir, folder), Tail(folder)
    file.advance()
    tail.look()
    assert [path.read_bytes() for path in folder.glob("log*.out")] == [b""], "found by its name from the beginning"
    with run_dir.lease() as writer:
        for attempt in (1, 2):
            out, launcher = stream(run_dir, "r0", attempt=attempt), stream(run_dir, "slot", attempt=attempt)
            writer.begin_attempt(attempt, at=attempt, plan={})
            writer.put_streams([row(run_dir, out, 0)])
            launcher.write(b"launcher\n", at=attempt * 100)
            for number in range(3):
                out.write(b"%d\r\0\xff\n\n" % number, at=attempt * 100 + number + 1)
                file.advance()
                tail.look()
                assert tail.text.endswith(b"[rank 0] %d\r\0\xff\n[rank 0] \n" % number)
            out.write(b"unfinished", at=attempt * 100 + 9)
            file.advance()
            tail.look()
            assert b"unfinished" not in tail.text.split(b"[attempt 2]")[-1]
            out.write(b" no more\n", at=attempt * 100 + 9)
            writer.end_attempt(attempt, at=attempt * 100 + 10, state="failed")
    file.advance(final=True)
    tail.look()
    write_derived(run_dir)
    assert tail.text == (run_dir.path / ALL_RANKS).read_bytes()
    assert tail.text.startswith(b"[attempt 1]\n[slot 0] launcher\n[rank 0] 0\r\0\xff\n[rank 0] \n")
    before = (folder / ALL_RANKS).stat().st_mtime_ns
    file_of(run_dir, folder).advance(final=True)
    assert (folder / ALL_RANKS).stat().st_mtime_ns == before, "complete is complete"


def test_lines_wait_for_the_rank_of_their_process_and_without_one_for_the_end_of_their_attempt(home: Path) -> None:
    run_dir, folder = made(home)
    file = file_of(run_dir, folder)
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        early, never = stream(run_dir, 0), stream(run_dir, 1)
        early.write(b"first\n", at=1)
        never.write(b"nobody\n", at=2)
        file.advance()
        assert (folder / ALL_RANKS).read_bytes() == b""
        writer.put_streams([row(run_dir, early, 7)])
        file.advance()
        assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[rank 7] first\n"
        writer.end_attempt(1, at=5, state="failed")
        file.advance()
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[rank 7] first\n[slot 0] nobody\n"


def test_a_late_line_of_an_earlier_attempt_is_marked_as_its(home: Path) -> None:
    run_dir, folder = made(home)
    first, second = stream(run_dir, "slot"), stream(run_dir, "slot", attempt=2)
    first.write(b"a\n", at=1)
    second.write(b"b\n", at=2)
    file = file_of(run_dir, folder)
    file.advance()
    first.write(b"late\n", at=1)
    file.advance()
    second.write(b"c\n", at=4)
    file.advance(final=True)
    assert (folder / ALL_RANKS).read_bytes() == (
        b"[attempt 1]\n[slot 0] a\n[attempt 2]\n[slot 0] b\n[attempt 1]\n[slot 0] late\n[attempt 2]\n[slot 0] c\n"
    )


def test_a_line_of_3_mib_comes_whole_when_it_ends_and_holds_nobody(home: Path) -> None:
    run_dir, folder = made(home)
    long, other = stream(run_dir, "slot"), stream(run_dir, "slot", slot=1)
    long.write(b"x" * (3 << 20), at=1)
    other.write(b"other\n", at=2)
    file = file_of(run_dir, folder)
    for _ in range(4):
        file.advance()
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[slot 1] other\n"
    # Killed in between, with a line of which much was read.
    file = file_of(run_dir, folder)
    file.advance()
    long.write(b"y\nnext\n", at=3)
    file.advance()
    file.advance(final=True)
    expected = b"[slot 0] " + b"x" * (3 << 20) + b"y\n[slot 0] next\n"
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[slot 1] other\n" + expected


def test_a_long_line_without_an_end_is_there_at_the_end(home: Path) -> None:
    run_dir, folder = made(home)
    stream(run_dir, "slot").write(b"x" * (1 << 21), at=1)
    file = file_of(run_dir, folder)
    file.advance()
    file.advance(final=True)
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[slot 0] " + b"x" * (1 << 21) + b"\n"


def test_a_disk_that_is_full_delays_lines_and_loses_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, folder = made(home)
    found = stream(run_dir, "slot")
    found.write(b"one\n", at=1)
    file = file_of(run_dir, folder)
    with monkeypatch.context() as patch:
        patch.setattr(AllRanksFile, "_keep", _full)
        with pytest.raises(OSError, match="No space left"):
            file.advance()
    found.write(b"two\n", at=2)
    file.advance()
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[slot 0] one\n[slot 0] two\n"


def _full(self: AllRanksFile, now: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("harm", ["removed", "cut", "forgotten"])
def test_a_file_that_somebody_harmed_is_written_anew(home: Path, harm: str) -> None:
    run_dir, folder = made(home)
    found = stream(run_dir, "slot")
    found.write(b"one\ntwo\n", at=1)
    file = file_of(run_dir, folder)
    file.advance()
    if harm == "removed":
        (folder / ALL_RANKS).unlink()
    elif harm == "cut":
        (folder / ALL_RANKS).write_bytes(b"[att")
    else:
        (run_dir.path / STATE).write_bytes(b"{")
    found.write(b"three\n", at=2)
    file.advance()
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[slot 0] one\n[slot 0] two\n[slot 0] three\n"


def test_what_somebody_else_appends_stays(home: Path) -> None:
    run_dir, folder = made(home)
    found = stream(run_dir, "slot")
    found.write(b"one\n", at=1)
    file = file_of(run_dir, folder)
    file.advance()
    with (folder / ALL_RANKS).open("ab") as other:
        other.write(b"a note\n")
    found.write(b"two\n", at=2)
    file.advance()
    assert (folder / ALL_RANKS).read_bytes() == b"[attempt 1]\n[slot 0] one\na note\n[slot 0] two\n"


def test_lines_are_taken_out_of_a_stream_of_several_ranks(home: Path) -> None:
    run_dir, folder = made(home)
    found = stream(run_dir)
    found.write(b"none\nzero\nzero\none\n", at=1)
    with run_dir.lease() as writer:
        writer.put_streams([row(run_dir, found, 0, first=5, end=15), row(run_dir, found, 1, first=15)])
    file_of(run_dir, folder).advance(final=True)
    assert (
        folder / ALL_RANKS
    ).read_bytes() == b"[attempt 1]\n[slot 0] none\n[rank 0] zero\n[rank 0] zero\n[rank 1] one\n"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("advance"), st.none(), st.none()),
        st.tuples(st.just("kill"), st.integers(0, 60), st.none()),
        st.tuples(st.just("other"), st.none(), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_each_line_once_whoever_is_killed_when(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]) -> None:
    run_dir, folder = made(tmp_path_factory.mktemp("any") / "home")
    streams: list[FakeStream] = [stream(run_dir, f"r{rank}", attempt=1 + rank // 2) for rank in range(4)]
    with run_dir.lease() as writer:
        writer.put_streams([row(run_dir, found, rank) for rank, found in enumerate(streams)])
    said = [0] * 4
    file, tail = file_of(run_dir, folder), Tail(folder)
    file.advance()
    for number, (what, one, many) in enumerate(steps):
        if what == "write":
            text = b"".join(b"%d:%d\n" % (one, said[one] + more) for more in range(many))
            said[one] += many
            streams[one].write(text, at=number)
        elif what == "kill":
            file.die_after = one
            try:
                file.advance()
            except KilledError:
                file = file_of(run_dir, folder)
            file.die_after = None
        elif what == "other":
            file_of(run_dir, folder).advance()
        else:
            file.advance()
        tail.look()
    file_of(run_dir, folder).advance(final=True)
    tail.look()
    lines = [line for line in tail.text.splitlines() if not line.startswith(b"[attempt")]
    for rank in range(4):
        mine = [line for line in lines if line.startswith(b"[rank %d]" % rank)]
        assert mine == [b"[rank %d] %d:%d" % (rank, rank, number) for number in range(said[rank])]
    assert len(lines) == sum(said)
