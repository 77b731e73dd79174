"""Shows a live run: the job's lines on stdout, events and verdicts on stderr.

Reads only the run directory, so any process may supervise.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rankfall.cli import console
from rankfall.cli.run_output import LineWriter, details_of, spent_text, unknown_ranks
from rankfall.cli.values import Ranks
from rankfall.model import Outcome, StoreError, Verdict
from rankfall.render import formatting
from rankfall.render.escape import one_line
from rankfall.render.formatting import Paint
from rankfall.render.line_selection import FirstOrLastRank, LateRankFilter
from rankfall.render.verdict import render_brief, render_verdict
from rankfall.rundir import RunDir
from rankfall.rundir.incomplete import as_of_now, lost_of_run, sentences
from rankfall.rundir.lines import Line, LineQuery, LineTail, block_of
from rankfall.supervisor.run_events import Event, read_events

if TYPE_CHECKING:
    from rankfall.cli.live_area import LiveView

_PRINTED_KINDS: Final = frozenset(
    {
        "resumed",
        "attempt",
        "launcher",
        "waiting",
        "failure",
        "fall",
        "slot",
        "hang",
        "deadline",
        "success",
        "suspended",
        "resize",
        "stopping",
        "gap",
        "blamed",
        "notify",
    }
)
_TEXT: Final = 400
_MAX_KNOWN: Final = 256
# Shorter than for `logs`: viewers want lines soon; ranks printing within 0.05 s stay ordered.
_HOLD_S: Final = 0.05
# Most lines per poll; fewer mean no more.
_BATCH: Final = 5000
# Without new lines a poll may cost one part in 200 of the time; seconds of the longest pause.
_SHARE: Final = 200
_SLOWEST_S: Final = 1.0
# Least seconds between two drawings of the status area.
_DRAW_S: Final = 0.25


class Viewer:
    """One viewer of one run.

    Args:
        directory: Run.
        ranks: Ranks to show; none = rank 0 and the last, plus failures of all.
        everything: Show all ranks and lines without rank.
        quiet: Hide lines and events, not the end.
        tail: Most existing lines; None = all.
        history: Include earlier events.
        show_outcome: Show the end.
        limit: Most bytes on stdout; events, verdict and record continue. None = unlimited.
    """

    def __init__(
        self,
        directory: RunDir,
        *,
        ranks: Ranks,
        everything: bool = False,
        quiet: bool = False,
        tail: int | None = None,
        history: bool = True,
        show_outcome: bool = True,
        limit: int | None = None,
    ) -> None:
        self._directory = directory
        self._quiet = quiet
        self._show_outcome = show_outcome
        self._muted = False
        self._wrote = False
        self._paint = Paint(color=console.color_on(sys.stderr))
        self._query = LineQuery(ranks=ranks.numbers or None, last=ranks.last, failed=ranks.failed, tail=tail)
        self._tail: LineTail | None = None
        self._first_or_last = FirstOrLastRank(directory)
        # Without a choice, pick useful lines.
        self._default = ranks.everything and not everything
        self._choose: LateRankFilter | None = None
        self._writer = LineWriter(limit=limit)
        self._offset = 0 if history else read_events(directory.path)[1]
        self._started: set[tuple[int, int]] = set()
        self._printed_attempt: int | None = None
        self._known: deque[tuple[int, str]] = deque(maxlen=_MAX_KNOWN)
        self._live: LiveView | None = None
        self._more = False
        self._due = 0.0

    def keep_area(self, *, live: bool | None) -> None:
        """Keeps a status area below the output until ``close``, if a person sees it; ``live`` is the flag."""
        if not self._quiet and console.wants_area(live=live):
            from rankfall.cli.live_area import LiveView  # noqa: PLC0415

            self._live = LiveView(self._directory)

    def close(self) -> None:
        """Removes the status area."""
        live, self._live = self._live, None
        if live is not None:
            live.close()

    def step(self) -> bool:
        """Shows new output; True if more is ready. Waiting makes batches cheaper."""
        events, self._offset = read_events(self._directory.path, offset=self._offset)
        if not (events or self._more) and time.monotonic() < self._due:
            return False
        before = time.thread_time()
        # Lines precede the verdict that they explain.
        count = self._lines(final=False)
        for event in events:
            self._tell(event)
        self._show_started_ranks()
        if self._live is not None:
            self._live.refresh(self._tail)
        self._more = count >= _BATCH
        # Polls of thousands of silent streams cost.
        pause = 0.0 if count else min(_SLOWEST_S, _SHARE * (time.thread_time() - before))
        self._due = time.monotonic() + (pause if self._live is None else max(pause, _DRAW_S))
        return self._more

    def finish(self, outcome: Outcome) -> None:
        """Shows remaining output, then the outcome."""
        self.close()
        events, self._offset = read_events(self._directory.path, offset=self._offset)
        self._lines(final=True)
        for event in events:
            self._tell(event)
        self._show_started_ranks()
        self._without_ranks()
        if self._query.ranks and self._query.tail != 0 and not self._wrote and not self._muted:
            self._say(f"no line of the chosen ranks; rankfall status {outcome.run} shows which ranks there are")
        for problem in self._tail.problems if self._tail else ():
            self._say(one_line(problem, width=_TEXT))
        if not self._show_outcome:
            return
        if outcome.verdict is None:
            for text in sentences(lost_of_run(self._directory)):
                console.say(self._paint.warn(f"rankfall: {text}"))
        if outcome.state == "succeeded":
            console.say(f"rankfall: run {outcome.run} {self._paint.good('succeeded')}{self._took(outcome)}")
            return
        if outcome.verdict is None:
            console.say(f"rankfall: run {outcome.run} {outcome.state}, without a verdict; rankfall why {outcome.run}")
            return
        console.say()
        verdict = as_of_now(outcome.verdict, self._directory)
        details = details_of(self._directory, verdict)
        console.say(render_verdict(verdict, details=details, **console.shape(sys.stderr)))

    def stop_printing(self) -> None:
        """Shows no more lines; events and verdicts continue."""
        self._muted = True

    def _lines(self, *, final: bool) -> int:
        if self._tail is None:
            self._tail = self._begin()
        if self._tail is None or self._muted:
            return 0
        count = 0
        while True:
            lines = self._tail.poll(limit=_BATCH)
            if self._live is not None:
                self._live.take(lines)
            count += len(lines)
            if not self._write(lines):
                return count
            if not lines or not final:
                break
        if final and self._write(self._tail.drain()):
            # The last query may assign earlier lines to ranks.
            self._write(())
        return count

    def _write(self, lines: Iterable[Line]) -> bool:
        """Writes lines; True if more may follow."""
        picked = map(block_of, lines if self._choose is None else self._choose.pick(lines))
        self._wrote = self._writer.write(picked) or self._wrote
        if self._writer.spent:
            self._muted = True
            self._say(spent_text(self._directory))
        return not self._muted

    def _begin(self) -> LineTail | None:
        """Starts the tail; None if no attempt exists yet, or ``quiet``."""
        if self._quiet or not self._directory.db_path.exists():
            return None
        with self._directory.reader() as reader:
            if not reader.newest_attempt():
                return None
        tail = LineTail(self._directory, self._query, hold=_HOLD_S)
        if self._default:
            self._choose = LateRankFilter(tail, self._first_or_last)
        return tail

    def _without_ranks(self) -> None:
        """Shows last lines of slots with unknown ranks; until then only failures appeared."""
        if not self._default or self._quiet or self._muted:
            return
        found = unknown_ranks(self._directory)
        if found is not None:
            self._say(found.text)
            self._writer.write(map(block_of, found.lines), note="rank unknown")

    def tell(self, event: Event) -> None:
        """Shows an event that the run directory lacks but may get later."""
        self._known.append((event.at, event.text))
        self._show(event)

    def _tell(self, event: Event) -> None:
        if (event.at, event.text) in self._known:
            self._known.remove((event.at, event.text))
        else:
            self._show(event)

    def _show(self, event: Event) -> None:
        if event.kind == "decision" or event.kind in _PRINTED_KINDS:
            # An end follows its start.
            self._show_started_ranks()
        if event.kind == "rank":
            attempt, rank = event.data.get("attempt"), event.data.get("rank")
            if isinstance(attempt, int) and isinstance(rank, int):
                self._started.add((attempt, rank))
                self._first_or_last.forget(attempt)
        elif event.kind == "decision":
            self._verdict_of(event)
        elif event.kind in _PRINTED_KINDS:
            # No other output reports an undelivered message.
            console.say(
                self._paint.dim(f"rankfall: {one_line(event.text, width=_TEXT)}"),
                quiet=self._quiet and event.kind != "notify",
            )

    def _show_started_ranks(self) -> None:
        if self._started:
            numbers = {rank for _, rank in self._started}
            self._say(f"{formatting.count(len(numbers), 'rank')} started: {formatting.ranks(numbers)}")
            self._started.clear()

    def _verdict_of(self, event: Event) -> None:
        """Shows an attempt's verdict before the next attempt; ``finish`` shows the last."""
        attempt = event.data.get("attempt")
        if not isinstance(attempt, int) or self._quiet or self._printed_attempt == attempt:
            return
        verdict = self._stored(attempt)
        if verdict is None or verdict.decision is None or verdict.decision.action in {"stop", "none"}:
            return
        self._printed_attempt = attempt
        console.say()
        console.say(render_brief(verdict, details=details_of(self._directory, verdict), **console.shape(sys.stderr)))
        console.say()

    def _stored(self, attempt: int) -> Verdict | None:
        try:
            with self._directory.reader() as reader:
                found = reader.diagnosis(attempt)
        except StoreError:
            return None
        return found.verdict if found else None

    def _say(self, text: str) -> None:
        console.say(self._paint.dim(f"rankfall: {text}"), quiet=self._quiet)

    def _took(self, outcome: Outcome) -> str:
        with self._directory.reader() as reader:
            row = reader.run()
        again = f" in attempt {outcome.attempts}" if outcome.attempts > 1 else ""
        if row.started is None or row.ended is None:
            return again
        return f"{again} after {formatting.span((row.ended - row.started) / 1e9)}"
