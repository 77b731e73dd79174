"""Finds evidence newer than an attempt's verdict, before the next attempt.

A node's Event or loss may appear minutes later. Completed actions remain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from rankfall.backends.protocol import Backend
from rankfall.collect.pods.lazy_collector import get_context
from rankfall.explain import explain_run
from rankfall.model import Diagnosis, RankfallError, Verdict
from rankfall.rundir import RunDir
from rankfall.rundir.layout import context_path
from rankfall.supervisor.attempt_table import Attempts
from rankfall.supervisor.attended.decisions import Decisions

# Newest attempts to check: Kubernetes stores an Event for an hour.
_MOST: Final = 4
_FOR_S: Final = 3600.0
_NS: Final = 1_000_000_000
# No process of the job writes to these sources.
_STATED: Final = frozenset({"event", "node", "pod"})


class LateEvidence:
    """Checks failed attempts for late evidence."""

    def __init__(self, run_dir: RunDir, *, attempts: Attempts, decisions: Decisions, backend: Backend) -> None:
        self._run_dir = run_dir
        self._attempts = attempts
        self._decisions = decisions
        self._backend = backend

    def look(self) -> list[tuple[int, Diagnosis]]:
        """Queries the cluster about failed attempts; returns changed verdicts."""
        return [(number, found) for number in self._recent() if (found := self._look_at(number)) is not None]

    def _recent(self) -> Iterator[int]:
        now, newest = time.time_ns(), self._attempts.newest
        for number in range(max(1, newest - _MOST + 1), newest + 1):
            row = self._attempts.row(number)
            if row is not None and row.state == "failed" and now - (row.ended or now) < _FOR_S * _NS:
                yield number

    def _look_at(self, number: int) -> Diagnosis | None:
        pods = next((one.pods for one in self._backend.sources(self._attempts.plan(number)) if one.pods), None)
        held = self._attempts.diagnosis(number)
        if pods is None or held is None:
            return None
        path = context_path(self._run_dir.path, number)
        try:
            if not get_context(self._run_dir.path, number, pods, into=path):
                return None
            found = explain_run(self._run_dir, attempt=number, fresh=True)
        except (RankfallError, OSError, TimeoutError):
            # Late evidence is optional.
            return None
        if not _overrules(found.verdict, held.verdict):
            return None
        found = self._attempts.revise(number, found)
        self._decisions.revise(number, found)
        return found


def _overrules(found: Verdict, held: Verdict) -> bool:
    """True if a new verdict differs and platform evidence proves it."""
    stated = found.decisive is not None and found.decisive.source in _STATED
    other = (found.cause.slug, found.rank, found.node) != (held.cause.slug, held.rank, held.node)
    return other and stated and found.state == "failed" and found.cause.confidence == "proven"
