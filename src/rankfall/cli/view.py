"""Lines of a run on stdout: their prefix, their time, their shape for a terminal or for a pipe.

Into a pipe or a file go the bytes of the job as they are. A terminal gets them made harmless.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from rankfall.report.escape import clean_line
from rankfall.report.paint import Paint, wants_color
from rankfall.store import RunDir
from rankfall.store.derived import ALL_RANKS
from rankfall.store.lines import Line

_NS: Final = 1_000_000_000
_COLORS: Final = ("36", "33", "35", "32", "34", "96", "93", "95")


class LineWriter:
    """Writes lines to stdout.

    Args:
        prefix: ``[rank N] `` before each (``[slot S] `` where no rank is known).
        timestamps: when the line came, RFC 3339 with nanoseconds.
        as_json: one JSON object a line instead.
        limit: of bytes in all; the first line that does not fit is not written, and none after it. None = no limit.

    Attributes:
        spent: whether a line was left out because of the limit.
    """

    def __init__(
        self, *, prefix: bool = True, timestamps: bool = False, as_json: bool = False, limit: int | None = None
    ) -> None:
        self._left = limit
        self.spent = False
        self._prefix = prefix
        self._timestamps = timestamps
        self._json = as_json
        self._terminal = sys.stdout.isatty()
        self._paint = Paint(color=wants_color(sys.stdout))

    def write(self, lines: Iterable[Line], *, note: str | None = None) -> int:
        """Write them and flush; how many they were.

        Args:
            lines: in the order in which they are shown.
            note: what the prefix says beside whose line it is.
        """
        count = 0
        buffer = getattr(sys.stdout, "buffer", None)
        for line in lines:
            text = self._text(line, note, raw=buffer is not None)
            if self.spent or not self._fits(text):
                self.spent = True
                break
            count += 1
            if isinstance(text, str):
                sys.stdout.write(text)
            else:
                # Text written before must stay before.
                sys.stdout.flush()
                buffer.write(text)  # type: ignore[union-attr] # bytes are made only where there is one
        if count:
            sys.stdout.flush()
        return count

    def _text(self, line: Line, note: str | None, *, raw: bool) -> str | bytes:
        """What is written: bytes of the job into a pipe, harmless text to a terminal."""
        if self._json:
            return json.dumps(as_data(line)) + "\n"
        if self._terminal or not raw:
            return self._head(line, note) + clean_line(line.data) + "\n"
        return self._head(line, note).encode() + line.data + b"\n"

    def _fits(self, text: str | bytes) -> bool:
        if self._left is not None:
            self._left -= len(text if isinstance(text, bytes) else text.encode(errors="replace"))
        return self._left is None or self._left >= 0

    def _head(self, line: Line, note: str | None) -> str:
        time = f"{stamp(line.at)} " if self._timestamps else ""
        if not self._prefix:
            return time
        who = f"rank {line.rank}" if line.rank is not None else f"slot {line.slot}"
        who = f"[{', '.join(filter(None, (who, 'late' if line.late else None, note)))}]"
        code = _COLORS[line.rank % len(_COLORS)] if line.rank is not None else "2"
        return f"{time}{self._paint(who, code)} "


def spent_text(directory: RunDir) -> str:
    """What is said when ``--max-bytes`` is reached."""
    kept = directory.path / ALL_RANKS
    return f"--max-bytes is reached, no more output is shown; all is kept: rankfall logs {directory.id}, {kept} (at the run's end)"


def as_data(line: Line) -> dict[str, object]:
    """A line as plain data; bytes that are no UTF-8 stand as escapes in ``text``."""
    return {
        "at": stamp(line.at) if line.at is not None else None,
        "rank": line.rank,
        "attempt": line.attempt,
        "role": line.role,
        "slot": line.slot,
        "out": line.out,
        "stream": line.stream,
        "offset": line.offset,
        "text": line.data.decode("utf-8", "backslashreplace"),
        "truncated": line.truncated,
        "late": line.late,
    }


def stamp(at: int | None) -> str:
    """RFC 3339 in UTC with nanoseconds; dashes of the same width when unknown."""
    if at is None:
        return "-" * 30
    return f"{datetime.fromtimestamp(at // _NS, UTC):%Y-%m-%dT%H:%M:%S}.{at % _NS:09d}Z"
