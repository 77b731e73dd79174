"""How often the cause, the rank and the retry of real logs are right: excerpts that people pasted when a distributed job failed, with labels.

The logs are not part of this repository: ``RANKFALL_CORPUS`` or the argument names their folder, which holds ``labels.jsonl`` and the logs that
it names. They show shapes and are few; nothing here or in the signatures may be made to fit one of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from bench.common import ROOT, Row
from rankfall.explain import explain_files
from rankfall.model import Verdict

VARIABLE: Final = "RANKFALL_CORPUS"
_DEFAULT: Final = ROOT.parent / "shared/corpus/real"
# The least share of causes that are right, and the most that are wrong; what is left is said to be unknown.
RIGHT, WRONG = 0.85, 0.12

# "more": a rank where the label names none; either side of a mismatch may be meant.
Grade = Literal["right", "more", "unknown", "wrong"]


class Label(msgspec.Struct, frozen=True):
    """What a person says of one log: slugs that its text supports, the rank if it shows, and whether a retry could help."""

    log: str
    accept: list[str]
    rank: int | None = None
    retryable: str = "unknown"


class Judged(msgspec.Struct, frozen=True):
    """One log."""

    label: Label
    said: str
    cause: Grade
    rank: Grade
    retry: Grade


def folder_of(named: str | None) -> Path:
    """The folder of logs.

    Args:
        named: by the caller; else the variable's, else that beside the checkout.

    Raises:
        SystemExit: it holds no labels.
    """
    folder = Path(named or os.environ.get(VARIABLE) or _DEFAULT)
    if not (folder / "labels.jsonl").is_file():
        raise SystemExit(
            f"{folder} holds no labels.jsonl: set {VARIABLE} to a folder of real logs, or name it: make bench-verdict CORPUS=FOLDER"
        )
    return folder


def judge(folder: Path) -> list[Judged]:
    """Explain each log and compare."""
    rows = [
        msgspec.json.decode(line, type=Label) for line in (folder / "labels.jsonl").read_bytes().splitlines() if line
    ]
    return [_judged(label, explain_files([folder / label.log]).verdict) for label in rows]


def _judged(label: Label, verdict: Verdict) -> Judged:
    slug, sure = verdict.cause.slug, verdict.cause.confidence
    cause: Grade = "right" if slug in label.accept else "unknown" if slug == "unknown" else "wrong"
    rank: Grade = "right" if verdict.rank == label.rank else "unknown" if verdict.rank is None else "wrong"
    if rank == "wrong" and label.rank is None:
        rank = "more"
    # Once more, or elsewhere: a cautious yes. Where the thread does not tell, nothing is wrong.
    never = verdict.retry == "no"
    retry: Grade = (
        "unknown" if label.retryable == "unknown" else "right" if never == (label.retryable == "no") else "wrong"
    )
    if retry == "wrong" and verdict.retry == "once":
        retry = "unknown"
    return Judged(label=label, said=f"{slug}, {sure}", cause=cause, rank=rank, retry=retry)


def rows(found: list[Judged]) -> list[Row]:
    """The rows of this part."""
    number = len(found)

    def count(field: str, grade: Grade) -> int:
        return sum(1 for one in found if getattr(one, field) == grade)

    made: list[Row] = []
    for field, words in (
        ("cause", "cause of real logs"),
        ("rank", "rank of real logs"),
        ("retry", "retry of real logs"),
    ):
        right, wrong = count(field, "right"), count(field, "wrong")
        bound = {"cause": f"{RIGHT:.0%} right, {WRONG:.0%} wrong at most", "rank": "none wrong", "retry": "-"}[field]
        holds = {"cause": right >= RIGHT * number and wrong <= WRONG * number, "rank": wrong == 0, "retry": None}[field]
        more = f", {named} named where the label names none" if (named := count(field, "more")) else ""
        figure = f"{right} of {number} right, {wrong} wrong, {number - right - wrong - named} not told{more}"
        made.append(Row(words, figure, bound, holds, _HOW[field]))
    return made


_HOW: Final[dict[str, str]] = {
    "cause": "one of the labelled causes; each log alone, as it was pasted, none of it written by Rankfall's own recorder",
    "rank": "that of the label; right also where neither names one",
    "retry": "`no` against all others; `once` where a person says no counts as not told",
}


def page(found: list[Judged]) -> str:
    """A row for each log."""
    lines = ["| log | labelled | said | cause | rank | retry |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [_line(one) for one in found]
    return "\n".join(lines)


def _line(one: Judged) -> str:
    accepted = ", ".join(f"`{slug}`" for slug in one.label.accept)
    grades = " | ".join("**wrong**" if grade == "wrong" else grade for grade in (one.cause, one.rank, one.retry))
    return f"| {one.label.log} | {accepted} | {one.said} | {grades} |"
