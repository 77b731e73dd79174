"""What is left of a finished run when a channel of evidence had been cut: a copy of its directory without what came that way.

The records of a slot come by one way or another (a shared folder, the log, the termination message, a store), so cutting ways is cutting
kinds of records. What was said without them may be less than before, and never something else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from faults.table import Fault
from rankfall.explain import explain_run
from rankfall.model import Verdict
from rankfall.rundir import RunDir, list_runs

# Channel -> names of what came by it, below the run's directory. How a slot ended is kept: on a cluster the platform says it, too.
CHANNELS: Final = {
    "errors": r"records/error-.*",
    "ends": r"records/(end|kill)-.*|slots/.*/kills\.jsonl",
    "lines": r"logs/.*",
    "records": r"records/(?!slot_).*|slots/.*/(kills\.jsonl|claims/.*)",
}
CUTS: Final = (
    ("errors",),
    ("ends",),
    ("lines",),
    ("records",),
    ("errors", "lines"),
    ("ends", "lines"),
    ("records", "lines"),
)
# Consequences and bare ends that remain when nobody's own word is left.
_LESS: Final = frozenset({"unknown", "user_exit", "killed_unknown", "user_code_exception", "external_signal"})


def without(run: RunDir, channels: Iterable[str], folder: Path) -> RunDir:
    """A copy of a run's directory, in an empty folder, as if these channels had been cut."""
    target = folder / "runs" / run.path.name
    shutil.copytree(run.path, target, symlinks=True, ignore=_special)
    for channel in channels:
        pattern = re.compile(CHANNELS[channel])
        for path in list(target.rglob("*")):
            if path.is_file() and pattern.fullmatch(str(path.relative_to(target))):
                path.unlink()
    (found,) = list_runs(folder)
    return found


def said_less(fault: Fault, run: RunDir, folder: Path, *, slot: int | None) -> Iterator[str]:
    """What is wrong in the verdicts of the newest attempt with one channel after the other cut; nothing when none says more or other than all.

    Args:
        fault: that befell the run.
        run: at its end.
        folder: an empty one, for copies.
        slot: of the culprit.
    """
    for channels in CUTS:
        name = "+".join(channels)
        verdict = explain_run(without(run, channels, folder / name), fresh=True).verdict
        yield from (f"without {name}: {text}" for text in _wrong(fault, verdict, slot=slot))


def _wrong(fault: Fault, verdict: Verdict, *, slot: int | None) -> Iterator[str]:
    cause = verdict.cause
    if verdict.rank not in {None, fault.rank}:
        yield f"rank {verdict.rank} is blamed, not {fault.rank} ({cause.slug}, {cause.confidence})"
    if slot is not None and verdict.slot not in {None, slot}:
        yield f"slot {verdict.slot} is blamed, not {slot} ({cause.slug}, {cause.confidence})"
    sure = cause.confidence in {"proven", "likely"}
    if sure and cause.slug not in {*fault.slugs, *fault.weak, *_LESS}:
        yield f"{cause.confidence} {cause.slug}"
    if verdict.node_action not in {"none", fault.node_action}:
        yield f"node action {verdict.node_action}"
    if fault.rank in [one.rank for one in verdict.consequences] and verdict.rank is not None:
        yield f"culprit {fault.rank} is named as a victim"


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes and sockets of slots: nothing is in them."""
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]
