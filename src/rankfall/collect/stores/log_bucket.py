"""Copies a container's streams from an S3 log store into the run directory: resumable, each byte once.

Parts are named by the bytes before them, so the name of the next part is the cursor and nothing is listed.
Each piece carries its place in its stream, so a half-taken part is taken again without repeats. A
malformed or oversized part stops the copy, because what follows cannot be placed. end.json gives the final
length of each stream.
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
    """What it says.

    Attributes:
        sizes: bytes of each stream, by its name.
    """

    sizes: dict[str, int]


def decode_end(data: bytes) -> End | None:
    """What it says; None = it is damaged, so nothing is known of the end."""
    try:
        return decoding.decode(data, kind=End)
    except msgspec.DecodeError:
        return None


# A writer makes them of at most 4 MiB and a chunk, with some 40 bytes for each of 16,000 pieces.
MAX_PART: Final = 8 << 20
MAX_HEAD: Final = 2 << 20
MAX_PIECES: Final = 16_000
# Of one start of a container: two for each process that became a rank.
MAX_STREAMS: Final = 20_000
# Parts taken at one look, so that a folder that is far behind holds up no other.
_AT_ONCE: Final = 64
_STREAM: Final = anchored(r"[0-9]{1,9}\.(?:out|err)", limit=64)


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["rankfall.log-part/1"]
    # Stream, place in it, bytes, stamp in nanoseconds.
    pieces: list[tuple[str, int, int, int]]


class PartsCopy:
    """One folder of a bucket into the folder of an instance.

    Args:
        store: gives the bucket and prefix.
        name: of the folder below it.
        target: of the instance's streams.
        at: bytes of all parts that are here; the name of the next one.

    Attributes:
        complete: every stream is here to the end that its writer wrote down.
    """

    def __init__(self, store: Callable[[], S3Store], name: str, target: Path, *, at: int = 0) -> None:
        self.name = name
        self.target = target
        self.at = at
        self.complete = False
        self._store = store
        self._held: dict[str, Counted] = {}

    def poll(self) -> int:
        """Copy what is new; how many bytes that were. More may be there when there were any.

        Raises:
            OSError: it cannot be read, or not be stored.
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
        """Append what is new of a part; how many bytes that were."""
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
            raise self._wrong("is none that a recorder writes") from None
        data = part[cut + 1 :]
        sizes = [size for _, _, size, _ in head.pieces]
        fits = 0 < len(sizes) <= MAX_PIECES and min(sizes) > 0 and sum(sizes) == len(data)
        if not fits or not all(_STREAM.fullmatch(stream) for stream, *_ in head.pieces):
            raise self._wrong("is none that a recorder writes")
        return head, data

    def _append(self, stream: str, pieces: list[tuple[int, int, bytes]]) -> int:
        appender = StreamAppender(self.target / stream, counted=self._held.get(stream))
        began = appender.size
        try:
            for start, stamp, data in pieces:
                here = appender.size - start
                if here < 0:
                    raise self._wrong(f"begins at byte {start} of {stream}, which is here up to {appender.size}")
                if here < len(data):
                    appender.write(data[here:], stamp)
        finally:
            self._held[stream] = appender.counted
            appender.close()
        return appender.size - began

    def _get(self, key: str, *, limit: int) -> bytes | None:
        """An object's bytes; None = it is not there."""
        try:
            import obstore  # noqa: PLC0415 - an extra, for jobs that name such a store

            found = obstore.get(self._store(), f"{self.name}/{key}")
            size = found.meta["size"]
            data = bytes(found.bytes()) if size <= limit else b""
        except FileNotFoundError:
            return None
        except Exception as error:
            # The library's own errors have no common kind that says whether they may pass.
            words = str(error).split("\n", 1)[0][:200]
            raise OSError(errno.EIO, f"the store does not give {key}: {words}", key) from error
        if size > limit:
            raise self._wrong(f"has {size} bytes, more than {limit}")
        return data

    def _wrong(self, text: str) -> OSError:
        return OSError(errno.EINVAL, f"part {self.at:015d} {text}", self.name)


class Bucket:
    """The log store of a job, as this machine reaches it.

    Args:
        url: ``s3://BUCKET/PREFIX``; keys are those of this process's environment.
    """

    at_once: Final = 16
    # Seconds of pause for each that a look took: it mostly waits for answers.
    rest: Final = 1.0
    # Whoever writes there is in the container, and what is stored is seen at once: seconds without news after its end.
    patience_s: Final = 15.0

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: S3Store | None = None

    @property
    def visible(self) -> bool:
        """Whether it can be looked at; that it does not answer shows then."""
        return has_reader()

    def _open(self) -> S3Store:
        if self._opened is None:
            self._opened = open_bucket(self._url)
        return self._opened

    def copy(self, name: str, target: Path, *, at: int) -> PartsCopy:
        """The copy of one folder."""
        return PartsCopy(self._open, name, target, at=at)
