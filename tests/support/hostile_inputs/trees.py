"""Trees: names, links, special files, compressed files, files that change while they are read."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from support.hostile_inputs.shapes import MIB, Hostile, Kind
from support.hostile_inputs.texts import HEAD

#: What an honest log in each tree says, so that a test can see that it was read: rank 5 of ``honest.log``.
HONEST = b"[rank5]: " + HEAD + b'[rank5]:   File "/app/train.py", line 3, in f\n[rank5]: ZeroDivisionError: honest\n'
GIB = 1 << 30
_SKIPPABLE = struct.Struct("<II")
_Builder = Callable[[Path, int], AbstractContextManager[object] | None]


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - jobs that print a text need it not
    else:
        from backports import zstd  # noqa: PLC0415 - as above
    return zstd


def _honest(folder: Path, name: str = "honest.log") -> Path:
    path = folder / name
    path.write_bytes(HONEST)
    return path


# -- Compressed files


def zeros(size: int, *, unit: bytes = b"\0", level: int = 3) -> bytes:
    """One zstd frame of ``size`` bytes, all the same; 4 GiB of zeros are 130 KiB."""
    zstd = _zstd()
    options = {zstd.CompressionParameter.compression_level: level}
    packer = zstd.ZstdCompressor(options=options)
    block = unit * (MIB // len(unit))
    parts = [packer.compress(block) for _ in range(max(1, size // len(block)))]
    return b"".join((*parts, packer.flush()))


def _bomb(unit: bytes, size: int) -> _Builder:
    def build(folder: Path, _: int) -> None:
        _honest(folder)
        (folder / "a.log.zst").write_bytes(zeros(size, unit=unit))

    return build


def _frames(unit: bytes, plain: int, count: int) -> _Builder:
    """Many frames, each small: what one frame may hold is no bound for all of them."""

    def build(folder: Path, _: int) -> None:
        _honest(folder)
        (folder / "a.log.zst").write_bytes(zeros(plain, unit=unit) * count)

    return build


def _in_each_other(folder: Path, _: int) -> None:
    data = zeros(64 * MIB)
    for _again in range(4):
        data = bytes(_zstd().compress(data))
    _honest(folder)
    (folder / "a.log.zst.zst.zst.zst").write_bytes(data)


def _raw_zst(data: bytes) -> _Builder:
    def build(folder: Path, _: int) -> None:
        _honest(folder)
        (folder / "a.log.zst").write_bytes(data)

    return build


def _many_bombs(folder: Path, _: int) -> None:
    _honest(folder)
    data = zeros(64 * MIB)
    for number in range(200):
        (folder / f"{number}.log.zst").write_bytes(data)


def _window(exponent: int) -> bytes:
    """A frame that asks for a window of 2^(10 + exponent) bytes; its only block is empty."""
    return struct.pack("<I", 0xFD2FB528) + bytes([0x00, exponent << 3]) + b"\x01\x00\x00"


def _claims(size: int) -> bytes:
    """A single-segment frame that claims to hold ``size`` bytes: its window is as large."""
    return struct.pack("<I", 0xFD2FB528) + bytes([0xE0]) + struct.pack("<Q", size) + b"\x01\x00\x00"


def _gzip_bomb(folder: Path, _: int) -> None:
    _honest(folder)
    (folder / "a.log.gz").write_bytes(gzip.compress(b"\0" * (64 * MIB)))
    (folder / "b.log").write_bytes(gzip.compress(HONEST))


# -- Links and special files


def _link(target: str, name: str = "a.log") -> _Builder:
    def build(folder: Path, _: int) -> None:
        _honest(folder)
        (folder / name).symlink_to(target)

    return build


def _links_out(folder: Path, _: int) -> None:
    """A file and a folder beside the tree, and links to both."""
    outside = folder.with_name(folder.name + "-outside")
    outside.mkdir(exist_ok=True)
    (outside / "secret.log").write_bytes(b"[rank9]: RuntimeError: CUDA error: secret outside\n" * 3)
    inside = folder / "logs"
    inside.mkdir()
    _honest(folder)
    (inside / "a.log").symlink_to(f"../../{outside.name}/secret.log")
    (inside / "more").symlink_to(f"../../{outside.name}")
    (inside / "rank-9.log").symlink_to((outside / "secret.log").resolve())
    (inside / "error.json").symlink_to((outside / "secret.log").resolve())


def _link_loops(folder: Path, _: int) -> None:
    _honest(folder)
    (folder / "self").symlink_to("self")
    (folder / "up").symlink_to("..")
    (folder / "here").symlink_to(".")
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


def _link_chain(folder: Path, _: int) -> None:
    _honest(folder)
    for number in range(100):
        (folder / f"{number}.log").symlink_to(f"{number + 1}.log" if number < 99 else "honest.log")


def _hard_links(folder: Path, _: int) -> None:
    first = folder / "0.log"
    first.write_bytes(HONEST + b"x" * 99 * 1000 + b"\n")
    for number in range(1, 1000):
        (folder / f"{number}.log").hardlink_to(first)


def _fifo(*names: str) -> _Builder:
    def build(folder: Path, _: int) -> None:
        _honest(folder)
        for name in names:
            os.mkfifo(folder / name)

    return build


def _socket(folder: Path, _: int) -> None:
    _honest(folder)
    with socket.socket(socket.AF_UNIX) as made:
        # A path longer than 107 bytes cannot be bound; a name relative to the folder can.
        fd = os.open(folder, os.O_PATH)
        try:
            made.bind(f"/proc/self/fd/{fd}/rank-0.log")
        finally:
            os.close(fd)


def _devices(folder: Path, _: int) -> None:
    _honest(folder)
    os.mknod(folder / "rank-0.log", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(folder / "error.json", stat.S_IFCHR | 0o666, os.makedev(1, 8))


def _folders_as_files(folder: Path, _: int) -> None:
    _honest(folder)
    for name in ("rank-0.log", "error.json", "error.pb", "nccl_trace_rank_0", "rank-0.json", "a.log.zst", "a.idx"):
        (folder / name).mkdir()


@contextmanager
def _unreadable(folder: Path, _: int) -> Iterator[None]:
    _honest(folder)
    (folder / "rank-0.log").write_bytes(HONEST)
    (folder / "rank-0.log").chmod(0)
    (folder / "closed").mkdir()
    (folder / "closed" / "x.log").write_bytes(HONEST)
    (folder / "closed").chmod(0)
    try:
        yield
    finally:
        (folder / "closed").chmod(0o700)


# -- Numbers and names


def _many_files(data: bytes, suffix: str) -> _Builder:
    """``size`` files; what counts is how many, so that most have no byte."""

    def build(folder: Path, size: int) -> None:
        _honest(folder)
        for number in range(size):
            if number % 1000 == 0:
                (folder / f"{number // 1000:03}").mkdir()
            fd = os.open(folder / f"{number // 1000:03}" / f"{number}{suffix}", os.O_CREAT | os.O_WRONLY, 0o644)
            if data:
                os.write(fd, data)
            os.close(fd)

    return build


def _many_error_files(folder: Path, size: int) -> None:
    for number in range(size):
        (folder / str(number)).mkdir()
        (folder / str(number) / "error.json").write_bytes(b'{"message": "ValueError: %d"}' % number)


def _many_ranks(folder: Path, size: int) -> None:
    for number in range(size):
        (folder / f"rank-{number}.log").write_bytes(HEAD + b"ValueError: rank %d failed\n" % number)


def _many_dumps(folder: Path, size: int) -> None:
    _honest(folder)
    call = b'{"process_group":["0","x"],"collective_seq_id":%d,"profiling_name":"nccl:all_reduce","state":"scheduled"}'
    calls = b",".join(call % number for number in range(1000))
    for number in range(size):
        (folder / f"nccl_trace_rank_{number}").write_bytes(
            b'{"entries":[' + calls + b'],"pg_config":{"0":{"ranks":[0,%d]}}}' % number
        )


def _many_attempts(folder: Path, size: int) -> None:
    for number in range(size):
        place = folder / f"attempt_{number}" / str(number % 10_000)
        place.mkdir(parents=True)
        (place / "stderr.log").write_bytes(HEAD + b"ValueError: attempt %d\n" % number)


def _nested(name: str, depth: int) -> _Builder:
    """Folders inside of folders, deeper than any path can name."""

    def build(folder: Path, _: int) -> AbstractContextManager[object]:
        _honest(folder)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(depth):
            os.mkdir(name, dir_fd=fd)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
            if number % 100 == 0:
                os.close(os.open("rank-0.log", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
        return _removed(folder / name)

    return build


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove a tree that is too deep for a path, as the tidying of a test would have to."""
    try:
        yield
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Each turn moves what the upper folder holds up by one, so that no path ever grows.
        while True:
            inner = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            names = os.listdir(inner)  # noqa: PTH208 - of a descriptor
            for name in names:
                if name != path.name:
                    os.unlink(name, dir_fd=inner)
            deeper = path.name in names
            if deeper:
                os.rename(path.name, "moved", src_dir_fd=inner, dst_dir_fd=fd)
            os.close(inner)
            os.rmdir(path.name, dir_fd=fd)
            if not deeper:
                return
            os.rename("moved", path.name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)


def _names(*names: bytes) -> _Builder:
    def build(folder: Path, _: int) -> None:
        for name in names:
            with open(os.path.join(os.fsencode(folder), name), "wb") as file:  # noqa: PTH118, PTH123 - no text is this name
                file.write(HEAD + b"ValueError: named\n")

    return build


def _like_a_run(folder: Path, _: int) -> None:
    _honest(folder)
    (folder / "spec.json").write_bytes(b'{"x":' + b"[" * 100_000)
    (folder / "run.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    (folder / "attempts" / "1" / "records").mkdir(parents=True)
    (folder / "attempts" / "1" / "records" / "x.json").write_bytes(b"[" * 100_000)
    (folder / "attempts" / "1" / "0.out.log").write_bytes(HONEST)
    (folder / "attempts" / "1" / "0.out.idx").write_bytes(b"RFIDX1\0\0" + b"\xff" * 4000)


# -- Giants, and files that change


def _sparse(name: str, size: int, end: bytes = b"") -> _Builder:
    def build(folder: Path, _: int) -> None:
        _honest(folder)
        with (folder / name).open("wb") as file:
            file.truncate(size)
            file.seek(0, os.SEEK_END)
            file.write(end)

    return build


def _mixed_giants(folder: Path, _: int) -> None:
    """The one file that says why is small, and last by its name."""
    for number in range(40):
        with (folder / f"{number:02}.log").open("wb") as file:
            file.truncate(GIB)
    (folder / "zz").mkdir()
    _honest(folder / "zz", "rank-5.log")


@contextmanager
def _meanwhile(work: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def turns() -> None:
        while not over.wait(0.001):
            work()

    thread = threading.Thread(target=turns, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _growing(folder: Path, _: int) -> AbstractContextManager[object]:
    path = _honest(folder)
    (folder / "rank-0.log").write_bytes(b"step 1\n" * 1000)

    def grow() -> None:
        if path.with_name("rank-0.log").stat().st_size < 64 * MIB:
            with path.with_name("rank-0.log").open("ab") as file:
                file.write(b"step 1 loss 0.5\n" * 4096)

    return _meanwhile(grow)


def _vanishing(folder: Path, _: int) -> AbstractContextManager[object]:
    _honest(folder)
    inner = folder / "turn"

    def turn() -> None:
        inner.mkdir(exist_ok=True)
        for number in range(50):
            (inner / f"{number}.log").write_bytes(b"step 1\n")
        shutil.rmtree(inner, ignore_errors=True)

    return _meanwhile(turn)


def _replaced(folder: Path, _: int) -> AbstractContextManager[object]:
    """A file that is now a file, now a FIFO, now a link."""
    _honest(folder)
    path = folder / "rank-0.log"

    def turn() -> None:
        for make in (lambda: path.write_bytes(HONEST), lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
            path.unlink(missing_ok=True)
            make()

    return _meanwhile(turn)


def _truncated(folder: Path, _: int) -> AbstractContextManager[object]:
    _honest(folder)
    path = folder / "rank-0.log"
    sizes = iter(range(1 << 62))

    def turn() -> None:
        with path.open("ab") as file:
            file.truncate(next(sizes) % 2 * 8 * MIB)

    return _meanwhile(turn)


# name, what it attacks, how it is made; further settings.
# fmt: off
_TREES: tuple[tuple[str, str, _Builder, dict[str, Any]], ...] = (
    ("zstd-bomb-4g", "4 GiB of zeros in 130 KiB", _bomb(b"\0", 4 * GIB), {"full": True}),
    ("zstd-bomb-1g", "1 GiB of zeros", _bomb(b"\0", GIB), {}),
    ("zstd-bomb-newlines", "1 GiB of newlines", _bomb(b"\n", GIB), {"full": True}),
    ("zstd-bomb-errors", "256 MiB of one error line", _bomb(b"RuntimeError: CUDA error: x here\n", 256 * MIB), {"full": True}),
    ("zstd-frames", "10,000 frames of 1 MiB", _frames(b"\0", MIB, 10_000), {"full": True}),
    ("zstd-frames-empty", "a million empty frames", _raw_zst((struct.pack("<I", 0xFD2FB528) + b"\x20\x00\x01\x00\x00") * 200_000), {}),
    ("zstd-skippable", "frames that hold nothing", _raw_zst(_SKIPPABLE.pack(0x184D2A50, 0) * 200_000), {}),
    ("zstd-skippable-4g", "a frame to pass over that is not there", _raw_zst(_SKIPPABLE.pack(0x184D2A50, 0xFFFFFFFF)), {}),
    ("zstd-in-zstd", "compressed, four times", _in_each_other, {}),
    ("zstd-many", "200 files of 64 MiB each", _many_bombs, {"full": True}),
    ("zstd-window", "a window of 2 GiB", _raw_zst(_window(21)), {}),
    ("zstd-window-128m", "a window of 128 MiB", _raw_zst(_window(17)), {}),
    ("zstd-window-most", "a window of 3.75 TiB", _raw_zst(_window(31)), {}),
    ("zstd-claims", "a frame that claims 2^60 bytes", _raw_zst(_claims(1 << 60)), {}),
    ("zstd-cut", "a frame that is cut", _raw_zst(b"(\xb5/\xfd\x04\x00"), {}),
    ("zstd-none", "text that is named so", _raw_zst(HONEST), {}),
    ("zstd-empty", "no byte", _raw_zst(b""), {}),
    ("zstd-dictionary", "a frame with an unknown dictionary", _raw_zst(struct.pack("<I", 0xFD2FB528) + b"\x23\x01\x02\x03\x04\x00\x01\x00\x00"), {}),
    ("gzip-bomb", "gzip is not unpacked", _gzip_bomb, {}),
    ("link-pagemap", "a file of /proc that is terabytes", _link("/proc/self/pagemap"), {}),
    ("link-zero", "a device without an end", _link("/dev/zero", "rank-0.log"), {}),
    ("link-random-error-file", "a device as an error file", _link("/dev/urandom", "error.json"), {}),
    ("link-stdin", "the reader's own input", _link("/proc/self/fd/0"), {}),
    ("link-tty", "the reader's own terminal", _link("/dev/tty"), {}),
    ("link-proc", "all of /proc", _link("/proc", "logs"), {}),
    ("link-proc-mem", "the reader's own memory", _link("/proc/self/mem"), {}),
    ("link-root", "the whole machine", _link("/", "logs"), {}),
    ("link-dangling", "nothing", _link("nowhere"), {}),
    ("link-long", "a target of 4,000 bytes", _link("a/" * 2000), {}),
    ("links-out", "files of others", _links_out, {}),
    ("link-loops", "links to themselves and upwards", _link_loops, {}),
    ("link-chain", "a hundred links to one file", _link_chain, {}),
    ("hard-links", "one file by a thousand names", _hard_links, {}),
    ("fifo", "a pipe that nobody writes", _fifo("rank-0.log"), {}),
    ("fifo-error-files", "pipes as error files and dumps", _fifo("error.json", "error.pb", "nccl_trace_rank_0", "rank-1.json", "a.log.zst"), {}),
    ("socket", "a socket", _socket, {}),
    ("devices", "devices without an end", _devices, {"root": True}),
    ("folders-as-files", "folders with names of files", _folders_as_files, {}),
    ("unreadable", "a file and a folder that are closed", _unreadable, {}),
    ("files-30k", "files without a byte", _many_files(b"", ".log"), {"size": 30_000, "full": True}),
    ("files-100k", "files of a few bytes", _many_files(b"step 1\n", ".log"), {"size": 100_000, "full": True}),
    ("files-error-json", "error files", _many_error_files, {"size": 3000}),
    ("files-none", "files that are no logs", _many_files(b"", ".pt"), {"size": 3000}),
    ("ranks-2k", "2,000 ranks that failed", _many_ranks, {"size": 2000}),
    ("dumps-1k", "a thousand dumps of a thousand calls", _many_dumps, {"size": 1000, "full": True}),
    ("dumps-50", "fifty dumps of a thousand calls", _many_dumps, {"size": 50}),
    ("attempts-1k", "a thousand attempts", _many_attempts, {"size": 1000}),
    ("nested-1500", "1,500 folders, each in the one before", _nested("d", 1500), {}),
    ("nested-long", "a path of 50,000 bytes", _nested("n" * 250, 200), {}),
    ("names-control", "names that rule a terminal", _names(b"a\nb.log", b"\x1b[2Jx.log", b"\x1b]0;x\x07.log", b"\r.log", b" .log", b"\t\x7f.log"), {}),
    ("names-not-utf8", "names that no UTF-8 holds", _names(b"\xff\xfe.log", b"rank-1\x80.log", b"\xed\xa0\x80-error.json"), {}),
    ("names-long", "the longest name there is", _names(b"n" * 251 + b".log", b"rank-" + b"9" * 240 + b".log"), {}),
    ("names-ranks", "numbers in names", _names(b"rank-999999.log", b"rank-9999999.log", b"rank--1.log", "rank-\u0663.log".encode(), b"nccl_trace_rank_999999", b"rank-0.log.rank-1.log"), {}),
    ("names-flags", "names like flags", _names(b"-", b"--help", b"-rf", b"--signatures=x", b"~", b"*", b"$(id)"), {}),
    ("like-a-run", "a damaged run directory", _like_a_run, {}),
    ("sparse-1t", "1 TiB of holes", _sparse("rank-0.log", 1 << 40), {"full": True}),
    ("sparse-1t-error-at-end", "the end of a log says why", _sparse("rank-0.log", 1 << 40, b"\n" + HONEST), {"full": True}),
    ("sparse-1g-error-file", "a giant error file", _sparse("error.json", GIB), {}),
    ("sparse-1g-dump", "a giant dump", _sparse("nccl_trace_rank_0", GIB), {}),
    ("sparse-1g-stacks", "a giant file of stacks", _sparse("rank-0.json", GIB), {"full": True}),
    ("sparse-1g-zstd", "a giant file that is no zstd", _sparse("a.log.zst", GIB), {}),
    ("giants-first", "forty giants before the one that matters", _mixed_giants, {"full": True}),
    ("growing", "a file that grows while it is read", _growing, {}),
    ("vanishing", "files that go while they are listed", _vanishing, {}),
    ("replaced", "a file that is now a pipe, now a link", _replaced, {}),
    ("truncated", "a file that shrinks while it is read", _truncated, {}),
)
# fmt: on

TREES: tuple[Hostile, ...] = tuple(
    Hostile(name=name, attacks=attacks, kind=Kind.TREE, build=build, **more) for name, attacks, build, more in _TREES
)
