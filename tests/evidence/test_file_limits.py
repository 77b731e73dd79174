"""What one explanation of files reads at most, in which order, and what it says of the rest; a reader that fails costs its bytes alone."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from rankfall.evidence.files import bounded_read, file_source, log_files
from rankfall.evidence.files.bounded_read import Limits
from rankfall.evidence.files.log_files import case_of_files, case_of_stream
from rankfall.evidence.readers.scan import ChunkScanner
from rankfall.evidence.readers.stacks import NewestDump
from rankfall.model import UsageError
from support.hostile_inputs import INPUTS
from support.hostile_inputs.trees import HONEST, zeros


def ranks_of(case) -> set[int | None]:
    return {piece.rank for piece in case.evidence}


def test_i18_of_too_many_files_those_that_say_most_are_read(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.bin.txt").write_bytes(b"nothing in particular\n" * 10)
    (tmp_path / "rank-5.log").write_bytes(HONEST)
    (tmp_path / "attempt_0" / "7").mkdir(parents=True)
    (tmp_path / "attempt_0" / "7" / "error.json").write_text('{"message": "KeyError: 7"}')
    case = case_of_files([tmp_path], limits=Limits(files=3))
    assert ranks_of(case) == {5, None}
    assert "29 files and 6.4 kB were not read: the limit of 3 files was reached; name fewer files" in case.missing


def test_i18_when_the_time_is_over_the_rest_is_counted(tmp_path):
    for number in range(5):
        (tmp_path / f"rank-{number}.log").write_bytes(b"x\n" * (number + 1) * 1000)
    case = case_of_files([tmp_path / "rank-0.log", tmp_path], limits=Limits(seconds=0.0))
    assert any("5 files and 30.0 kB were not read: the limit of 0 seconds" in text for text in case.missing)


def test_i18_of_giants_the_end_is_read_and_small_files_first(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_read, "CHUNK", 1 << 10)
    monkeypatch.setattr(bounded_read, "TAIL", 1 << 10)
    for number in range(8):
        (tmp_path / f"rank-{number}.log").write_bytes(
            b"step 1\n" * 10_000 + HONEST.replace(b"[rank5]", b"[rank%d]" % number)
        )
    (tmp_path / "rank-9.log").write_bytes(HONEST.replace(b"[rank5]", b"[rank9]"))
    case = case_of_files([tmp_path], limits=Limits(size=64 << 10))
    assert ranks_of(case) == {*range(8), 9}
    assert sum("between its beginning and its end were not read" in text for text in case.missing) == 8
    # The number of a line is not known where bytes before it were not read.
    assert {piece.where.rpartition(":")[2].startswith("byte ") for piece in case.evidence if piece.rank != 9} == {True}


def test_i18_two_names_of_one_file_are_one(tmp_path):
    (tmp_path / "a.log").write_bytes(HONEST)
    (tmp_path / "b.log").hardlink_to(tmp_path / "a.log")
    (tmp_path / "c.log").symlink_to("a.log")
    case = case_of_files([tmp_path, tmp_path / "b.log"])
    assert len(case.evidence) == 1
    assert len(case_of_files([tmp_path / "a.log"]).evidence) == 1


def test_the_order_of_reading_changes_no_answer(tmp_path):
    for number, size in ((1, 5000), (0, 10), (2, 300)):
        (tmp_path / f"{number}.log").write_bytes(b"x\n" * size + HONEST.replace(b"rank5", b"rank%d" % number))
    assert [piece.rank for piece in case_of_files([tmp_path]).evidence] == [0, 1, 2]


@pytest.mark.parametrize("part", [ChunkScanner, NewestDump])
def test_i18_a_reader_that_fails_costs_the_bytes_that_it_failed_on(part, tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_read, "CHUNK", 1 << 10)
    feed = part.push

    def poisoned(self, data, **more):
        if b"POISON" in data:
            raise ZeroDivisionError("poison")
        return feed(self, data, **more)

    monkeypatch.setattr(part, "push", poisoned)
    (tmp_path / "rank-5.log").write_bytes(b"x\n" * 512 + b"POISON\n" + b"x\n" * 2000 + HONEST)
    (tmp_path / "rank-6.log").write_bytes(HONEST.replace(b"rank5", b"rank6"))
    case = case_of_files([tmp_path])
    assert ranks_of(case) == {5, 6}
    (said,) = (text for text in case.missing if "poison" in text)
    assert "rank-5.log" in said
    assert "ZeroDivisionError" in said


def test_i18_a_reader_that_fails_always_is_not_asked_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_read, "CHUNK", 1 << 10)
    asked = []

    def broken(_self, data, *, final):
        asked.append(final)
        raise ZeroDivisionError

    monkeypatch.setattr(ChunkScanner, "push", broken)
    (tmp_path / "rank-5.log").write_bytes(b"x\n" * 100_000)
    case_of_files([tmp_path])
    assert len(asked) < 20


def test_i18_an_exception_in_one_file_costs_no_other(tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> str:
        raise RecursionError("deep")

    monkeypatch.setattr(log_files.torchrun, "error_file_evidence", broken)
    (tmp_path / "error.json").write_text("{}")
    (tmp_path / "rank-5.log").write_bytes(HONEST)
    case = case_of_files([tmp_path])
    assert ranks_of(case) == {5}
    assert any("error.json" in text and "RecursionError" in text for text in case.missing)


def test_i18_what_is_kept_is_bounded_and_the_newest_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_read, "_MAX_KEPT", 100_000)
    with INPUTS["different-exceptions"].laid(tmp_path / "x", 1 << 20) as folder:
        (folder / "zz.log").write_bytes(b"x\n" * (1 << 20) + HONEST)
        case = case_of_files([folder])
    assert len(case.evidence) < 110
    assert 5 in ranks_of(case)


def test_i18_statements_and_ranks_of_one_file_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(file_source, "MAX_RANKS", 100)
    with INPUTS["forged-rows"].laid(tmp_path / "x", 1 << 18) as folder:
        assert len(case_of_files([folder]).ranks) <= 100
    with INPUTS["different-ranks"].laid(tmp_path / "y", 1 << 16) as folder:
        assert len(case_of_files([folder]).evidence) > 100


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zstd-bomb-1g", "it unpacks to more than 200 times its size"),
        ("zstd-window", "is damaged"),
        ("zstd-cut", "it ends inside a frame"),
        ("zstd-none", "is damaged"),
        ("zstd-claims", "is damaged"),
        ("zstd-skippable-4g", "it ends inside a frame"),
    ],
)
def test_i18_compressed_bombs_are_read_in_part_or_said_to_be_damaged(name, said, tmp_path):
    with INPUTS[name].laid(tmp_path / "x") as folder:
        case = case_of_files([folder])
    assert ranks_of(case) == {5}
    assert any("a.log.zst" in text and said in text for text in case.missing), case.missing


def test_i18_what_a_damaged_file_says_before_its_end_counts(tmp_path):
    data = zeros(1 << 20, unit=HONEST)
    (tmp_path / "rank-5.log.zst").write_bytes(data + b"garbage")
    (tmp_path / "other.log").write_text("x")
    case = case_of_files([tmp_path])
    assert ranks_of(case) == {5}
    assert any("rank-5.log.zst is damaged" in text for text in case.missing)


def test_i18_a_pipe_has_the_same_limits_and_its_end_counts(monkeypatch):
    monkeypatch.setattr(bounded_read, "CHUNK", 1 << 10)
    monkeypatch.setattr(bounded_read, "TAIL", 4 << 10)
    data = b"step 1\n" * 10_000 + HONEST
    case = case_of_stream(io.BytesIO(data), name="-", limits=Limits(size=80_000))
    assert ranks_of(case) == {5}
    assert any("-: 5.1 kB between its beginning and its end" in text for text in case.missing)
    case = case_of_stream(io.BytesIO(data * 2), name="-", limits=Limits(size=80_000))
    assert any("-: more than" in text for text in case.missing)


def test_a_stream_that_cannot_be_read_says_so():
    class Broken(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise IsADirectoryError(21, "Is a directory")

    with pytest.raises(UsageError, match="- cannot be read: Is a directory"):
        case_of_stream(Broken(), name="-")


@pytest.mark.parametrize("data", [b"no dump", b""])
def test_nothing_but_what_cannot_be_read_is_an_error(data, tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    with pytest.raises(UsageError, match="not a flight-recorder dump"):
        case_of_files([tmp_path])


def test_a_file_of_proc_is_read_though_it_has_no_size():
    if not Path("/proc/version").exists():
        pytest.skip("no /proc")
    assert case_of_files([Path("/proc/version")]).evidence == ()
    assert any("/proc/self/pagemap" in text for text in case_of_files([Path("/proc/self/pagemap")]).missing)


def test_a_pipe_that_a_person_names_is_read(tmp_path):
    reading, writing = os.pipe()
    os.write(writing, HONEST)
    os.close(writing)
    assert ranks_of(case_of_files([Path(f"/proc/self/fd/{reading}")])) == {5}
    os.close(reading)
