"""How a slot of this machine shows that its wrapper is gone: its lock is free. The end that found no room among the records may still lie beside it."""

from __future__ import annotations

from pathlib import Path

from rankfall.observe.records import Found, read_end


def unrecorded_end(folder: Path, *, run: str, attempt: int) -> Found | None:
    """The end that a wrapper left in its slot's own folder; None where there is none of this attempt.

    Args:
        folder: of the slot.
        run: id of the run.
        attempt: counted from 1.
    """
    try:
        end = read_end(folder)
    except ValueError:
        return None
    # A directory that was used before may hold the end of another attempt; the wrapper removes it, but it may have come to nothing.
    if end is None or end.kind != "slot_end" or (end.run, end.attempt) != (run, attempt):
        return None
    return Found(record=end, name="/".join(("..", *folder.parts[-3:], "end.json")), mtime=end.at_ns or 0)
