"""What a person sees of a live run: the job's lines on stdout, news and verdicts on stderr. Reads the run directory only.

It works the same beside a supervisor of this process, of another one, and of none.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from typing import Final

from rankfall.cli import emit
from rankfall.cli.frames import raised_at, stored_apart
from rankfall.cli.unknown_ranks import unknown_ranks
from rankfall.cli.values import Ranks
from rankfall.cli.view import LineWriter, spent_text
from rankfall.model import Outcome, StoreError, Verdict
from rankfall.report import words
from rankfall.report.escape import one_line
from rankfall.report.interesting import Usual
from rankfall.report.late_ranks import LateRanks
from rankfall.report.paint import Paint
from rankfall.report.terminal import render_brief, render_verdict
from rankfall.store import RunDir
from rankfall.store.incomplete import as_of_now, lost_of_run, sentences
from rankfall.store.lines import Follower, Line, LineQuery, block_of
from rankfall.supervise.events import Event, read_events

_TOLD: Final = frozenset(
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
    }
)
_TEXT: Final = 400
_MAX_KNOWN: Final = 256
# Shorter than for `logs`: who watches wants to see it now, and ranks that print within a twentieth of a second print together.
_HOLD_S: Final = 0.05
# Lines shown at one look; a look that gives fewer has shown all there is.
_BATCH: Final = 5000


class Viewer:
    """One viewer of one run.

    Args:
        directory: the run.
        ranks: whose lines are shown; none chosen = rank 0 and the last one, and what tells of a failure from all others.
        everything: lines of all ranks and of no rank.
        quiet: neither lines nor news; what happened in the end is told all the same.
        tail: of what is there already, only the last so many lines; None = all.
        history: tell the news from before this moment too.
        final_words: tell how it ended.
        limit: of bytes on stdout; past it the news, the verdict and the record go on. None = no limit.
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
        final_words: bool = True,
        limit: int | None = None,
    ) -> None:
        self._directory = directory
        self._quiet = quiet
        self._final_words = final_words
        self._muted = False
        self._paint = Paint(color=emit.color_on(sys.stderr))
        self._query = LineQuery(ranks=ranks.numbers or None, last=ranks.last, failed=ranks.failed, tail=tail)
        self._follower: Follower | None = None
        self._usual = Usual(directory)
        # Nothing was asked for: what a person wants to see is chosen for them.
        self._default = ranks.everything and not everything
        self._choose: LateRanks | None = None
        self._writer = LineWriter(limit=limit)
        self._offset = 0 if history else read_events(directory.path)[1]
        self._started: set[tuple[int, int]] = set()
        self._shown_attempt: int | None = None
        self._known: deque[tuple[int, str]] = deque(maxlen=_MAX_KNOWN)

    def step(self) -> bool:
        """Show what is new; whether there is more at once. What comes a moment later is cheaper to show together."""
        events, self._offset = read_events(self._directory.path, offset=self._offset)
        # Lines first: a verdict should stand below what led to it.
        count = self._lines(final=False)
        for event in events:
            self._tell(event)
        self._told_ranks()
        return count >= _BATCH

    def finish(self, outcome: Outcome) -> None:
        """Show all that is left, then how it ended."""
        events, self._offset = read_events(self._directory.path, offset=self._offset)
        self._lines(final=True)
        for event in events:
            self._tell(event)
        self._told_ranks()
        self._without_ranks()
        for problem in self._follower.problems if self._follower else ():
            self._say(one_line(problem, width=_TEXT))
        if not self._final_words:
            return
        if outcome.verdict is None:
            for text in sentences(lost_of_run(self._directory)):
                emit.say(self._paint.warn(f"rankfall: {text}"))
        if outcome.state == "succeeded":
            emit.say(f"rankfall: run {outcome.run} {self._paint.good('succeeded')}{self._took(outcome)}")
            return
        if outcome.verdict is None:
            emit.say(f"rankfall: run {outcome.run} {outcome.state}, without a verdict; rankfall why {outcome.run}")
            return
        emit.say()
        verdict = as_of_now(outcome.verdict, self._directory)
        frames = raised_at(self._directory, verdict)
        apart, color = stored_apart(self._directory, verdict), self._paint.color
        emit.say(render_verdict(verdict, frames=frames, apart=apart, width=emit.width(), color=color))

    def mute(self) -> None:
        """Show no more lines; news and verdicts go on."""
        self._muted = True

    def _lines(self, *, final: bool) -> int:
        if self._follower is None:
            self._follower = self._begin()
        if self._follower is None or self._muted:
            return 0
        count = 0
        while True:
            lines = self._follower.poll(limit=_BATCH)
            count += len(lines)
            if not self._write(lines):
                return count
            if not lines or not final:
                break
        if final and self._write(self._follower.drain()):
            # The last look at the tables may have told whose earlier lines are.
            self._write(())
        return count

    def _write(self, lines: Iterable[Line]) -> bool:
        """Whether more may follow."""
        self._writer.write(map(block_of, lines if self._choose is None else self._choose.pick(lines)))
        if self._writer.spent:
            self._muted = True
            self._say(spent_text(self._directory))
        return not self._muted

    def _begin(self) -> Follower | None:
        """Follow once there is an attempt; before, the record has nothing that could be read."""
        if self._quiet or not self._directory.db_path.exists():
            return None
        with self._directory.reader() as reader:
            if not reader.newest_attempt():
                return None
        follower = Follower(self._directory, self._query, hold=_HOLD_S)
        if self._default:
            self._choose = LateRanks(follower, self._usual)
        return follower

    def _without_ranks(self) -> None:
        """The end of what slots printed whose ranks never became known: nothing of it was shown but failures."""
        if not self._default or self._quiet or self._muted:
            return
        found = unknown_ranks(self._directory)
        if found is not None:
            self._say(found.text)
            self._writer.write(map(block_of, found.lines), note="rank unknown")

    def tell(self, event: Event) -> None:
        """Show an event that is not in the run directory, and may come to be there later."""
        self._known.append((event.at, event.text))
        self._show(event)

    def _tell(self, event: Event) -> None:
        if (event.at, event.text) in self._known:
            self._known.remove((event.at, event.text))
        else:
            self._show(event)

    def _show(self, event: Event) -> None:
        if event.kind == "rank":
            attempt, rank = event.data.get("attempt"), event.data.get("rank")
            if isinstance(attempt, int) and isinstance(rank, int):
                self._started.add((attempt, rank))
                self._usual.forget(attempt)
        elif event.kind == "decision":
            self._verdict_of(event)
        elif event.kind in _TOLD:
            self._say(one_line(event.text, width=_TEXT))

    def _told_ranks(self) -> None:
        """Ranks that started, together: a thousand of them are one line."""
        if self._started:
            numbers = {rank for _, rank in self._started}
            self._say(f"{words.count(len(numbers), 'rank')} started: {words.ranks(numbers)}")
            self._started.clear()

    def _verdict_of(self, event: Event) -> None:
        """The verdict of an attempt that is followed by another; the last one is shown at the end."""
        attempt = event.data.get("attempt")
        if not isinstance(attempt, int) or self._quiet or self._shown_attempt == attempt:
            return
        verdict = self._stored(attempt)
        if verdict is None or verdict.decision is None or verdict.decision.action in {"stop", "none"}:
            return
        self._shown_attempt = attempt
        emit.say()
        emit.say(
            render_brief(
                verdict, frames=raised_at(self._directory, verdict), width=emit.width(), color=self._paint.color
            )
        )
        emit.say()

    def _stored(self, attempt: int) -> Verdict | None:
        try:
            with self._directory.reader() as reader:
                found = reader.diagnosis(attempt)
        except StoreError:
            return None
        return found.verdict if found else None

    def _say(self, text: str) -> None:
        emit.say(self._paint.dim(f"rankfall: {text}"), quiet=self._quiet)

    def _took(self, outcome: Outcome) -> str:
        with self._directory.reader() as reader:
            row = reader.run()
        again = f" in attempt {outcome.attempts}" if outcome.attempts > 1 else ""
        if row.started is None or row.ended is None:
            return again
        return f"{again} after {words.span((row.ended - row.started) / 1e9)}"
