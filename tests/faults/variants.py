"""Which fault runs where: the covering part that the gate runs, and the rest. Pure data from the table; says nothing about results."""

from __future__ import annotations

from dataclasses import dataclass

from faults.table import FAULTS, Fault, Launcher


@dataclass(frozen=True)
class Variant:
    """One run: a fault under a launcher, on so many nodes of two ranks, with or without the recorder in the ranks, and torch."""

    fault: Fault
    launcher: Launcher
    nnodes: int = 2
    hook: bool = True
    torch: bool = True
    full: bool = True

    @property
    def id(self) -> str:
        """A name for people; the code under test never sees it."""
        return f"{self.fault.name}-{self.launcher}-{self.nnodes}x2{'' if self.hook else '-hook-absent'}{'' if self.torch else '-no-torch'}"

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


# What a worker does with torch itself. Everything else strikes ranks that meet by plain sockets just as well, in a sixth of the time.
_BY_TORCH = frozenset({"loader", "mismatch", "hang"})
# Under torchrun in the gate, beside the faults that strike torchrun itself: the plainest one, one from outside, one that torchrun's error file tells.
_UNDER_TORCHRUN: dict[str, Launcher] = {
    "exception-key": "static",
    "signal-outside-kill": "c10d",
    "error-file-empty": "static",
}


def variants() -> tuple[Variant, ...]:
    """Every run of the matrix.

    Each fault runs under each of its launchers on 2x2, once with the hook absent, and, when it belongs to the core, once on 4x2. The covering part is
    computed, in the time that the gate has: the first fault of each kind in the core, without torch where it needs none, else under a launcher in turn;
    a few under torchrun; the first that can be told without the hook under each launcher; and one on 4x2.
    """
    found = []
    kinds: set[object] = set()
    unhooked: set[Launcher] = set()
    for place, fault in enumerate(FAULTS):
        turn = fault.launchers[place % len(fault.launchers)]
        first = fault.core and kind(fault) not in kinds
        bare = fault.hook_free and turn not in unhooked
        light = _is_light(fault)
        if first:
            kinds.add(kind(fault))
        if bare:
            unhooked.add(turn)
        gate = _UNDER_TORCHRUN.get(fault.name) or (turn if first and not light else None)
        bare_light = bare and light and turn == "plain"
        found += [Variant(fault, launcher, full=launcher != gate) for launcher in fault.launchers]
        found.append(Variant(fault, turn, hook=False, full=not bare or bare_light))
        if fault.core:
            found.append(Variant(fault, fault.launchers[-1], nnodes=4))
        # What these strike needs no torch: only the gate has them.
        if first and light:
            found.append(Variant(fault, "plain", torch=False, full=False))
        if bare_light:
            found.append(Variant(fault, "plain", hook=False, torch=False, full=False))
        if place == 0:
            found.append(Variant(fault, "plain", nnodes=4, torch=False, full=False))
    return tuple(found)


def _is_light(fault: Fault) -> bool:
    return "plain" in fault.launchers and not any(action["do"] in _BY_TORCH for action in fault.actions)
