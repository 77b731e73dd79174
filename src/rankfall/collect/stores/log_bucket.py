"""Copies a container's streams from an S3 log store: resumable, each byte once.

A part's name is the number of bytes before it. A malformed part stops the copy.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.collect.stores.record_store import has_reader, open_bucket
from rankfall.model import decoding
from rankfall.model.patterns import anchored
from rankfall.rundir.streams.writer import Counted, StreamAppender

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import S3Store

END: Final = "end.json"
MAX_END: Final = 1 << 20


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``end.json``; ``sizes`` in bytes by stream.

    Attributes:
        sizes: Bytes by stream.
    """

    sizes: dict[str, int]


def decode_end(data: bytes) -> End | None:
    """Decodes ``end.json``; None if damaged."""
    try:
        return decoding.decode(data, kind=End)
    except msgspec.DecodeError:
        return None


# A part has at most 4 MiB and a chunk, with 40 bytes for each of 16,000 pieces.
MAX_PART: Final = 8 << 20
MAX_HEAD: Final = 2 << 20
MAX_PIECES: Final = 16_000
# Two for each process that became a rank.
MAX_STREAMS: Final = 20_000
# Parts per poll, so that no folder delays others.
_AT_ONCE: Final = 64
_STREAM: Final = anchored(r"[0-9]{1,9}\.(?:out|err)", limit=64)


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["rankfall.log-part/1"]
    # Stream, offset, bytes, timestamp in nanoseconds.
    pieces: list[tuple[str, int, int, int]]


class PartsCopy:
    """Copies one bucket folder into an instance's folder.

    ``at``: number of copied bytes, which names the next part. ``complete``: every stream has the recorded length.
    """

    def __init__(self, store: Callable[[], S3Store], name: str, target: Path, *, at: int = 0) -> None:
        self.name = name
        self.target = target
        self.at = at
        self.complete = False
        self._store = store
        self._held: dict[str, Counted] = {}

    def poll(self) -> int:
        """Copies new data and returns its bytes; 0 if none remains.

        Raises:
            OSError: New data cannot be read or stored.
        """
        copied = 0
        for _ in range(0 if self.complete else _AT_ONCE):
            part = self._get(f"{self.at:015d}.part", limit=MAX_PART)
            if part is None:
                break
            copied += self._take(part)
        else:
            return copied
        text = self._get(END, limit=MAX_END)
        end = None if text is None else decode_end(text)
        self.complete = end is not None and self._reaches(end)
        return copied

    def _reaches(self, end: End) -> bool:
        for stream in end.sizes:
            if _STREAM.fullmatch(stream) and stream not in self._held and (self.target / f"{stream}.log").exists():
                self._append(stream, [])
        return all(size <= (held.size if (held := self._held.get(stream)) else 0) for stream, size in end.sizes.items())

    def _take(self, part: bytes) -> int:
        """Appends the new data of a part and returns its bytes."""
        head, data = self._taken_apart(part)
        at = 0
        pieces: dict[str, list[tuple[int, int, bytes]]] = {}
        for stream, start, size, stamp in head.pieces:
            pieces.setdefault(stream, []).append((start, stamp, data[at : at + size]))
            at += size
        if len(self._held.keys() | pieces.keys()) > MAX_STREAMS:
            raise self._wrong(f"has more than {MAX_STREAMS} streams")
        copied = sum(self._append(stream, new) for stream, new in pieces.items())
        self.at += len(data)
        return copied

    def _taken_apart(self, part: bytes) -> tuple[_Head, bytes]:
        cut = part.find(b"\n", 0, MAX_HEAD)
        try:
            head = decoding.decode(part[: max(cut, 0)], kind=_Head)
        except msgspec.DecodeError:
            raise self._wrong("does not have the format of a part that Rankfall wrote") from None
        data = part[cut + 1 :]
        sizes = [size for _, _, size, _ in head.pieces]
        fits = 0 < len(sizes) <= MAX_PIECES and min(sizes) > 0 and sum(sizes) == len(data)
        if not fits or not all(_STREAM.fullmatch(stream) for stream, *_ in head.pieces):
            raise self._wrong("does not have the format of a part that Rankfall wrote")
        return head, data

    def _append(self, stream: str, pieces: list[tuple[int, int, bytes]]) -> int:
        appender = StreamAppender(self.target / stream, counted=self._held.get(stream))
        began = appender.size
        try:
            for start, stamp, data in pieces:
                here = appender.size - start
                if here < 0:
                    raise self._wrong(
                        f"begins at byte {start} of {stream}, but the local copy ends at byte {appender.size}"
                    )
                if here < len(data):
                    appender.write(data[here:], stamp)
        finally:
            self._held[stream] = appender.counted
            appender.close()
        return appender.size - began

    def _get(self, key: str, *, limit: int) -> bytes | None:
        """Returns an object's bytes, or None if it does not exist."""
        try:
            import obstore  # noqa: PLC0415

            found = obstore.get(self._store(), f"{self.name}/{key}")
            size = found.meta["size"]
            data = bytes(found.bytes()) if size <= limit else b""
        except FileNotFoundError:
            return None
        except Exception as error:
            # The library has no error type for transient errors.
            words = str(error).split("\n", 1)[0][:200]
            raise OSError(errno.EIO, f"the store does not return {key}: {words}", key) from error
        if size > limit:
            raise self._wrong(f"has {size} bytes, more than {limit}")
        return data

    def _wrong(self, text: str) -> OSError:
        return OSError(errno.EINVAL, f"part {self.at:015d} {text}", self.name)


class Bucket:
    """A job's log store as an S3 bucket; keys come from the environment."""

    at_once: Final = 16
    # Pause per second of a poll.
    rest: Final = 1.0
    # Seconds without new data after the end; S3 data is visible immediately.
    patience_s: Final = 15.0

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: S3Store | None = None

    @property
    def visible(self) -> bool:
        """True; whether the bucket is readable appears only at the first copy."""
        return has_reader()

    def _open(self) -> S3Store:
        if self._opened is None:
            self._opened = open_bucket(self._url)
        return self._opened

    def copy(self, name: str, target: Path, *, at: int) -> PartsCopy:
        """Copy of one folder; ``at``: bytes copied before."""
        return PartsCopy(self._open, name, target, at=at)
