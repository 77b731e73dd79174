"""The table of what a platform takes in docs/kubernetes.md is that of ``reasons.csv``; printed by ``python tests/docs/test_taken_page.py``."""

from __future__ import annotations

from pathlib import Path

from rankfall.evidence.cluster.reasons import Reason, rows
from rankfall.model.causes import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
PLACES = {
    "pod": "the pod's `reason`",
    "disruption": "condition `DisruptionTarget`",
    "termination": "condition `TerminationTarget`, of Kueue",
    "ready": "condition `Ready`, of Volcano",
    "event": "Event of the pod",
    "suspended": "writer of the job's `suspend`",
    "taint": "taint of a node that is then lost",
    "node": "condition of a node that is then lost",
}
TAKES = {"preempted", "pod_evicted"}


def line(row: Reason) -> str:
    text = f", text `{row.text}`".replace("|", r"\|") if row.text else ""
    retry = row.retry or catalogue()[row.slug].retry
    return f"| {PLACES[row.where]} | `{row.reason}`{text} | `{row.slug}` | {retry} |"


def table() -> str:
    kept = [row for row in rows() if row.slug in TAKES or row.where in {"disruption", "termination"}]
    kept.sort(key=lambda row: list(PLACES).index(row.where))
    return "\n".join(["| where | reason | cause | again |", "| --- | --- | --- | --- |", *map(line, kept)])


def test_i32_the_page_shows_every_mark_by_which_a_platform_takes_a_pod():
    assert table() in PAGE.read_text(encoding="utf-8")


def test_i32_the_page_of_causes_names_the_table():
    page = PAGE.with_name("causes.md").read_text(encoding="utf-8")
    assert page.count("kubernetes.md#pods-that-the-platform-takes") == len(TAKES)


if __name__ == "__main__":
    print(table())  # noqa: T201 - for the page
