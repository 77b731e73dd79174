"""Where the facts of an attempt's pods lie in its run directory."""

from __future__ import annotations

from pathlib import Path


def pods_folder(run: Path, attempt: int) -> Path:
    """``kube/attempt-N`` of a run directory: journal, clocks, marks of what Rankfall itself did."""
    return run / "kube" / f"attempt-{attempt}"


def around_path(run: Path, attempt: int) -> Path:
    """Where what is known around an attempt's pods lies."""
    return pods_folder(run, attempt) / "around.jsonl"
