"""``metrics``: numbers of this machine's runs for Prometheus.

One process serves all runs, so that the last numbers of a run can be read after its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rankfall.cli import console
from rankfall.cli.target import read_home
from rankfall.model import FINAL_STATES, StatusDocument, StoreError
from rankfall.model.numbers import address_of
from rankfall.model.run_status import is_unwatched
from rankfall.model.timestamps import nanoseconds
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.streams.content import content_size
from rankfall.rundir.streams.files import position

if TYPE_CHECKING:
    from rankfall.nodes.controller.metrics import Metrics

#: Name -> kind and help; printed with ``rankfall_``.
NAMES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "runs": ("gauge", "Runs of this machine by state."),
    "run_state": ("gauge", "1 for the state that the run has."),
    "run_start_time_seconds": ("gauge", "Start of the run, seconds since the epoch."),
    "run_end_time_seconds": ("gauge", "End of the run, seconds since the epoch; absent while it lives."),
    "run_supervised": ("gauge", "1 while a supervisor decides about the run, or its platform does."),
    "run_attempts": ("gauge", "Attempts begun."),
    "run_restarts_total": ("counter", "Restarts after failures, by the cause of the failure."),
    "run_cause": ("gauge", "1 for the cause of the newest verdict."),
    "run_slots": ("gauge", "Slots of the newest attempt, by standing."),
    "run_step": ("gauge", "Highest training step that a rank of the newest attempt reported."),
    "run_line_age_seconds": ("gauge", "Seconds since the newest line of the newest attempt; while the run lives."),
    "run_lines_total": ("counter", "Lines recorded, of all attempts."),
    "run_lost_lines": ("gauge", "Printed lines known to be missing in the record."),
    "run_gaps": ("gauge", "Statements about what the record lacks, as status shows them."),
})  # fmt: skip
_STANDINGS: Final = ("active", "ready", "succeeded", "failed", "stopped")
# Age up to which an ended run has series, and their number.
_ENDED_NS: Final = 86_400 * 10**9
_MAX_ENDED: Final = 500


class _Numbers(NamedTuple):
    """One run at one moment; ``status`` is None if it ended long ago. ``changed``: of its database."""

    changed: int
    state: str
    ended: int
    status: StatusDocument | None = None
    lines: int = 0


class RunMetrics:
    """Reads the runs of one home at each call of :meth:`text`; remembers those that ended."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ended: dict[str, _Numbers] = {}

    def text(self) -> str:
        """Returns all metrics in Prometheus' text format.

        Raises:
            StoreError: The folder of runs cannot be read.
        """
        from rankfall.nodes.controller.metrics import Metrics  # noqa: PLC0415 - loads an HTTP server

        metrics = Metrics(NAMES)
        now = time.time_ns()
        states: Counter[str] = Counter()
        ended: dict[str, _Numbers] = {}
        for run in list_runs(self._home):
            one = self._ended.get(run.id)
            if one is None or one.changed != _changed(run):
                one = _numbers(run, now)
            states["unknown" if one.status is not None and is_unwatched(one.status) else one.state] += 1
            if one.state in FINAL_STATES:
                ended[run.id] = one
                if now - one.ended > _ENDED_NS or len(ended) > _MAX_ENDED:
                    continue
            if one.status is not None:
                _add(metrics, one.status, one.lines)
        metrics.replace("runs", "state", states)
        self._ended = ended
        return metrics.text()


def _changed(run: RunDir) -> int:
    """Time of the last change of the database; a retry changes that of an ended run."""
    times = [0]
    for path in (run.db_path, run.db_path.with_name(run.db_path.name + "-wal")):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime_ns)
    return max(times)


def _numbers(run: RunDir, now: int) -> _Numbers:
    changed = _changed(run)
    with run.reader() as reader:
        row = reader.run()
        ended = row.ended or run.created
        if row.state in FINAL_STATES and now - ended > _ENDED_NS:
            return _Numbers(changed, row.state, ended)
        streams = {stream.stream for stream in reader.streams()}
        return _Numbers(changed, row.state, ended, reader.status(now), sum(_lines(run.path / one) for one in streams))


def _lines(path: Path) -> int:
    try:
        return position(path, content_size(path)) - 1
    except (OSError, StoreError):
        # Removed meanwhile, or not begun.
        return 0


def _add(metrics: Metrics, one: StatusDocument, lines: int) -> None:
    of = {"run": one.run, "name": one.name}
    unwatched = is_unwatched(one)
    metrics.set("run_state", 1, **of, backend=one.backend, state="unknown" if unwatched else one.state)
    for name, text in (("run_start_time_seconds", one.started), ("run_end_time_seconds", one.ended)):
        at = nanoseconds(text) if text else None
        if at is not None:
            metrics.set(name, at / 1e9, **of)
    if one.foreign is None:
        metrics.set("run_supervised", one.supervised or one.unattended, **of)
    metrics.set("run_attempts", one.attempts, **of)
    for cause, count in one.restarts.by_cause.items():
        metrics.set("run_restarts_total", count, **of, cause=cause)
    if one.cause:
        metrics.set("run_cause", 1, **of, cause=one.cause)
    for standing in () if unwatched else _STANDINGS:
        metrics.set("run_slots", getattr(one, standing), **of, standing=standing)
    steps = [rank.step for rank in one.ranks if rank.step is not None]
    if steps:
        metrics.set("run_step", max(steps), **of)
    known = [*(rank.line_age_s for rank in one.ranks), *(slot.line_age_s for slot in one.slots)]
    ages = [age for age in known if age is not None]
    if ages and not unwatched and one.state not in FINAL_STATES:
        metrics.set("run_line_age_seconds", min(ages), **of)
    metrics.set("run_lines_total", lines, **of)
    metrics.set("run_lost_lines", sum(lost.lines or 0 for lost in one.lost_lines), **of)
    metrics.set("run_gaps", len(one.incomplete), **of)


@click.command("metrics")
@click.option("--metrics-address", metavar="HOST:PORT")
def metrics(*, metrics_address: str | None) -> None:
    """Print numbers of this machine's runs in Prometheus' text format, or serve them.

    Runs that ended a day ago or earlier count in rankfall_runs only.
    """
    numbers = RunMetrics(read_home())
    if metrics_address is None:
        sys.stdout.write(numbers.text())
        return
    asyncio.run(_serve(numbers, address_of(metrics_address)))


async def _serve(numbers: RunMetrics, address: tuple[str, int]) -> None:
    """Serves until SIGTERM or SIGINT."""
    from rankfall.nodes.controller.metrics import serving  # noqa: PLC0415

    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with serving(address, text=numbers.text) as port:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        console.say(f"rankfall: serving http://{host}:{port}/metrics; Ctrl-C ends it")
        await over.wait()
