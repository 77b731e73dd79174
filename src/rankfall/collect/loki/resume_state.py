"""Resume state of one pod's lines from Loki: each line once, even after a kill.

A row precedes its page; the next process compares it with the stored logs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rankfall.loki.reader import State
from rankfall.model import decoding
from rankfall.rundir.layout import pods_folder
from rankfall.rundir.lease import make_folder, private, write_file

# Bytes at which the file is rewritten.
COMPACT: Final = 16 << 20


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a page from one container instance.

    Attributes:
        number: Restart number of the container.
        base: Number of lines in its log before this part.
        lines: Number of lines that this part adds.
        seen: (timestamp, id) of each entry.
        after: Newest timestamp of the log before Loki's lines; None without lines.
        east_s: Proved zone in seconds east of UTC, or None.
    """

    number: int
    base: int
    lines: int
    seen: tuple[tuple[int, bytes], ...]
    after: int | None = None
    east_s: int | None = None


class _Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    mark: int
    forgotten: int
    late: int
    parts: tuple[Part, ...] = ()


class LokiState:
    """The state file of one pod.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, run: Path, *, attempt: int, uid: str) -> None:
        # Only safe characters reach the file name.
        name = "".join(char if char.isalnum() or char == "-" else "_" for char in uid)[:80]
        self._path = pods_folder(run, attempt) / "loki" / f"{name}.jsonl"
        make_folder(self._path.parent)
        self._size = 0
        self._compact_at = COMPACT
        self.joins: dict[int, tuple[int | None, int | None]] = {}

    def load(self, *, stored: Callable[[int], int], start_ns: int) -> State:
        """Returns the cursor's state that agrees with the stored logs.

        Raises:
            OSError: The file cannot be read.
        """
        rows = self._rows()
        self.joins = {part.number: (part.after, part.east_s) for row in rows for part in row.parts}
        if not rows:
            return State.starting_at(start_ns)
        done, last = rows[:-1], rows[-1]
        parts = [part for row in done for part in row.parts]
        whole = True
        for part in last.parts:
            if stored(part.number) >= part.base + part.lines:
                parts.append(part)
            else:
                whole = False
        # The rest of a partly stored page is queried again.
        held = last if whole or not done else done[-1]
        if not whole and not done:
            held = msgspec.structs.replace(last, mark=start_ns, forgotten=start_ns - 1)
        found = State(
            mark=held.mark,
            forgotten=held.forgotten,
            late=held.late,
            seen=tuple(one for part in parts for one in part.seen),
        )
        if not whole:
            # Rows before the last one count as stored.
            self._rewrite(found)
        return found

    def intend(self, state: State, parts: tuple[Part, ...]) -> None:
        """Writes a row about a page before it is stored.

        Raises:
            OSError: A write failed; do not store the page.
        """
        row = _Row(mark=state.mark, forgotten=state.forgotten, late=state.late, parts=parts)
        data = msgspec.json.encode(row) + b"\n"
        if self._size > self._compact_at:
            self._rewrite(state, parts)
        fd = private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.ftruncate(fd, self._size)
            if os.write(fd, data) < len(data):
                os.ftruncate(fd, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(fd)
        self._size += len(data)

    def _rewrite(self, state: State, parts: tuple[Part, ...] = ()) -> None:
        """Replaces all rows by one that excludes the unstored ``parts``.

        Raises:
            OSError: The rows cannot be written; the file is unchanged.
        """
        coming = {found for part in parts for _, found in part.seen}
        seen = tuple(one for one in state.seen if one[1] not in coming)
        self.joins |= {part.number: (part.after, part.east_s) for part in parts}
        held = [
            Part(number=number, base=0, lines=0, seen=(), after=after, east_s=east_s)
            for number, (after, east_s) in self.joins.items()
        ]
        held = held or [Part(number=0, base=0, lines=0, seen=())]
        held[0] = msgspec.structs.replace(held[0], seen=seen)
        # The mark must not be beyond the unstored page.
        mark = min([state.mark, *(at for part in parts for at, _ in part.seen)])
        row = _Row(mark=mark, forgotten=min(state.forgotten, mark - 1), late=state.late, parts=tuple(held))
        temporary = self._path.with_suffix(".new")
        data = msgspec.json.encode(row) + b"\n"
        write_file(temporary, data)
        temporary.replace(self._path)
        self._size = len(data)
        self._compact_at = max(COMPACT, 2 * self._size)

    def _rows(self) -> list[_Row]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        found = []
        self._size = 0
        for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
            try:
                found.append(decoding.decode(line, kind=_Row))
            except msgspec.DecodeError:
                break
            self._size += len(line) + 1
        return found
