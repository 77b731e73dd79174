"""What is looked for only when a case is made: kernel lines about killed ranks, flight recorders, and error files of workers that know no records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from rankfall.model import Evidence
from rankfall.observe.confirm import dump_evidence, foreign_kills, kernel_evidence
from rankfall.observe.facts import Facts
from rankfall.observe.left_errors import LeftErrors
from rankfall.observe.single import single_file_evidence
from rankfall.signatures.catalogue import Catalogue
from rankfall.store import RunDir


class LateLooks:
    """Such looks at one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        catalogue: the signatures in force.
        here: the ranks are processes of this machine: the kernel's lines of this machine say nothing of a process elsewhere.

    Attributes:
        kernel_note: why the kernel's lines could not be read; None when they could, or were not looked for.
        left: evidence of the error files of slots that said nothing of a cause: true only until they do, so never kept.
    """

    def __init__(self, run_dir: RunDir, *, attempt: int, catalogue: Catalogue, here: bool) -> None:
        self._root = run_dir.path
        self._attempt = attempt
        self._catalogue = catalogue
        self._here = here
        self._kernel_done = False
        self._left = LeftErrors(run_dir.records_dir, catalogue=catalogue, attempt=attempt)
        self.kernel_note: str | None = None
        self.left: list[Evidence] = []

    @property
    def denied(self) -> bool:
        """Whether a worker left an error file, and so failed whatever its exit code says."""
        return self._left.any

    def again(self) -> None:
        """A slot was started again: the kernel may have more to say."""
        self._kernel_done = False

    def confirm(self, facts: Facts, folders: Mapping[int, Path]) -> tuple[list[Evidence], list[str]]:
        """Kernel lines about killed ranks (once) and flight-recorder dumps; and what is wrong with some of these.

        Args:
            facts: of the attempt.
            folders: of the slots.
        """
        found: list[Evidence] = []
        killed = foreign_kills(facts) if self._here else {}
        if killed and not self._kernel_done:
            self._kernel_done = True
            found, self.kernel_note = kernel_evidence(killed, self._catalogue, attempt=self._attempt)
        flights = [folder / "flight" for folder in folders.values()]
        dumps, problems = dump_evidence(flights, relative_to=self._root, attempt=self._attempt)
        return [*found, *dumps], problems

    def error_files(
        self, facts: Facts, folders: Mapping[int, Path], *, known: Collection[Evidence], shared: bool
    ) -> tuple[list[Evidence], list[str]]:
        """The one error file of old, of ranks without recorder; and what is wrong with such files. Sets :attr:`left`.

        Args:
            facts: of the attempt.
            folders: of the slots.
            known: what is known so far.
            shared: look for files of others beside the records too.
        """
        places = {number: (sheet, folders[number]) for number, sheet in facts.slots.items()}
        ranks = facts.ranks()
        found, problems = single_file_evidence(
            ranks, slots=places, known=known, catalogue=self._catalogue, attempt=self._attempt
        )
        if shared:
            self.left = self._left.evidence(slots=places, ranks=ranks, known=[*known, *found])
            problems = [*problems, *self._left.problems]
        return found, problems
