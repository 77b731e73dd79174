"""Lines of a container that could not be had, written down as records with their bounds: a reader sees that something is missing, and where."""

from __future__ import annotations

import uuid
from typing import Final

from rankfall.model import Record
from rankfall.model.record import Lost
from rankfall.observe.cluster.apilines import stamp_text

# Any constant: the same gap has the same id, however often it is written down.
_SPACE: Final = uuid.UUID("5d0c5b8e-7a4f-4b0c-9d5e-52616e6b6661")


def gap_record(
    *, run: str, attempt: int, role: str, slot: int, uid: str, number: int, after: int | None, before: int | None
) -> Record:
    """The record of one gap.

    Args:
        run: whose log.
        attempt: as above.
        role: as above.
        slot: as above.
        uid: of the pod.
        number: of the container's restart.
        after: stamp of the line before it, nanoseconds since the epoch by the node's clock; None = the beginning.
        before: stamp of the line after it; None = the end.
    """
    since = "its beginning" if after is None else stamp_text(after)
    until = "its end" if before is None else stamp_text(before)
    which = f", restart {number}" if number else ""
    return Record(
        id=uuid.uuid5(_SPACE, f"{run} {attempt} {uid} {number} {after} {before}").hex,
        kind="gap",
        writer="wrapper",
        run=run,
        attempt=attempt,
        role=role,
        slot=slot,
        pod_uid=uid,
        at_ns=after,
        lost=Lost(number=number, after_ns=after, before_ns=before),
        notes=(f"lines of slot {slot}{which} may be missing: between {since} and {until} of its log",),
    )


def short_record(
    *, run: str, attempt: int, role: str, slot: int, uid: str, number: int, stream: str, lines: int, size: int
) -> Record:
    """The record of what one stream has less than its container printed.

    Args:
        run: whose log.
        attempt: as above.
        role: as above.
        slot: as above.
        uid: of the pod.
        number: of the container's restart.
        stream: ``r<rank>``, ``slot`` or ``all``.
        lines: how many are missing.
        size: bytes that are missing.
    """
    rank = int(stream[1:]) if stream[1:].isdecimal() else None
    whose = {"slot": f"slot {slot} (of no rank)", "all": f"slot {slot} and its ranks"}.get(stream, f"rank {rank}")
    which = f", restart {number}" if number else ""
    return Record(
        id=uuid.uuid5(_SPACE, f"{run} {attempt} {uid} {number} {stream} short").hex,
        kind="gap",
        writer="wrapper",
        run=run,
        attempt=attempt,
        role=role,
        slot=slot,
        pod_uid=uid,
        rank=rank,
        lost=Lost(number=number, stream=stream, lines=lines, bytes=size),
        notes=(
            f"{lines} lines of {whose}{which} are missing, {size} bytes: its container printed them, and the log that came has not got them",
        ),
    )
