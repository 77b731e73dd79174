"""Runs a case as its user would, by the command line, and gathers what the product says of it: status, verdicts, exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from conformance.cases import CLUSTER, FAST, Case
from conformance.program import PROGRAM
from support.helpers import wait_until
from support.patience import scaled

SCRIPT = "train.py"
_LONG_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a case runs.

    Attributes:
        backend: of the job file.
        folder: of this case on this backend, empty.
        fields: of the job file on this backend, over those of all; ``kubernetes`` is merged with the case's.
        env: of the product's processes.
    """

    backend: str
    folder: Path
    fields: Mapping[str, Any]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the product said.

    Attributes:
        documents: ``status`` and ``verdicts`` by attempt; ``on_the_way`` what was seen before the end; ``begun`` the first line of each
            process of a job that was left to itself.
        code: exit code.
        stderr: of the command that ended the run, or refused it.
    """

    documents: dict[str, Any]
    code: int
    stderr: str


def local(folder: Path) -> Place:
    """This machine."""
    (folder / SCRIPT).write_text(PROGRAM)
    fields = {"python": sys.executable, "cwd": str(folder)}
    return Place(backend="local", folder=folder, fields=fields, env={})


def job_file(case: Case, place: Place) -> dict[str, Any]:
    """The case's job file on this backend."""
    spec: dict[str, Any] = {
        "name": "conform",
        "backend": place.backend,
        "command": [SCRIPT],
        "launcher": "plain",
        "nnodes": 2,
        "nproc_per_node": 2,
        "env": {"STORY": json.dumps(case.story)},
        **place.fields,
    }
    own = dict(case.fields)
    # What nobody supervises has no use for most of these, and refuses them.
    usual = {"grace_s": 3} if case.fields.get("unattended") else FAST
    spec["policies"] = usual | dict(own.pop("policies", {}))
    if place.backend in CLUSTER:
        spec["kubernetes"] = spec["kubernetes"] | dict(own.pop("kubernetes", {}))
    own.pop("kubernetes", None)
    return {name: value for name, value in (spec | own).items() if value is not None}


class Driver:
    """The user of one case on one backend."""

    def __init__(self, case: Case, place: Place) -> None:
        self._case = case
        self._place = place
        self._home = place.folder / "home"
        self._env = os.environ | dict(place.env) | {"RANKFALL_HOME": str(self._home), "NO_COLOR": "1"}
        self._file = place.folder / "job.yaml"

    def run(self) -> Seen:
        """Bring the case to its end."""
        self._home.mkdir()
        self._file.write_text(yaml.safe_dump(job_file(self._case, self._place)))
        drives: dict[str, Callable[[], tuple[dict[str, Any], subprocess.CompletedProcess[str]]]] = {
            "run": self._run,
            "plan": self._plan,
            "suspended_start": self._suspended_start,
            "suspend_resume": self._suspend_resume,
            "resize": self._resize,
            "cancel": self._cancel,
        }
        on_the_way, done = drives[self._case.drive]()
        documents: dict[str, Any] = {"on_the_way": on_the_way}
        if any((self._home / "runs").glob("[!.]*")):
            documents |= {"status": self.status(), "verdicts": self._verdicts()}
            if self._case.drive == "run":
                documents["begun"] = self._begun()
        return Seen(documents=documents, code=done.returncode, stderr=done.stderr)

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        command = (sys.executable, "-m", "rankfall", *words)
        return subprocess.run(
            command,
            env=self._env,
            cwd=self._place.folder,
            capture_output=True,
            text=True,
            timeout=scaled(_LONG_S),
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def status(self) -> dict[str, Any]:
        """``rankfall status -o json``."""
        done = self.cli("status", "-o", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _begun(self) -> list[tuple[int, int | None, str]]:
        """Attempt, rank and text of the first line of each process: its place in the job, as it was told."""
        done = self.cli("logs", "--all", "--attempt", "all", "--grep", " of attempt [0-9]+ begins ", "-o", "json")
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return sorted(((one["attempt"], one["rank"], one["text"]) for one in lines), key=str)

    # -- what users do

    def _run(self) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        return {}, self.cli("run", "--file", str(self._file))

    def _plan(self) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        return {}, self.cli("run", "--file", str(self._file), "--dry-run")

    def _suspended_start(self) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        self._submit()
        held = self._until("suspended", lambda status: status["state"] == "suspended")
        self._ok("resume")
        return {"held": _standing(held)}, self.cli("wait")

    def _suspend_resume(self) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        self._submit()
        running = self._until("all ready", _all_ready)
        self._ok("suspend")
        held = self._until("suspended", lambda status: status["state"] == "suspended")
        self._ok("resume")
        return {"running": _standing(running), "held": _standing(held)}, self.cli("wait")

    def _resize(self) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        self._submit()
        running = self._until("all ready", _all_ready)
        self._ok("resize", self._name(), "3")
        return {"running": _standing(running)}, self.cli("wait")

    def _name(self) -> str:
        (found,) = (self._home / "runs").glob("[!.]*")
        return found.name

    def _cancel(self) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        self._submit()
        running = self._until("all ready", _all_ready)
        self._ok("cancel", "-y")
        return {"running": _standing(running)}, self.cli("wait")

    def _submit(self) -> None:
        self._ok("submit", "--file", str(self._file))

    def _ok(self, *words: str) -> None:
        done = self.cli(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def _until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        last: dict[str, Any] = {}

        def look() -> bool:
            nonlocal last
            last = self.status()
            return holds(last)

        wait_until(look, timeout=_LONG_S, what=f"{self._case.name}: {what}")
        return last

    def _verdicts(self) -> dict[str, Any]:
        found = {}
        for attempt in range(1, self.status()["attempts"] + 1):
            done = self.cli("why", "--attempt", str(attempt), "-o", "json")
            if done.returncode == 0:
                found[str(attempt)] = json.loads(done.stdout)
        return found


def _all_ready(status: dict[str, Any]) -> bool:
    return bool(status["slots"]) and status["ready"] == len(status["slots"]) and status["state"] == "running"


def _standing(status: dict[str, Any]) -> dict[str, Any]:
    """What is the same on all backends at a moment of rest."""
    names = ("state", "attempts", "ready", "active", "succeeded", "failed", "stopped", "restarts", "supervised")
    return {name: status[name] for name in names}
