"""Stores the Loki lines of one vanished pod in the form of its log.

A partly stored log is continued only if common lines prove that Loki has the runtime's timestamps.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rankfall.collect.loki.resume_state import LokiState, Part
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.loki.reader import SECOND, Cursor, Entry
from rankfall.model import numbers
from rankfall.model.patterns import bounded
from rankfall.rundir.cluster.log_routes import stamp_text

# The kubelet's path of a container log: namespace, pod, UID, container, restart.
_PATH: Final = bounded(r"/var/log/pods/[^/]+_([^/_]+)/[^/]+/([0-9]{1,9})\.log", limit=1_024)
_PATHS: Final = ("filename", "log_file_path")
_UIDS: Final = ("k8s_pod_uid", "pod_uid")
_RESTARTS: Final = ("k8s_container_restart_count",)
_OUTPUTS: Final = ("stream", "log_iostream")
_MAX_DIGITS: Final = 9
IDENTIFYING_LABELS: Final = (*_PATHS, *_UIDS, *_RESTARTS, *_OUTPUTS)


class Origin(NamedTuple):
    """Pod and instance of a line, as far as its labels name them."""

    uid: str | None
    number: int | None


def origin(labels: Mapping[str, str]) -> Origin:
    """Instance that these labels name."""
    uid = next((labels[name] for name in _UIDS if labels.get(name)), None)
    restarts = (numbers.whole(labels.get(name), digits=_MAX_DIGITS) for name in _RESTARTS)
    number = next((each for each in restarts if each is not None and each >= 0), None)
    for name in _PATHS:
        found = _PATH.search(labels.get(name, ""))
        if found is not None:
            uid = found[1] if uid is None else uid
            number = numbers.matched(found[2]) if number is None else number
    return Origin(uid, number)


# Range searched for lines that prove the timestamps' source.
PROOF_NS: Final = 60 * SECOND
# Loki's default limit for late lines.
LATE_NS: Final = 3600 * SECOND
PAGE: Final = 1000
# Zones of nodes in seconds east of UTC; the API uses them.
_ZONES: Final = (0, *(quarter * 900 for quarter in range(-48, 57) if quarter))


class LostPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that the API no longer has.

    Attributes:
        name, uid: Name and UID.
        container: Its training container.
        slot: Slot of the job.
        numbers: Instances that ran; empty if unknown.
    """

    name: str
    uid: str
    container: str
    slot: int
    numbers: tuple[int, ...] = ()


class LokiPodCollector:
    """Copies one pod's lines from Loki into the run directory.

    Raises:
        OSError: The run directory is not accessible.
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
        # Per instance: last timestamp stored before Loki, and its proved zone.
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
        """Stores a page that the cursor has passed.

        Raises:
            OSError: Not stored; the next process retries.
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
        """Instances with stored lines; True if the wrapper's last record is included."""
        return {number: log.leave() for number, log in self._logs.items() if log.cursor.lines}

    def log(self, number: int) -> InstanceLog:
        """Log of an instance."""
        return self._log(number)

    def claim(self, number: int) -> None:
        """Marks an instance's log as lost, so that only Loki's lines continue it, until its last record is stored.

        Raises:
            OSError: The mark cannot be written.
        """
        log = self._log(number)
        if log.cursor.closed is None:
            log.lose()
            log.cursor.closed = "lost"
            log.cursor.commit({})

    def after(self, number: int) -> int | None:
        """Last timestamp of an instance stored before Loki was queried; None without one."""
        return self._before[number]

    # -- source of a line

    def _number(self, entry: Entry) -> int | None:
        """Returns a line's instance; None if unknown or of another pod."""
        uid, number = origin(entry.labels)
        if uid is not None and uid != self.pod.uid:
            return None
        if number is not None:
            return number
        if len(self.pod.numbers) > 1 or self.pod.numbers[:1] > (0,):
            self._say(
                f"the container of {self.pod.name} was restarted, and Loki's labels do not separate the lines of its starts: no line is stored"
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
        """Rows that the log lacks; None if old and new lines cannot be distinguished."""
        last = self._before[number]
        if last is None:
            return rows
        if number not in self._zones:
            zone = _zone_of([one for one in rows if one.at <= last], self._last[number])
            if zone is None:
                if rows[-1].at <= last:
                    # Already stored; the proof may follow.
                    return []
                self._say(
                    f"the stored log of {self.pod.name} ends at {stamp_text(last)}, and Loki has none of its last lines with their stamps: "
                    "lines from Loki could be lost or repeated when joined, so they are skipped"
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
    for one in rows:
        for zone in _ZONES:
            if _among(known, one, east_s=zone):
                return zone
    return None


def _among(known: frozenset[int], one: Entry, *, east_s: int) -> bool:
    return all(zlib.crc32(row[:-1]) in known for row in _lines([one], east_s=east_s))


def _lines(entries: Iterable[Entry], *, east_s: int) -> list[bytes]:
    """Returns lines in the API's form; an entry's lines share one timestamp."""
    return [
        stamp_text(one.at, east_s=east_s).encode() + b" " + line + b"\n"
        for one in entries
        for line in one.text.encode("utf-8", "replace").removesuffix(b"\n").split(b"\n")
    ]
