"""The page ``docs/results/faults-pairs.md``, from the rows that the pairs wrote: ``PYTHONPATH=tests:. python -m faults.pairs_page``.

Nothing stands in it that no test has seen: a cell whose test was not run says so. What the page holds already is kept for cells that were not run since, with the day
on which each was seen. Cells are graded here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from faults.cluster_page import ROOT, Row, Rows
from faults.lines import Lines
from faults.pairs_local import REASONS, LocalPair, LocalSeen, local_pairs
from faults.pairs_table import EITHER, NO, SECOND, YES, Pair, pairs
from faults.report import cell_text, expected
from faults.run import GRADES, Judged, Ours, judge
from faults.table import USER, Fault
from rankfall.model import Verdict

if TYPE_CHECKING:
    from cluster.fault_runs import Seen

ROWS: Final = Rows(ROOT / "build" / "faults-pairs.jsonl")
PAGE: Final = ROOT / "docs" / "results" / "faults-pairs.md"
_HEAD: Final = """# Two faults at once

Written by `python -m faults.pairs_page` from what `tests/cluster/test_pairs.py` and `tests/faults/test_pairs.py` saw; do not edit. Each cell is a job of 2 pods x 2 ranks on three real nodes of the
[test bed](../testbed.md), run by `rankfall run`, to which two faults were really done: the one of the row caused the failure, the one of the column was there at the same time. The last table is of jobs of
local processes. The expected outcome of each pair, with its reason, is in `tests/faults/pairs_table.py`.

A cell is **right** (cause, rank or slot, node, victims, node action, retry, the nodes of attempt 2, and every line that a rank printed is kept once and in order), **weak** (true, but less than could
be known), **unknown** (and what is missing is said) or **wrong**. Ranks print 2,000 numbered lines while both faults are there, and keep their own account of them; where a node or a pod is taken away, lines
may be missing if `rankfall status` says so. **not run** has a test that was not run.
"""
_COLUMNS: Final = ("pair", "expected", "because", "grade", "Rankfall said", "seen")
# Of ``rankfall status`` where lines may be missing.
SAID: Final = "incomplete"
# Of a fault of a cell.
LOST: Final = "and nothing says so"


def judged(pair: Pair, seen: Seen) -> Judged:
    """The grade of a pair: that of the best answer that it may have, and everything that no answer excuses.

    What is honestly unknown may be started again once, to see whether it comes again.
    """
    ours = seen.ours
    if ours is None or not ours.verdicts:
        return Judged("wrong", ("there is no attempt",))
    places = seen.places.get(1, {})
    best = _best(pair.answers, ours.verdicts[0], places)
    if best.grade != "right":
        less = _best(pair.weaker, ours.verdicts[0], places)
        best = min(best, replace(less, grade="weak") if less.grade == "right" else less, key=_worse)
    confirm = best.grade == "unknown" and pair.second != "deleted"
    wrong = [*best.faults, *_again(EITHER if confirm else pair.runs_again, ours), *_used_again(seen, pair.bad_slots)]
    wrong += _lines(seen.lines, seen.excuse, pair.expected.lost)
    found = _with(best, ours, wrong)
    down = _used_again(seen, pair.down_slots)
    # A node that was away beside the first failure, and is ready again, is not proven to be bad.
    return replace(found, grade="weak", faults=tuple(down)) if found.grade == "right" and down else found


def judged_local(pair: LocalPair, seen: LocalSeen) -> Judged:
    """As of a pair on the bed; the one node there is may be named, and lines may be missing where the disk was full and that is said."""
    ours = seen.ours
    if ours is None or not ours.verdicts:
        return Judged("wrong", ("there is no attempt",))
    best = judge(pair.fault, ours.verdicts[0], slot=1)
    again = EITHER if best.grade == "unknown" else NO if pair.fault.retry == USER else YES
    wrong = [*best.faults, *_again(again, ours)]
    wrong += _lines(seen.lines, seen.excuse, frozenset({0, 1}) if pair.second == "disk-full" else frozenset())
    return _with(best, ours, wrong)


def _worse(one: Judged) -> int:
    return GRADES.index(one.grade)


def _best(answers: Iterable[Fault], verdict: Verdict | None, places: Mapping[int, str | None]) -> Judged:
    return min((_of_answer(answer, verdict, places) for answer in answers), key=_worse, default=Judged("wrong"))


def _of_answer(answer: Fault, verdict: Verdict | None, places: Mapping[int, str | None]) -> Judged:
    slot = answer.slot if answer.slot is not None else None if answer.rank is None else answer.rank // 2
    found = judge(answer, verdict, slot=slot)
    if verdict is None or found.grade == "wrong" or verdict.node is None:
        return found
    node = places.get(slot) if slot is not None else None
    if verdict.node == node:
        return found
    return Judged("wrong", (f"node {verdict.node} is named, slot {slot} was on {node}",))


def _again(right: frozenset[bool], ours: Ours) -> list[str]:
    again = len(ours.verdicts) > 1
    if again in right:
        return []
    return ["it was started again"] if again else ["it was not started again"]


def _used_again(seen: Seen, slots: Iterable[int]) -> list[str]:
    bad = {seen.places.get(1, {}).get(slot) for slot in slots} - {None}
    used = {node for attempt, places in seen.places.items() if attempt > 1 for node in places.values()} & bad
    return [f"node {node} was used again" for node in sorted(str(one) for one in used)]


def _lines(found: Iterable[Lines], excuse: str, lost: frozenset[int]) -> Iterator[str]:
    """What is kept twice, and what is missing where nothing was cut off, or nobody says so."""
    for one in found:
        if one.fault:
            yield one.fault
        if one.missing and not (one.rank // 2 in lost and SAID in excuse):
            yield f"rank {one.rank}: {one.missing} of {one.printed} lines are missing{'' if SAID in excuse else f', {LOST}'}"


def _with(best: Judged, ours: Ours, wrong: list[str]) -> Judged:
    first = ours.verdicts[0]
    if best.grade == "unknown" and first is not None and not first.missing:
        wrong.append("unknown, and what is missing is not said")
    if ours.state not in {"failed", "succeeded", "deleted", "cancelled"}:
        wrong.append(f"the run is {ours.state}")
    return Judged("wrong", tuple(wrong)) if wrong else best


@dataclass(frozen=True)
class _Line:
    """One cell as the page shows it."""

    id: str
    row: str
    column: str
    expected: str
    because: str


def _lines_of_page() -> Iterator[_Line]:
    for pair in pairs():
        answers = " or ".join(dict.fromkeys(expected(answer) for answer in pair.answers))
        yield _Line(pair.id, pair.fault.name, pair.second, answers, pair.expected.because)
    for local in local_pairs():
        because = REASONS[local.fault.name, local.second]
        yield _Line(local.id, f"local {local.fault.name}", local.second, expected(local.fault), because)


def render(found: Mapping[str, Row]) -> str:
    """The page.

    Args:
        found: by id of the cell.
    """
    lines = list(_lines_of_page())
    grades = Counter(found[line.id].grade for line in lines if line.id in found)
    counted = ", ".join(f"{grades[grade]} {grade}" for grade in GRADES)
    parts = [_HEAD, f"{len(lines)} cells, {grades.total()} of them run: {counted}.", ""]
    for local in (False, True):
        mine = [line for line in lines if line.row.startswith("local ") == local]
        columns = list(dict.fromkeys(line.column for line in mine))
        parts += [f"| | {' | '.join(columns)} |", f"|{' --- |' * (len(columns) + 1)}"]
        for row in dict.fromkeys(line.row for line in mine):
            shown = [found[line.id].grade if line.id in found else "not run" for line in mine if line.row == row]
            parts.append(f"| {row} | {' | '.join(shown)} |")
        parts.append("")
    parts += ["## The second faults", "", *(f"- **{name}**: {what}" for name, what in SECOND.items()), ""]
    parts += ["## Each pair", "", f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
    for line in lines:
        seen = found.get(line.id)
        said = "; ".join((seen.said, *seen.faults)) if seen else ""
        last = (seen.grade, said, seen.day) if seen else ("not run", "", "")
        texts = (line.id, line.expected, line.because, *last)
        parts.append(f"| {' | '.join(cell_text(text) for text in texts)} |")
    return "\n".join([*parts, ""])


def held(page: str) -> dict[str, Row]:
    """The rows that a page holds, by id of the cell."""
    known = {line.id for line in _lines_of_page()}
    rows = {}
    for text in page.splitlines():
        cells = [cell.strip() for cell in text.strip("| ").split(" | ")] if text.startswith("| ") else []
        if len(cells) == len(_COLUMNS) and cells[0] in known and cells[3] in GRADES:
            rows[cells[0]] = Row(cell=cells[0], grade=cells[3], faults=(), said=cells[4], day=cells[5])
    return rows


if __name__ == "__main__":
    before = held(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    PAGE.write_text(render(before | ROWS.read()), "utf-8")
