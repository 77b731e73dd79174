"""What is looked for only when a case is made: kernel lines about killed ranks, flight recorders, and error files of workers that know no records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from rankfall.model import Evidence
from rankfall.observe.confirm import dump_evidence, foreign_kills, kernel_evidence
from rankfall.observe.facts import Facts
from rankfall.observe.isolation import ReaderGuard
from rankfall.observe.left_errors import LeftErrors
from rankfall.observe.single import single_file_evidence
from rankfall.observe.watchdog import Budget
from rankfall.signatures.catalogue import Catalogue
from rankfall.store import RunDir

_NO_TIME: Final = "there was no time to read all {}"


class LateLooks:
    """Such looks at one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        catalogue: the signatures in force.
        here: the ranks are processes of this machine: the kernel's lines of this machine say nothing of a process elsewhere.
        guard: takes what a reader fails on.

    Attributes:
        kernel_note: why the kernel's lines could not be read; None when they could, or were not looked for.
        left: evidence of the error files of slots that said nothing of a cause: true only until they do, so never kept.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        catalogue: Catalogue,
        here: bool,
        guard: ReaderGuard | None = None,
    ) -> None:
        self._guard = guard or ReaderGuard()
        self._root = run_dir.path
        self._attempt = attempt
        self._catalogue = catalogue
        self._here = here
        self._kernel_done = False
        self._left = LeftErrors(run_dir.records_dir, catalogue=catalogue, attempt=attempt, guard=self._guard)
        self.kernel_note: str | None = None
        self.left: list[Evidence] = []

    @property
    def denied(self) -> bool:
        """Whether a worker left an error file, and so failed whatever its exit code says."""
        return self._left.any

    def again(self) -> None:
        """A slot was started again: the kernel may have more to say."""
        self._kernel_done = False

    def confirm(self, facts: Facts, folders: Mapping[int, Path], budget: Budget) -> tuple[list[Evidence], list[str]]:
        """Kernel lines about killed ranks (once) and flight-recorder dumps; and what is wrong with some of these.

        Args:
            facts: of the attempt.
            folders: of the slots.
            budget: what reading may take.
        """
        found: list[Evidence] = []
        killed = foreign_kills(facts) if self._here else {}
        if killed and not self._kernel_done:
            self._kernel_done = True
            read = partial(kernel_evidence, killed, self._catalogue, attempt=self._attempt)
            unread: tuple[list[Evidence], str | None] = ([], "the kernel log could not be read")
            found, self.kernel_note = self._guard.read(read, otherwise=unread, what="kernel log", where="kernel log")
        flights = [folder / "flight" for folder in folders.values()]
        dumps: list[Evidence] = []
        problems: list[str] = []
        if budget.spent:
            return found, [_NO_TIME.format("flight-recorder dumps")]
        dumps, problems = self._guard.read(
            lambda: dump_evidence(flights, relative_to=self._root, attempt=self._attempt),
            otherwise=(dumps, problems),
            what="folder of flight-recorder dumps",
            where="flight",
        )
        return [*found, *dumps], problems

    def error_files(
        self,
        facts: Facts,
        folders: Mapping[int, Path],
        budget: Budget,
        *,
        known: Collection[Evidence],
        shared: bool,
    ) -> tuple[list[Evidence], list[str]]:
        """The one error file of old, of ranks without recorder; and what is wrong with such files. Sets :attr:`left`.

        Args:
            facts: of the attempt.
            folders: of the slots.
            budget: what reading may take.
            known: what is known so far.
            shared: look for files of others beside the records too.
        """
        places = {number: (sheet, folders[number]) for number, sheet in facts.slots.items()}
        ranks = facts.ranks()
        found: list[Evidence] = []
        problems: list[str] = []
        if budget.spent:
            return found, [_NO_TIME.format("error files")]
        found, problems = self._guard.read(
            lambda: single_file_evidence(
                ranks, slots=places, known=known, catalogue=self._catalogue, attempt=self._attempt
            ),
            otherwise=(found, problems),
            what="error files of ranks",
            where="slots",
        )
        if shared:
            self.left = self._guard.read(
                lambda: self._left.evidence(slots=places, ranks=ranks, known=[*known, *found], budget=budget),
                otherwise=self.left,
                what="error files",
                where="errors",
            )
            problems = [*problems, *self._left.problems]
        return found, problems
