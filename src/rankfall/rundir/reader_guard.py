"""Keeps one reader of job text from harming others: a failed one is skipped, named and saved, a slow one is stopped.

Rankfall's own errors pass through. Entries and copies are bounded. A reader over its ``Allowance`` stops: the stream
remains stored, only its last ``TAIL`` bytes are classified.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rankfall.model import RankfallError
from rankfall.model.evidence import digest

T = TypeVar("T")

# Folder of copies in a run directory.
FOLDER: Final = "problems"
MAX_PROBLEMS: Final = 64
# Maximum saved entries, and bytes of each.
MAX_SAVED: Final = 16
MAX_COPY: Final = 64 << 10
_MAX_TRACE: Final = 4000
_MAX_ERROR: Final = 200
_MAX_WHERE: Final = 300


class ProblemEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Input that a reader left out, saved next to a copy of the bytes.

    Attributes:
        what: Kind of reader, as stream or record.
        where: File or stream, relative to the run directory.
        error: Exception, or why bytes were not read.
        from_byte, to_byte: Unclassified bytes of a stream.
        trace: Traceback of the exception.
        at: Nanoseconds since the epoch.
    """

    what: str
    where: str
    error: str
    from_byte: int | None = None
    to_byte: int | None = None
    trace: str = ""
    at: int = 0


class ReaderGuard:
    """Runs readers and remembers which of them failed.

    Failed bytes are copied to ``folder``; None = no copies.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder / FOLDER if folder is not None else None
        self._texts: dict[str, str] = {}
        self._new: list[str] = []
        self._saved: set[str] = set()

    @property
    def problems(self) -> list[str]:
        """Messages about skipped input, with the reasons."""
        return list(self._texts.values())

    def take_new(self) -> list[str]:
        """Returns new problems; a changed one is not repeated."""
        new, self._new = self._new, []
        return new

    def read(
        self, reader: Callable[[], T], *, otherwise: T, what: str, where: str, data: Callable[[], bytes] | bytes = b""
    ) -> T:
        """Returns the result of ``reader``; ``otherwise`` after any error that is not Rankfall's.

        ``what`` (kind) and ``where`` name the input in messages. The beginning of ``data`` is saved.
        """
        try:
            return reader()
        except RankfallError:
            raise
        except Exception as error:  # noqa: BLE001 - the purpose of this class
            self.failed(error, what=what, where=where, data=data)
            return otherwise

    def failed(self, error: Exception, *, what: str, where: str, data: Callable[[], bytes] | bytes = b"") -> None:
        """Records a reader's failure; arguments as for :meth:`read`."""
        cause = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
        key = digest("failed", what, where, type(error).__name__)
        if key in self._texts:
            return
        entry = ProblemEntry(
            what=what,
            where=where[:_MAX_WHERE],
            error=cause,
            # Only the last frames: a thousand equal ones add nothing.
            trace="".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-12))[-_MAX_TRACE:],
            at=time.time_ns(),
        )
        kept = self._save(key, entry, data)
        self._add(key, f"{entry.where}: the reader of this {what} failed and skipped the data ({cause}){kept}")

    def skipped(self, where: str, from_byte: int, to_byte: int, *, because: str) -> None:
        """Records unclassified bytes of a stream; replaces the same first byte."""
        key = digest("skipped", where, str(from_byte))
        entry = ProblemEntry(
            what="stream",
            where=where[:_MAX_WHERE],
            error=because,
            from_byte=from_byte,
            to_byte=to_byte,
            at=time.time_ns(),
        )
        self._save(key, entry, b"")
        self._add(key, f"{entry.where}: bytes {from_byte} to {to_byte} were stored but not classified: {because}")

    def _add(self, key: str, text: str) -> None:
        if key not in self._texts:
            if len(self._texts) >= MAX_PROBLEMS:
                return
            self._new.append(text)
        self._texts[key] = text

    def _save(self, key: str, entry: ProblemEntry, data: Callable[[], bytes] | bytes) -> str:
        """Saves entry and bytes, returns their location. Never raises: a full disk must not cost the run."""
        if self._folder is None or (key not in self._saved and len(self._saved) >= MAX_SAVED):
            return ""
        self._saved.add(key)
        copy = b""
        # This function may fail like the reader.
        with contextlib.suppress(Exception):
            copy = (data() if callable(data) else data)[:MAX_COPY]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            _write(self._folder / f"{key}.json", msgspec.json.encode(entry))
            if not copy:
                return ""
            _write(self._folder / f"{key}.bytes", copy)
        except (OSError, UnicodeEncodeError):
            return ""
        return f"; the first {len(copy)} bytes are stored in {FOLDER}/{key}.bytes"


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


POLL_S: Final = 0.4
POLL_BYTES: Final = 64 << 20


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time that the reader of one stream may take beyond that of ordinary text.

    Attributes:
        burst_s: Seconds in any case.
        rate: Bytes of ordinary text per second.
        share: Share of the time since the stream's appearance.
    """

    burst_s: float
    rate: int
    share: float


#: During supervision: hostile text costs a tenth of the time. Text of words is read at 300 MiB per second.
LIVE: Final = Allowance(burst_s=0.15, rate=128 << 20, share=0.1)
#: For an explanation. Genuine tracebacks take 0.1 s per MiB, ordinary text 0.01 s: complete up to 100 MiB.
AFTERWARDS: Final = Allowance(burst_s=5.0, rate=16 << 20, share=0.0)
# Bytes read at once, as many as take so many seconds: costly text is set aside, and a request answered, in time.
MIN_PIECE: Final = 32 << 10
MAX_PIECE: Final = 512 << 10
_PIECE_S: Final = 0.02
# A stream's newest bytes, classified in any case.
TAIL: Final = 128 << 10
# CPU seconds of all streams beyond ordinary text, after all slots ended.
END_S: Final = 0.5
# CPU seconds for the last bytes of all streams.
TAILS_S: Final = 10.0

Clock = Callable[[], float]


class Budget:
    """Seconds and bytes that several reads may take in total.

    ``clock``: monotonic or CPU time. ``interrupted`` returns True if a caller waits; the budget is then spent.
    """

    def __init__(
        self,
        seconds: float,
        size: int | None = None,
        *,
        clock: Clock = time.monotonic,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._left = size
        self._interrupted = interrupted

    def take(self, size: int) -> None:
        """Counts bytes that were read."""
        if self._left is not None:
            self._left -= size

    @property
    def spent(self) -> bool:
        """True if nothing more may be read."""
        return (self._left is not None and self._left <= 0) or self._clock() >= self._until or self._interrupted()


class ReadingTime:
    """CPU time that the reader of one stream has taken beyond that of ordinary text, against its allowance.

    Attributes:
        used: These seconds.
        piece: Number of bytes to read next.
    """

    def __init__(
        self, allowance: Allowance = LIVE, *, cpu: Clock = time.thread_time, clock: Clock = time.monotonic
    ) -> None:
        self._allowance = allowance
        self._cpu = cpu
        self._clock = clock
        self._began = clock()
        self.used = 0.0
        self.piece = MIN_PIECE

    @contextlib.contextmanager
    def measured(self, size: int) -> Iterator[None]:
        """Counts the CPU time of the context, which reads ``size`` bytes."""
        before = self._cpu()
        try:
            yield
        finally:
            took = self._cpu() - before
            self.used += max(0.0, took - size / self._allowance.rate)
            if took > _PIECE_S:
                self.piece = max(MIN_PIECE, self.piece // 2)
            elif took < _PIECE_S / 2:
                self.piece = min(MAX_PIECE, self.piece * 2)

    @property
    def over(self) -> bool:
        """True if the reader has taken more than its allowance."""
        allowed = self._allowance
        return self.used > allowed.burst_s + allowed.share * (self._clock() - self._began)
