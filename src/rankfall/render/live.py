r"""Renders the status area of a live run: states of all ranks in one line, progress, restarts. Pure.

Progress comes from ``progress()`` and from usual lines: ``step 12/100``, ``[12/100]`` and bars that ``\r`` redraws.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from typing import Final, Literal, NamedTuple

import msgspec

from rankfall.model import Part, RankFacts, RankStatus, Restarts, RunState, SlotFacts, StatusDocument, Verdict, numbers
from rankfall.model.patterns import bounded
from rankfall.render import formatting
from rankfall.render.escape import clean_line, one_line, shorten
from rankfall.render.formatting import Paint
from rankfall.render.tables import render_status, state_text

State = Literal["failed", "consequence", "silent", "starting", "running", "completed"]

_NS: Final = 1_000_000_000
# Age of a rank's last line or step from which it counts as silent.
SILENT_NS: Final = 60 * _NS
# The worst state first: a mark of several ranks shows it.
MARKS: Final[Mapping[State, tuple[str, str]]] = {
    "failed": ("X", "1;31"),
    "consequence": ("x", "31"),
    "silent": ("?", "33"),
    "starting": (".", "2"),
    "running": ("#", "32"),
    "completed": ("=", "36"),
}
_ORDER: Final = {state: number for number, state in enumerate(MARKS)}


def strip(slots: Sequence[Sequence[State]], *, width: int) -> list[State | None]:
    """Returns one mark for each rank, None between slots, or the worst of several ranks if the width is too small."""
    ranks = [state for slot in slots for state in slot]
    if len(ranks) > width:
        edges = [number * len(ranks) // width for number in range(width + 1)]
        return [_worst(ranks[a:b]) for a, b in pairwise(edges)]
    if len(ranks) + len(slots) - 1 > width:
        return list(ranks)
    found: list[State | None] = []
    for slot in slots:
        found += [None, *slot] if found else slot
    return found


def _worst(states: Iterable[State]) -> State:
    return min(states, key=lambda state: _ORDER[state])


def rank_state(facts: RankFacts, *, seen: int | None, now: int, verdict: Verdict | None) -> State:
    """State of a rank.

    ``seen``: its last line or step, nanoseconds since the epoch. ``verdict``: of its attempt.
    """
    if facts.state == "running":
        return "running" if seen is None or now - seen < SILENT_NS else "silent"
    if facts.state != "ended":
        return "starting"
    return _ended(facts, first=_is(verdict.rank if verdict else None, facts.rank))


def slot_state(facts: SlotFacts, *, verdict: Verdict | None) -> State:
    """State of a slot with unknown ranks."""
    if facts.state == "running":
        return "running"
    if facts.state == "lost":
        return "failed"
    if facts.state != "ended":
        return "starting"
    return _ended(facts, first=_is(verdict.slot if verdict else None, facts.slot))


def _is(first: int | None, own: int) -> bool | None:
    return None if first is None else first == own


def _ended(facts: RankFacts | SlotFacts, *, first: bool | None) -> State:
    if facts.exit_code == 0 and facts.signal is None:
        return "completed"
    if first is not None:
        return "failed" if first else "consequence"
    unknown = facts.exit_code is None and facts.signal is None
    return "consequence" if unknown or facts.killed_by in {"wrapper", "agent"} else "failed"


def states_of(
    parts: Iterable[Part],
    slots: Iterable[SlotFacts],
    ranks: Iterable[RankFacts],
    *,
    seen: Mapping[int, int],
    now: int,
    verdict: Verdict | None = None,
) -> list[list[State]]:
    """States of each slot's ranks in order; of the slot itself if its ranks are unknown."""
    known = {facts.slot: facts for facts in slots}
    of_slot: dict[int | None, list[RankFacts]] = {}
    for facts in sorted(ranks, key=lambda one: one.rank):
        of_slot.setdefault(facts.slot, []).append(facts)
    found = []
    for part in parts:
        fixed = part.first_rank is not None and part.spec.launcher != "exec"
        for slot in part.slots:
            own = known.get(slot)
            states = [
                rank_state(each, seen=seen.get(each.rank), now=now, verdict=verdict) for each in of_slot.pop(slot, ())
            ]
            if own is not None and own.state == "lost":
                states = ["failed" if state in {"running", "silent", "starting"} else state for state in states]
            missing = part.spec.nproc_per_node - len(states) if fixed else 1 - len(states)
            other: State = "starting" if own is None else slot_state(own, verdict=verdict)
            states += [("starting" if other == "running" and fixed else other)] * missing
            found.append(states)
    found += [
        [rank_state(each, seen=seen.get(each.rank), now=now, verdict=verdict) for each in rest]
        for rest in of_slot.values()
    ]
    return found


def screen(status: StatusDocument, *, now: datetime, columns: int, rows: int, paint: Paint) -> str:
    """Returns the text of ``status --watch`` with the marks of all ranks, in the rows of a terminal."""
    head, *tables = render_status(status, now=now, color=paint.color).split("\n\n")
    of_slot: dict[int | None, list[State]] = {}
    for rank in status.ranks:
        of_slot.setdefault(rank.slot, []).append(_status_state(rank, first=status.rank))
    marks = "\n".join(strip_lines(list(of_slot.values()), width=columns, paint=paint)) if of_slot else ""
    lines = "\n\n".join(filter(None, (head, marks, *tables))).split("\n")
    if len(lines) > rows:
        hidden = len(lines) - rows + 1
        lines[rows - 1 :] = [paint.dim(f"{hidden} more lines: rankfall status {status.run}")]
    return "\n".join(lines)


def _status_state(rank: RankStatus, *, first: int | None) -> State:
    if rank.state == "running":
        return "silent" if rank.line_age_s is not None and rank.line_age_s * _NS >= SILENT_NS else "running"
    if rank.state != "ended":
        return "starting"
    if rank.exit == "0":
        return "completed"
    return "failed" if rank.note is None and first in {None, rank.rank} else "consequence"


class Step(NamedTuple):
    """Progress that a line shows; ``total`` is None if the line has none."""

    step: int
    total: int | None


_LOOK: Final = 2048
_BAR: Final = bounded(r"%\|[^|\n]{0,300}\| {0,8}([0-9]{1,15})/([0-9]{1,15}) \[", limit=_LOOK)
_FRACTION: Final = bounded(r"(?:\[ {0,15}|^ {0,15})([0-9]{1,15})/ {0,15}([0-9]{1,15})(?:\]| \[)", limit=_LOOK)
_WORD: Final = bounded(
    r"(?i)\b(?:global[_ ])?(?:step|iteration|iter|batch)s?[ :=#\[(]{1,16}([0-9]{1,15})\b(?!\.)(?: {0,15}(?:/|of) {0,15}([0-9]{1,15}))?",
    limit=_LOOK,
)


def step_of(text: str) -> Step | None:
    """Returns the progress in a line; None if it shows none."""
    for pattern in (_BAR, _WORD, _FRACTION):
        match = pattern.search(text[-_LOOK:] if pattern is _BAR else text)
        if match is not None:
            step, total = numbers.whole(match[1]), numbers.whole(match[2])
            if step is not None and (total is None or step <= total):
                return Step(step, total or None)
    return None


def last_state(data: bytes) -> str | None:
    r"""Last state of an unfinished line that ``\r`` redraws, safe to print; None for another line."""
    if b"\r" not in data:
        return None
    return clean_line(data.rstrip(b"\r\n").rpartition(b"\r")[2], max_line=_LOOK).replace("\t", " ").strip() or None


# Least time between samples of a rank's steps, and their number: the rate is that of the last minute.
_SAMPLE_NS: Final = 2 * _NS
_SAMPLES: Final = 30


class Pace:
    """Progress of one rank in one attempt, from the best source: a line with a total, else ``progress()``, else a line."""

    def __init__(self) -> None:
        self.step = 0
        self.total: int | None = None
        self._source = -1
        self._at = 0
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)

    def take(self, at: int, found: Step, *, reported: bool = False) -> None:
        """Adds the progress at a time; ``reported``: by ``progress()``."""
        source = 1 if reported else 2 if found.total is not None else 0
        if source < self._source:
            return
        if source > self._source or found.step < self.step or found.total != self.total:
            self._samples.clear()
        self._source, self._at, self.step, self.total = source, at, found.step, found.total
        if not self._samples or at - self._samples[-1][0] >= _SAMPLE_NS:
            self._samples.append((at, found.step))

    @property
    def rate(self) -> float | None:
        """Steps a second; None if unknown."""
        begun, first = self._samples[0] if self._samples else (self._at, self.step)
        return (self.step - first) * _NS / (self._at - begun) if self._at > begun and self.step > first else None

    @property
    def text(self) -> str:
        """Step, rate and time left."""
        rate = self.rate
        of = "" if self.total is None else f" of {self.total}"
        pace = "" if rate is None else f", {rate:.1f} a second" if rate >= 1 else f", {formatting.span(1 / rate)} each"
        left = "" if rate is None or self.total is None else f", {_whole((self.total - self.step) / rate)} left"
        return f"step {self.step}{of}{pace}{left}"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Tables of a run at one time.

    Attributes:
        started: Nanoseconds since the epoch.
        most: Attempts that its restarts allow.
        phases: Phases of the ranks that still run.
    """

    run: str
    state: RunState
    attempt: int = 0
    most: int = 1
    started: int | None = None
    parts: tuple[Part, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    verdict: Verdict | None = None
    restarts: Restarts = msgspec.field(default_factory=lambda: Restarts(count=0, limit=0, by_cause={}))


def area(
    found: Snapshot,
    *,
    now: int,
    seen: Mapping[int, int],
    newest: int | None,
    paces: Mapping[int, Pace],
    bars: Mapping[str, str],
    width: int,
    paint: Paint,
) -> list[str]:
    """Returns the lines of the status area.

    Args:
        found: Tables.
        now: Present time.
        seen: Last line or step of each rank.
        newest: Last line of the run.
        paces: Progress by rank.
        bars: Unfinished lines by owner, as ``rank 0``.
        width: Columns.
        paint: Colors.
    """
    states = states_of(found.parts, found.slots, found.ranks, seen=seen, now=now, verdict=found.verdict)
    lines = [_head(found, now=now, newest=newest, width=width, paint=paint)]
    if states:
        lines += strip_lines(states, width=width, paint=paint)
    plain = [*_progress(paces), *_bars(bars)]
    if found.restarts.count:
        causes = ", ".join(f"{slug} {count}" for slug, count in found.restarts.by_cause.items())
        plain.append(f"restarts: {found.restarts.count} ({causes})")
    return lines + [shorten(text, width) for text in plain]


def strip_lines(states: Sequence[Sequence[State]], *, width: int, paint: Paint) -> list[str]:
    """Returns the line of marks and its legend."""
    marks = strip(states, width=width)
    counts = Counter(state for slot in states for state in slot)
    line = "".join(
        " " * len(list(run)) if state is None else paint(MARKS[state][0] * len(list(run)), MARKS[state][1])
        for state, run in groupby(marks)
    )
    unit = "ranks" if any(len(slot) > 1 for slot in states) else "slots"
    words = [f"{MARKS[state][0]} {counts[state]} {_word(state, counts)}" for state in MARKS if counts[state]]
    most = -(-counts.total() // width)
    if most > 1:
        words.append(f"a mark shows the worst of up to {most} {unit}")
    return [line, paint.dim(shorten("  ".join(words), width))]


def _word(state: State, counts: Mapping[State, int]) -> str:
    # Without a failure they were stopped: at a cancel, or after success.
    return "stopped" if state == "consequence" and not counts["failed"] else state


_PHASE: Final = 20


def _head(found: Snapshot, *, now: int, newest: int | None, width: int, paint: Paint) -> str:
    of = f" of {found.most}" if found.most > 1 and found.attempt <= found.most else ""
    attempt = f", attempt {found.attempt}{of}" if found.attempt else ""
    span = f", {_whole((now - found.started) / _NS)}" if found.started is not None else ""
    phases = Counter(facts.phase for facts in found.ranks if facts.state == "running" and facts.phase)
    phase = f", {one_line(phases.most_common(1)[0][0], width=_PHASE)}" if phases else ""
    age = f"; newest line {_whole((now - newest) / _NS)} ago" if newest is not None else ""
    text = shorten(f"{found.run} {found.state}{phase}{attempt}{span}{age}", width)
    return text.replace(f" {found.state}", f" {state_text(found.state, paint)}", 1)


def _progress(paces: Mapping[int, Pace]) -> list[str]:
    if not paces:
        return []
    first = min(paces)
    text = f"rank {first}: {paces[first].text}"
    slowest = min(paces, key=lambda rank: (paces[rank].step, rank))
    # Ranks in step differ by one while they are read.
    if paces[slowest].step + 1 < paces[first].step:
        text += f"; slowest, rank {slowest}: {paces[slowest].text}"
    return [text]


def _bars(bars: Mapping[str, str]) -> list[str]:
    if not bars:
        return []
    first = min(bars, key=_natural)
    more = f" (and {len(bars) - 1} more)" if len(bars) > 1 else ""
    return [f"{first}{more}: {bars[first]}"]


def _natural(owner: str) -> tuple[int, str]:
    return len(owner), owner


def _whole(seconds: float) -> str:
    """Duration without tenths: a text that changes once a second."""
    return formatting.span(seconds) if seconds >= 10 else f"{max(0, int(seconds))}s"  # noqa: PLR2004 - as span
