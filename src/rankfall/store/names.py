"""Where raw streams lie and what their names say: ``logs/attempt-N/<role>-<slot>/<instance>/<local>.{out,err}.log``.

Whatever else lies in those folders is no stream and is left alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from rankfall.store.packed import ENDING

SLOT: Final = "slot"

_ATTEMPT: Final = re.compile(r"attempt-([1-9][0-9]{0,8})")
_SLOT: Final = re.compile(r"([a-z0-9][a-z0-9-]*)-([0-9]{1,9})")
_FILE: Final = re.compile(r"(slot|r?[0-9]{1,9})\.(out|err)\.log")


class StreamName(msgspec.Struct, frozen=True, kw_only=True):
    """One stream file.

    Attributes:
        stream: path relative to the run directory.
        local: process ordinal, ``r`` and the rank (streams that were taken apart by the wrapper's prefix), or ``slot``.
        out: standard output, else standard error.
        path: the file, by the name that it has while it is not compressed.
    """

    attempt: int
    role: str
    slot: int
    instance: int
    local: str
    out: bool
    stream: str
    path: Path

    @property
    def rank(self) -> int | None:
        """The rank that the name itself tells."""
        return int(self.local[1:]) if self.local.startswith("r") else None

    @property
    def of_a_rank(self) -> bool:
        """Whether a process that became a rank wrote it, whichever rank that is."""
        return self.local != SLOT


def find_streams(
    logs: Path, *, attempt: int | None = None, since: int = 0, problems: list[str] | None = None
) -> list[StreamName]:
    """All stream files, in order of attempt, role, slot, instance, process.

    Args:
        logs: the run's ``logs`` folder.
        attempt: only of this one.
        since: only of this attempt and later ones.
        problems: takes a line for each folder that cannot be read.
    """
    found: list[StreamName] = []
    notes = problems if problems is not None else []
    for first in _entries(logs, notes):
        match = _ATTEMPT.fullmatch(first)
        if not match or int(match[1]) < since or (attempt is not None and int(match[1]) != attempt):
            continue
        for second in _entries(logs / first, notes):
            place = _SLOT.fullmatch(second)
            if not place:
                continue
            for third in _entries(logs / first / second, notes):
                if not (third.isascii() and third.isdigit()):
                    continue
                folder = logs / first / second / third
                inside = {name.removesuffix(ENDING) for name in _entries(folder, notes)}
                notes.extend(
                    f"{folder / name}: the stream is gone, only its index is left"
                    for name in sorted(inside)
                    if name.endswith(".idx") and name.removesuffix(".idx") + ".log" not in inside
                )
                for name in inside:
                    file = _FILE.fullmatch(name)
                    if file:
                        found.append(
                            StreamName(
                                attempt=int(match[1]),
                                role=place[1],
                                slot=int(place[2]),
                                instance=int(third),
                                local=file[1],
                                out=file[2] == "out",
                                stream=f"{logs.name}/{first}/{second}/{third}/{name}",
                                path=folder / name,
                            )
                        )
    return sorted(
        found, key=lambda name: (name.attempt, name.role, name.slot, name.instance, _ordinal(name.local), not name.out)
    )


def _ordinal(local: str) -> int:
    return -1 if local == SLOT else int(local.removeprefix("r"))


def _entries(folder: Path, problems: list[str]) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror or error}")
        return []
