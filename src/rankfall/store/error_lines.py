"""Which lines of a stream tell of an error: those that a signature or their own level mark, and tracebacks whole (``--level error``).

The work is per chunk, as everywhere: only where a traceback may stand is anything looked at line by line. A line that is left out is not
lost, only not asked for. Cost: time linear in bytes, also where one line holds a mark again and again; memory: one number a line that is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from rankfall.model.patterns import Bounded, anchored, bounded

if TYPE_CHECKING:
    from rankfall.signatures.catalogue import Catalogue
    from rankfall.store.rundir import RunDir

# What a prefix of a launcher or of the job's own logger may put before a traceback's lines.
_PREFIX: Final = rb"(?:\[(?:rank|default|worker|trainer|pod)\d+\]: ?)?"
_HEAD: Final = bounded(
    rb"(?m)^" + _PREFIX + rb"(?:  \+ Exception Group )?Traceback \(most recent call last\):", limit=1 << 30
)
_CHAINED: Final = bounded(
    rb"(?m)^" + _PREFIX + rb"(?:The above exception was|During handling of the above)", limit=1 << 30
)
_INDENTED: Final = anchored(_PREFIX + rb"(?:\s|$)", limit=1 << 30)
# The levels of Python's logging, of glog (also absl's and torchrun's own), of logfmt and of JSON.
_LEVEL: Final = bounded(
    rb"\b(?:ERROR|CRITICAL|FATAL)\b|\b[EF]\d{4} \d\d:\d\d:\d\d"
    rb"|\b(?:level|lvl|severity)\"?[=:] ?\"?(?:error|critical|fatal|ERROR|CRITICAL|FATAL)\b",
    limit=1 << 30,
)
# An exception's own line, and what the C library, the kernel and the shell say of a death.
_FAILURE: Final = bounded(
    rb"(?:Error|Exception|Interrupt|Exit)\b:|\bFAILED\b|\b[Ff]atal(?: Python)? error\b|\bSegmentation fault\b"
    rb"|\bCUDA (?:error|out of memory)\b|\bterminate called\b|\bKilled\b|\bAborted\b|\bNo space left on device\b",
    limit=1 << 30,
)
_LOOK: Final = 4096
_MAX_BLOCK: Final = 400


class Tracebacks:
    """Tells the lines of tracebacks in one stream; lines must come in their order."""

    def __init__(self) -> None:
        self._left = 0

    @property
    def inside(self) -> bool:
        """Whether the next line may belong to a traceback."""
        return self._left > 0

    def take(self, line: bytes) -> Literal["frame", "words"] | None:
        """What the next line is: ``frame`` (its head, a frame, words between two chained ones), ``words`` (of the exception), or None."""
        if _HEAD.match(line) or _CHAINED.match(line):
            self._left = _MAX_BLOCK
            return "frame"
        if not self._left:
            return None
        if _INDENTED.match(line):
            self._left -= 1
            return "frame"
        # The line that names the exception ends its traceback.
        self._left = 0
        return "words"

    def end(self) -> None:
        """Forget a traceback that has begun."""
        self._left = 0


def names_failure(line: bytes) -> bool:
    """Whether a line by itself names a failure."""
    return _FAILURE.search(line) is not None


class ErrorLines:
    """The error lines of one stream, of which the chunks must come in their order.

    Args:
        catalogue: the signatures in force; what they call context is no error.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._tracebacks = Tracebacks()

    def pick(self, data: bytes) -> set[int]:
        """Where error lines begin in a chunk of whole lines (the last may lack its newline), as bytes of the chunk."""
        found = {start for pattern in (_LEVEL, _FAILURE) for start in _lines_with(pattern, data)}
        hits = self._catalogue.scan(data, where=self._catalogue.STREAM)
        found |= {hit.line_start for hit in hits if hit.signature.role != "context"}
        if self._tracebacks.inside or _HEAD.search(data) or _CHAINED.search(data):
            offset = 0
            for line in data.split(b"\n"):
                if offset < len(data) and self._tracebacks.take(line[:_LOOK]) is not None:
                    found.add(offset)
                offset += len(line) + 1
        return found


def _lines_with(pattern: Bounded[bytes], data: bytes) -> Iterator[int]:
    """Where the lines begin in which a pattern matches, each once."""
    at = 0
    while (match := pattern.search(data, at)) is not None:
        yield data.rfind(b"\n", at, match.start()) + 1 or at
        at = data.find(b"\n", match.end()) + 1
        if not at:
            return


def error_lines_of(run_dir: RunDir, *, problems: list[str]) -> Callable[[], ErrorLines]:
    """What picks the error lines of a run's streams, one for each stream; the user's own signatures count.

    Args:
        run_dir: the run.
        problems: takes a line where the user's signatures cannot be read.
    """
    from rankfall.store.catalogues import tolerant_catalogue  # noqa: PLC0415 - loads the signatures

    catalogue, problem = tolerant_catalogue(run_dir.path.parent.parent)
    if problem is not None:
        problems.append(problem)
    return lambda: ErrorLines(catalogue)
