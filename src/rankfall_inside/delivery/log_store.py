"""Writes rank streams to a log store instead of stdout.

A thread writes. Each container start has ``<run>/attempt-<N>/<role>-<slot>/<pod uid>-<start>/``.
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

# Bytes for all streams; more is lost.
MAX_WAITING = 64 << 20
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")


def folder_name(environ: Mapping[str, str]) -> str:
    """Returns this start's unique folder below the root."""
    place = f"{environ.get('RANKFALL_ROLE') or 'worker'}-{environ.get('RANKFALL_SLOT') or 0}"
    who = environ.get("RANKFALL_POD_UID") or environ.get("HOSTNAME") or "host"
    parts = (
        environ.get("RANKFALL_RUN") or "run",
        f"attempt-{environ.get('RANKFALL_ATTEMPT') or 1}",
        place,
        f"{who}-{time.time_ns():x}-{os.getpid():x}",
    )
    # No name may lead elsewhere.
    return "/".join(_STRANGE.sub("_", part).lstrip(".") or "_" for part in parts)


class LogStore:
    """Log store of one container start; ``root`` is a folder on the volume, or ``s3://BUCKET/PREFIX``."""

    def __init__(self, root: str, name: str, environ: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._place: Folder | Parts = (
            Parts(root, name, environ or {}) if root.startswith(HEAD) else Folder(os.path.join(root, name))
        )
        self.lost = 0
        self._queue: deque[tuple[str, bytes, int, int]] = deque()
        self._queued: dict[str, int] = {}
        self._waiting = 0
        self._change = threading.Condition()
        self._closed = False
        self._done = False
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> str:
        """Location of the streams, for messages."""
        return self._place.path

    @property
    def trouble(self) -> str:
        """Reason why storing fails now, or ""."""
        return self._place.trouble

    def refusal(self) -> str:
        """Returns why storing can never work, or ""; writes to a bucket once and waits for its answer."""
        return self._place.refusal()

    def sink(self, stream: str) -> StoreSink:
        """Returns the sink of a stream such as ``0.out``."""
        return StoreSink(self, stream)

    def put(self, stream: str, data: bytes, lost: int) -> bool:
        """Queues bytes that follow ``lost`` missing ones; False if the queue is full."""
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
            # Late: no thread may exist during a fork.
            self._thread = threading.Thread(target=self._run, name="rankfall-store", daemon=True)
            self._thread.start()

    def finish(self, patience: float) -> list[tuple[str, stream_files.Gap]]:
        """Waits at most ``patience`` seconds for all writes; returns gaps per stream. Repeatable."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._work()
        with self._change:
            self._change.wait_for(lambda: self._done, patience)
        missing = [(stream, gap) for stream, gaps in self._place.losses().items() for gap in gaps]
        return missing if self._done else missing + self._left()

    def _left(self) -> list[tuple[str, stream_files.Gap]]:
        """Returns gaps for unwritten bytes."""
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
        """Stops retrying; unwritten bytes are lost."""
        self._place.stop()

    @property
    def done(self) -> bool:
        """True if all bytes and ``end.json`` are written."""
        return self._done

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
    """Sink of one stream like ``stream_files.Sink``, but never waits."""

    def __init__(self, store: LogStore, stream: str) -> None:
        # LogStore.finish reports gaps.
        self.gaps: list[stream_files.Gap] = []
        self._store = store
        self._stream = stream
        self._lost = 0

    def take_gaps(self) -> list[stream_files.Gap]:
        """Returns nothing: gaps of the store are reported at the end."""
        return []

    def write(self, data: bytes) -> None:
        """Queues one chunk; without room, loses everything up to a line's end."""
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
        """Ends the stream."""
        if self._lost and self._store.put(self._stream, b"", self._lost):
            self._lost = 0
