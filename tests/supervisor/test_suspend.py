"""Suspension: a run that stands still, uses no budget, and goes on; its file; the clock of the total deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.client import SyncClient
from rankfall.model import Deadlines, Outcome, StoreError
from rankfall.rundir import RunDir
from rankfall.supervisor import read_suspension, request_cancel, request_suspension
from rankfall.supervisor.requests import SUSPEND_NAME, Suspension, SuspensionRequest
from support.helpers import wait_until
from support.patience import scaled

from .conftest import Bench

WAIT = 20.0
STAY = "open(f'here-{rank}-{os.environ[\"RANKFALL_ATTEMPT\"]}', 'w').close()\ntime.sleep(600)"
FIRST = 'if os.environ["RANKFALL_ATTEMPT"] == "1":\n    '


class Threaded:
    """A supervisor in a thread."""

    def __init__(self, bench: Bench, run: RunDir) -> None:
        self._found: list[Outcome] = []
        self._thread = threading.Thread(target=lambda: self._found.append(bench.supervise(run)))
        self._thread.start()

    def join(self) -> Outcome:
        self._thread.join(scaled(WAIT))
        return self._found[0]


def state(run: RunDir) -> str:
    with run.reader() as reader:
        return reader.run().state


def until(run: RunDir, wanted: str) -> None:
    wait_until(lambda: state(run) == wanted, timeout=WAIT, what=f"state {wanted}")


def here(bench: Bench, count: int, *, attempt: int = 1) -> None:
    wait_until(lambda: len(list(bench.folder.glob(f"here-*-{attempt}"))) >= count, timeout=WAIT, what="ranks")


@pytest.fixture
def client(bench: Bench) -> Iterator[SyncClient]:
    made = SyncClient(home=bench.home)
    yield made
    for summary in made.runs():
        run = made.get(summary.run)
        bench.made.append(run.directory)
        if summary.state not in {"succeeded", "failed", "cancelled"}:
            run.cancel()


def test_jobapi_s09_suspended_from_the_start_begins_nothing_and_the_clock_starts_with_resume(bench: Bench) -> None:
    total_s = scaled(6.0)
    run = bench.run_dir(bench.spec("pass", suspend=True, deadlines=Deadlines(total_s=total_s)))
    supervisor = Threaded(bench, run)
    until(run, "suspended")
    assert not list((run.path / "slots").rglob("*"))
    with run.reader() as reader:
        status = reader.status(time.time_ns())
    assert (status.attempts, status.started, status.reason) == (0, None, "suspended by its job spec")
    # As long as the whole total: it would be over, if it counted.
    threading.Event().wait(total_s)
    request_suspension(run.path, "resume")
    outcome = supervisor.join()
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)
    assert [event.kind for event in bench.events][:2] == ["suspended", "attempt"]


def test_jobapi_s10_suspended_while_training_and_resumed_with_the_same_budgets(bench: Bench) -> None:
    code = f"{FIRST}{STAY.replace(chr(10), chr(10) + '    ')}\nsys.exit(143 if os.environ['RANKFALL_ATTEMPT'] == '2' else 0)"
    run = bench.run_dir(bench.spec(code, policies={"max_restarts": 1}))
    supervisor = Threaded(bench, run)
    here(bench, 2)
    request_suspension(run.path, "suspend", reason="others need the machine")
    until(run, "suspended")
    assert bench.left() == []
    with run.reader() as reader:
        assert reader.verdicts() == []
        assert reader.decisions() == []
        assert [(row.attempt, row.state) for row in reader.attempts()] == [(1, "suspended")]
        assert "others need the machine" in (reader.run().reason or "")
        assert len(reader.ranks(1)) == 2
    request_suspension(run.path, "resume")
    outcome = supervisor.join()
    # Attempt 2 fell and its one restart was still there.
    assert (outcome.state, outcome.attempts) == ("succeeded", 3)
    with run.reader() as reader:
        assert [row.decision.left for row in reader.decisions()] == [0]


def test_ranks_that_leave_with_0_when_told_to_stop_are_suspended_and_not_done(bench: Bench) -> None:
    polite = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    run = bench.run_dir(bench.spec(f"{FIRST}{(polite + STAY).replace(chr(10), chr(10) + '    ')}"))
    supervisor = Threaded(bench, run)
    here(bench, 2)
    request_suspension(run.path, "suspend")
    until(run, "suspended")
    request_suspension(run.path, "resume")
    assert supervisor.join().attempts == 2


def test_a_suspended_run_can_be_cancelled(bench: Bench) -> None:
    run = bench.run_dir(bench.spec("pass", suspend=True))
    supervisor = Threaded(bench, run)
    until(run, "suspended")
    request_cancel(run.path)
    assert (supervisor.join().state, state(run)) == ("cancelled", "cancelled")


def test_a_failure_before_the_suspension_keeps_its_verdict(bench: Bench) -> None:
    code = f"if rank == 0: sys.exit(9)\n{STAY}"
    run = bench.run_dir(bench.spec(code, policies={"settle_quiet_s": 1.5}))
    supervisor = Threaded(bench, run)
    wait_until(lambda: "ended with code 9" in "".join(bench.texts("failure")), timeout=WAIT, what="the end")
    request_suspension(run.path, "suspend")
    outcome = supervisor.join()
    assert (outcome.state, outcome.code) == ("failed", 9)


def test_the_python_client_suspends_and_resumes_whoever_supervises(bench: Bench, client: SyncClient) -> None:
    code = f"{FIRST}{STAY.replace(chr(10), chr(10) + '    ')}"
    run = client.submit(bench.spec(code))
    here(bench, 2)
    assert run.suspend("lunch")
    assert run.status().state == "suspended"
    assert run.suspend()
    holder = run.directory.lease_holder()
    assert holder is not None
    os.kill(holder.pid, 9)
    wait_until(lambda: run.directory.lease_holder() is None, timeout=WAIT, what="the supervisor's end")
    assert run.resume()
    assert run.wait(timeout=scaled(WAIT)).attempts == 2
    assert not run.resume()
    assert not run.suspend()


def test_a_run_that_nobody_supervises_is_suspended_all_the_same(bench: Bench, client: SyncClient) -> None:
    run = client.submit(bench.spec(STAY))
    here(bench, 2)
    holder = run.directory.lease_holder()
    assert holder is not None
    os.kill(holder.pid, 9)
    wait_until(lambda: run.directory.lease_holder() is None, timeout=WAIT, what="the supervisor's end")
    assert run.suspend()
    bench.made.append(run.directory)
    assert bench.left() == []


# -- the file


def test_requests_are_appended_and_damage_costs_only_itself(tmp_path: Path) -> None:
    assert not read_suspension(tmp_path, initially=False).suspended
    assert read_suspension(tmp_path, initially=True).suspended
    request_suspension(tmp_path, "resume")
    with (tmp_path / SUSPEND_NAME).open("ab") as file:
        file.write(b'{"what": "suspend", "at"')
    request_suspension(tmp_path, "suspend", reason="because")
    found = read_suspension(tmp_path, initially=True)
    assert [one.what for one in found.requests] == ["resume", "suspend"]
    assert found.suspended
    assert found.text.startswith("suspended by ")
    assert found.text.endswith(": because")
    with pytest.raises(StoreError, match="cannot resume"):
        request_suspension(tmp_path / "absent", "resume")


def test_an_attempt_that_was_told_to_stop_is_stopped_even_if_it_was_resumed_since() -> None:
    asked = (SuspensionRequest(what="suspend", at=50), SuspensionRequest(what="resume", at=60))
    hold = Suspension(requests=asked)
    assert (hold.asked(40), hold.asked(50), hold.asked(70)) == (50, None, None)
    assert Suspension(requests=asked[:1]).asked(70) == 70


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(["suspend", "resume"]), st.integers(0, 100)), max_size=8))
def test_the_paused_time_is_that_of_a_clock_that_ticks(initially, asked) -> None:
    asked.sort(key=lambda one: one[1])
    requests = tuple(SuspensionRequest(what=what, at=at) for what, at in asked)
    hold = Suspension(initially=initially, requests=requests)

    def standing(moment: int) -> bool:
        state = initially
        for one in requests:
            state = one.what == "suspend" if one.at <= moment else state
        return state

    assert hold.paused(20, 80) == sum(standing(moment) for moment in range(20, 80))
