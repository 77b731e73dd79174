"""Flyte's error files that workers of a run left: in ``errors/`` of their slot's directory, or of the folder of records that all slots share.

Read for what fell without a word of its own: a rank's recorder knows more than such a file does. A file in a slot's directory is that slot's;
one in the shared folder is the slot's whose pod it names, and nobody's where it names a pod that is none of this attempt. Such a worker ends
with 0 although it failed, so a file of this attempt means that the attempt failed, whatever the exit codes say. Refuses files from
before the attempt, and never follows a worker's name further than to a pod that is known otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.observe.container_error import MAX_FILE, container_error_evidence, is_container_error
from rankfall.observe.isolation import ReaderGuard
from rankfall.observe.left_file import read_left
from rankfall.observe.watchdog import Budget
from rankfall.signatures.catalogue import Catalogue

FOLDER: Final = "errors"
# Of one folder so many are read: one a rank, and no job has more.
MAX_FILES: Final = 8192
# Elastic workers pass whole seconds on, rounded down.
_STAMP_NS: Final = 1_000_000_000
_MAX_PROBLEMS: Final = 16


class LeftErrors:
    """Reads each file once, however often it is asked.

    Args:
        shared: the folder of records that all slots write into.
        catalogue: the signatures in force.
        attempt: whose files these are.
        guard: takes files on which this reader fails.

    Attributes:
        problems: files that were not used, in words.
        any: whether the newest look found a file of this attempt, also of a slot that said more itself.
    """

    def __init__(self, shared: Path, *, catalogue: Catalogue, attempt: int, guard: ReaderGuard | None = None) -> None:
        self._guard = guard or ReaderGuard()
        self._budget: Budget | None = None
        self._shared = shared / FOLDER
        self._catalogue = catalogue
        self._attempt = attempt
        self._read: dict[Path, tuple[Evidence | str, int]] = {}
        self.problems: list[str] = []
        self.any = False

    def evidence(
        self,
        *,
        slots: Mapping[int, tuple[SlotFacts, Path]],
        ranks: Iterable[RankFacts],
        known: Collection[Evidence],
        budget: Budget | None = None,
    ) -> list[Evidence]:
        """Evidence of the files of slots that said nothing of a cause themselves.

        Args:
            slots: facts and directory of each slot.
            ranks: fact sheets of the attempt.
            known: what is known so far.
            budget: what reading may take; files that were read before cost nothing. None = no bound.
        """
        self._budget = budget
        spoken = {e.slot for e in known if e.role == "primary" and e.source in {"log", "record"}}
        by_pod = {facts.pod: number for number, (facts, _) in slots.items() if facts.pod}
        of_slot: dict[int, list[int]] = {}
        for sheet in ranks:
            if sheet.slot is not None and sheet.rank not in of_slot.setdefault(sheet.slot, []):
                of_slot[sheet.slot].append(sheet.rank)
        found: list[Evidence] = []
        self.any = False
        for number, (_, folder) in slots.items():
            for piece in self._pieces(folder / FOLDER, slots[number][0].started_at):
                self.any = True
                found += self._placed(piece, number, slots, of_slot, spoken)
        begun = min((facts.started_at for facts, _ in slots.values() if facts.started_at), default=None)
        for piece in self._pieces(self._shared, begun):
            slot = by_pod.get(piece.pod or "")
            if piece.pod is not None and slot is None:
                self._problem(f"{piece.where} names worker {piece.pod[:100]!r}, which is none of this attempt")
                continue
            self.any = True
            if slot is not None:
                found += self._placed(piece, slot, slots, of_slot, spoken)
            elif not spoken:
                found.append(msgspec.structs.replace(piece, attempt=self._attempt))
        return found

    def _placed(
        self,
        piece: Evidence,
        slot: int,
        slots: Mapping[int, tuple[SlotFacts, Path]],
        of_slot: Mapping[int, list[int]],
        spoken: Collection[int | None],
    ) -> list[Evidence]:
        if slot in spoken:
            return []
        facts, ranks = slots[slot][0], of_slot.get(slot, [])
        alone = ranks[0] if len(ranks) == 1 else None
        return [
            msgspec.structs.replace(
                piece, slot=slot, node=facts.node, rank=alone, pod=facts.pod or piece.pod, attempt=self._attempt
            )
        ]

    def _pieces(self, folder: Path, begun: int | None) -> list[Evidence]:
        if not folder.is_dir():
            # Most jobs know no such files: that costs no listing.
            return []
        try:
            with os.scandir(folder) as entries:
                names = sorted(e.name for e in entries if is_container_error(e.name))
        except OSError:
            return []
        if len(names) > MAX_FILES:
            self._problem(f"{_short(folder)} holds {len(names)} error files; {MAX_FILES} of them were read")
        found = []
        for name in names[:MAX_FILES]:
            piece, written = self._file(folder / name)
            if isinstance(piece, str):
                self._problem(piece)
            elif begun is not None and (piece.at if piece.at is not None else written) + _STAMP_NS < begun:
                self._problem(f"{piece.where} is older than this attempt and was not used")
            else:
                found.append(piece)
        return found

    def _file(self, path: Path) -> tuple[Evidence | str, int]:
        """What a file says and when it was written; kept, so that the next look costs a listing only."""
        held = self._read.get(path)
        if held is not None:
            return held
        if self._budget is not None and self._budget.spent:
            return "there was no time to read all error files", 0
        try:
            data, written = read_left(path, limit=MAX_FILE + 1)
        except OSError as error:
            return f"{_short(path)} cannot be read: {error.strerror}", 0
        name = _short(path)
        failed: Evidence | str = f"{name} could not be read"
        held = (
            self._guard.read(
                lambda: container_error_evidence(data, name=name, catalogue=self._catalogue),
                otherwise=failed,
                what="error file",
                where=name,
                data=data,
            ),
            written,
        )
        # A file that is being written is damaged now and whole at the next look.
        if not isinstance(held[0], str):
            self._read[path] = held
        return held

    def _problem(self, text: str) -> None:
        if text not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)


def _short(path: Path) -> str:
    return "/".join(path.parts[-5:])
