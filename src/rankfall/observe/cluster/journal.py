"""The journal of pods: one line of JSON a change, appended by the one feed, read by anybody at any time.

Kept because a pod and all it could tell vanish from the API when it is deleted. A torn last line is passed over; equal looks are not repeated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from rankfall.observe.cluster.podfacts import PodFact

NAME: Final = "pods.jsonl"
_MAX_LINE: Final = 1 << 20
_MAX_BYTES: Final = 256 << 20


def journal_path(run: Path, attempt: int) -> Path:
    """Where the journal of an attempt lies in its run directory."""
    return run / "kube" / f"attempt-{attempt}" / NAME


class JournalWriter:
    """Appends looks at pods.

    Args:
        path: made with its folders when missing. What an earlier writer left is kept; its torn last line is ended.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        reader = JournalReader(path)
        reader.poll()
        self._last = {uid: msgspec.structs.replace(fact, seen_ns=0) for uid, fact in reader.pods.items()}
        self._encoder = msgspec.json.Encoder()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")
        self._size = size

    def add(self, fact: PodFact) -> bool:
        """Write one look down; False when it says nothing new.

        Raises:
            OSError: the disk is full or the like; nothing of it counts as written.
        """
        same = msgspec.structs.replace(fact, seen_ns=0)
        if self._last.get(fact.uid) == same or self._size > _MAX_BYTES:
            return False
        line = self._encoder.encode(fact) + b"\n"
        os.write(self._fd, line)
        self._size += len(line)
        self._last[fact.uid] = same
        return True

    def close(self) -> None:
        """Let go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class JournalReader:
    """Reads a journal incrementally.

    Attributes:
        pods: the newest look at each pod by its UID, in order of first appearance.
        problems: lines that could not be used, in words (at most a few).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pods: dict[str, PodFact] = {}
        self.problems: list[str] = []
        self._offset = 0
        self._decoder = msgspec.json.Decoder(PodFact)

    def poll(self) -> list[PodFact]:
        """Looks that came since, oldest first."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        found = []
        for line in data[:whole].splitlines():
            fact = self._decode(line)
            if fact is not None:
                self.pods[fact.uid] = fact
                found.append(fact)
        return found

    def by_slot(self) -> dict[int, PodFact]:
        """The newest pod of each slot: a pod that is there before one that is gone, then the later one."""
        found: dict[int, PodFact] = {}
        for fact in self.pods.values():
            if fact.slot is None:
                continue
            held = found.get(fact.slot)
            if held is None or held.gone >= fact.gone:
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
