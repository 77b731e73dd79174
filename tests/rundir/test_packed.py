"""The compressed form of a stream: any byte of it, what is damaged, and that nothing else is read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.rundir.streams import content as packed_module
from rankfall.rundir.streams.content import (
    FRAME,
    Packed,
    content_size,
    open_content,
    pack,
    packed_path,
    read_bytes,
    read_zstd,
)
from rankfall.rundir.streams.writer import compress, unpack
from support.hostile_inputs import INPUTS


def packed(folder: Path, data: bytes, *, frame: int = FRAME) -> Path:
    raw = folder / "raw"
    raw.write_bytes(data)
    path = folder / "0.out.log.zst"
    source, target = os.open(raw, os.O_RDONLY), os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    assert pack(source, target, frame=frame) == len(data)
    os.close(source)
    os.close(target)
    return folder / "0.out.log"


def unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        return b"".join(read_zstd(iter(lambda: file.read(16 << 10), b""), path))


@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"step 1 loss 2\n", b"\xff\0"]), max_size=60).map(b"".join),
    frame=st.integers(1, 50),
    reads=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=8),
)
def test_any_read_gives_the_bytes_of_the_raw_stream(data: bytes, frame: int, reads: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = packed(Path(name), data, frame=frame)
        assert content_size(path) == len(data)
        with open_content(path) as content:
            for start, length in reads:
                assert content.read(start, length) == data[start : start + length]
        assert unpacked(packed_path(path)) == data


@given(data=st.binary(max_size=300), flip=st.integers(0, 10_000), cut=st.integers(0, 40))
def test_damage_is_an_error_and_never_other_bytes(data: bytes, flip: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = packed(Path(name), data, frame=64)
        file = packed_path(path)
        broken = bytearray(file.read_bytes())
        broken[flip % len(broken)] ^= 0xFF
        file.write_bytes(broken[: len(broken) - cut])
        found = b"damaged"
        with contextlib.suppress(OSError):
            found = read_bytes(path, 0, 1 << 20)
        assert found in {data, b"damaged"}


def test_a_frame_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path, b"x" * (16 << 20), frame=16 << 20)
    with pytest.raises(OSError, match="does not fit"):
        open_content(path)


def test_a_table_that_lies_about_a_frame_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path, b"x" * 100)
    file = packed_path(path)
    data = bytearray(file.read_bytes())
    at = len(data) - packed_module._FOOTER.size - 4
    assert data[at : at + 4] == (100).to_bytes(4, "little")
    data[at : at + 4] = (99).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(OSError, match="size than its table states"):
        read_bytes(path, 0, 10)


def test_a_torn_or_foreign_zstd_file_is_an_error(tmp_path: Path) -> None:
    path = packed(tmp_path, os.urandom(5000))
    file = packed_path(path)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(OSError, match="is damaged"):
        unpacked(file)
    file.write_bytes(b"")
    with pytest.raises(OSError, match="ends inside a frame"):
        unpacked(file)
    file.write_bytes(b"no zstd at all")
    with pytest.raises(OSError, match="is damaged"):
        unpacked(file)


def test_few_bytes_are_read_for_one_far_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, b"".join(b"%09d\n" % n for n in range(1_000_000)))
    read = 0
    real = os.pread

    def counted(fd: int, length: int, at: int) -> bytes:
        nonlocal read
        data = real(fd, length, at)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    assert read_bytes(path, 7_654_320, 10) == b"000765432\n"
    assert read < FRAME
    before = read
    assert read_bytes(path, 7_654_330, 10) == b"000765433\n"
    assert read == before, "the frame is at hand"


def test_the_frames_at_hand_are_bounded() -> None:
    kept: packed_module._Recent[int, bytes] = packed_module._Recent(100, len)
    made = []
    for number in [*range(10), 9, 0]:
        kept.get(number, lambda number=number: made.append(number) or bytes(30))  # type: ignore[misc, func-returns-value]
    assert made == [*range(10), 0]
    assert sum(map(len, kept._found.values())) <= 100


def test_the_raw_form_is_taken_where_both_are_there(tmp_path: Path) -> None:
    path = packed(tmp_path, b"old\n")
    path.write_bytes(b"new\n")
    assert read_bytes(path, 0, 9) == b"new\n"
    assert content_size(path) == 4


def test_neither_form_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as found:
        open_content(tmp_path / "0.out.log")
    assert found.value.filename == str(tmp_path / "0.out.log")


def test_a_pipe_by_the_compressed_name_does_not_hold_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.out.log.zst")
    with pytest.raises(OSError, match="not a regular file"):
        open_content(tmp_path / "0.out.log")


def test_no_descriptor_stays_open_after_damage(tmp_path: Path) -> None:
    (tmp_path / "0.out.log.zst").write_bytes(b"junk")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OSError, match="no table"):
            open_content(tmp_path / "0.out.log")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("data", [b"", b"x", b"a\n" * 400_000])
def test_a_stream_compresses_and_comes_back(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "0.out.log"
    path.write_bytes(data)
    assert compress(path) is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0.out.log.zst"]
    assert read_bytes(path, 0, len(data) + 1) == data
    unpack(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0.out.log"]
    assert path.read_bytes() == data
    unpack(path)
    assert path.read_bytes() == data


def test_both_forms_of_a_killed_compression_become_the_raw_one(tmp_path: Path) -> None:
    path = packed(tmp_path, b"same\n")
    path.write_bytes(b"same\n")
    unpack(path)
    assert not packed_path(path).exists()
    assert path.read_bytes() == b"same\n"


def test_a_stream_that_is_open_for_writing_stays_raw(tmp_path: Path) -> None:
    path = tmp_path / "0.out.log"
    with path.open("wb") as file:
        file.write(b"a\n" * 100)
        file.flush()
        assert compress(path) == "a process still has it open for writing"
    assert [entry.name for entry in tmp_path.iterdir()] == ["0.out.log"]
    assert compress(path) is None


def test_a_stream_that_grows_meanwhile_stays_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.out.log"
    path.write_bytes(b"a\n" * 100)
    real = pack

    def slow(source: int, target: int) -> int:
        size = real(source, target)
        with path.open("ab") as file:
            file.write(b"late\n")
        return size

    monkeypatch.setattr("rankfall.rundir.streams.writer.pack", slow)
    assert compress(path) == "it grew meanwhile"
    assert [entry.name for entry in tmp_path.iterdir()] == ["0.out.log"]
    assert path.read_bytes().endswith(b"late\n")


def test_what_reads_otherwise_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.out.log"
    path.write_bytes(b"a\n" * 100)
    monkeypatch.setattr(Packed, "read", lambda self, start, length: b"b" * 10)
    with pytest.raises(OSError, match="differs from the stream"):
        compress(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["0.out.log"]


def test_a_file_system_that_cannot_tell_leaves_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.out.log"
    path.write_bytes(b"a\n")

    def refuse(fd: int, what: int, value: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("rankfall.rundir.streams.writer.fcntl.fcntl", refuse)
    assert compress(path) == "the file system does not show whether a process writes it (Invalid argument)"
    assert content_size(path) == 2


def test_i18_a_table_of_frames_that_hold_nothing_is_refused(tmp_path: Path) -> None:
    """A table is as long as somebody made it; each of its frames needs bytes of its own."""
    path = tmp_path / "0.out.log"
    entries = packed_module._ENTRY.pack(0, 1) * 100
    table = entries + packed_module._FOOTER.pack(100, 0, packed_module._SEEK_MAGIC)
    packed_path(path).write_bytes(packed_module._SKIPPABLE.pack(packed_module._SKIP_MAGIC, len(table)) + table)
    with pytest.raises(OSError, match="does not fit its frames"):
        open_content(path)


def test_i18_a_frame_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    for name in ("zstd-window", "zstd-window-most", "zstd-claims"):
        with INPUTS[name].laid(tmp_path / name) as folder, pytest.raises(OSError, match="is damaged"):
            unpacked(folder / "a.log.zst")
