"""Copies what pods stored on a shared volume (``kubernetes.log_store``) into the run directory: raw, resumable, each byte once.

A folder of the store is of one start of one container; its name came with that start's own record, so whose it is was proved before anything
is read. A stream of the store and its copy have the same bytes at the same places: how long the copy is, is the cursor, and a killed copy goes
on there. ``end.json`` says how long each stream is in all; without it nobody knows whether more comes.

What lies on a volume may have been changed by any job that mounts it: names that lead out of the store, links and pipes are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.store.append import Counted, StreamAppender
from rankfall.store.home import replace_file
from rankfall.store.stream import IndexReader

# Beside the streams of an instance: which folder of the store is its.
MARK: Final = "log-store.json"
END: Final = "end.json"
# As an environment variable: where this machine sees the store, when that is another path than the pods'.
AT: Final = "RANKFALL_LOG_STORE_AT"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){3}")
_MAX_NAME: Final = 400
_FILE: Final = re.compile(r"([0-9]{1,9}\.(?:out|err))-([0-9]{15})\.log")
_BLOCK: Final = 1 << 20
_MAX_END: Final = 1 << 20


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    done: bool = False


class _End(msgspec.Struct, frozen=True, kw_only=True):
    sizes: dict[str, int]


class StoreCopy:
    """One folder of a store into the folder of an instance.

    Args:
        root: of the store, as this machine sees it; None = it does not.
        name: of the folder below the root.
        target: of the instance's streams.

    Attributes:
        complete: every stream is here to the end that its writer wrote down.
    """

    def __init__(self, root: Path | None, name: str, target: Path) -> None:
        self.name = name
        self.target = target
        self.complete = False
        self._root = root
        self._held: dict[str, Counted] = {}

    def poll(self) -> int:
        """Copy what is new; how many bytes that were.

        Raises:
            OSError: it cannot be read, or not be stored.
        """
        source = self._source()
        if source is None or self.complete:
            return 0
        # Looked for first: what it speaks of was written before it.
        end = _end_of(source)
        copied = sum(self._stream(stream, parts) for stream, parts in _streams(source).items())
        if end is not None and all(self._size(stream) >= size for stream, size in end.sizes.items()):
            self.complete = True
        return copied

    def _source(self) -> Path | None:
        """The folder, where it is there and lies in the store."""
        if self._root is None:
            return None
        root = Path(os.path.realpath(self._root))
        found = Path(os.path.realpath(root / self.name))
        return found if found.is_dir() and found.is_relative_to(root) else None

    def _stream(self, stream: str, parts: dict[int, Path]) -> int:
        newest = max(parts)
        if stream in self._held and newest + parts[newest].stat().st_size <= self._size(stream):
            return 0
        appender = StreamAppender(self.target / stream, counted=self._held.get(stream))
        began = appender.size
        try:
            for start in sorted(parts):
                if start > appender.size:
                    # A file between is not to be seen yet.
                    break
                _copy(parts[start], start, appender)
        finally:
            self._held[stream] = appender.counted
            appender.close()
        return appender.size - began

    def _size(self, stream: str) -> int:
        held = self._held.get(stream)
        return 0 if held is None else held.size


def _copy(path: Path, start: int, appender: StreamAppender) -> None:
    """What a file has behind the end of the copy, chunk by chunk with their stamps."""
    fd = _open(path)
    try:
        index = IndexReader(path)
        while data := os.pread(fd, _BLOCK, appender.size - start):
            for stamp, piece in _stamped(index, appender.size - start, data):
                appender.write(piece, stamp)
    finally:
        os.close(fd)


def _stamped(index: IndexReader, offset: int, data: bytes) -> Iterator[tuple[int | None, bytes]]:
    """Pieces of a block with the stamp of the chunk that each is of."""
    number = max(0, index.find(offset))
    rows = index.rows(number)
    at, stamp = offset, rows[0].stamp if rows and rows[0].offset <= offset else None
    end = offset + len(data)
    while rows:
        for row in rows:
            if row.offset >= end:
                yield stamp, data[at - offset :]
                return
            if row.offset > at:
                yield stamp, data[at - offset : row.offset - offset]
                at = row.offset
            stamp = row.stamp
        number += len(rows)
        rows = index.rows(number)
    yield stamp, data[at - offset :]


def _open(path: Path) -> int:
    """A regular file of the store, read-only. A link may lead to any file of this machine, and a pipe waits for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return fd


def _streams(source: Path) -> dict[str, dict[int, Path]]:
    found: dict[str, dict[int, Path]] = {}
    for entry in source.iterdir():
        match = _FILE.fullmatch(entry.name)
        if match is not None:
            found.setdefault(match[1], {})[int(match[2])] = entry
    return found


def _end_of(source: Path) -> _End | None:
    try:
        fd = _open(source / END)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(fd, _MAX_END), type=_End)
    except (OSError, msgspec.DecodeError):
        return None
    finally:
        os.close(fd)


class StoreCopies:
    """All copies of one attempt.

    Args:
        logs: folder of the attempt's streams.
        root: of the store, as this machine sees it; None = it does not.
    """

    def __init__(self, logs: Path, root: Path | None) -> None:
        self.visible = root is not None and root.is_dir()
        self._logs = logs
        self._root = root if self.visible else None
        self._copies: dict[Path, StoreCopy] = {}

    def load(self) -> None:
        """Take up what earlier processes began."""
        for path in self._logs.glob(f"*/*/{MARK}"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                mark = msgspec.json.decode(path.read_bytes(), type=_Mark)
                if good_name(mark.name):
                    copy = self._copies[path.parent] = StoreCopy(self._root, mark.name, path.parent)
                    copy.complete = mark.done

    def add(self, target: Path, name: str) -> None:
        """The lines of an instance's ranks are in this folder of the store, as its own record says.

        Raises:
            OSError: that cannot be written down.
        """
        if target in self._copies or not good_name(name):
            return
        replace_file(target / MARK, msgspec.json.encode(_Mark(name=name)))
        self._copies[target] = StoreCopy(self._root, name, target)

    def of(self, target: Path) -> StoreCopy | None:
        """The copy into this folder; None = its lines are in no store."""
        return self._copies.get(target)

    def poll_one(self, copy: StoreCopy) -> int:
        """Copy what is new of one, and write down when that is all; how many bytes that were.

        Raises:
            OSError: it cannot be copied.
        """
        copied = copy.poll()
        if copy.complete:
            replace_file(copy.target / MARK, msgspec.json.encode(_Mark(name=copy.name, done=True)))
        return copied

    @property
    def open(self) -> list[StoreCopy]:
        """Those that are not complete."""
        return [copy for copy in self._copies.values() if not copy.complete]


def good_name(name: str) -> bool:
    """Whether a folder's name is one that a wrapper gives."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None
