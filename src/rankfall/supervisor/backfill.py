"""Copies missing lines into a run directory from Loki or the job's log store.

Runs under the run's lease, so there is one writer. HTTP and Kubernetes clients load late.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.backends.plan import Plan
from rankfall.collect.background import CancellableWork
from rankfall.collect.stores.log_store import Source, StoreCopies, how_to_see, source_of
from rankfall.loki.settings import LokiSettings
from rankfall.model import FINAL_STATES, JobSpec, Refused, StoreError
from rankfall.rundir import RunDir

if TYPE_CHECKING:
    from rankfall.collect.loki.attempt_lines import LokiCollector
    from rankfall.loki.reader import PageSource
    from rankfall.rundir.database import AttemptRow


def backfill_from_store(run_dir: RunDir, *, attempts: frozenset[int] | None, say: Callable[[str], None]) -> int:
    """Copies the store's content; returns the new bytes. ``attempts`` None means all.

    Raises:
        Refused: No log store, or invisible here.
        LockHeld: Another process records the run.
        StoreError: Store or run directory not accessible.
    """
    where = run_dir.spec.kubernetes.log_store
    if where is None:
        raise Refused(
            f"--log-source: run {run_dir.id} has no log store; its run directory has the lines from the API server",
            hint="leave --log-source out",
        )
    source = source_of(run_dir.spec)
    if source is None or not source.visible:
        raise Refused(
            f"--log-source: this machine cannot reach the log store {where}",
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
                f"cannot copy {copy.name} from the log store: {error.strerror or error}",
                hint="free space on this machine or make the store readable, then run the same command again: copying resumes",
            ) from None
        if not copy.complete:
            say(f"{copy.name} in the log store is not complete yet: lines may be missing")
    return copied


def backfill_from_loki(
    run_dir: RunDir, settings: LokiSettings, *, attempts: frozenset[int] | None, say: Callable[[str], None]
) -> int:
    """Stores lines that only Loki has; returns their number. ``attempts`` None means all.

    Raises:
        Refused: The run was not in a cluster.
        LockHeld: Another process records the run.
        LokiError: Loki fails; earlier results are stored.
        StoreError: The run directory is not writable.
    """
    _refuse_without_pods(run_dir)
    from rankfall.collect.loki.attempt_lines import keys_of  # noqa: PLC0415
    from rankfall.loki.client import Loki  # noqa: PLC0415

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
    loki: PageSource,
    settings: LokiSettings,
    over: bool,
    say: Callable[[str], None],
    live: bool = False,
) -> LokiCollector | None:
    """Returns the collector of an attempt's lines; None without a cluster.

    ``over``: the run ended; ``live``: the job runs.
    """
    from rankfall.collect.loki.attempt_lines import LokiCollector  # noqa: PLC0415

    plan = Plan.of_row(row.plan, run_dir.spec)
    if plan.cluster is None:
        return None
    now = time.time_ns()
    return LokiCollector(
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
    """Returns the error for an unwritable run directory."""
    return StoreError(
        f"cannot store lines from Loki for run {run_dir.id}: {error.strerror or error}",
        hint="free space or make the run directory writable, then run the command again: it resumes",
    )


class LokiFollow:
    """Copies lines from Loki in a thread until the run ends; ``say`` is called in it.

    Raises:
        Refused: Local, foreign, or restarted by Kubernetes alone.
        LockHeld: Another process records the run.
        StoreError: The run directory is not writable.
    """

    def __init__(
        self, run_dir: RunDir, settings: LokiSettings, *, attempts: frozenset[int] | None, say: Callable[[str], None]
    ) -> None:
        _refuse(run_dir)
        self._run_dir = run_dir
        self._settings = settings
        self._attempts = attempts
        self._say = say
        self._cancellable = CancellableWork()
        self._started = threading.Event()
        self._held = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="rankfall-loki", daemon=True)
        self._thread.start()
        self._started.wait()
        if not self._held:
            self.stop()

    def over(self) -> bool:
        """True if no more lines follow."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stops the thread; the next one repeats unfinished reads. Idempotent.

        Raises:
            RankfallError: The error that ended the thread.
        """
        self._cancellable.end()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # -- the thread

    def _main(self) -> None:
        try:
            # The store's connection belongs to its thread.
            with self._run_dir.lease() as writer:
                rows = [row for row in writer.attempts() if self._attempts is None or row.attempt in self._attempts]
                self._held = True
                self._started.set()
                asyncio.run(self._cancellable.run(self._follow(rows)))
        except OSError as error:
            self._error = cannot_store(self._run_dir, error)
        except BaseException as error:  # noqa: BLE001 - raised again by ``stop``
            self._error = error
        finally:
            self._started.set()

    async def _follow(self, rows: list[AttemptRow]) -> None:
        from rankfall.collect.loki.attempt_lines import (  # noqa: PLC0415
            LokiLive,
            keys_of,
        )
        from rankfall.loki.client import Loki  # noqa: PLC0415

        async with Loki(self._settings, keys=keys_of(self._settings)) as loki:
            takes: list[LokiCollector] = []
            slots: list[int] = []
            for row in rows:
                take = take_of(
                    self._run_dir, row, loki=loki, settings=self._settings, over=True, live=True, say=self._say
                )
                if take is not None:
                    takes.append(take)
                    slots = slots_of(row, self._run_dir.spec)
            if not takes:
                return

            def ended() -> bool:
                # A slot that restarts alone writes several end records.
                again = any(self._run_dir.spec.restarts_alone(slot) for slot in slots)
                return bool(slots) and not again and takes[-1].ended(slots)

            await LokiLive(takes, ended=ended, say=self._say).run()


def slots_of(row: AttemptRow, spec: JobSpec) -> list[int]:
    """Returns the slots of an attempt, including those that joined."""
    return [one.slot for one in Plan.of_row(row.plan, spec).slots]


def _refuse_without_pods(run_dir: RunDir) -> None:
    if run_dir.spec.writes_run_dir:
        raise Refused(
            f"--log-source: run {run_dir.id} has no pods; its run directory has all of its lines",
            hint="leave --log-source out",
        )


def _refuse(run_dir: RunDir) -> None:
    _refuse_without_pods(run_dir)
    if run_dir.foreign is not None:
        label = run_dir.foreign.target.label
        raise Refused(
            f"--log-source: cannot follow {label} in Loki: only the API server knows its pods, because Rankfall did not start it",
            hint=f"follow it with rankfall logs -f {label}; for lines of known pods that were deleted, run "
            f"rankfall logs {label} --log-source loki",
        )
    if run_dir.spec.unattended:
        raise Refused(
            f"--log-source: cannot follow run {run_dir.id} in Loki: Kubernetes restarts its pods, and only the API server knows "
            "the start of each pod",
            hint=f"follow it with rankfall attach {run_dir.id}; for lines of deleted pods, run "
            f"rankfall logs {run_dir.id} --log-source loki",
        )
