"""A run's lines for programs that embed Rankfall, in the shapes that they ask for: torchx's ``log_iter``, NeMo-Run's ``fetch_logs``.

However often and for however many replicas they ask, only the record is read: each container's log is followed once, by whoever records the
run, and each line comes to one replica. Blocking iterators, as those callers want them; for an event loop there is :meth:`Run.logs`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, Literal

from rankfall.model import FINAL_STATES, UsageError
from rankfall.model.sizes import sized
from rankfall.report.interesting import Usual
from rankfall.report.late_ranks import LateRanks
from rankfall.store import RunDir
from rankfall.store.lines import Follower, Line, LineQuery
from rankfall.store.resizes import wished_sizes

_NS: Final = 1_000_000_000
_PAUSE_S: Final = 0.05

When = datetime | float | None
Pick = Callable[[Iterable[Line]], Iterator[Line]]


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
    """As :meth:`rankfall.client.SyncRun.log_iter`."""
    query = LineQuery(
        slots=frozenset({_slot_of(directory, role, k)}),
        streams={"stdout": "out", "stderr": "err"}.get(streams or "combined", "all"),  # type: ignore[arg-type] # one of the three
        since=_stamp(since),
        grep=regex,
    )
    last = _stamp(until)
    follower = Follower(directory, query)
    lines = _lines(directory, follower, iter, follow=should_tail)
    return (_text(line) for line in lines if last is None or line.at is None or line.at <= last)


def fetch_logs(directory: RunDir, *, stream: bool, lines: int | None) -> Iterator[str]:
    """As :meth:`rankfall.client.SyncRun.fetch_logs`."""
    follower = Follower(directory, LineQuery())
    usual = Usual(directory)
    late = LateRanks(follower, usual)

    def pick(found: Iterable[Line]) -> Iterator[Line]:
        usual.forget()
        return late.pick(found)

    chosen = _lines(directory, follower, pick, follow=stream)
    return map(_text, chosen if stream else deque(chosen, maxlen=lines))


def _lines(directory: RunDir, follower: Follower, pick: Pick, *, follow: bool) -> Iterator[Line]:
    """What ``pick`` takes of a follower's lines: those there are, or all until the run is over."""
    while follow:
        # Asked before the lines are read: what was written before the end is then surely among them.
        with directory.reader() as reader:
            over = reader.run().state in FINAL_STATES
        found = follower.poll()
        yield from pick(found)
        if over and not found:
            break
        if not found:
            time.sleep(_PAUSE_S)
    yield from pick(follower.drain())
    # The last look at the tables may have told whose earlier lines are.
    yield from pick(())


def _slot_of(directory: RunDir, role: str, k: int) -> int:
    """The slot of a role's replica."""
    spec = directory.spec
    parts = sized(spec, wished_sizes(directory.path, spec)).parts
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
    """Nanoseconds since the epoch; a time without a zone is a local one, as callers of torchx mean it."""
    if when is None:
        return None
    return round((when.timestamp() if isinstance(when, datetime) else when) * _NS)


def _text(line: Line) -> str:
    """The line with whose it is; bytes that are no UTF-8 stand as escapes."""
    who = f"[rank {line.rank}]" if line.rank is not None else f"[slot {line.slot}]"
    return f"{who} {line.data.decode('utf-8', 'backslashreplace')}"
