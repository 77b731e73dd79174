"""Lines of a container that could not be had, written down as records with their bounds: a reader sees that something is missing, and where."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from rankfall.model import Record, numbers
from rankfall.model.record import Lost
from rankfall.observe.cluster.apilines import stamp_text

# Any constant: the same gap has the same id, however often it is written down.
_SPACE: Final = uuid.UUID("5d0c5b8e-7a4f-4b0c-9d5e-52616e6b6661")


class LogOf(NamedTuple):
    """Whose log it is: of one container instance.

    Attributes:
        run, attempt, role, slot: of its pod.
        uid: of the pod.
        number: of the container's restart.
    """

    run: str
    attempt: int
    role: str
    slot: int
    uid: str
    number: int

    @property
    def head(self) -> str:
        """How the names of the files of its gap records begin."""
        return f"gap-a{self.attempt}-{self.role}-{self.slot}-"

    @property
    def restart(self) -> str:
        """Which of the container's starts, in words; nothing of the first one."""
        return f", restart {self.number}" if self.number else ""


def gap_record(log: LogOf, *, after: int | None, before: int | None, why: str | None = None) -> Record:
    """The record of one gap.

    Args:
        log: in which it is.
        after: stamp of the line before it, nanoseconds since the epoch by the node's clock; None = the beginning.
        before: stamp of the line after it; None = the end.
        why: what kept them from being read, where that is known.
    """
    since = "its beginning" if after is None else stamp_text(after)
    until = "its end" if before is None else stamp_text(before)
    note = f"lines of slot {log.slot}{log.restart} may be missing: between {since} and {until} of its log"
    lost = Lost(number=log.number, after_ns=after, before_ns=before, why=why)
    return _record(log, f"{after} {before}", lost=lost, note=note, at_ns=after)


def short_record(log: LogOf, *, stream: str, lines: int, size: int) -> Record:
    """The record of what one stream has less than its container printed.

    Args:
        log: of the container.
        stream: ``r<rank>``, ``slot`` or ``all``.
        lines: how many are missing.
        size: bytes that are missing.
    """
    rank = numbers.whole(stream[1:])
    whose = {"slot": f"slot {log.slot} (of no rank)", "all": f"slot {log.slot} and its ranks"}.get(
        stream, f"rank {rank}"
    )
    note = (
        f"{lines} lines of {whose}{log.restart} are missing, {size} bytes: its container printed them, "
        "and the log that came has not got them"
    )
    lost = Lost(number=log.number, stream=stream, lines=lines, bytes=size)
    return _record(log, f"{stream} short", lost=lost, note=note, rank=rank)


def _record(
    log: LogOf, key: str, *, lost: Lost, note: str, at_ns: int | None = None, rank: int | None = None
) -> Record:
    return Record(
        id=uuid.uuid5(_SPACE, f"{log.run} {log.attempt} {log.uid} {log.number} {key}").hex,
        kind="gap",
        writer="wrapper",
        run=log.run,
        attempt=log.attempt,
        role=log.role,
        slot=log.slot,
        pod_uid=log.uid,
        rank=rank,
        at_ns=at_ns,
        lost=lost,
        notes=(note,),
    )
