"""Keeps a failure inside of one reader: what it read is left out, named and saved, and everything else goes on.

All that readers meet is text and files of jobs, so an exception in one of them says something about that text and nothing about the run.
Errors that Rankfall raises on purpose pass through. Everything that is kept is bounded: entries, copies, and the size of a copy.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rankfall.model import RankfallError
from rankfall.model.evidence import digest

T = TypeVar("T")

# Folder of the copies in a run directory.
FOLDER: Final = "problems"
MAX_PROBLEMS: Final = 64
# So many entries are saved, each with at most so many bytes of what was read.
MAX_SAVED: Final = 16
MAX_COPY: Final = 64 << 10
_MAX_TRACE: Final = 4000
_MAX_ERROR: Final = 200
_MAX_WHERE: Final = 300


class ProblemEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader left out, as it is saved beside the copy of the bytes.

    Attributes:
        what: kind of reader: stream, record, error file, flight dump, ...
        where: file or stream, relative to the run directory.
        error: type and message of the exception, or why the bytes were not read.
        from_byte, to_byte: bytes of a stream that were not classified.
        trace: the exception's own traceback.
        at: nanoseconds since the epoch.
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

    Args:
        folder: run directory that takes copies of the bytes that a reader failed on; None = none are saved.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder / FOLDER if folder is not None else None
        self._texts: dict[str, str] = {}
        self._new: list[str] = []
        self._saved: set[str] = set()

    @property
    def problems(self) -> list[str]:
        """What was left out, and why."""
        return list(self._texts.values())

    def take_new(self) -> list[str]:
        """Problems that came since the last call; one that changed since is not repeated."""
        new, self._new = self._new, []
        return new

    def read(
        self, reader: Callable[[], T], *, otherwise: T, what: str, where: str, data: Callable[[], bytes] | bytes = b""
    ) -> T:
        """Result of ``reader``; ``otherwise`` where it raises anything but an error of Rankfall's own.

        Args:
            reader: reads one thing: a stream, a file, a record.
            otherwise: the result that stands for nothing read.
            what: kind of reader, for people: ``stream``, ``error file``.
            where: name of what it reads.
            data: the bytes that it reads, or gives them; the beginning is saved.
        """
        try:
            return reader()
        except RankfallError:
            raise
        except Exception as error:  # noqa: BLE001 - the purpose of this class
            self.failed(error, what=what, where=where, data=data)
            return otherwise

    def failed(self, error: Exception, *, what: str, where: str, data: Callable[[], bytes] | bytes = b"") -> None:
        """Remember that a reader failed; arguments as of :meth:`read`."""
        cause = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
        key = digest("failed", what, where, type(error).__name__)
        if key in self._texts:
            return
        entry = ProblemEntry(
            what=what,
            where=where[:_MAX_WHERE],
            error=cause,
            # The last frames alone: a stack of a thousand equal ones says no more.
            trace="".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-12))[-_MAX_TRACE:],
            at=time.time_ns(),
        )
        kept = self._save(key, entry, data)
        self._add(
            key, f"{entry.where}: the reader of this {what} failed, and what it failed on was left out ({cause}){kept}"
        )

    def skipped(self, where: str, from_byte: int, to_byte: int, *, because: str) -> None:
        """Remember that bytes of a stream were not classified; a later call for the same first byte replaces the last one."""
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
        self._add(key, f"{entry.where}: bytes {from_byte} to {to_byte} were stored and not classified: {because}")

    def _add(self, key: str, text: str) -> None:
        if key not in self._texts:
            if len(self._texts) >= MAX_PROBLEMS:
                return
            self._new.append(text)
        self._texts[key] = text

    def _save(self, key: str, entry: ProblemEntry, data: Callable[[], bytes] | bytes) -> str:
        """Save an entry and the bytes; where they lie, for the problem's text. Never raises: a full disk must not cost the run."""
        if self._folder is None or (key not in self._saved and len(self._saved) >= MAX_SAVED):
            return ""
        self._saved.add(key)
        copy = b""
        # What gives the bytes again is as likely to fail on them as the reader.
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
        return f"; the first {len(copy)} bytes are kept in {FOLDER}/{key}.bytes"


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
