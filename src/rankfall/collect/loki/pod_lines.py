"""Stores the Loki lines of one pod that the API no longer has, as its log would have been.

A log that was followed until the pod vanished is continued only when Loki's lines carry the runtime's
timestamps, proved by lines that both have; otherwise it is refused with a message. Lines of a restarted
container need labels that name the instance. Labels that a collector does not set are unknown, never
guessed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rankfall.collect.loki.resume_state import LokiState, Part
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.collect.pods.line_splitter import stamp_text
from rankfall.loki.cursor import SECOND, Cursor, Entry
from rankfall.model import numbers
from rankfall.model.patterns import bounded

# The kubelet's own path of a container's log: namespace, pod, UID, container, restart.
_PATH: Final = bounded(r"/var/log/pods/[^/]+_([^/_]+)/[^/]+/([0-9]{1,9})\.log", limit=1_024)
_PATHS: Final = ("filename", "log_file_path")
_UIDS: Final = ("k8s_pod_uid", "pod_uid")
_RESTARTS: Final = ("k8s_container_restart_count",)
_OUTPUTS: Final = ("stream", "log_iostream")
# Of more restarts nobody tells.
_MAX_DIGITS: Final = 9
# Beside namespace, pod and container these tell one source from another.
IDENTIFYING_LABELS: Final = (*_PATHS, *_UIDS, *_RESTARTS, *_OUTPUTS)


class Origin(NamedTuple):
    """Whose line it is, as far as its labels tell."""

    uid: str | None
    number: int | None


def origin(labels: Mapping[str, str]) -> Origin:
    """The instance that these labels name."""
    uid = next((labels[name] for name in _UIDS if labels.get(name)), None)
    said = (numbers.whole(labels.get(name), digits=_MAX_DIGITS) for name in _RESTARTS)
    number = next((each for each in said if each is not None and each >= 0), None)
    for name in _PATHS:
        found = _PATH.search(labels.get(name, ""))
        if found is not None:
            uid = found[1] if uid is None else uid
            number = numbers.matched(found[2]) if number is None else number
    return Origin(uid, number)


# How far before the last stored line lines are looked for that prove whose stamps these are.
PROOF_NS: Final = 60 * SECOND
# How late a line may reach Loki and still be found by a later look: as late as Loki takes it by default.
LATE_NS: Final = 3600 * SECOND
# Lines of a page, where the server gives so many.
PAGE: Final = 1000
# Zones that nodes may have, seconds east of UTC: the API writes stamps in theirs.
_ZONES: Final = (0, *(quarter * 900 for quarter in range(-48, 57) if quarter))


class LostPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that the API no longer has.

    Attributes:
        name, uid: of it.
        container: its training container.
        slot: of the job.
        numbers: instances of its container that are known to have run; empty = not known.
    """

    name: str
    uid: str
    container: str
    slot: int
    numbers: tuple[int, ...] = ()


class LokiPodCollector:
    """One pod's lines out of Loki into the run directory.

    Args:
        pod: whose.
        open_log: gives the log of an instance, by its number.
        state: how far it was taken.
        start_ns: stamp from which lines are wanted, nanoseconds since the epoch.

    Attributes:
        cursor: of the query.
        lines: stored by this object.
        problems: why lines of some kind were not stored, in words.

    Raises:
        OSError: the run directory cannot be read or written.
    """

    def __init__(
        self,
        pod: LostPod,
        *,
        open_log: Callable[[int], InstanceLog],
        state: LokiState,
        start_ns: int,
    ) -> None:
        self.pod = pod
        self.lines = 0
        self.problems: list[str] = []
        self._open = open_log
        self._state = state
        self._logs: dict[int, InstanceLog] = {}
        # Of each instance: until when its lines were stored before Loki was asked; and the zone of its stamps, once that is proved.
        self._before: dict[int, int | None] = {}
        self._zones: dict[int, int] = {}
        self._last: dict[int, frozenset[int]] = {}
        for number in pod.numbers or (0,):
            self._log(number)
        wanted = min([start_ns, *(last - PROOF_NS for last in self._before.values() if last is not None)])
        found = state.load(stored=lambda number: self._log(number).cursor.lines, start_ns=wanted)
        for number, (after, east_s) in state.joins.items():
            self._log(number)
            self._before[number] = after
            if east_s is not None:
                self._zones[number] = east_s
        self.cursor = Cursor(found, limit=PAGE, overlap_ns=LATE_NS)

    def take(self, entries: Sequence[Entry]) -> None:
        """Store a page; the cursor stands behind it.

        Raises:
            OSError: it could not be stored; the same lines come again with the next process.
        """
        pages: dict[int, list[Entry]] = {}
        for entry in entries:
            number = self._number(entry)
            if number is not None:
                pages.setdefault(number, []).append(entry)
        parts, texts = [], {}
        for number, rows in pages.items():
            log = self._log(number)
            new = self._joined(number, rows)
            if new is None:
                continue
            texts[number] = b"".join(_lines(new, east_s=self._zones.get(number, 0)))
            parts.append(
                Part(
                    number=number,
                    base=log.cursor.lines,
                    lines=texts[number].count(b"\n"),
                    seen=tuple((one.at, one.id) for one in rows),
                    after=self._before[number],
                    east_s=self._zones.get(number),
                )
            )
        for number, text in texts.items():
            if text:
                self.claim(number)
        self._state.intend(self.cursor.state(), tuple(parts))
        for number, text in texts.items():
            if text:
                self._log(number).push(text)
                self.lines += text.count(b"\n")

    def ends(self) -> dict[int, bool]:
        """Instances of which lines are stored, and whether the wrapper's last word is among them."""
        return {number: log.leave() for number, log in self._logs.items() if log.cursor.lines}

    def log(self, number: int) -> InstanceLog:
        """The log of an instance."""
        return self._log(number)

    def claim(self, number: int) -> None:
        """From here on this log is Loki's: the API's follower leaves it, and what may be missing is said until its last word is stored.

        Raises:
            OSError: that cannot be written.
        """
        log = self._log(number)
        if log.cursor.closed is None:
            log.lose()
            log.cursor.closed = "lost"
            log.cursor.commit({})

    def after(self, number: int) -> int | None:
        """Stamp of the last line of an instance that was stored before Loki was asked; None where there was none."""
        return self._before[number]

    # -- whose

    def _number(self, entry: Entry) -> int | None:
        """The instance that wrote a line; None where that is not known, or it is of another pod of this name."""
        uid, number = origin(entry.labels)
        if uid is not None and uid != self.pod.uid:
            return None
        if number is not None:
            return number
        if len(self.pod.numbers) > 1 or self.pod.numbers[:1] > (0,):
            self._say(
                f"the container of {self.pod.name} was restarted, and Loki's labels do not say which of its lines are of which start: none is stored"
            )
            return None
        return 0

    def _log(self, number: int) -> InstanceLog:
        log = self._logs.get(number)
        if log is None:
            log = self._logs[number] = self._open(number)
            self._before[number] = log.cursor.last
            self._last[number] = log.cursor.taken_last()
        return log

    # -- joining

    def _joined(self, number: int, rows: list[Entry]) -> list[Entry] | None:
        """Of lines in order those that are not stored yet; None where that cannot be told."""
        last = self._before[number]
        if last is None:
            return rows
        if number not in self._zones:
            zone = _zone_of([one for one in rows if one.at <= last], self._last[number])
            if zone is None:
                if rows[-1].at <= last:
                    # Of a time that is stored; the proof may come yet.
                    return []
                self._say(
                    f"what is stored of the log of {self.pod.name} ends at {stamp_text(last)}, and Loki has none of its last lines with their stamps: "
                    "what it has cannot be joined to it without loss or repeat, and is left out"
                )
                return None
            self._zones[number] = zone
        east_s = self._zones[number]
        return [
            one
            for one in rows
            if one.at > last or (one.at == last and not _among(self._last[number], one, east_s=east_s))
        ]

    def _say(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def _zone_of(rows: Iterable[Entry], known: frozenset[int]) -> int | None:
    """The zone in which one of these lines with its stamp is among the known ones; None = in none."""
    for one in rows:
        for zone in _ZONES:
            if _among(known, one, east_s=zone):
                return zone
    return None


def _among(known: frozenset[int], one: Entry, *, east_s: int) -> bool:
    return all(zlib.crc32(row[:-1]) in known for row in _lines([one], east_s=east_s))


def _lines(entries: Iterable[Entry], *, east_s: int) -> list[bytes]:
    """Lines as the API would give them. An entry of several lines (a collector may join them) has one stamp for all."""
    return [
        stamp_text(one.at, east_s=east_s).encode() + b" " + line + b"\n"
        for one in entries
        for line in one.text.encode("utf-8", "replace").removesuffix(b"\n").split(b"\n")
    ]
