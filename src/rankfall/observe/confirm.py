"""Evidence that confirms or names what a death or a standstill alone does not tell: OOM counters, kernel lines, flight recorders."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from rankfall.diagnose.rules import CHILD_DEATHS
from rankfall.diagnose.subjects import own_failure
from rankfall.model import Evidence, RankFacts
from rankfall.model.patterns import bounded
from rankfall.observe import evidence as make
from rankfall.observe.facts import Facts
from rankfall.observe.flight import Dumps, dump_rank
from rankfall.observe.kernel import read_kernel
from rankfall.observe.left_file import read_left
from rankfall.signatures.catalogue import Catalogue

_SIGKILL: Final = 9
# How Python's own words about a child that was killed end: of subprocess and of multiprocessing.
_CHILD_KILLED: Final = bounded(r"died with <Signals\.SIGKILL: 9>|non-zero exit status (?:-9|137)\b", limit=8_192)
# So many dumps that cannot be read are named.
_MAX_PROBLEMS: Final = 64


def foreign_kills(facts: Facts) -> dict[int, RankFacts]:
    """Ranks that a foreign signal ended, by process id."""
    return {r.pid: r for r in facts.ranks() if r.pid is not None and r.signal is not None and r.killed_by == "foreign"}


def oom_evidence(facts: Facts, known: Iterable[Evidence], *, attempt: int) -> list[Evidence]:
    """The slot's OOM counter, at the ranks that a SIGKILL took, or else at those that lost a data worker or another child to one.

    Where it took none of them, but what had started them (an agent is as large as a rank while torch is loaded), at the slot itself.
    """
    found = []
    counted = [slot for slot in facts.slots.values() if slot.oom_kills]
    bereaved = {(e.slot, e.rank) for e in known if _lost_a_child(e)} if counted else set()
    for slot in counted:
        ranks = [r for r in facts.ranks() if r.slot == slot.slot]
        killed = [r for r in ranks if r.signal == _SIGKILL and r.killed_by == "foreign"]
        struck: list[RankFacts | None] = [*killed] or [r for r in ranks if (r.slot, r.rank) in bereaved]
        if not struck and slot.signal == _SIGKILL and slot.killed_by != "wrapper" and not any(map(own_failure, ranks)):
            struck = [None]
        found += [make.of_oom(r, slot, kills=slot.oom_kills or 0, where=slot.where, attempt=attempt) for r in struck]
    return found


def _lost_a_child(piece: Evidence) -> bool:
    """Whether a rank ended because a process of its own was killed. A line may be about one that it could do without: only its record counts."""
    if piece.slug == "dataloader_died":
        return True
    return piece.source == "record" and (piece.signature in CHILD_DEATHS or bool(_CHILD_KILLED.search(piece.line)))


def kernel_evidence(
    killed: dict[int, RankFacts], catalogue: Catalogue, *, attempt: int
) -> tuple[list[Evidence], str | None]:
    """Kernel lines that name a killed rank, and why the kernel's log could not be had (None when it could)."""
    since = min((r.started_at for r in killed.values() if r.started_at), default=0)
    lines, problem = read_kernel(catalogue, since=since)
    return [make.of_kernel(line, killed[line.pid], attempt=attempt) for line in lines if line.pid in killed], problem


def dump_evidence(folders: Iterable[Path], *, relative_to: Path, attempt: int) -> tuple[list[Evidence], list[str]]:
    """What flight-recorder dumps in these folders say, and what is wrong with some of them."""
    dumps = Dumps()
    problems: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*")):
            rank = dump_rank(path.name)
            if rank is None:
                continue
            try:
                name, size = str(path.relative_to(relative_to)), path.lstat().st_size
                problem = dumps.add(rank, name, size, partial(_content, path))
            except OSError as error:
                problem = f"{path.name} cannot be read: {error.strerror}"
            if problem is not None and len(problems) < _MAX_PROBLEMS:
                problems.append(problem)
    return dumps.evidence(attempt=attempt), [*problems, *dumps.left_out]


def _content(path: Path, limit: int) -> bytes:
    return read_left(path, limit=limit)[0]
