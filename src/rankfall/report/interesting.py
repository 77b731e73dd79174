"""Which lines a person wants to see of a job with many ranks, when they ask for nothing else. No line is changed, and the record has all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rankfall.model import StoreError
from rankfall.model.patterns import bounded
from rankfall.model.sizes import sized
from rankfall.store import RunDir
from rankfall.store.error_lines import Tracebacks, names_failure
from rankfall.store.lines import Line, last_told
from rankfall.store.resizes import wished_sizes

_LOOK: Final = 4096
# torchrun's own end over a failed child.
_LAUNCHER: Final = bounded(rb"errors\.ChildFailedError|raise ChildFailedError", limit=1 << 30)


class Interesting:
    """Picks what ``run`` shows by default: all lines of some ranks, from the others what tells of a failure, tracebacks whole.

    Of the lines of no rank only those that name a failure, without the frames above them: they are mostly the launcher's own, whose
    report of a failed child says nothing that is not said better at the end.

    Args:
        whole: whether a line is of a rank that is shown whole.
    """

    def __init__(self, whole: Callable[[Line], bool]) -> None:
        self._whole = whole
        self._tracebacks: dict[str, Tracebacks] = {}

    def __call__(self, line: Line) -> bool:
        """Whether this line is shown; lines of one stream must come in their order."""
        if line.rank is not None and self._whole(line):
            return True
        text = line.data[:_LOOK]
        tracebacks = self._tracebacks.setdefault(line.stream, Tracebacks())
        if line.rank is None and _LAUNCHER.search(text):
            tracebacks.end()
            return False
        part = tracebacks.take(text)
        return line.rank is not None if part == "frame" else part == "words" or names_failure(text)


class Usual:
    """Whether a line is of rank 0 or of the last rank of a full start.

    Where the job starts its ranks itself (launcher ``exec``) nobody but they know how many there are; no rank is taken for the last one before.

    Args:
        directory: the run.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._last: dict[int, int | None] = {}
        self._fixed: int | None = None
        try:
            spec = directory.spec
            if spec.launcher != "exec":
                self._fixed = sized(spec, wished_sizes(directory.path, spec)).world_size - 1
        except StoreError:
            self._fixed = 0

    def __call__(self, line: Line) -> bool:
        """Whether this line is."""
        if line.rank == 0 or self._fixed is not None:
            return line.rank in {0, self._fixed}
        if line.attempt not in self._last:
            self._last[line.attempt] = last_told(self._directory, line.attempt)
        return line.rank == self._last[line.attempt]

    def forget(self, attempt: int | None = None) -> None:
        """Ranks of this attempt (None: of any) have started, or may have: there may be more or fewer than before."""
        if attempt is None:
            self._last.clear()
        else:
            self._last.pop(attempt, None)
