"""Objects of an ended run that their platform would keep for ever: a process of its own removes them when their time is over."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from rankfall.backends.plan import Plan
from rankfall.kube.errors import Forbidden, Unreachable
from rankfall.model import InfrastructureError, JobSpec
from rankfall.rundir import RunDir
from rankfall.supervisor.attended import ttl as expiry
from support.helpers import wait_until
from support.patience import scaled

PLAN = Plan(attempt=2, launcher="plain", slots=())


class Backend:
    """Clears when it is told to; raises what it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.cleared: list[int] = []
        self.released = 0

    def clear(self, plan: Plan) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.cleared.append(plan.attempt)

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def run(tmp_path):
    return made(tmp_path)


def made(tmp_path, *, ttl: int | None = 0, state: str | None = "succeeded", **fields: Any) -> RunDir:
    spec = {"command": ("x",), "backend": "trainjob", "ttl_s": ttl} | fields
    run = RunDir.create(msgspec.convert(spec, JobSpec), home=tmp_path / "home")
    with run.lease() as writer:
        now = time.time_ns()
        writer.begin_attempt(2, at=now, plan=PLAN.row())
        if state is not None:
            writer.set_run(state, reason=None, at=now)  # type: ignore[arg-type]
    return run


def test_only_a_supervised_trainjob_needs_it(tmp_path):
    assert expiry.needed(made(tmp_path))
    assert not expiry.needed(made(tmp_path, ttl=None))
    assert not expiry.needed(made(tmp_path, backend="jobset"))
    assert not expiry.needed(made(tmp_path, unattended=True))


def test_the_newest_attempts_objects_are_removed_when_the_time_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(expiry, "_STEP_S", 0.01)
    run = made(tmp_path, ttl=1)
    backend, began = Backend(), time.monotonic()
    assert expiry.expire(run, backend=backend)  # type: ignore[arg-type]
    assert time.monotonic() - began > 0.5
    assert (backend.cleared, backend.released) == ([2], 1)


def test_a_cluster_that_does_not_answer_is_asked_again_and_a_refusal_is_not(run, monkeypatch):
    monkeypatch.setattr(expiry, "_AGAIN_S", 0.001)
    backend = Backend(Unreachable("away"), Unreachable("away"))
    assert expiry.expire(run, backend=backend)  # type: ignore[arg-type]
    assert backend.cleared == [2]
    with pytest.raises(Forbidden):
        expiry.expire(run, backend=Backend(Forbidden("no", status=403)))  # type: ignore[arg-type]
    monkeypatch.setattr(expiry, "_PATIENCE_S", 0.0)
    with pytest.raises(Unreachable):
        expiry.expire(run, backend=Backend(Unreachable("away")))  # type: ignore[arg-type]


def test_one_process_a_run_and_none_for_a_run_that_goes_on(run, tmp_path):
    (run.path / "kube").mkdir()
    with (run.path / "kube" / "expiry.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not expiry.expire(run)
    assert not expiry.expire(made(tmp_path, state=None))


def test_the_process_leaves_its_caller_and_says_what_it_did(tmp_path):
    run = made(tmp_path, state=None)
    expiry.spawn(run)
    log = run.path / "supervisor.log"
    wait_until(lambda: log.exists() and "nothing was removed" in log.read_text(), timeout=30, what="its last words")
    with run.lease() as writer:
        writer.set_run("succeeded", reason=None, at=time.time_ns())
    expiry.spawn(run)
    # The plan of this test names no cluster.
    wait_until(lambda: "names no cluster" in log.read_text(), timeout=30, what="why it could not")


def test_that_it_does_not_start_is_said_with_what_to_do(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InfrastructureError, match="will not be removed after their time to live") as caught:
        expiry.spawn(run)
    assert f"kubectl delete trainjob -l rankfall.dev/run={run.id}" in (caught.value.hint or "")
    failed = subprocess.CompletedProcess[bytes]((), 3, b"", b"no such module")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(InfrastructureError, match="no such module"):
        expiry.spawn(run)


# The second name is the one that a supervisor of the previous version starts.
@pytest.mark.parametrize("module", ["rankfall.supervisor.attended.ttl", "rankfall.supervise.expiry"])
def test_the_module_starts_it_as_a_process(tmp_path, module):
    run = made(tmp_path, state=None)
    command = [sys.executable, "-P", "-m", module, str(run.path)]
    subprocess.run(command, check=True, timeout=scaled(60))
    log = run.path / expiry.LOG_NAME
    wait_until(
        lambda: log.exists() and log.read_bytes().endswith(b"\n"), timeout=60, what="the end of the one that stays"
    )
    assert log.read_text() == "time to live: nothing was removed\n"
