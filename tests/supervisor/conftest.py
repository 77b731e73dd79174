"""Runs of this folder: real processes under the plain launcher, each in a home of its own, and nothing may be left behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall.backends.local.processes import members
from rankfall.model import JobSpec, Outcome, Policies
from rankfall.rundir import RunDir
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import Event
from rankfall.supervisor.supervise import supervise
from support.helpers import waits_for
from support.patience import scaled

QUICK = Policies(backoff_s=0.05, grace_s=scaled(3.0), settle_quiet_s=scaled(0.5), settle_max_s=scaled(5.0))


class Bench:
    """Makes and supervises runs in one home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.made: list[RunDir] = []
        self.events: list[Event] = []
        self._marks: set[str] = set()

    def spec(self, code: str = "pass", *args: str, **fields: Any) -> JobSpec:
        """A job of 2 nodes x 1 rank that runs ``code``; ``policies`` are fields over the quick ones."""
        policies = msgspec.structs.replace(QUICK, **fields.pop("policies", {}))
        script = self.folder / f"job{len(list(self.folder.glob('job*.py')))}.py"
        script.write_text(f"import os, signal, sys, time\nrank = int(os.environ.get('RANK', -1))\n{code}\n")
        plain = {"nnodes": 2, "launcher": "plain", "cwd": str(self.folder), "python": sys.executable}
        return JobSpec(command=(str(script), *args), policies=policies, **(plain | fields))

    def run_dir(self, spec: JobSpec) -> RunDir:
        made = RunDir.create(spec, home=self.home)
        self.made.append(made)
        return made

    def waits_for_event(self, kind: str) -> str:
        """A Python expression for a job: it waits until the supervisor in this process has told an event of this kind."""
        self._marks.add(kind)
        return waits_for(self.folder / f"event-{kind}")

    def supervise(self, run_dir: RunDir, *, control: Control | None = None) -> Outcome:
        return supervise(run_dir, on_event=self.see, control=control)

    def see(self, event: Event) -> None:
        self.events.append(event)
        if event.kind in self._marks:
            (self.folder / f"event-{event.kind}").touch()

    def run(self, code: str, **fields: Any) -> tuple[RunDir, Outcome]:
        made = self.run_dir(self.spec(code, **fields))
        return made, self.supervise(made)

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]

    def left(self) -> list[int]:
        """Processes of any slot of any run made here."""
        folders = [slot for run in self.made for slot in (run.path / "slots").glob("*/*")]
        return [pid for folder in folders for pid in members(folder)]


class Threaded:
    """A supervisor in a thread.

    Args:
        bench: of the run.
        run: to its end.
        wait: how long that may take once it is asked for, seconds on an idle machine.
    """

    def __init__(self, bench: Bench, run: RunDir, *, wait: float) -> None:
        self._found: list[Outcome] = []
        self._wait = wait
        self.control = Control()
        self._thread = threading.Thread(target=lambda: self._found.append(bench.supervise(run, control=self.control)))
        self._thread.start()

    def join(self) -> Outcome:
        self._thread.join(scaled(self._wait))
        return self._found[0]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    assert made.left() == []
