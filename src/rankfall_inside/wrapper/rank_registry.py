"""Updates the ranks of a slot from claims, records, hook notifications and process ends.

Lines of ``notify``: ``claim ORDINAL``, ``record``, ``part ID INDEX COUNT DATA`` (base64).
"""

from __future__ import annotations

import os
import re

from rankfall_inside import records, untrusted
from rankfall_inside.event_loop import MAX_READ, read_available
from rankfall_inside.procfs import read_bounded
from rankfall_inside.wrapper import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from rankfall_inside.event_loop import Loop
    from rankfall_inside.wrapper.outcome import RankFailures
    from rankfall_inside.wrapper.slot_files import SlotFiles

KINDS = ("start", "error")
_ID = re.compile(r"[0-9a-f]{32}\Z")
_MAX_LINE = 1 << 13
_MAX_OPEN, _MAX_PARTS = 64, 16
# Bounds a job's endless records.
_MAX_TAKEN = 50_000


class Inbox:
    """Receives the hooks' records.

    ``take`` is called with each new record, and True if the record is stored. ``look``: also read the records folder.
    """

    def __init__(
        self,
        folder: str,
        *,
        place: Mapping[str, Any],
        take: Callable[[dict[str, Any], bool], None],
        look: bool,
    ) -> None:
        self._folder = folder
        self._place = {name: value for name, value in place.items() if value is not None}
        self._take = take
        self._look = look
        self._prefixes = tuple(records.name_prefix(kind, place) for kind in KINDS)
        self._buffer = b""
        self._open: dict[str, dict[int, str]] = {}
        self._taken: set[str] = set()
        # An emptyDir outlives its container: these records are older.
        self._seen = set(self._names()) if look else set()

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.startswith(self._prefixes)]
        except OSError:
            return []

    def notice(self, data: bytes) -> list[int]:
        """Processes bytes of ``notify``; returns claimed ordinals."""
        *lines, rest = (self._buffer + data).split(b"\n")
        self._buffer = rest if len(rest) <= _MAX_LINE else b""
        claimed = []
        look = False
        for line in lines:
            words = line.decode("ascii", "replace").split()
            if words[:1] == ["claim"] and len(words) == 2:  # noqa: PLR2004 - verb and number
                ordinal = untrusted.whole(words[1])
                if ordinal is not None:
                    claimed.append(ordinal)
            elif words[:1] == ["part"] and len(words) == 5:  # noqa: PLR2004 - verb, id, index, count, data
                self._part(words[1], words[2], words[3], words[4])
            look = look or words == ["record"]
        if look:
            self.sweep()
        return claimed

    def sweep(self) -> None:
        """Takes new records from the folder, oldest first."""
        if not self._look or len(self._taken) >= _MAX_TAKEN:
            return
        found = []
        for name in self._names():
            if name not in self._seen:
                self._seen.add(name)
                data = read_bounded(os.path.join(self._folder, name), records.MAX_RECORD + 1)
                record = self._accept(data) if data and len(data) <= records.MAX_RECORD else None
                if record is not None:
                    found.append(record)
        for record in sorted(found, key=_when):
            self._once(record, stored=True)

    def _once(self, record: dict[str, Any], *, stored: bool) -> None:
        if record["id"] not in self._taken:
            self._taken.add(record["id"])
            try:
                self._take(record, stored)
            except Exception:
                # A job's record may break anything.
                return

    def _part(self, ident: str, index: str, count: str, data: str) -> None:
        number, parts_of_it = untrusted.whole(index), untrusted.whole(count)
        if number is None or parts_of_it is None or not number < parts_of_it <= _MAX_PARTS or not _ID.match(ident):
            return
        if ident not in self._open and len(self._open) >= _MAX_OPEN:
            del self._open[next(iter(self._open))]
        parts = self._open.setdefault(ident, {})
        parts[number] = data
        if len(parts) < parts_of_it:
            return
        del self._open[ident]
        import base64

        try:
            raw = base64.urlsafe_b64decode("".join(parts[each] for each in sorted(parts)))
        except ValueError:
            return
        record = self._accept(raw)
        if record is not None:
            self._once(record, stored=False)

    def _accept(self, data: bytes) -> dict[str, Any] | None:
        try:
            record = untrusted.loads(data)
        except ValueError:
            return None
        if not isinstance(record, dict) or record.get("kind") not in KINDS or record.get("writer") != "hook":
            return None
        if not isinstance(record.get("id"), str) or not _ID.match(record["id"]):
            return None
        record.update(self._place)
        return record


def _when(record: Mapping[str, Any]) -> int:
    at = record.get("at_ns")
    return at if isinstance(at, int) else 0


# Any process of the job may fill the pipe.
_MAX_READS = 16


class RankRegistry:
    """Ranks of one wrapper and their hooks; ``look``: also read hook records in the folder.

    ``falls`` receives errors and ends; ``why_ours`` returns why Rankfall ended a pid, or None.
    """

    def __init__(
        self,
        files: SlotFiles,
        loop: Loop,
        *,
        falls: RankFailures,
        look: bool,
        why_ours: Callable[[int, int], str | None],
        on_claims: Callable[[], None],
    ) -> None:
        self._files = files
        self._loop = loop
        self._falls = falls
        self._why_ours = why_ours
        self._on_claims = on_claims
        self.ranks = ranks.Ranks(files.path, write=self._write, watch=self._watch)
        self._inbox = Inbox(files.records, place=files.place, take=self._record, look=look)
        self._notices = files.notices()
        self._claimed: list[int] = []

    def begin(self) -> None:
        """Starts to read hook notifications."""
        self._loop.watch(self._notices, self.listen)

    def fields(self, pid: int) -> dict[str, Any]:
        """Returns record fields of a process's rank; empty for others."""
        rank = self.ranks.find(pid)
        return rank.fields() if rank is not None else {}

    def hear(self) -> None:
        """Reads new notifications and records."""
        for _ in range(_MAX_READS):
            data = read_available(self._notices)
            self._claimed += self._inbox.notice(data)
            if len(data) < MAX_READ:
                break
        self._inbox.sweep()

    def listen(self) -> None:
        """Reads notifications, records and claims."""
        self.hear()
        self.claims()
        claimed, self._claimed = self._claimed, []
        for ordinal in claimed:
            self.ranks.hooked(ordinal)

    def claims(self) -> None:
        """Reads new claims."""
        if self.ranks.read_claims():
            self._on_claims()

    def reaped(self, pid: int, status: int) -> None:
        """Handles the end of a child, which may be a rank; ``status`` of wait(2)."""
        self.claims()
        rank = self.ranks.find(pid)
        if rank is not None:
            self._ended(rank, status, "wait")

    def settle(self) -> None:
        """Records remaining ends after all processes have ended."""
        self.ranks.settle()
        for rank in self.ranks.live():
            self._ended(rank, *self.ranks.exit_of(rank))
        self.listen()

    def _write(self, kind: str, fields: dict[str, Any], sync: bool) -> None:  # noqa: FBT001 - a callback
        if kind == "end":
            # Last records precede the end.
            self.hear()
        self._files.write(kind, fields, sync)

    def _record(self, record: dict[str, Any], stored: bool) -> None:  # noqa: FBT001 - a callback
        if record["kind"] == "error":
            self._falls.error(record)
        self._files.pass_on(record, stored=stored)

    def _watch(self, fd: int, rank: ranks.Rank) -> None:
        self._loop.watch(fd, lambda: self._ended(rank, *self.ranks.exit_of(rank)))

    def _ended(self, rank: ranks.Rank, status: int | None, how: str) -> None:
        if rank.pidfd is not None:
            self._loop.unwatch(rank.pidfd)
        if rank.ended:
            return
        self.listen()
        found = ranks.exit_fields(status)
        why = self._why_ours(rank.pid, found["signal"]) if "signal" in found else None
        oom_kills = self._files.oom_kills()
        self._falls.ended(
            rank.ordinal,
            code=found.get("code"),
            signum=found.get("signal"),
            oom_kills=oom_kills,
            ours=why is not None or status is None,
        )
        exit_info = {} if why is None else {"ours": True, "reason": why}
        self.ranks.ended(rank, status, how, {"exit": exit_info, "oom_kills": oom_kills})
