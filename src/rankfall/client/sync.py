"""Synchronous client, with line iterators for torchx (``log_iter``) and NeMo-Run (``fetch_logs``).

Each call runs a new event loop, so none may be running.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from rankfall.client.client import Client
from rankfall.client.resizing import Resized
from rankfall.client.run import Run
from rankfall.model import FINAL_STATES, JobSpec, Outcome, RunSummary, StatusDocument, UsageError, Verdict
from rankfall.model.jobspec.sizes import sized
from rankfall.render.line_selection import FirstOrLastRank, LateRankFilter
from rankfall.rundir import RunDir
from rankfall.rundir.lines import Line, LineQuery, LineTail
from rankfall.rundir.requests import requested_sizes

if TYPE_CHECKING:
    from rankfall.backends.files import Copied

_NS: Final = 1_000_000_000
_PAUSE_S: Final = 0.05

When = datetime | float | None
Pick = Callable[[Iterable[Line]], Iterator[Line]]


_STREAMS: Final[dict[str, Literal["all", "out", "err"]]] = {"stdout": "out", "stderr": "err", "combined": "all"}


def log_iter(
    directory: RunDir,
    role: str,
    k: int,
    *,
    regex: str | None,
    since: When,
    until: When,
    should_tail: bool,
    streams: Literal["stdout", "stderr", "combined"] | None,
) -> Iterator[str]:
    """Implements :meth:`rankfall.client.SyncRun.log_iter`."""
    if streams not in {None, *_STREAMS}:
        raise UsageError(f"streams is {streams!r}", hint=f"give one of: {', '.join(_STREAMS)}")
    query = LineQuery(
        slots=frozenset({_slot_of(directory, role, k)}),
        streams=_STREAMS[streams or "combined"],
        since=_stamp(since),
        grep=regex,
    )
    last = _stamp(until)
    tail = LineTail(directory, query)
    lines = _lines(directory, tail, iter, follow=should_tail)
    return (_text(line) for line in lines if last is None or line.at is None or line.at <= last)


def fetch_logs(directory: RunDir, *, stream: bool, lines: int | None) -> Iterator[str]:
    """Implements :meth:`rankfall.client.SyncRun.fetch_logs`."""
    if lines is not None and lines < 0:
        raise UsageError(f"lines is {lines}", hint="give a number from 0, or None for all lines")
    tail = LineTail(directory, LineQuery())
    usual = FirstOrLastRank(directory)
    late = LateRankFilter(tail, usual)

    def pick(found: Iterable[Line]) -> Iterator[Line]:
        usual.forget()
        return late.pick(found)

    chosen = _lines(directory, tail, pick, follow=stream)
    return map(_text, chosen if stream else deque(chosen, maxlen=lines))


def _lines(directory: RunDir, tail: LineTail, pick: Pick, *, follow: bool) -> Iterator[Line]:
    while follow:
        # State first: this poll has all earlier lines.
        with directory.reader() as reader:
            over = reader.run().state in FINAL_STATES
        found = tail.poll()
        yield from pick(found)
        if over and not found:
            break
        if not found:
            time.sleep(_PAUSE_S)
    yield from pick(tail.drain())
    yield from pick(())


def _slot_of(directory: RunDir, role: str, k: int) -> int:
    spec = directory.spec
    parts = sized(spec, requested_sizes(directory.path, spec)).parts
    for part in parts:
        if part.name == role:
            slots = tuple(part.slots)
            if 0 <= k < len(slots):
                return slots[k]
            raise UsageError(
                f"role {role} of run {directory.id} has no replica {k}", hint=f"it has replicas 0-{len(slots) - 1}"
            )
    names = ", ".join(part.name for part in parts)
    raise UsageError(f"run {directory.id} has no role {role[:60]!r}", hint=f"it has: {names}")


def _stamp(when: When) -> int | None:
    """Returns nanoseconds since the epoch; times without a zone are local, as in torchx. None stays None."""
    if when is None:
        return None
    return round((when.timestamp() if isinstance(when, datetime) else when) * _NS)


def _text(line: Line) -> str:
    who = f"[rank {line.rank}]" if line.rank is not None else f"[slot {line.slot}]"
    return f"{who} {line.data.decode('utf-8', 'backslashreplace')}"


T = TypeVar("T")


class SyncRun:
    """Methods of :class:`Run` for code without an event loop; inside one they raise UsageError.

    Attributes:
        id: Id of the run.
        directory: Its run directory; ``directory.path`` is the folder.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.id = run.id
        self.directory = run.directory

    def __repr__(self) -> str:
        return f"SyncRun({self.id!r})"

    def status(self) -> StatusDocument:
        """Calls :meth:`Run.status`."""
        return _sync(self._run.status())

    def verdict(self, *, attempt: int | None = None, slot: int | None = None) -> Verdict | None:
        """Calls :meth:`Run.verdict`."""
        return _sync(self._run.verdict(attempt=attempt, slot=slot))

    def logs(self, **filters: Any) -> Iterator[Line]:
        """Calls :meth:`Run.logs`.

        Args:
            filters: Its arguments.
        """
        _refuse_loop()
        with asyncio.Runner() as runner:
            lines = self._run.logs(**filters)
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield runner.run(_next(lines))

    def log_iter(
        self,
        role: str,
        k: int = 0,
        *,
        regex: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        should_tail: bool = False,
        streams: Literal["stdout", "stderr", "combined"] | None = None,
    ) -> Iterator[str]:
        """Yields lines of one replica for torchx's ``Scheduler.log_iter``, each once.

        Args:
            role: Role name.
            k: Replica of the role, from 0.
            regex: RE2 pattern.
            since: Seconds since the epoch, or a datetime (without zone: local).
            until: Same.
            should_tail: Continue until the run ends.
            streams: Both, stdout or stderr.

        Yields:
            Lines from the newest attempt on, without newline, after ``[rank N] ``, or ``[slot N] `` if unknown.

        Raises:
            UsageError: No such replica, or invalid pattern.
        """
        return log_iter(
            self.directory,
            role,
            k,
            regex=regex,
            since=since,
            until=until,
            should_tail=should_tail,
            streams=streams,
        )

    def fetch_logs(self, *, stream: bool = False, lines: int | None = 100) -> Iterator[str]:
        """Yields default lines of ``rankfall run`` for NeMo-Run: rank 0, last rank, failures.

        Args:
            stream: Continue until the run ends.
            lines: Number of last lines without ``stream``; None for all.

        Yields:
            Lines as :meth:`SyncRun.log_iter`.

        Raises:
            UsageError: ``lines`` is negative.
        """
        return fetch_logs(self.directory, stream=stream, lines=lines)

    def wait(self, *, timeout: float | None = None) -> Outcome:
        """Calls :meth:`Run.wait`."""
        return _sync(self._run.wait(timeout=timeout))

    def cancel(self, reason: str = "") -> Outcome:
        """Calls :meth:`Run.cancel`."""
        return _sync(self._run.cancel(reason))

    def suspend(self, reason: str = "") -> bool:
        """Calls :meth:`Run.suspend`."""
        return _sync(self._run.suspend(reason))

    def resume(self, reason: str = "") -> bool:
        """Calls :meth:`Run.resume`."""
        return _sync(self._run.resume(reason))

    def resize(self, nodes: int, *, role: str | None = None, reason: str = "", wait: bool = False) -> Resized:
        """Calls :meth:`Run.resize`."""
        return _sync(self._run.resize(nodes, role=role, reason=reason, wait=wait))


class SyncClient:
    """Methods of :class:`Client` for code without an event loop; inside one they raise UsageError.

    Args:
        home: See :class:`Client`.

    Attributes:
        home: Absolute path of the home folder.
    """

    def __init__(self, *, home: str | Path | None = None) -> None:
        self._client = Client(home=home)
        self.home = self._client.home

    def submit(
        self, spec: JobSpec, *, detach: bool = True, request_token: str | None = None, replace: bool = False
    ) -> SyncRun:
        """Calls :meth:`Client.submit`."""
        return SyncRun(_sync(self._client.submit(spec, detach=detach, request_token=request_token, replace=replace)))

    def plan(self, spec: JobSpec) -> dict[str, Any]:
        """Calls :meth:`Client.plan`."""
        return _sync(self._client.plan(spec))

    def runs(self) -> list[RunSummary]:
        """Calls :meth:`Client.runs`."""
        return _sync(self._client.runs())

    def get(self, run: str) -> SyncRun:
        """Calls :meth:`Client.get`."""
        return SyncRun(_sync(self._client.get(run)))

    def why(
        self,
        target: str | SyncRun | Path | Collection[Path],
        *,
        attempt: int | None = None,
        strategy: str | None = None,
    ) -> Verdict:
        """Calls :meth:`Client.why`."""
        wanted = Run(target.directory) if isinstance(target, SyncRun) else target
        return _sync(self._client.why(wanted, attempt=attempt, strategy=strategy))

    def copy_to_workspace(
        self, run: str | SyncRun, sources: Path | Collection[Path], remote: str, *, exclude: Collection[str] = ()
    ) -> Copied | None:
        """Calls :meth:`Client.copy_to_workspace`."""
        return _sync(self._client.copy_to_workspace(_named(run), sources, remote, exclude=exclude))

    def copy_from_workspace(
        self, run: str | SyncRun, remote: str, local: Path, *, exclude: Collection[str] = ()
    ) -> Copied | None:
        """Calls :meth:`Client.copy_from_workspace`."""
        return _sync(self._client.copy_from_workspace(_named(run), remote, local, exclude=exclude))


def _named(run: str | SyncRun) -> str | Run:
    return Run(run.directory) if isinstance(run, SyncRun) else run


async def _next(lines: AsyncIterator[T]) -> T:
    return await anext(lines)


def _sync(work: Coroutine[Any, Any, T]) -> T:
    try:
        _refuse_loop()
    except UsageError:
        work.close()
        raise
    return asyncio.run(work)


def _refuse_loop() -> None:
    """Raises UsageError inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "SyncClient cannot run inside an event loop",
        hint="use Client with await, or asyncio.to_thread(client.submit, spec)",
    )
