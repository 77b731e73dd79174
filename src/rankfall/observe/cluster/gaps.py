"""Lines of a container that could not be had, written down as records with their bounds: a reader sees that something is missing, and where."""

from __future__ import annotations

import uuid
from typing import Final

from rankfall.model import Record
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
        notes=(f"lines of slot {slot}{which} may be missing: between {since} and {until} of its log",),
    )
