"""Which run is meant: an id, the beginning of one, or the newest when none is given."""

from __future__ import annotations

from pathlib import Path

from rankfall.cli import emit
from rankfall.model import NotFound
from rankfall.store import RunDir, default_home, home, list_runs


def read_home() -> Path:
    """Rankfall's home, checked when it is there; reading makes nothing.

    Raises:
        StoreError: its layout is of another version.
    """
    path = default_home()
    return home() if path.exists() else path


def one_run(name: str | None, *, quiet: bool = False) -> RunDir:
    """The run that ``name`` stands for.

    Args:
        name: its id, the beginning of it, or None for the newest; which one that is is said on stderr.
        quiet: say nothing.

    Raises:
        NotFound: there is none.
        UsageError: several begin so.
    """
    folder = read_home()
    if name is not None:
        return RunDir.open(folder, name)
    found = list_runs(folder)
    if not found:
        raise NotFound("there is no run yet", hint="rankfall run train.py")
    emit.say(f"newest run: {found[0].id}", quiet=quiet)
    return found[0]
