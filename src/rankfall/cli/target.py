"""Which run is meant: an id, the beginning of one, or the newest when none is given."""

from __future__ import annotations

from pathlib import Path

from rankfall.cli import emit
from rankfall.model import FINAL_STATES, LockHeld, NotFound, RankfallError
from rankfall.store import RunDir, default_home, home, list_runs


def read_home() -> Path:
    """Rankfall's home, checked when it is there; reading makes nothing.

    Raises:
        StoreError: its layout is of another version.
    """
    path = default_home()
    return home() if path.exists() else path


def run_as_it_is(name: str | None) -> RunDir:
    """The run that ``name`` stands for. One that nobody supervises or records is looked at first; where that fails it is said.

    Raises:
        NotFound, UsageError: as :func:`one_run`.
    """
    directory = one_run(name)
    try:
        if not directory.spec.unattended or directory.lease_holder() is not None:
            return directory
        with directory.reader() as reader:
            if reader.run().state in FINAL_STATES:
                return directory
        from rankfall.supervise.unattended import take_in  # noqa: PLC0415 - loads the client of Kubernetes

        take_in(directory)
    except LockHeld:
        pass
    except RankfallError as error:
        emit.say(f"rankfall: as it was seen last, because it cannot be asked now: {error.message}")
    return directory


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
