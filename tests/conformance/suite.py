"""Runs the cases that a session asks for, several at once, each once for a backend, and judges what came of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import Case
from conformance.documents import comparable, differences
from conformance.drive import Driver, Place, Seen
from conformance.report import Row, Rows

# So many runs at once: each is a supervisor, on a cluster also two pods.
AT_ONCE = 3
_SHOWN = 40

Key = tuple[str, str]


def chosen(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of all tests of the module which asks that certainly run in this process.

    A worker of pytest-xdist has all items of the session and runs some of them: only those of a group come together.
    """
    spread = "PYTEST_XDIST_WORKER" in os.environ
    items = (item for item in request.session.items if item.path == request.path)
    return [
        item.callspec.params
        for item in items
        if hasattr(item, "callspec") and (not spread or item.get_closest_marker("xdist_group"))
    ]


class Suite:
    """The runs of one session.

    Args:
        place: makes the place of a case on a backend.
        folder: for all of them.
        rows: where results are kept.
    """

    def __init__(self, place: Callable[[str, Path], Place], *, folder: Path, rows: Rows) -> None:
        self._place = place
        self._folder = folder
        self._rows = rows
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._runs: dict[Key, Future[Seen]] = {}

    def begin(self, wanted: Iterable[tuple[Case, str]]) -> None:
        """Start what is not started yet; those that are asked for first come first."""
        for case, backend in wanted:
            if (case.name, backend) not in self._runs and backend not in case.absent:
                self._runs[case.name, backend] = self._pool.submit(self._run, case, backend)

    def seen(self, case: Case, backend: str) -> Seen:
        """What came of a case; waits for it."""
        self.begin([(case, backend)])
        return self._runs[case.name, backend].result()

    def close(self) -> None:
        """No more runs are begun."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, case: Case, backend: str) -> Seen:
        folder = self._folder / f"{case.name}-{backend}"
        folder.mkdir(parents=True)
        return Driver(case, self._place(backend, folder)).run()

    # -- judging

    @contextlib.contextmanager
    def kept(self, case: Case, backend: str) -> Iterator[None]:
        """Keep how a test of this cell ended."""
        try:
            yield
            row = Row(case=case.name, backend=backend, cell="holds")
            if backend in case.absent:
                row = Row(case=case.name, backend=backend, cell="-", words=case.absent[backend])
            elif backend in case.refused:
                row = Row(case=case.name, backend=backend, cell="refused", words=_said(self.seen(case, backend)))
        except Exception:
            self._rows.add(Row(case=case.name, backend=backend, cell="does not hold"))
            raise
        self._rows.add(row)

    def check(self, case: Case, backend: str, *, reference: str | None) -> None:
        """One cell: what the case demands, and that it is what the reference says.

        Args:
            case: the row.
            backend: the column.
            reference: backend whose documents these must equal; None = this is the reference.
        """
        with self.kept(case, backend):
            if backend in case.absent:
                return
            seen = self.seen(case, backend)
            if backend in case.refused:
                assert seen.code == 2, seen.stderr
                assert case.refused[backend] in seen.stderr
                assert "status" not in seen.documents, "it was refused, and there is a run"
                return
            meets(case, seen)
            if reference is not None and case.drive != "plan":
                other = self.seen(case, reference)
                found = list(differences(comparable(other.documents), comparable(seen.documents)))
                assert not found, f"{reference} | {backend}:\n" + "\n".join(found[:_SHOWN])


def meets(case: Case, seen: Seen) -> None:
    """What the table says of a case, whatever the backend."""
    assert seen.code == case.code, seen.stderr
    if case.drive == "plan":
        return
    status = seen.documents["status"]
    assert (status["state"], status["attempts"]) == (case.state, case.attempts)
    assert (status["succeeded"], status["failed"], status["stopped"]) == case.counts
    assert (status["ready"], status["active"]) == (0, 0)
    assert status["restarts"]["by_cause"] == dict(case.restarts)
    for _, rank, text in seen.documents.get("begun", ()):
        place = json.loads(text.partition(" begins ")[2])
        assert place["RANK"] == (None if rank is None else str(rank)), text
        assert rank is None or place["master"], text
    verdicts = seen.documents["verdicts"]
    for attempt, (slug, rank) in case.causes.items():
        assert (verdicts[attempt]["cause"]["slug"], verdicts[attempt]["rank"]) == (slug, rank)
    fell = {attempt for attempt, verdict in verdicts.items() if verdict["state"] == "failed"}
    assert fell <= case.causes.keys()
    if case.why:
        assert case.why in (status["reason"] or "")


def _said(seen: Seen) -> str:
    """The refusal in a line: field, words, alternative."""
    lines = [line.strip() for line in seen.stderr.splitlines() if line.strip()]
    kept = [line.removeprefix("rankfall: ") for line in lines if "$." in line or line.startswith("next:")]
    return "; ".join(kept)
