"""What may be changed: runs that Rankfall started. A job that it did not start is looked at, and refused by name everywhere else."""

from __future__ import annotations

from rankfall.model import Refused
from rankfall.store import RunDir


def only_ours(run_dir: RunDir, verb: str) -> None:
    """Refuse to change a job that Rankfall did not start.

    Args:
        run_dir: the run.
        verb: of the command line.

    Raises:
        Refused: it is another one's.
    """
    foreign = run_dir.foreign
    if foreign is None:
        return
    shown = foreign.target.shown
    raise Refused(
        f"rankfall {verb} is for runs that Rankfall started; {shown} is only looked at",
        hint=f"rankfall logs -f {shown} follows it; kubectl, or the tool that made it, changes it",
    )
