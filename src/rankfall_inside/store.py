"""Streams of ranks on a shared volume instead of the container's stdout: for jobs whose lines are too many for the API server.

One thread writes, because a file of a network may take any time to write. What waits for it is bounded: past that, bytes are lost from
there to the end of their line, counted and said, and the job goes on as fast as before. Files are only appended to. A write is with the
kernel when it returns, so it outlives this process; every ``SYNC_S`` seconds and at the end it is made to outlive the machine too.

``<root>/<run>/attempt-<N>/<role>-<slot>/<pod uid>-<start>/<ordinal>.<out|err>-<first byte>.log`` and ``.idx`` (as in ``streams``), a new pair
after each ``SEGMENT`` bytes; ``end.json`` last of all. A folder is of one start of one container, and nobody else writes there.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque

from rankfall_inside import streams, tinyjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

# Of all streams together; what comes beyond this is lost.
MAX_WAITING = 64 << 20
# Bytes of one file.
SEGMENT = 256 << 20
SYNC_S = 5.0
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")


def folder_name(environ: Mapping[str, str]) -> str:
    """The folder of this start below the root; no two starts have the same."""
    place = f"{environ.get('RANKFALL_ROLE') or 'worker'}-{environ.get('RANKFALL_SLOT') or 0}"
    who = environ.get("RANKFALL_POD_UID") or environ.get("HOSTNAME") or "host"
    parts = (
        environ.get("RANKFALL_RUN") or "run",
        f"attempt-{environ.get('RANKFALL_ATTEMPT') or 1}",
        place,
        f"{who}-{time.time_ns():x}-{os.getpid():x}",
    )
    # Never a name that leads elsewhere.
    return "/".join(_STRANGE.sub("_", part).lstrip(".") or "_" for part in parts)


class _Files:
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
        return self._start + self._sink.offset

    def write(self, data: bytes, stamp: int) -> None:
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
        self._end_file()

    def losses(self) -> list[streams.Gap]:
        found = [streams.Gap(self._start + one.offset, one.lost, one.reason) for one in self._sink.gaps]
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


class LogStore:
    """The store of one start of a container.

    Args:
        root: where the volume is mounted, or a folder of it.
        name: of the folder below the root.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(root, name)
        # Bytes that found no room, of all streams.
        self.lost = 0
        self._queue: deque[tuple[str, bytes, int, int]] = deque()
        self._waiting = 0
        self._change = threading.Condition()
        self._closed = False
        self._done = False
        self._files: dict[str, _Files] = {}
        self._thread: threading.Thread | None = None

    # -- the wrapper's side

    def sink(self, stream: str) -> StoreSink:
        """What takes the bytes of a stream, as ``0.out``."""
        return StoreSink(self, stream)

    def put(self, stream: str, data: bytes, lost: int) -> bool:
        """Give bytes to the thread; False where it has too many already.

        Args:
            stream: name.
            data: of it.
            lost: bytes before these that found no room.
        """
        with self._change:
            if self._waiting + len(data) > MAX_WAITING:
                return False
            self._waiting += len(data)
            self._queue.append((stream, data, time.time_ns(), lost))
            self._change.notify()
        if self._thread is None:
            # Only now: a thread must not be there while processes are forked.
            self._thread = threading.Thread(target=self._run, name="rankfall-store", daemon=True)
            self._thread.start()
        return True

    def finish(self, patience: float) -> list[tuple[str, str]]:
        """No more comes: wait until all is written, at most so long; (stream, text) of what is missing. May be called again."""
        with self._change:
            self._closed = True
            self._change.notify()
            if self._thread is None:
                return []
            self._change.wait_for(lambda: self._done, patience)
            if not self._done:
                text = f"{self._waiting} bytes were not written: the log store did not take them in time"
                return [("slot", text)]
        return [
            (stream, f"{stream}: {gap.lost} bytes after offset {gap.offset} not stored ({gap.reason})")
            for stream, files in self._files.items()
            for gap in files.losses()
        ]

    @property
    def done(self) -> bool:
        """Whether all is written, or there was nothing."""
        return self._done or self._thread is None

    # -- the thread

    def _run(self) -> None:
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError:
            pass  # each write says what is wrong
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    break
                stream, data, stamp, lost = self._queue.popleft()
            self._write(stream, data, stamp, lost)
            with self._change:
                self._waiting -= len(data)
        self._end()
        with self._change:
            self._done = True
            self._change.notify()

    def _write(self, stream: str, data: bytes, stamp: int, lost: int) -> None:
        files = self._files.get(stream)
        if files is None:
            files = self._files[stream] = _Files(os.path.join(self.path, stream))
        if lost:
            files.lose(lost, stamp)
        if data:
            files.write(data, stamp)

    def _end(self) -> None:
        """How long each stream is: whoever reads knows from it that it has all."""
        sizes = {}
        lost = {}
        for stream, files in self._files.items():
            files.close()
            sizes[stream] = files.size
            lost[stream] = sum(gap.lost for gap in files.losses())
        text = tinyjson.dumps({"sizes": sizes, "lost": lost}).encode("ascii") + b"\n"
        path = os.path.join(self.path, "end.json")
        try:
            fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, text)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(path + ".tmp", path)
        except OSError:
            return


class StoreSink:
    """One stream's way to the store: as ``streams.Sink``, and never slow."""

    def __init__(self, store: LogStore, stream: str) -> None:
        # Known when the thread has written all: LogStore.finish tells them.
        self.gaps: list[streams.Gap] = []
        self._store = store
        self._stream = stream
        self._lost = 0

    def write(self, data: bytes) -> None:
        """Give one chunk to the store; where it finds no room, all is lost up to the end of a line."""
        if self._lost:
            cut = data.find(b"\n") + 1
            if not cut or not self._store.put(self._stream, data[cut:], self._lost + cut):
                self._lose(len(data))
                return
            self._store.lost += cut
            self._lost = 0
        elif not self._store.put(self._stream, data, 0):
            self._lose(len(data))

    def _lose(self, count: int) -> None:
        self._lost += count
        self._store.lost += count

    def close(self) -> None:
        """The stream is at its end."""
        if self._lost and self._store.put(self._stream, b"", self._lost):
            self._lost = 0
