"""What a hostile input is, and the helpers that make large ones out of small parts."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
_BLOCK = 64 << 10


class Kind(enum.Enum):
    """Which reader an input is for."""

    #: Lines of a log; also the output of a live job.
    TEXT = "text"
    #: A record, or an error file of torchelastic or Flyte.
    ERROR_FILE = "error_file"
    #: A dump of the flight recorder, or a file of stacks.
    DUMP = "dump"
    #: A tree of files: names, links, special files, compressed ones.
    TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One hostile input.

    Attributes:
        attacks: what it tries to break.
        size: bytes, where the input has a size; a test may choose another.
        file: the name of its file in a folder; "" for a tree.
        twin: the name of a second file with the same bytes, where a reader compares files.
        make: its bytes in pieces, about ``size`` of them.
        build: makes a tree inside an empty folder; a context manager where something must go on while the tree is read.
        full: too slow for each CI run.
        root: only root can make it.
    """

    name: str
    attacks: str
    kind: Kind
    size: int = MIB
    file: str = ""
    twin: str = ""
    make: Callable[[int], Iterable[bytes]] | None = None
    build: Callable[[Path, int], AbstractContextManager[object] | None] | None = None
    full: bool = False
    root: bool = False

    def pieces(self, size: int | None = None) -> Iterator[bytes]:
        """The bytes of an input that is no tree; a text has exactly ``size`` of them, cut where that falls."""
        wanted = self.size if size is None else size
        left = wanted
        for piece in self.make(wanted) if self.make else ():
            if self.kind is not Kind.TEXT:
                yield piece
                continue
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return

    def data(self, size: int | None = None) -> bytes:
        """The bytes of an input that is no tree."""
        return b"".join(self.pieces(size))

    @contextmanager
    def laid(self, folder: Path, size: int | None = None) -> Iterator[Path]:
        """The input as files in ``folder``, which is made; what changes the files meanwhile ends with the block."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.build is not None:
            with self.build(folder, self.size if size is None else size) or nullcontext():
                yield folder
            return
        for name in filter(None, (self.file, self.twin)):
            with (folder / name).open("wb") as file:
                file.writelines(self.pieces(size))
        yield folder


def repeated(unit: bytes) -> Callable[[int], Iterator[bytes]]:
    """A maker that repeats ``unit``."""

    def make(size: int) -> Iterator[bytes]:
        block = unit * max(1, _BLOCK // len(unit))
        made = 0
        while made < size:
            yield block
            made += len(block)

    return make


def numbered(line: Callable[[int], bytes]) -> Callable[[int], Iterator[bytes]]:
    """A maker of lines that all differ: ``line`` gets 0, 1, 2, ..."""

    def make(size: int) -> Iterator[bytes]:
        made = number = 0
        while made < size:
            block = b"".join(line(number + step) for step in range(512))
            number += 512
            made += len(block)
            yield block

    return make


def one_line(begin: bytes, middle: bytes, end: bytes = b"\n") -> Callable[[int], Iterator[bytes]]:
    """A maker of one line with a middle as long as needed; its end is kept."""

    def make(size: int) -> Iterator[bytes]:
        yield begin + middle * max(1, (size - len(begin) - len(end)) // len(middle)) + end

    return make
