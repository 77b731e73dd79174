"""Journals of object snapshots: one JSON line per change.

Readers skip a torn last line. A large file is rewritten with the newest snapshots.
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

# Bytes at which the file is rewritten, if doubled since.
COMPACT: Final = 32 << 20


class Snapshot(Protocol):
    """One snapshot of one object."""

    @property
    def uid(self) -> str:
        """UID of the object."""

    @property
    def seen_ns(self) -> int:
        """Snapshot time, nanoseconds since the epoch by this machine's clock."""


K = TypeVar("K", bound=Snapshot)


class SnapshotWriter(Generic[K]):
    """Appends snapshots to a journal, created if missing; removes a torn last line.

    Attributes:
        newest: Newest snapshot by UID, including those of earlier writers.

    Raises:
        OSError: The file cannot be opened.
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
        """Appends one snapshot; returns False if it contains nothing new.

        Raises:
            OSError: Nothing was written.
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
        """Closes the file; repeatable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _compact(self) -> None:
        """Rewrites the journal; on failure the old file remains."""
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
    """Reads a journal incrementally.

    Attributes:
        newest: Newest snapshot by UID, in order of first appearance.
        offset: Bytes read, whole lines only.
        problems: Messages about unusable lines, at most 8.
    """

    def __init__(self, path: Path, kind: Any) -> None:
        self.path = path
        self.newest: dict[str, K] = {}
        self.offset = 0
        self.problems: list[str] = []
        self._inode = -1
        self._decoder: decoding.Decoder[K] = decoding.decoder(kind)

    def poll(self) -> list[K]:
        """Returns new snapshots, oldest first; rereads a replaced file."""
        try:
            # Runs for each slot at each poll: an unchanged journal stays closed.
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
        # ``splitlines`` would be wrong: only a newline ends a line.
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
            if len(self.problems) < 8:  # noqa: PLR2004 - enough for a user
                self.problems.append(f"{self.path.name}: a damaged line: {str(error)[:200]}")
            return None


NAME: Final = "pods.jsonl"


def journal_path(run: Path, attempt: int) -> Path:
    """Path of an attempt's pod journal."""
    return pods_folder(run, attempt) / NAME


class JournalWriter(SnapshotWriter[PodFact]):
    """Appends snapshots of pods.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, PodFact)

    @property
    def pods(self) -> dict[str, PodFact]:
        """Newest snapshot of each pod by its UID, including those of earlier writers."""
        return self.newest


class JournalReader(SnapshotReader[PodFact]):
    """Reads a pod journal incrementally."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, PodFact)

    @property
    def pods(self) -> dict[str, PodFact]:
        """Newest snapshot of each pod by its UID, in order of first appearance."""
        return self.newest

    @classmethod
    def read(cls, path: Path) -> dict[str, PodFact]:
        """Newest snapshot of each pod of a journal, read once."""
        reader = cls(path)
        reader.poll()
        return reader.pods

    def by_slot(self) -> dict[int, PodFact]:
        """Newest pod of each slot: existing, later created, later in the journal."""
        found: dict[int, PodFact] = {}
        for fact in self.pods.values():
            if fact.slot is None:
                continue
            held = found.get(fact.slot)
            if held is None or _newness(fact) >= _newness(held):
                found[fact.slot] = fact
        return found


def _newness(fact: PodFact) -> tuple[bool, str]:
    # One format, so comparable as text.
    return not fact.gone, fact.created or ""
