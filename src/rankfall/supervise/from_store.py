"""Fills a run's record with what is in its log store and not in the record yet, under the run's lease: one writer, as always."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rankfall.model import Refused, StoreError
from rankfall.observe.log_store import Source, StoreCopies, how_to_see, source_of
from rankfall.store import RunDir


def take_from_store(run_dir: RunDir, *, attempts: frozenset[int] | None, say: Callable[[str], None]) -> int:
    """Copy what the store has; the number of bytes that are new.

    Args:
        run_dir: the run.
        attempts: only of these; None = all.
        say: takes lines for people.

    Raises:
        Refused: the run has no log store, or this machine does not see it.
        LockHeld: somebody records the run, and takes its lines from there.
        StoreError: it cannot be read, or the run directory cannot be written.
    """
    where = run_dir.spec.kubernetes.log_store
    if where is None:
        raise Refused(
            f"--log-source: run {run_dir.id} has no log store, and its record has what the API gave",
            hint="leave it out",
        )
    source = source_of(run_dir.spec)
    if source is None or not source.visible:
        raise Refused(
            f"--log-source: this machine does not see the log store {where}",
            hint=how_to_see(run_dir.spec),
        )
    with run_dir.lease() as writer:
        copied = 0
        for row in writer.attempts():
            if attempts is None or row.attempt in attempts:
                copied += _attempt(run_dir.logs_dir / f"attempt-{row.attempt}", source, say)
        return copied


def _attempt(logs: Path, source: Source, say: Callable[[str], None]) -> int:
    copies = StoreCopies(logs, source)
    copies.load()
    copied = 0
    for copy in copies.open:
        try:
            while new := copies.poll_one(copy):
                copied += new
        except OSError as error:
            raise StoreError(
                f"what the log store has in {copy.name} cannot be copied: {error.strerror or error}",
                hint="make room, or the store readable; the same command goes on where it stopped",
            ) from None
        if not copy.complete:
            say(f"{copy.name} in the log store has no end yet that its writer wrote: lines may be missing")
    return copied
