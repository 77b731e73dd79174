"""What torchrun itself reports of its workers: exits, and the stops that it sent itself.

Text of the job, so it never proves more than the launcher's word; where the wrapper read a wait status, that one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

_STOP = re.compile(rb"Sending process (\d+) closing signal (SIG[A-Z0-9]+)")
_FORCED = re.compile(rb"Unable to shutdown process (\d+) via[^\n]{0,200}forcefully exiting via")
_FAILED = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\) of binary")
_ROW = re.compile(rb"rank +: (\d+) \(local_rank: (\d+)\)\n[^\n]{0,400}?exitcode +: (-?\d+) \(pid: (\d+)\)")
_SIGNALLED = re.compile(rb"Received (\d+) death signal, shutting down workers")
_MAX: Final = 4096


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of torchrun.

    Attributes:
        kind: ``stopped`` (it sent this process a signal itself), ``exit`` (it saw this exit), ``signalled`` (it got a signal).
        code: exit code as torchrun prints it: negative for a signal.
        at: byte in the scanned data.
    """

    kind: Literal["stopped", "exit", "signalled"]
    at: int
    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None


def read_reports(data: bytes) -> Iterator[Reported]:
    """All statements of a chunk; the cheap word ``exitcode`` or ``signal`` decides whether anything is looked for at all."""
    if data.find(b"closing signal SIG") >= 0:
        for match in _bounded(_STOP, data):
            yield Reported(kind="stopped", at=match.start(), pid=int(match[1]))
    if data.find(b"forcefully exiting via") >= 0:
        for match in _bounded(_FORCED, data):
            yield Reported(kind="stopped", at=match.start(), pid=int(match[1]))
    if data.find(b"death signal, shutting down workers") >= 0:
        for match in _bounded(_SIGNALLED, data):
            yield Reported(kind="signalled", at=match.start(), code=-int(match[1]))
    if data.find(b"exitcode") >= 0:
        for match in _bounded(_FAILED, data):
            yield Reported(
                kind="exit", at=match.start(), code=int(match[1]), local_rank=int(match[2]), pid=int(match[3])
            )
        for match in _bounded(_ROW, data):
            yield Reported(
                kind="exit",
                at=match.start(),
                rank=int(match[1]),
                local_rank=int(match[2]),
                code=int(match[3]),
                pid=int(match[4]),
            )


def _bounded(pattern: re.Pattern[bytes], data: bytes) -> Iterator[re.Match[bytes]]:
    for number, match in enumerate(pattern.finditer(data)):
        if number >= _MAX:
            return
        yield match
