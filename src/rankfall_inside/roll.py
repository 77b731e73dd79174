"""The roll of a slot's ranks: who claimed, what their hooks say, who ended and whether that was our doing.

A rank's last words come before its end, whichever of both the wrapper notices first.
"""

from __future__ import annotations

from rankfall_inside import ranks
from rankfall_inside.inbox import Inbox
from rankfall_inside.loop import MAX_READ, swallow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from rankfall_inside.falls import Falls
    from rankfall_inside.loop import Loop
    from rankfall_inside.slot import SlotFiles

# At once from a pipe that everybody in the job may fill.
_MAX_READS = 16


class Roll:
    """Ranks of one wrapper and their hooks.

    Args:
        files: of the slot.
        loop: of the wrapper.
        falls: takes errors and ends.
        look: whether records that hooks leave in the folder matter at all.
        why_ours: called with a pid and the signal that ended it; why that was our doing, or None.
        on_claims: called when there are new ranks.

    Attributes:
        ranks: all of them.
    """

    def __init__(
        self,
        files: SlotFiles,
        loop: Loop,
        *,
        falls: Falls,
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
        """Listen to hooks from now on."""
        self._loop.watch(self._notices, self.listen)

    def fields(self, pid: int) -> dict[str, Any]:
        """What a record about a process says of its rank; nothing for one that is none."""
        rank = self.ranks.find(pid)
        return rank.fields() if rank is not None else {}

    def hear(self) -> None:
        """Take in what hooks have told since the last look."""
        for _ in range(_MAX_READS):
            data = swallow(self._notices)
            self._claimed += self._inbox.notice(data)
            if len(data) < MAX_READ:
                break
        self._inbox.sweep()

    def listen(self) -> None:
        """Take in what hooks have told, and whom they claimed."""
        self.hear()
        self.claims()
        claimed, self._claimed = self._claimed, []
        for ordinal in claimed:
            self.ranks.hooked(ordinal)

    def claims(self) -> None:
        """Take in claims that were made since."""
        if self.ranks.read_claims():
            self._on_claims()

    def reaped(self, pid: int, status: int) -> None:
        """Take in the end of a child of the wrapper, which may be a rank."""
        self.claims()
        rank = self.ranks.find(pid)
        if rank is not None:
            self._ended(rank, status, "wait")

    def settle(self) -> None:
        """Nobody of the slot lives any more: take in the ends that nobody noticed."""
        self.ranks.settle()
        for rank in self.ranks.live():
            self._ended(rank, *self.ranks.exit_of(rank))
        self.listen()

    def _write(self, kind: str, fields: dict[str, Any], sync: bool) -> None:  # noqa: FBT001 - a callback
        if kind == "end":
            # Its last words come before its end.
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
