"""Keeps a status area below the output of a live run on a terminal.

Lines scroll above the area, so the terminal's history has each once. The cursor rests at the area's first column: other
text overwrites the area, a resize moves both, and a killed process leaves the terminal as it was.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, TextIO, cast

from rankfall.cli import console
from rankfall.model import JobSpec, RankfallError
from rankfall.model.jobspec.sizes import sized
from rankfall.render.escape import clean_line, shorten
from rankfall.render.formatting import Paint
from rankfall.render.live import Pace, Snapshot, Step, area, last_state, step_of
from rankfall.rundir import RunDir
from rankfall.rundir.lines import Line, LineTail
from rankfall.rundir.requests import planned_sizes
from rankfall.rundir.status import newest_round, restarts

# Least and most time between two drawings, of which one may cost a small part.
_DRAW_S: Final = 0.25
_SLOWEST_S: Final = 5.0
_SHARE: Final = 100
# A change within one tick of the file system's clock is invisible.
_REREAD_S: Final = 1.0
_LOOK: Final = 4096
# Lines of one stream that are examined at a time.
_LAST: Final = 8
# Bars of a followed log.
_MOST: Final = 8


class Area:
    """The lines below the output; stdout and stderr clear them before each text, until ``close``."""

    def __init__(self) -> None:
        self._streams = (sys.stdout, sys.stderr)
        self._lock = threading.RLock()
        self._drawn: list[str] = []
        # False after text without LF, as a question.
        self._at_start = True
        sys.stdout, sys.stderr = (cast("TextIO", _Above(self, stream)) for stream in self._streams)

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal at present."""
        try:
            found = os.get_terminal_size(self._streams[1].fileno())
        except (OSError, ValueError):
            found = os.terminal_size((0, 0))
        return found.columns or 80, found.lines or 24

    def draw(self, lines: list[str]) -> None:
        """Shows the lines, if they differ and the output above has ended."""
        with self._lock:
            if not self._at_start or lines == self._drawn:
                return
            if not lines:
                self.clear()
                return
            up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
            # Overwrites without flicker; no line wraps, whatever width its characters have.
            self._put("\r\x1b[?7l" + "\x1b[K\n".join(lines) + f"\x1b[J\x1b[?7h{up}\r")
            self._drawn = lines

    def clear(self) -> None:
        """Removes the lines from the terminal."""
        with self._lock:
            if self._drawn:
                self._drawn = []
                self._put("\r\x1b[J")

    def write(self, stream: TextIO, text: str) -> int:
        """Writes text above the area."""
        with self._lock:
            self.clear()
            if text:
                self._at_start = text.endswith("\n")
            return stream.write(text)

    def close(self) -> None:
        """Removes the area and gives the streams back."""
        self.clear()
        sys.stdout, sys.stderr = self._streams

    def _put(self, text: str) -> None:
        # The end of a terminal shows at the next line of the job.
        with contextlib.suppress(OSError, ValueError):
            for stream in self._streams:
                stream.flush()
            self._streams[1].write(text)
            self._streams[1].flush()


class _Above:
    """A stream whose text appears above the area."""

    def __init__(self, area: Area, stream: TextIO) -> None:
        self._area = area
        self._stream = stream

    def write(self, text: str) -> int:
        return self._area.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LiveView:
    """The state of one run in an area.

    Reads the tables if they changed, and takes lines that the viewer has read.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._area = Area()
        self._paint = Paint(color=console.color_on(sys.stderr))
        self._mark: object = None
        self._changed = self._read = -_REREAD_S
        self._found: Snapshot | None = None
        self._due = 0.0
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._seen: dict[int, int] = {}
        self._newest: int | None = None
        self._paces: dict[int, Pace] = {}
        self._bars: dict[str, str] = {}
        self._rests: dict[str, bytes] = {}

    def take(self, lines: Iterable[Line]) -> None:
        """Adds new lines; only the last few of each stream count."""
        last: dict[str, deque[Line]] = {}
        for line in lines:
            last.setdefault(line.stream, deque(maxlen=_LAST)).append(line)
        for line in chain.from_iterable(last.values()):
            if line.attempt > self._attempt:
                self._begin(line.attempt)
            if line.attempt == self._attempt:
                self._note(line, line.at, _text(line.data))

    def _note(self, line: Line, at: int | None, text: str) -> None:
        if at is None:
            return
        self._newest = max(at, self._newest or at)
        if line.rank is None:
            return
        self._seen[line.rank] = max(at, self._seen.get(line.rank, at))
        found = step_of(text)
        if found is not None:
            self._paces.setdefault(line.rank, Pace()).take(at, found)

    def refresh(self, tail: LineTail | None) -> None:
        """Draws the area, if the last drawing was long enough ago."""
        if time.monotonic() < self._due:
            return
        before = time.thread_time()
        now = time.time_ns()
        with contextlib.suppress(RankfallError):
            self._read_tables()
        if tail is not None:
            self._read_bars(tail, now)
        if self._found is not None:
            columns, rows = self._area.size()
            lines = area(
                self._found,
                now=now,
                seen=self._seen,
                newest=self._newest,
                paces=self._paces,
                bars=self._bars,
                # A full line would wrap at a resize.
                width=max(1, columns - 1),
                paint=self._paint,
            )
            self._area.draw(lines[: max(1, rows - 1)])
        self._due = time.monotonic() + max(_DRAW_S, min(_SLOWEST_S, _SHARE * (time.thread_time() - before)))

    def close(self) -> None:
        """Removes the area."""
        self._area.close()

    def _read_bars(self, tail: LineTail, now: int) -> None:
        rests: dict[str, bytes] = {}
        bars = {}
        for line, owner, text in bars_of(tail):
            if line.attempt != self._attempt:
                continue
            bars[owner] = text
            rests[line.stream] = line.data
            if self._rests.get(line.stream) != line.data:
                self._note(line, now, text)
        self._bars, self._rests = bars, rests

    def _read_tables(self) -> None:
        now, mark = time.monotonic(), self._directory.tables_mark()
        if mark != self._mark:
            self._mark, self._changed = mark, now
        elif self._read - self._changed > _REREAD_S:
            return
        self._read = now
        spec = self._directory.spec
        with self._directory.reader() as tables:
            row, attempts = tables.run(), tables.attempts()
            attempt = attempts[-1].attempt if attempts else 0
            found = tables.diagnosis(attempt)
            self._found = Snapshot(
                run=self._directory.id,
                # The supervisor has not created the database yet.
                state=row.state if attempts or row.state != "unknown" else "queued",
                attempt=attempt,
                most=spec.policies.max_restarts + 1,
                started=row.started,
                parts=_parts(spec, attempts[-1].plan if attempts else {}),
                slots=tuple(tables.slots(attempt)),
                ranks=tuple(newest_round(tables.ranks(attempt))),
                verdict=found.verdict if found is not None else None,
                restarts=restarts(tables, limit=spec.policies.max_restarts),
            )
        if attempt > self._attempt:
            self._begin(attempt)
        for facts in self._found.ranks:
            signs = [at for at in (facts.last_line_at, facts.step_at, self._seen.get(facts.rank)) if at is not None]
            if signs:
                self._seen[facts.rank] = max(signs)
            if facts.step is not None and facts.step_at is not None:
                self._paces.setdefault(facts.rank, Pace()).take(facts.step_at, Step(facts.step, None), reported=True)


class BarView:
    """The bars of a followed log in an area."""

    def __init__(self) -> None:
        self._area = Area()
        self._due = 0.0

    def refresh(self, tail: LineTail) -> None:
        """Draws the bars, if the last drawing was long enough ago."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _DRAW_S
        columns, rows = self._area.size()
        lines = [shorten(f"{owner}: {text}", max(1, columns - 1)) for _, owner, text in islice(bars_of(tail), _MOST)]
        self._area.draw(lines[: max(1, rows - 1)])

    def close(self) -> None:
        """Removes the area."""
        self._area.close()


def bars_of(tail: LineTail) -> Iterator[tuple[Line, str, str]]:
    """Yields unfinished lines that are bars, with their owner and their last state."""
    for line in tail.unfinished():
        text = last_state(line.data)
        if text is not None:
            yield line, f"rank {line.rank}" if line.rank is not None else f"slot {line.slot}", text


def _parts(spec: JobSpec, plan: dict[str, Any]) -> Any:
    return sized(spec, planned_sizes(plan, spec)).parts


def _text(data: bytes) -> str:
    return last_state(data[-_LOOK:]) or clean_line(data[:_LOOK])
