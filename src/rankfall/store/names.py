"""Where raw streams lie and what their names say: ``logs/attempt-N/<role>-<slot>/<instance>/<local>.{out,err}.log``.

Whatever else lies in those folders is no stream and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from rankfall.model import numbers
from rankfall.model.patterns import anchored
from rankfall.store.packed import ENDING
from rankfall.store.standing import Standing

SLOT: Final = "slot"
StreamOrder: TypeAlias = tuple[int, str, int, int, int, bool, str]

_ATTEMPT: Final = anchored(r"attempt-([1-9][0-9]{0,8})", limit=256)
_SLOT: Final = anchored(r"([a-z0-9][a-z0-9-]*)-([0-9]{1,9})", limit=256)
_FILE: Final = anchored(r"(slot|r?[0-9]{1,9})\.(out|err)\.log", limit=256)


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
        return numbers.matched(self.local[1:]) if self.local.startswith("r") else None

    @property
    def order(self) -> StreamOrder:
        """Sort key among the streams of a run: attempt, role, slot, instance, the slot's own stream before its processes, stdout before stderr.

        No two streams have the same.
        """
        ordinal = -1 if self.local == SLOT else numbers.matched(self.local.removeprefix("r"))
        return self.attempt, self.role, self.slot, self.instance, ordinal, not self.out, self.stream

    @property
    def of_a_rank(self) -> bool:
        """Whether a process that became a rank wrote it, whichever rank that is."""
        return self.local != SLOT


class StreamFinder:
    """Finds the streams of one run again and again, and lists only folders that changed.

    Args:
        logs: the run's ``logs`` folder.
        attempt: only of this one.
    """

    def __init__(self, logs: Path, *, attempt: int | None = None) -> None:
        self._logs = logs
        self._attempt = attempt
        self._standing = Standing()
        self._listed: dict[Path, list[str]] = {}
        self._changed: set[Path] = set()
        self._since = -1
        self._found: list[StreamName] = []
        self._notes: list[str] = []

    def find(self, *, since: int, problems: list[str]) -> list[StreamName]:
        """As :func:`find_streams`; the same list as the last time where no folder changed."""
        self._changed = {folder for folder in self._listed if not self._standing.stands(str(folder))}
        if self._changed or since != self._since or not self._listed:
            for folder in self._changed:
                del self._listed[folder]
            self._since = since
            self._notes = []
            self._found = find_streams(
                self._logs, attempt=self._attempt, since=since, problems=self._notes, entries=self._entries
            )
        problems.extend(self._notes)
        return self._found

    def _entries(self, folder: Path, problems: list[str]) -> list[str]:
        known = self._listed.get(folder)
        if known is not None:
            return known
        if folder not in self._changed:
            # Its time of change is taken before it is listed.
            self._standing.stands(str(folder))
        before = len(problems)
        found = _entries(folder, problems)
        if len(problems) > before:
            # A folder that becomes readable keeps its time of change: everything is listed again.
            self._since = -1
        else:
            self._listed[folder] = found
        return found


def find_streams(
    logs: Path,
    *,
    attempt: int | None = None,
    since: int = 0,
    problems: list[str] | None = None,
    entries: Callable[[Path, list[str]], list[str]] | None = None,
) -> list[StreamName]:
    """All stream files, in their order (:attr:`StreamName.order`).

    Args:
        logs: the run's ``logs`` folder.
        attempt: only of this one.
        since: only of this attempt and later ones.
        problems: takes a line for each folder that cannot be read.
        entries: lists a folder; None = as it is now.
    """
    found: list[StreamName] = []
    notes = problems if problems is not None else []
    entries = entries or _entries
    for first in entries(logs, notes):
        match = _ATTEMPT.fullmatch(first)
        if (
            not match
            or numbers.matched(match[1]) < since
            or (attempt is not None and numbers.matched(match[1]) != attempt)
        ):
            continue
        for second in entries(logs / first, notes):
            place = _SLOT.fullmatch(second)
            if not place:
                continue
            for third in entries(logs / first / second, notes):
                if not (third.isascii() and third.isdigit()):
                    continue
                folder = logs / first / second / third
                inside = {name.removesuffix(ENDING) for name in entries(folder, notes)}
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
                                attempt=numbers.matched(match[1]),
                                role=place[1],
                                slot=numbers.matched(place[2]),
                                instance=numbers.matched(third),
                                local=file[1],
                                out=file[2] == "out",
                                stream=f"{logs.name}/{first}/{second}/{third}/{name}",
                                path=folder / name,
                            )
                        )
    return sorted(found, key=lambda name: name.order)


def _entries(folder: Path, problems: list[str]) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror or error}")
        return []
