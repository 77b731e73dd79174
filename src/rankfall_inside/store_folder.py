"""Streams as files of a folder that others see too, as on a volume of a network.

A write is with the kernel when it returns, so it outlives this process; every ``SYNC_S`` seconds and at the end it is made to outlive the
machine too.

``<ordinal>.<out|err>-<first byte>.log`` and ``.idx`` (as in ``streams``), a new pair after each ``SEGMENT`` bytes; ``end.json`` last of all.
"""

from __future__ import annotations

import os
import time

from rankfall_inside import streams, tinyjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Bytes of one file.
SEGMENT = 256 << 20
SYNC_S = 5.0


class Files:
    """One stream's files; of the thread alone."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._start = 0
        self._gaps: list[streams.Gap] = []
        self._sink = streams.Sink(f"{base}-{0:015d}")
        self._synced = time.monotonic()
        # Whether the last byte ended a line.
        self._whole = True

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self._start + self._sink.offset

    def write(self, data: bytes, stamp: int) -> None:
        """Append one chunk that came at ``stamp``, nanoseconds."""
        if self._sink.offset >= SEGMENT:
            self._end_file()
        self._sink.write(data, stamp)
        self._whole = data.endswith(b"\n")
        if time.monotonic() - self._synced >= SYNC_S:
            self._sync()

    def lose(self, count: int, stamp: int) -> None:
        """So many bytes never came here; the next ones begin a line."""
        if not self._whole:
            self.write(b"\n", stamp)
        self._gaps.append(streams.Gap(self.size, count, "the store was too slow"))

    def close(self) -> None:
        """No more comes."""
        self._end_file()

    def losses(self) -> list[streams.Gap]:
        """What is missing."""
        found = [
            streams.Gap(
                self._start + one.offset, one.lost, one.reason, lines=one.lines, since=one.since, until=one.until
            )
            for one in self._sink.gaps
        ]
        return self._gaps + found

    def _end_file(self) -> None:
        self._sync()
        self._gaps = self.losses()
        self._start += self._sink.offset
        self._sink.close()
        self._sink = streams.Sink(f"{self._base}-{self._start:015d}")

    def _sync(self) -> None:
        self._synced = time.monotonic()
        self._sink.sync()


class Folder:
    """A folder of one start of one container.

    Args:
        path: of the folder; made when something is written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # What keeps it from being written, for people; a folder has its losses instead.
        self.trouble = ""
        self._files: dict[str, Files] = {}

    def refusal(self) -> str:
        """Why nothing can ever be stored here; "" = it may be."""
        return ""

    def due(self) -> float | None:
        """Nothing waits here."""
        return None

    def flush(self) -> bool:
        """Whether all is stored that was given."""
        return True

    def waiting(self) -> dict[str, int]:
        """Bytes of each stream that wait: none do."""
        return {}

    def stop(self) -> None:
        """Nothing is tried twice."""

    def write(self, stream: str, data: bytes, stamp: int, lost: int) -> None:
        """Store bytes of a stream; ``lost`` before them never came."""
        files = self._files.get(stream)
        if files is None:
            try:
                os.makedirs(self.path, exist_ok=True)
            except OSError:
                pass  # each write says what is wrong
            files = self._files[stream] = Files(os.path.join(self.path, stream))
        if lost:
            files.lose(lost, stamp)
        if data:
            files.write(data, stamp)

    def losses(self) -> dict[str, list[streams.Gap]]:
        """What is missing of each stream."""
        return {stream: files.losses() for stream, files in self._files.items()}

    def size(self, stream: str) -> int:
        """How long a stream is here."""
        files = self._files.get(stream)
        return 0 if files is None else files.size

    def end(self) -> bool:
        """Write how long each stream is: whoever reads knows from it that it has all."""
        for files in self._files.values():
            files.close()
        text = end_text({stream: files.size for stream, files in self._files.items()}, self.losses())
        path = os.path.join(self.path, "end.json")
        try:
            os.makedirs(self.path, exist_ok=True)
            fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, text)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(path + ".tmp", path)
        except OSError:
            pass  # without it the reader says that lines may be missing
        return True


def end_text(sizes: dict[str, int], losses: dict[str, list[streams.Gap]]) -> bytes:
    """The last word of a store."""
    said: dict[str, Any] = {
        "sizes": sizes,
        "lost": {stream: sum(gap.lost for gap in gaps) for stream, gaps in losses.items()},
    }
    return tinyjson.dumps(said).encode("ascii") + b"\n"
