"""Which fault runs where: the covering part that CI runs, and the rest. Pure data from the table; says nothing about results."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from faults.table import FAULTS, Fault, Launcher


@dataclass(frozen=True)
class Variant:
    """One run: a fault under a launcher, on so many nodes of two ranks, with or without the recorder in the ranks."""

    fault: Fault
    launcher: Launcher
    nnodes: int = 2
    hook: bool = True
    full: bool = True

    @property
    def id(self) -> str:
        """A name for people; the code under test never sees it."""
        return f"{self.fault.name}-{self.launcher}-{self.nnodes}x2{'' if self.hook else '-hook-absent'}"

    @property
    def key(self) -> str:
        """The column of the results' table."""
        if not self.hook:
            return "hook absent"
        return self.launcher if self.nnodes == 2 else f"{self.nnodes}x2"


def variants() -> tuple[Variant, ...]:
    """Every run of the matrix.

    Each fault runs under each of its launchers on 2x2, once with the hook absent, and, when it belongs to the core, once on 4x2. The core
    takes one launcher a fault, in turn, so that all launchers are covered in the time that CI has.
    """
    turn = count()
    found = []
    for fault in FAULTS:
        place = next(turn)
        chosen = fault.launchers[place % len(fault.launchers)]
        found += [
            Variant(fault, launcher, full=not (fault.core and launcher == chosen)) for launcher in fault.launchers
        ]
        found.append(Variant(fault, chosen, hook=False, full=not fault.hook_free))
        if fault.core:
            found.append(Variant(fault, fault.launchers[-1], nnodes=4, full=place % 16 != 0))
    return tuple(found)
