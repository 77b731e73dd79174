"""Whether the lines that ranks counted aloud are all kept: what is in the run's directory beside what the ranks wrote down elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COUNTED: Final = re.compile(rb"^line (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Lines:
    """Of one rank in attempt 1.

    Attributes:
        printed: by the rank's own account; it may have printed one more.
        kept: numbers in the order of the run's directory.
    """

    rank: int
    printed: int
    kept: tuple[int, ...]

    @property
    def missing(self) -> int:
        """How many of those that were printed are not kept."""
        return len(set(range(1, self.printed + 1)) - set(self.kept))

    @property
    def fault(self) -> str:
        """What is wrong that nothing excuses; empty = nothing."""
        if len(set(self.kept)) < len(self.kept):
            return f"rank {self.rank}: {len(self.kept) - len(set(self.kept))} lines are kept twice"
        if list(self.kept) != sorted(self.kept):
            return f"rank {self.rank}: lines are out of order"
        return ""


def lines_of(plan: Path, kept: Callable[[int], bytes]) -> Iterator[Lines]:
    """Of each rank that printed.

    Args:
        plan: of the worker.
        kept: all of a rank's output in attempt 1.
    """
    for path in sorted(plan.parent.glob(f"{plan.stem}.*.a1.printed")):
        rank = int(path.name.removeprefix(f"{plan.stem}.").split(".")[0])
        numbers = tuple(int(number) for number in _COUNTED.findall(kept(rank)))
        yield Lines(rank, len(path.read_text().splitlines()), numbers)


def kept_of(run: Path) -> Callable[[int], bytes]:
    """A reader of the streams that a run on a cluster has of attempt 1."""

    def kept(rank: int) -> bytes:
        return b"".join(file.read_bytes() for file in sorted(run.glob(f"logs/attempt-1/*/*/r{rank}.out.log")))

    return kept
