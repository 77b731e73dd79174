"""Writes the streams of ranks to a log store instead of stdout.

For jobs with too many lines for the API server. One thread writes, because a store may take any time. Waiting
bytes are bounded: beyond that they are lost up to the end of their line, counted and logged, and the job goes
on at full speed. Each start of a container has its own folder below the root,
``<run>/attempt-<N>/<role>-<slot>/<pod uid>-<start>/``.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque

from rankfall_inside.delivery import stream_files
from rankfall_inside.delivery.log_store_backends import HEAD, Folder, Parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

# Of all streams together; what comes beyond this is lost.
MAX_WAITING = 64 << 20
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


class LogStore:
    """The store of one start of a container.

    Args:
        root: where the volume is mounted, or a folder of it; or ``s3://BUCKET/PREFIX``.
        name: of the folder below the root.
        environ: holds the keys of a bucket.
    """

    def __init__(self, root: str, name: str, environ: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._place: Folder | Parts = (
            Parts(root, name, environ or {}) if root.startswith(HEAD) else Folder(os.path.join(root, name))
        )
        # Bytes that found no room, of all streams.
        self.lost = 0
        self._queue: deque[tuple[str, bytes, int, int]] = deque()
        # Bytes of each stream in the queue, and of all.
        self._queued: dict[str, int] = {}
        self._waiting = 0
        self._change = threading.Condition()
        self._closed = False
        self._done = False
        self._thread: threading.Thread | None = None

    # -- the wrapper's side

    @property
    def path(self) -> str:
        """Where the streams are, for people."""
        return self._place.path

    @property
    def trouble(self) -> str:
        """Why nothing is stored at present; "" = all goes well."""
        return self._place.trouble

    def refusal(self) -> str:
        """Why nothing can ever be stored; "" = it may be. Asked once, before the first bytes; may take as long as a request."""
        return self._place.refusal()

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
            self._queued[stream] = self._queued.get(stream, 0) + len(data)
            self._queue.append((stream, data, time.time_ns(), lost))
            self._change.notify()
        self._work()
        return True

    def _work(self) -> None:
        if self._thread is None:
            # Only now: a thread must not be there while processes are forked.
            self._thread = threading.Thread(target=self._run, name="rankfall-store", daemon=True)
            self._thread.start()

    def finish(self, patience: float) -> list[tuple[str, stream_files.Gap]]:
        """No more comes: wait until all is written, at most so long; what is missing, by stream. May be called again."""
        with self._change:
            self._closed = True
            self._change.notify()
        # Also where no rank printed anything: that this is all is written too.
        self._work()
        with self._change:
            self._change.wait_for(lambda: self._done, patience)
        missing = [(stream, gap) for stream, gaps in self._place.losses().items() for gap in gaps]
        return missing if self._done else missing + self._left()

    def _left(self) -> list[tuple[str, stream_files.Gap]]:
        """What is not written yet."""
        why = f"the log store did not take them in time{': ' if self.trouble else ''}{self.trouble}"
        with self._change:
            counts = dict(self._queued)
        for stream, count in self._place.waiting().items():
            counts[stream] = counts.get(stream, 0) + count
        return [
            (stream, stream_files.Gap(self._place.size(stream), count, why))
            for stream, count in sorted(counts.items())
            if count
        ]

    def give_up(self) -> None:
        """Try no more to write what waits."""
        self._place.stop()

    @property
    def done(self) -> bool:
        """Whether all is written, and that it is all."""
        return self._done

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._closed, self._place.due())
                if not self._queue and self._closed:
                    break
                one = self._queue.popleft() if self._queue else None
            if one is not None:
                self._place.write(*one)
                with self._change:
                    self._queued[one[0]] -= len(one[1])
                    self._waiting -= len(one[1])
            if self._place.due() == 0:
                self._place.flush()
        if self._place.end():
            with self._change:
                self._done = True
                self._change.notify()


class StoreSink:
    """One stream's way to the store: as ``streams.Sink``, and never slow."""

    def __init__(self, store: LogStore, stream: str) -> None:
        # Known when the thread has written all: LogStore.finish tells them.
        self.gaps: list[stream_files.Gap] = []
        self._store = store
        self._stream = stream
        self._lost = 0

    def take_gaps(self) -> list[stream_files.Gap]:
        """None before the end."""
        return []

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
