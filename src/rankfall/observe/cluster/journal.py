"""The journal of pods: one line of JSON a change, appended by the one feed, read by anybody at any time.

Kept because a pod and all it could tell vanish from the API when it is deleted. A torn last line is passed over; equal looks are not repeated.
A journal that has grown large is written anew with the newest look at each pod.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

import msgspec

from rankfall.observe.cluster.places import pods_folder
from rankfall.observe.cluster.podfacts import PodFact

NAME: Final = "pods.jsonl"
# Written anew when it has grown to this and to twice what it began with, bytes.
COMPACT: Final = 32 << 20


def journal_path(run: Path, attempt: int) -> Path:
    """Where the journal of an attempt lies in its run directory."""
    return pods_folder(run, attempt) / NAME


class JournalWriter:
    """Appends looks at pods.

    Args:
        path: made with its folders when missing. What an earlier writer left is kept; its torn last line is cut off.

    Attributes:
        pods: the newest look at each pod by its UID, those of earlier writers too.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        reader = JournalReader(path)
        reader.poll()
        self.pods = reader.pods
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(self._fd, reader.offset)
        except OSError:
            self.close()
            raise
        self._size = reader.offset
        self._compact_at = max(COMPACT, 2 * self._size)

    def add(self, fact: PodFact) -> bool:
        """Write one look down; False when it says nothing new.

        Raises:
            OSError: the disk is full or the like; nothing of it counts as written.
        """
        held = self.pods.get(fact.uid)
        if held is not None and msgspec.structs.replace(held, seen_ns=fact.seen_ns) == fact:
            return False
        line = self._encoder.encode(fact) + b"\n"
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)
        self.pods[fact.uid] = fact
        if self._size > self._compact_at:
            self._compact()
        return True

    def close(self) -> None:
        """Let go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _compact(self) -> None:
        """The newest look at each pod in a new file; where that fails the old one goes on."""
        temporary = self._path.with_suffix(".new")
        data = b"".join(self._encoder.encode(fact) + b"\n" for fact in self.pods.values())
        with contextlib.suppress(OSError):
            temporary.write_bytes(data)
            fd = os.open(temporary, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                temporary.replace(self._path)
            except OSError:
                os.close(fd)
                raise
            self.close()
            self._fd, self._size = fd, len(data)
        self._compact_at = max(COMPACT, 2 * self._size)


class JournalReader:
    """Reads a journal incrementally.

    Attributes:
        pods: the newest look at each pod by its UID, in order of first appearance.
        offset: bytes read, whole lines only.
        problems: lines that could not be used, in words (at most a few).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods: dict[str, PodFact] = {}
        self.offset = 0
        self.problems: list[str] = []
        self._inode = -1
        self._decoder = msgspec.json.Decoder(PodFact)

    @classmethod
    def newest(cls, path: Path) -> dict[str, PodFact]:
        """The newest look at each pod of a journal, read once."""
        reader = cls(path)
        reader.poll()
        return reader.pods

    def poll(self) -> list[PodFact]:
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
                self.pods[fact.uid] = fact
                found.append(fact)
        return found

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

    def _decode(self, line: bytes) -> PodFact | None:
        if not line:
            return None
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if len(self.problems) < 8:  # noqa: PLR2004 - as many as anyone reads
                self.problems.append(f"{self.path.name}: a damaged line: {str(error)[:200]}")
            return None


def _newness(fact: PodFact) -> tuple[bool, str]:
    # The API's own stamps, all of one form: they are compared as texts.
    return not fact.gone, fact.created or ""
