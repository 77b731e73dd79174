"""How often the cause, the rank, the telling line and the retry of real logs are right: excerpts of public threads, with labels.

``bench/corpus`` holds them (README.md there). ``develop`` may be read by whoever writes rules; of ``measured`` only totals are printed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from bench.common import ROOT, Row
from rankfall.explain import explain_files
from rankfall.model import Verdict

FOLDER: Final = ROOT / "bench/corpus"
DEVELOP, MEASURED = "develop", "measured"
# Least shares of what is right; most causes that are wrong.
CAUSE, WRONG, RANK, LINE, RETRY = 0.95, 0.02, 0.90, 0.92, 0.92
# Least share of verdicts of each confidence whose cause is right.
CALIBRATED: Final = {"proven": 1.0, "likely": 0.97, "suspected": 0.80}
# So many characters of a telling line are compared: a label may stop where its writer did.
_ALIKE: Final = 60

# "more": a rank where the label names none; either side of a mismatch may be meant. "none": the label says nothing.
Grade = Literal["right", "more", "unknown", "wrong", "none"]


class Label(msgspec.Struct, frozen=True):
    """What a person says of one log: slugs that its text supports, the rank if it shows, the telling line, and whether a retry could help."""

    log: str
    accept: list[str]
    thread: str = ""
    rank: int | None = None
    decisive_line: str | None = None
    retryable: str = "unknown"


class Judged(msgspec.Struct, frozen=True):
    """One log."""

    label: Label
    slug: str
    confidence: str
    cause: Grade
    rank: Grade
    line: Grade
    retry: Grade
    harmful: bool

    @property
    def right(self) -> bool:
        """All that the label names was found."""
        return not {self.cause, self.rank, self.line, self.retry} & {"unknown", "wrong"}


def labels_of(folder: Path) -> list[Label]:
    """The labels of a folder's logs.

    Raises:
        SystemExit: it holds none.
    """
    labels = folder / "labels.jsonl"
    if not labels.is_file():
        raise SystemExit(
            f"{folder} holds no labels.jsonl: name a folder of logs with labels: make bench-verdict CORPUS=FOLDER"
        )
    return _read(labels)


def _read(labels: Path) -> list[Label]:
    return [msgspec.json.decode(line, type=Label) for line in labels.read_bytes().splitlines() if line]


def judge(folder: Path) -> list[Judged]:
    """Explain each log of a folder and compare."""
    return [judged(label, explain_files([folder / label.log]).verdict) for label in labels_of(folder)]


def judged(label: Label, verdict: Verdict) -> Judged:
    """Compares a verdict with the label of its log."""
    # Once more, or elsewhere: a cautious yes.
    said = {"no": "no", "unknown": "unknown"}.get(verdict.retry, "yes")
    line = verdict.decisive.line if verdict.decisive else None
    answer = Label(label.log, [verdict.cause.slug], rank=verdict.rank, decisive_line=line, retryable=said)
    harmful = label.retryable == "no" and verdict.retry in ("yes", "elsewhere")
    return _compared(label, answer, confidence=verdict.cause.confidence, harmful=harmful)


def of_second_reader(folder: Path) -> list[Row]:
    """How often a second person who read the same logs answers as their labels; no rows without such answers."""
    path = folder / "second.jsonl"
    answers = {label.log: label for label in _read(path)} if path.is_file() else {}
    both = [(label, answers[label.log]) for label in labels_of(folder) if label.log in answers]
    found = [
        _compared(label, answer, harmful=label.retryable == "no" and answer.retryable == "yes")
        for label, answer in both
    ]
    made = [_row(found, part, f"{folder.name}, a second reader") for part in _PARTS] if found else []
    return [dataclasses.replace(row, bound="-", holds=None) for row in made]


def _compared(label: Label, answer: Label, *, harmful: bool, confidence: str = "") -> Judged:
    slug = answer.accept[0]
    return Judged(
        label=label,
        slug=slug,
        confidence=confidence,
        cause="right" if slug in label.accept else "unknown" if slug == "unknown" else "wrong",
        rank=_rank(label.rank, answer.rank),
        line=_line(label.decisive_line, answer.decisive_line or ""),
        retry=_retry(label.retryable, answer.retryable),
        harmful=harmful,
    )


def _rank(labelled: int | None, said: int | None) -> Grade:
    if labelled is None:
        return "none" if said is None else "more"
    return "right" if said == labelled else "unknown" if said is None else "wrong"


def _retry(labelled: str, said: str) -> Grade:
    if labelled == "unknown":
        return "none"
    return "unknown" if said == "unknown" else "right" if said == labelled else "wrong"


def _line(labelled: str | None, said: str) -> Grade:
    want, got = " ".join((labelled or "").split()), " ".join(said.split())
    if not want:
        return "none"
    if not got:
        return "unknown"
    return "right" if want[:_ALIKE] in got or got[:_ALIKE] in want else "wrong"


def rows(found: Sequence[Judged], name: str) -> list[Row]:
    """The rows of one half."""
    made = [_row(found, part, name) for part in _PARTS]
    harmful = sum(one.harmful for one in found)
    how = "`yes` or `elsewhere` where no retry helps"
    return [*made, Row(f"harmful retry, {name}", str(harmful), "0", harmful == 0, how)]


class _Part(msgspec.Struct, frozen=True):
    field: str
    least: float
    most_wrong: float | None
    how: str


_PARTS: Final = (
    _Part("cause", CAUSE, WRONG, "one of the labelled causes; each log alone, as it was pasted"),
    _Part("rank", RANK, 0, "of the logs that show one"),
    _Part("line", LINE, None, f"the labelled line, its first {_ALIKE} characters"),
    _Part("retry", RETRY, None, "`no` against all others, of the logs whose text shows it"),
)


def _row(found: Sequence[Judged], part: _Part, name: str) -> Row:
    counts = Counter(getattr(one, part.field) for one in found)
    right, wrong, number = counts["right"], counts["wrong"], counts["right"] + counts["unknown"] + counts["wrong"]
    more = f", {counts['more']} named where the label names none" if counts["more"] else ""
    share = f" ({right / number:.0%})" if number else ""
    bound = f"{part.least:.0%} right"
    if part.most_wrong is not None:
        bound += f", {part.most_wrong:.0%} wrong" if part.most_wrong else ", none wrong"
    holds = right >= part.least * number and (part.most_wrong is None or wrong <= part.most_wrong * number)
    figure = f"{right} of {number} right{share}, {wrong} wrong, {counts['unknown']} unknown{more}"
    return Row(f"{part.field}, {name}", figure, bound, holds, part.how)


def calibration(found: Sequence[Judged]) -> list[Row]:
    """How often a cause of each confidence is right."""
    made = []
    for confidence, least in CALIBRATED.items():
        mine = [one for one in found if one.confidence == confidence]
        right = sum(one.cause == "right" for one in mine)
        share = f" ({right / len(mine):.1%})" if mine else ""
        holds = right >= least * len(mine)
        made.append(
            Row(
                f"cause called {confidence}",
                f"{right} of {len(mine)} right{share}",
                f"{least:.0%}",
                holds,
                "both halves",
            )
        )
    return made


def page(found: Sequence[Judged]) -> str:
    """A row for each log in which something that its label names was not found."""
    lines = ["| log | labelled | said | cause | rank | line | retry |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_graded(one) for one in found if not one.right]
    return "\n".join(lines)


def _graded(one: Judged) -> str:
    accepted = ", ".join(f"`{slug}`" for slug in one.label.accept)
    grades = (one.cause, one.rank, one.line, one.retry)
    cells = " | ".join("**wrong**" if grade == "wrong" else "-" if grade == "none" else grade for grade in grades)
    return f"| {one.label.log} | {accepted} | {one.slug}, {one.confidence} | {cells} |"
