"""The one error file of a worker that knows no records: torchelastic's own, where the plain launcher told it to write.

Read only for a rank that has no recorder and said nothing of a cause itself: whole seconds and one file a rank are worth less than either.
Refuses a file from before its slot began, which an earlier program left there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.observe.elastic import MAX_FILE, error_file_evidence
from rankfall.observe.left_file import read_left
from rankfall.signatures.catalogue import Catalogue

# torchelastic stamps whole seconds, rounded down.
_STAMP_NS: Final = 1_000_000_000


def single_file_evidence(
    ranks: Iterable[RankFacts],
    *,
    slots: dict[int, tuple[SlotFacts, Path]],
    known: Collection[Evidence],
    catalogue: Catalogue,
    attempt: int,
) -> tuple[list[Evidence], list[str]]:
    """Evidence of the files of ranks that fell without a word, and what is wrong with such files.

    Args:
        ranks: fact sheets of the attempt.
        slots: facts and directory of each slot.
        known: what is known so far.
        catalogue: the signatures in force.
        attempt: whose files these are.
    """
    spoken = {e.rank for e in known if e.role == "primary" and e.source in {"log", "record"}}
    found, problems = [], []
    for facts in ranks:
        place = slots.get(facts.slot) if facts.slot is not None else None
        if place is None or facts.hook == "loaded" or facts.state != "ended" or facts.rank in spoken:
            continue
        slot, folder = place
        if not (facts.exit_code or facts.signal) or facts.local_rank is None:
            continue
        path = folder / "errors" / f"{facts.local_rank}.json"
        try:
            data, _ = read_left(path, limit=MAX_FILE + 1)
        except OSError:
            continue
        name = "/".join(path.parts[-5:])
        piece = error_file_evidence(data, name=name, stream=name, catalogue=catalogue)
        if isinstance(piece, str):
            problems.append(piece)
        elif piece.at is not None and slot.started_at is not None and piece.at + _STAMP_NS < slot.started_at:
            problems.append(f"{name} is older than its slot and was not used")
        else:
            found.append(
                msgspec.structs.replace(
                    piece,
                    rank=facts.rank,
                    slot=facts.slot,
                    node=facts.node,
                    local_rank=facts.local_rank,
                    pid=facts.pid,
                    attempt=attempt,
                    round=facts.round,
                )
            )
    return found, problems
