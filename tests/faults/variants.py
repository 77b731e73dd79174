"""Which fault runs where: the covering part that the gate runs, and the rest. Pure data from the table; says nothing about results."""

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


def kind(fault: Fault) -> tuple[tuple[str, ...], str | None, str, str]:
    """What makes a fault another one: what its workers do, what is done from outside and to whom, and the cause that is to be said."""
    done = tuple(sorted({str(action["do"]) for action in fault.actions}))
    return done, fault.inject, fault.slugs[0] if fault.slugs else fault.outcome, str(fault.arguments.get("to", ""))


def variants() -> tuple[Variant, ...]:
    """Every run of the matrix.

    Each fault runs under each of its launchers on 2x2, once with the hook absent, and, when it belongs to the core, once on 4x2. The covering part is
    computed: the first fault of each kind in the core under one launcher, in turn, so that all launchers are covered in the time that CI has; the
    first that can be told without the hook under each of those launchers; and one on 4x2.
    """
    turn = count()
    found = []
    kinds: set[object] = set()
    unhooked: set[Launcher] = set()
    for fault in FAULTS:
        place = next(turn)
        chosen = fault.launchers[place % len(fault.launchers)]
        covers = fault.core and kind(fault) not in kinds
        if covers:
            kinds.add(kind(fault))
        found += [Variant(fault, launcher, full=not (covers and launcher == chosen)) for launcher in fault.launchers]
        bare = fault.hook_free and chosen not in unhooked
        if bare:
            unhooked.add(chosen)
        found.append(Variant(fault, chosen, hook=False, full=not bare))
        if fault.core:
            found.append(Variant(fault, fault.launchers[-1], nnodes=4, full=place > 0))
    return tuple(found)
