"""What torchrun itself reports of its workers: exits, and the stops that it sent itself.

Text of the job, so it never proves more than the launcher's word; where the wrapper read a wait status, that one counts.

Cost: five patterns of RE2 over a chunk that holds their fixed words, so time is linear in bytes, and at most ``_MAX`` statements of a chunk
are read. Memory: at most ``_MAX`` different statements of a stream are known again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from rankfall.model.numbers import whole
from rankfall.model.patterns import Linear, linear

_STOP = linear(rb"Sending process (\d+) closing signal SIG[A-Z0-9]+")
_FORCED = linear(rb"Unable to shutdown process (\d+) via[^\n]{0,200}forcefully exiting via")
_FAILED = linear(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\) of binary")
_ROW = linear(rb"rank +: (\d+) \(local_rank: (\d+)\)\n[^\n]{0,400}?exitcode +: (-?\d+) \(pid: (\d+)\)")
_SIGNALLED = linear(rb"Received (\d+) death signal, shutting down workers")
_MAX: Final = 4096
# The same statement stands in a report twice or thrice.
_MAX_REPEATS: Final = 8
# A row of a report has two lines: the first one, where a chunk ends with it, is at most so long.
_FIRST_LINE: Final = b"(local_rank: "
_MAX_FIRST: Final = 512

_Kind = Literal["stopped", "exit", "signalled"]


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of torchrun.

    Attributes:
        kind: ``stopped`` (it sent this process a signal itself), ``exit`` (it saw this exit), ``signalled`` (it got a signal).
        code: exit code as torchrun prints it: negative for a signal.
        at: byte in the scanned data; negative in a line that the chunk before ended with.
    """

    kind: _Kind
    at: int
    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None


class ReportReader:
    """Reads the statements in one stream, of which the chunks come in order, cut between lines."""

    def __init__(self) -> None:
        self._first = b""
        self._seen: dict[tuple[object, ...], int] = {}

    def feed(self, data: bytes, *, speaks: bool) -> list[Reported]:
        """The statements of the next chunk.

        Args:
            data: whole lines.
            speaks: a launcher's own words stand in the chunk: otherwise it is looked through only for the rest of a report.
        """
        first, text = self._first, self._first + data if self._first else data
        found: list[Reported] = []
        if speaks or first:
            for one in read_reports(text):
                key = (one.kind, one.pid, one.rank, one.local_rank, one.code)
                count = self._seen.get(key, 0)
                if count < _MAX_REPEATS and (count or len(self._seen) < _MAX):
                    self._seen[key] = count + 1
                    found.append(msgspec.structs.replace(one, at=one.at - len(first)) if first else one)
        begin = text.rfind(b"\n", max(0, len(text) - _MAX_FIRST), len(text) - 1) + 1
        self._first = text[begin:] if text.find(_FIRST_LINE, max(begin, len(text) - _MAX_FIRST)) >= 0 else b""
        return found


def read_reports(data: bytes) -> Iterator[Reported]:
    """All statements of a chunk; fixed words decide whether anything is looked for at all."""
    if data.find(b"closing signal SIG") >= 0:
        for match in _numbers(_STOP, data):
            yield _reported("stopped", match, pid=1)
    if data.find(b"forcefully exiting via") >= 0:
        for match in _numbers(_FORCED, data):
            yield _reported("stopped", match, pid=1)
    if data.find(b"death signal, shutting down workers") >= 0:
        for at, (signal,) in _numbers(_SIGNALLED, data):
            yield Reported(kind="signalled", at=at, code=None if signal is None else -signal)
    if data.find(b"exitcode") >= 0:
        for match in _numbers(_FAILED, data):
            yield _reported("exit", match, code=1, local_rank=2, pid=3)
        for match in _numbers(_ROW, data):
            yield _reported("exit", match, rank=1, local_rank=2, code=3, pid=4)


def _reported(kind: _Kind, match: tuple[int, list[int | None]], **groups: int) -> Reported:
    at, numbers = match
    return Reported(kind=kind, at=at, **{name: numbers[group - 1] for name, group in groups.items()})


def _numbers(pattern: Linear[bytes], data: bytes) -> Iterator[tuple[int, list[int | None]]]:
    """Where a statement stands, and its numbers; one that holds a number of no sense is left out."""
    for match in islice(pattern.finditer(data), _MAX):
        numbers = [whole(text, digits=10) for text in match.groups()]
        if None not in numbers:
            yield match.start(), numbers
