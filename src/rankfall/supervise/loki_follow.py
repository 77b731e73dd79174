"""Records a run's lines out of Loki while somebody looks at them, under the run's lease: one writer, as always. It decides nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from rankfall.backends.plan import Plan
from rankfall.model import JobSpec, Refused
from rankfall.observe.endable import Endable
from rankfall.observe.loki.settings import LokiSettings
from rankfall.store import RunDir
from rankfall.supervise.from_loki import cannot_store, take_of

if TYPE_CHECKING:
    from rankfall.observe.cluster.loki_take import LokiTake
    from rankfall.store.rows import AttemptRow


class LokiFollow:
    """A follow in a thread of this process.

    Args:
        run_dir: of a run that is not over.
        settings: where Loki is.
        attempts: only of these; None = all.
        say: takes lines for people, in its thread.

    Raises:
        Refused: the run was on this machine, Rankfall did not start it, or Kubernetes alone starts its gang again.
        LockHeld: somebody records the run, and has its lines from the API.
        StoreError: the run directory cannot be written.
    """

    def __init__(
        self, run_dir: RunDir, settings: LokiSettings, *, attempts: frozenset[int] | None, say: Callable[[str], None]
    ) -> None:
        _refuse(run_dir)
        self._run_dir = run_dir
        self._settings = settings
        self._attempts = attempts
        self._say = say
        self._endable = Endable()
        self._started = threading.Event()
        self._held = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="rankfall-loki", daemon=True)
        self._thread.start()
        self._started.wait()
        if not self._held:
            self.stop()

    def over(self) -> bool:
        """Whether nothing more comes by it."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End; what is in flight comes again with the next follow. May be called again.

        Raises:
            RankfallError: what ended it before.
        """
        self._endable.end()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # -- the thread

    def _main(self) -> None:
        try:
            # The store's connection belongs to the thread that made it.
            with self._run_dir.lease() as writer:
                rows = [row for row in writer.attempts() if self._attempts is None or row.attempt in self._attempts]
                self._held = True
                self._started.set()
                asyncio.run(self._endable.run(self._follow(rows)))
        except OSError as error:
            self._error = cannot_store(self._run_dir, error)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever stops it
            self._error = error
        finally:
            self._started.set()

    async def _follow(self, rows: list[AttemptRow]) -> None:
        from rankfall.observe.cluster.loki_live import LokiLive  # noqa: PLC0415 - loads the HTTP client
        from rankfall.observe.cluster.loki_take import keys_of  # noqa: PLC0415 - as above
        from rankfall.observe.loki.client import Loki  # noqa: PLC0415 - as above

        async with Loki(self._settings, keys=keys_of(self._settings)) as loki:
            takes: list[LokiTake] = []
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
                # A slot that is started again alone says its last word many times.
                again = any(self._run_dir.spec.restarts_alone(slot) for slot in slots)
                return bool(slots) and not again and takes[-1].ended(slots)

            await LokiLive(takes, ended=ended, say=self._say).run()


def slots_of(row: AttemptRow, spec: JobSpec) -> list[int]:
    """The slots that an attempt began with or took in."""
    return [one.slot for one in Plan.of_row(row.plan, spec).slots]


def _refuse(run_dir: RunDir) -> None:
    if run_dir.spec.backend == "local":
        raise Refused(
            f"--log-source: run {run_dir.id} ran on this machine, and its record has all of its lines",
            hint="leave it out",
        )
    if run_dir.foreign is not None:
        shown = run_dir.foreign.target.shown
        raise Refused(
            f"--log-source: {shown} was not started by Rankfall, and only a look at the cluster tells which pods are its: its lines are not "
            "followed out of Loki",
            hint=f"rankfall logs -f {shown} follows them by the API; rankfall logs {shown} --log-source loki takes in once what Loki has of pods "
            "that were seen and are gone",
        )
    if run_dir.spec.unattended:
        raise Refused(
            f"--log-source: Kubernetes alone starts the pods of run {run_dir.id} again, and only a look at the cluster tells which start a pod is of: "
            "its lines are not followed out of Loki",
            hint=f"rankfall attach {run_dir.id} follows them by the API; rankfall logs {run_dir.id} --log-source loki takes in once what Loki has of pods "
            "that are gone",
        )
