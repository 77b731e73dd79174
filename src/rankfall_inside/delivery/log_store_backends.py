"""Two kinds of log store: files in a folder, or parts in a bucket; both end with ``end.json``.

Folder: ``<ordinal>.<out|err>-<first byte>.log`` and ``.idx``, a new pair per ``SEGMENT`` bytes.
Bucket: ``000000000000000.part`` (bytes before it): a JSON line (``pieces``: stream, offset, bytes, nanoseconds), then
bytes.
"""

from __future__ import annotations

import os
import threading
import time

from rankfall_inside import records
from rankfall_inside.delivery import stream_files
from rankfall_inside.delivery.bucket import Bucket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

# Bytes per file.
SEGMENT = 256 << 20
SYNC_S = 5.0


class Files:
    """Files of one stream; used by one thread."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._start = 0
        self._gaps: list[stream_files.Gap] = []
        self._sink = stream_files.Sink(f"{base}-{0:015d}")
        self._synced = time.monotonic()
        self._whole = True

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self._start + self._sink.offset

    def write(self, data: bytes, stamp: int) -> None:
        """Appends one chunk received at ``stamp`` (nanoseconds)."""
        if self._sink.offset >= SEGMENT:
            self._end_file()
        self._sink.write(data, stamp)
        self._whole = data.endswith(b"\n")
        if time.monotonic() - self._synced >= SYNC_S:
            self._sync()

    def lose(self, count: int, stamp: int) -> None:
        """Records ``count`` lost bytes; the next bytes written start a line."""
        if not self._whole:
            self.write(b"\n", stamp)
        self._gaps.append(stream_files.Gap(self.size, count, "the store was too slow"))

    def close(self) -> None:
        """Ends the files."""
        self._end_file()

    def losses(self) -> list[stream_files.Gap]:
        """Returns all gaps."""
        found = [
            stream_files.Gap(
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
        self._sink = stream_files.Sink(f"{self._base}-{self._start:015d}")

    def _sync(self) -> None:
        self._synced = time.monotonic()
        self._sink.sync()


class Folder:
    """Folder of one container start, created on first write."""

    def __init__(self, path: str) -> None:
        self.path = path
        # A folder reports gaps instead.
        self.trouble = ""
        self._files: dict[str, Files] = {}

    def refusal(self) -> str:
        """Returns "": storing may always work."""
        return ""

    def due(self) -> float | None:
        """Returns None: nothing waits."""
        return None

    def flush(self) -> bool:
        """Returns True: nothing waits."""
        return True

    def waiting(self) -> dict[str, int]:
        """Returns no streams: nothing waits."""
        return {}

    def stop(self) -> None:
        """Does nothing: nothing is retried."""

    def write(self, stream: str, data: bytes, stamp: int, lost: int) -> None:
        """Stores bytes of a stream after ``lost`` missing ones."""
        files = self._files.get(stream)
        if files is None:
            try:
                os.makedirs(self.path, exist_ok=True)
            except OSError:
                pass  # each write reports the error
            files = self._files[stream] = Files(os.path.join(self.path, stream))
        if lost:
            files.lose(lost, stamp)
        if data:
            files.write(data, stamp)

    def losses(self) -> dict[str, list[stream_files.Gap]]:
        """Returns gaps per stream."""
        return {stream: files.losses() for stream, files in self._files.items()}

    def size(self, stream: str) -> int:
        """Returns a stream's stored bytes."""
        files = self._files.get(stream)
        return 0 if files is None else files.size

    def end(self) -> bool:
        """Writes ``end.json`` with each stream's size, so that readers know the end; True if written."""
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
            pass  # without it readers report possible losses
        return True


def end_text(sizes: dict[str, int], losses: dict[str, list[stream_files.Gap]]) -> bytes:
    """Returns the content of ``end.json``."""
    content: dict[str, Any] = {
        "sizes": sizes,
        "lost": {stream: sum(gap.lost for gap in gaps) for stream, gaps in losses.items()},
    }
    return records.dumps(content).encode("ascii") + b"\n"


SCHEMA = "rankfall.log-part/1"
HEAD = "s3://"
PART = 4 << 20
EVERY_S = 2.0
# Readers limit pieces of a part (rankfall.collect.stores.log_bucket).
MAX_PIECES = 16_000
# Nanoseconds within which chunks of a stream form one piece.
_SAME_STAMP_NS = 1_000_000
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 10.0


class _Stream:
    """Size, waiting bytes and gaps of a stream."""

    __slots__ = ("gaps", "size", "waiting", "whole")

    def __init__(self) -> None:
        self.size = 0
        self.waiting = 0
        self.whole = True
        self.gaps: list[stream_files.Gap] = []


class Parts:
    """Objects of one container start below ``s3://BUCKET/PREFIX``."""

    def __init__(self, url: str, name: str, environ: Mapping[str, str]) -> None:
        bucket, _, prefix = url[len(HEAD) :].strip("/").partition("/")
        self.path = f"{url.rstrip('/')}/{name}"
        self.trouble = ""
        self._bucket_name = bucket
        self._environ = {key: value for key, value in environ.items() if key.startswith("AWS_")}
        self._folder = "/".join([part for part in prefix.split("/") if part] + [name])
        self._bucket: Bucket | None = None
        self._streams: dict[str, _Stream] = {}
        self._pieces: list[tuple[str, int, int]] = []
        self._data: list[list[bytes]] = []
        self._size = 0
        self._put = 0
        self._due = 0.0
        self._stopped = threading.Event()

    def refusal(self) -> str:
        """Puts ``begin.json``; returns why storing can never work, or ""."""
        try:
            self._opened().put(f"{self._folder}/begin.json", b'{"schema": "%s"}\n' % SCHEMA.encode())
        except OSError as error:
            self.trouble = _words(error)
        except Exception as error:  # missing keys or bucket, or invalid address
            return _words(error)
        return ""

    def _opened(self) -> Bucket:
        if self._bucket is None:
            self._bucket = Bucket(self._bucket_name, self._environ)
        return self._bucket

    def due(self) -> float | None:
        """Returns seconds until the next put; None if nothing waits."""
        if self._size >= PART or len(self._pieces) >= MAX_PIECES - 1:
            return 0.0
        return max(0.0, self._due - time.monotonic()) if self._pieces else None

    def waiting(self) -> dict[str, int]:
        """Returns unstored bytes per stream."""
        return {name: one.waiting for name, one in list(self._streams.items()) if one.waiting}

    def size(self, stream: str) -> int:
        """Returns a stream's stored bytes."""
        one = self._streams.get(stream)
        return 0 if one is None else one.size - one.waiting

    def losses(self) -> dict[str, list[stream_files.Gap]]:
        """Returns gaps before stored bytes per stream."""
        return {name: one.gaps for name, one in list(self._streams.items())}

    def stop(self) -> None:
        """Stops retrying; waiting bytes are lost."""
        self._stopped.set()

    def write(self, stream: str, data: bytes, stamp: int, lost: int) -> None:
        """Queues bytes of a stream after ``lost`` missing ones."""
        one = self._streams.setdefault(stream, _Stream())
        if lost:
            if not one.whole:
                self._add(stream, one, b"\n", stamp)
            one.gaps.append(stream_files.Gap(one.size, lost, "the store was too slow"))
        if data:
            self._add(stream, one, data, stamp)

    def _add(self, stream: str, one: _Stream, data: bytes, stamp: int) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[0] == stream and stamp - last[2] < _SAME_STAMP_NS:
            self._data[-1].append(data)
        else:
            if last is None:
                self._due = time.monotonic() + EVERY_S
            self._pieces.append((stream, one.size, stamp))
            self._data.append([data])
        one.whole = data.endswith(b"\n")
        one.size += len(data)
        one.waiting += len(data)
        self._size += len(data)

    def flush(self) -> bool:
        """Puts waiting bytes, retrying without limit; False if stopped."""
        if not self._pieces:
            return True
        data = [b"".join(parts) for parts in self._data]
        pieces = [[name, start, len(part), stamp] for (name, start, stamp), part in zip(self._pieces, data)]
        head = records.dumps({"schema": SCHEMA, "pieces": pieces}).encode("ascii")
        if not self._try(f"{self._put:015d}.part", b"\n".join([head, b"".join(data)])):
            return False
        self._put += self._size
        self._pieces, self._data, self._size = [], [], 0
        for one in self._streams.values():
            one.waiting = 0
        return True

    def end(self) -> bool:
        """Puts waiting bytes, then stream sizes; False if stopped."""
        if not self.flush():
            return False
        sizes = {name: one.size for name, one in self._streams.items()}
        return self._try("end.json", end_text(sizes, self.losses()))

    def _try(self, name: str, body: bytes) -> bool:
        import random

        pause = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            try:
                self._opened().put(f"{self._folder}/{name}", body)
            except Exception as error:
                # Rights and clocks change, and no other copy exists.
                self.trouble = _words(error)
                self._stopped.wait(pause * (0.5 + random.random()))  # noqa: S311 - spreads load
                pause = min(2 * pause, _LAST_PAUSE_S)
            else:
                self.trouble = ""
                return True
        return False


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300]
