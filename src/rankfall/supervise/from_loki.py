"""Fills a run's record with what Loki has of pods that the API no longer has, under the run's lease: one writer, as always."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rankfall.backends.plan import Plan
from rankfall.model import FINAL_STATES, Refused, StoreError
from rankfall.observe.loki.settings import LokiSettings
from rankfall.store import RunDir

if TYPE_CHECKING:
    from rankfall.observe.cluster.loki_take import LokiTake
    from rankfall.observe.loki.reader import Asks
    from rankfall.store.rows import AttemptRow


def take_from_loki(
    run_dir: RunDir, settings: LokiSettings, *, attempts: frozenset[int] | None, say: Callable[[str], None]
) -> int:
    """Store what Loki has and the record has not; the number of lines that are new.

    Args:
        run_dir: the run.
        settings: where Loki is.
        attempts: only of these; None = all.
        say: takes lines for people.

    Raises:
        Refused: the run was on this machine.
        LockHeld: somebody records the run, and has its lines from the API.
        LokiError: Loki cannot be asked; what came before is stored.
        StoreError: the run directory cannot be written.
    """
    if run_dir.spec.backend == "local":
        raise Refused(
            f"--log-source: run {run_dir.id} ran on this machine, and its record has all of its lines",
            hint="leave it out",
        )
    from rankfall.observe.cluster.loki_take import keys_of  # noqa: PLC0415 - loads the HTTP client
    from rankfall.observe.loki.client import Loki  # noqa: PLC0415 - as above

    with run_dir.lease() as writer:
        over = writer.run().state in FINAL_STATES
        rows = [row for row in writer.attempts() if attempts is None or row.attempt in attempts]

        async def story() -> int:
            count = 0
            async with Loki(settings, keys=keys_of(settings)) as loki:
                for row in rows:
                    take = take_of(run_dir, row, loki=loki, settings=settings, over=over, say=say)
                    count += await take.take() if take is not None else 0
            return count

        try:
            return asyncio.run(story())
        except OSError as error:
            raise cannot_store(run_dir, error) from None


def take_of(
    run_dir: RunDir,
    row: AttemptRow,
    *,
    loki: Asks,
    settings: LokiSettings,
    over: bool,
    say: Callable[[str], None],
    live: bool = False,
) -> LokiTake | None:
    """What takes an attempt's lines; None of one that ran in no cluster. Arguments as of :class:`LokiTake`."""
    from rankfall.observe.cluster.loki_take import LokiTake  # noqa: PLC0415 - loads the HTTP client

    plan = Plan.of_row(row.plan, run_dir.spec)
    if plan.cluster is None:
        return None
    now = time.time_ns()
    return LokiTake(
        run_dir,
        attempt=row.attempt,
        source=plan.cluster,
        loki=loki,
        settings=settings,
        over=over or row.ended is not None,
        live=live,
        since=row.started or run_dir.created or now,
        until=row.ended or now,
        say=say,
    )


def cannot_store(run_dir: RunDir, error: OSError) -> StoreError:
    """The error for a run directory that takes no more."""
    return StoreError(
        f"what Loki has of run {run_dir.id} cannot be stored: {error.strerror or error}",
        hint="make room, or the directory writable; the same command goes on where it stopped",
    )
