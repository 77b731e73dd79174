"""Journals of object snapshots: one line of JSON per change, appended by the one pod collector.

Readers follow the file at any time; a torn last line is skipped and unchanged snapshots are not repeated.
A large file is rewritten with the newest snapshot of each object. The pod journal lists the pods of an
attempt by UID and by slot.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from rankfall.model import decoding
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.layout import pods_folder
from rankfall.rundir.lease import make_folder, private, write_file

# Written anew when it has grown to this and to twice what it began with, bytes.
COMPACT: Final = 32 << 20


class Snapshot(Protocol):
    """One look at one object; nanoseconds since the epoch by this machine's clock."""

    @property
    def uid(self) -> str:
        """Names the object."""

    @property
    def seen_ns(self) -> int:
        """When."""


K = TypeVar("K", bound=Snapshot)


class SnapshotWriter(Generic[K]):
    """Appends looks.

    Args:
        path: made with its folders when missing. What an earlier writer left is kept; its torn last line is cut off.
        kind: of the looks.

    Attributes:
        newest: the newest look at each object by its UID, those of earlier writers too.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, kind: Any) -> None:
        make_folder(path.parent)
        reader: SnapshotReader[K] = SnapshotReader(path, kind)
        reader.poll()
        self.newest = reader.newest
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._fd = private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.ftruncate(self._fd, reader.offset)
        except OSError:
            self.close()
            raise
        self._size = reader.offset
        self._compact_at = max(COMPACT, 2 * self._size)

    def add(self, fact: K) -> bool:
        """Write one look down; False when it says nothing new.

        Raises:
            OSError: the disk is full or the like; nothing of it counts as written.
        """
        held: Any = self.newest.get(fact.uid)
        if held is not None and msgspec.structs.replace(held, seen_ns=fact.seen_ns) == fact:
            return False
        line = self._encoder.encode(fact) + b"\n"
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)
        self.newest[fact.uid] = fact
        if self._size > self._compact_at:
            self._compact()
        return True

    def close(self) -> None:
        """Let go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _compact(self) -> None:
        """The newest look at each object in a new file; where that fails the old one goes on."""
        temporary = self._path.with_suffix(".new")
        data = b"".join(self._encoder.encode(fact) + b"\n" for fact in self.newest.values())
        with contextlib.suppress(OSError):
            write_file(temporary, data)
            fd = os.open(temporary, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                temporary.replace(self._path)
            except OSError:
                os.close(fd)
                raise
            self.close()
            self._fd, self._size = fd, len(data)
        self._compact_at = max(COMPACT, 2 * self._size)


class SnapshotReader(Generic[K]):
    """Reads such a file incrementally.

    Args:
        path: of the file.
        kind: of the looks.

    Attributes:
        newest: the newest look at each object by its UID, in order of first appearance.
        offset: bytes read, whole lines only.
        problems: lines that could not be used, in words (at most a few).
    """

    def __init__(self, path: Path, kind: Any) -> None:
        self.path = path
        self.newest: dict[str, K] = {}
        self.offset = 0
        self.problems: list[str] = []
        self._inode = -1
        self._decoder: decoding.Decoder[K] = decoding.decoder(kind)

    def poll(self) -> list[K]:
        """Looks that came since, oldest first. From the beginning when the file is another one by now."""
        try:
            # Asked for each slot at each look, and hardly ever with an answer: a journal that stands still is not opened.
            status = self.path.stat()
            if (status.st_ino, status.st_size) == (self._inode, self.offset):
                return []
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self.offset:
                    self._inode, self.offset = status.st_ino, 0
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self.offset += whole
        found = []
        # Not splitlines: only a newline ends a line of JSON.
        for line in data[:whole].split(b"\n"):
            fact = self._decode(line)
            if fact is not None:
                self.newest[fact.uid] = fact
                found.append(fact)
        return found

    def _decode(self, line: bytes) -> K | None:
        if not line:
            return None
        try:
            return self._decoder.decode(line)
        except msgspec.DecodeError as error:
            if len(self.problems) < 8:  # noqa: PLR2004 - as many as anyone reads
                self.problems.append(f"{self.path.name}: a damaged line: {str(error)[:200]}")
            return None


NAME: Final = "pods.jsonl"


def journal_path(run: Path, attempt: int) -> Path:
    """Where the journal of an attempt lies in its run directory."""
    return pods_folder(run, attempt) / NAME


class JournalWriter(SnapshotWriter[PodFact]):
    """Appends looks at pods.

    Args:
        path: as :func:`journal_path` has it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, PodFact)

    @property
    def pods(self) -> dict[str, PodFact]:
        """The newest look at each pod by its UID, those of earlier writers too."""
        return self.newest


class JournalReader(SnapshotReader[PodFact]):
    """Reads a journal incrementally."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, PodFact)

    @property
    def pods(self) -> dict[str, PodFact]:
        """The newest look at each pod by its UID, in order of first appearance."""
        return self.newest

    @classmethod
    def read(cls, path: Path) -> dict[str, PodFact]:
        """The newest look at each pod of a journal, read once."""
        reader = cls(path)
        reader.poll()
        return reader.pods

    def by_slot(self) -> dict[int, PodFact]:
        """The newest pod of each slot: a pod that is there before one that is gone, then the one that was made later, then seen later."""
        found: dict[int, PodFact] = {}
        for fact in self.pods.values():
            if fact.slot is None:
                continue
            held = found.get(fact.slot)
            if held is None or _newness(fact) >= _newness(held):
                found[fact.slot] = fact
        return found


def _newness(fact: PodFact) -> tuple[bool, str]:
    # The API's own stamps, all of one form: they are compared as texts.
    return not fact.gone, fact.created or ""
