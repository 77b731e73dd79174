"""Another size by recreation: the attempt is stopped, the next one has the nodes that were wished, no budget is used; killed anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rankfall.client import SyncClient
from rankfall.client.sync import SyncRun
from rankfall.model import Refused, Role, SpecError
from rankfall.rundir import RunDir
from rankfall.supervisor import request_resize, request_suspension
from rankfall.supervisor.requests import unmet
from support.helpers import wait_until
from support.patience import scaled

from .conftest import Bench, Threaded

WAIT = 20.0
# Ends with 0 once a file says so, so that the test chooses when an attempt may end.
STAY = """
open(f'here-{rank}-{os.environ["WORLD_SIZE"]}-{os.environ["RANKFALL_ATTEMPT"]}', 'w').close()
while not os.path.exists('leave'):
    time.sleep(0.02)
"""


@pytest.fixture
def client(bench: Bench) -> Iterator[SyncClient]:
    made = SyncClient(home=bench.home)
    yield made
    for summary in made.runs():
        run = made.get(summary.run)
        bench.made.append(run.directory)
        if summary.state not in {"succeeded", "failed", "cancelled"}:
            run.cancel()


def here(bench: Bench, count: int, *, attempt: int) -> None:
    """Wait for all ranks of a world of this size in this attempt."""
    wait_until(lambda: len(list(bench.folder.glob(f"here-*-{count}-{attempt}"))) == count, timeout=WAIT, what="ranks")


def leave(bench: Bench) -> None:
    (bench.folder / "leave").touch()


def history(run: RunDir) -> list[tuple[int, str, int]]:
    """State and slots of each attempt."""
    with run.reader() as reader:
        return [(row.attempt, row.state, len(row.plan["slots"])) for row in reader.attempts()]


def test_jobapi_s07_a_fixed_size_changes_by_a_new_attempt_and_no_budget_is_used(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(STAY, nnodes=4, policies={"max_restarts": 0}))
    supervisor = Threaded(bench, run, wait=WAIT)
    here(bench, 4, attempt=1)
    request_resize(run, role="worker", nodes=6, reason="more of them are free")
    here(bench, 6, attempt=2)
    request_resize(run, role="worker", nodes=3)
    here(bench, 3, attempt=3)
    leave(bench)
    outcome = supervisor.join()
    assert (outcome.state, outcome.attempts) == ("succeeded", 3)
    assert history(run) == [(1, "resized", 4), (2, "resized", 6), (3, "succeeded", 3)]
    with run.reader() as reader:
        assert reader.verdicts() == []
        assert reader.decisions() == []
        changes = [row.plan["changes"] for row in reader.attempts()]
        assert reader.status(0).sizes == reader.status(0).sizes_wished == {"worker": 3}
        # Whoever asks for the last rank means that of the newest size.
        assert max(facts.rank for facts in reader.ranks(3)) == 2
    assert changes[0] == []
    assert [(one["before"], one["nodes"], one["reason"]) for one in changes[1]] == [(4, 6, "more of them are free")]
    assert [(one["before"], one["nodes"]) for one in changes[2]] == [(6, 3)]
    assert all(one["done_at"] for one in changes[1] + changes[2])
    told = bench.texts("resize")
    assert told[0].startswith("6 nodes of worker requested by ")
    assert told[1].startswith("now worker: 4 -> 6 nodes, requested by ")
    assert len(told) == 4


def test_a_wish_that_was_taken_back_in_time_stops_nothing(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(STAY))
    for nodes in (5, 2):
        request_resize(run, role="worker", nodes=nodes)
    supervisor = Threaded(bench, run, wait=WAIT)
    here(bench, 2, attempt=1)
    leave(bench)
    assert supervisor.join().attempts == 1
    assert bench.texts("resize") == []


def test_a_suspended_run_takes_its_new_size_when_it_goes_on(bench: Bench, client: SyncClient) -> None:
    run = client.submit(bench.spec(STAY, suspend=True))
    wait_until(lambda: run.status().state == "suspended", timeout=WAIT, what="the suspension")
    answer = run.resize(3, wait=True)
    assert (answer.how, answer.before, answer.state, answer.holds) == ("next_attempt", 2, "suspended", False)
    assert run.status().sizes_wished == {"worker": 3}
    run.resume()
    here(bench, 3, attempt=1)
    leave(bench)
    assert run.wait(timeout=scaled(WAIT)).state == "succeeded"
    assert history(run.directory) == [(1, "succeeded", 3)]


def test_between_two_attempts_the_next_one_has_the_new_size(bench: Bench) -> None:
    fall = 'if os.environ["RANKFALL_ATTEMPT"] == "1": sys.exit(143)\n'
    run = bench.run_dir(bench.spec(fall + STAY, policies={"backoff_s": 1.5, "max_restarts": 1}))
    supervisor = Threaded(bench, run, wait=WAIT)
    wait_until(lambda: bench.texts("decision"), timeout=WAIT, what="the decision")
    request_resize(run, role="worker", nodes=1)
    here(bench, 1, attempt=2)
    leave(bench)
    assert supervisor.join().state == "succeeded"
    assert history(run) == [(1, "failed", 2), (2, "succeeded", 1)]


def test_a_fall_before_the_wish_keeps_its_verdict(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(f"if rank == 0: sys.exit(9)\n{STAY}", policies={"settle_quiet_s": 1.5}))
    supervisor = Threaded(bench, run, wait=WAIT)
    wait_until(lambda: "ended with code 9" in "".join(bench.texts("failure")), timeout=WAIT, what="the end")
    request_resize(run, role="worker", nodes=3)
    outcome = supervisor.join()
    assert (outcome.state, outcome.code, outcome.attempts) == ("failed", 9, 1)


def test_the_python_client_asks_waits_and_says_what_is_over(bench: Bench, client: SyncClient) -> None:
    run = client.submit(bench.spec(STAY))
    here(bench, 2, attempt=1)
    assert run.resize(2).how == "nothing"
    answer = run.resize(3, reason="why not", wait=True)
    assert (answer.how, answer.before, answer.nodes, answer.holds) == ("new_attempt", 2, 3, True)
    here(bench, 3, attempt=2)
    leave(bench)
    assert run.wait(timeout=scaled(WAIT)).attempts == 2
    over = run.resize(4)
    assert (over.over, over.state, over.how) == (True, "succeeded", "nothing")


def test_a_run_that_nobody_supervises_is_resized_all_the_same(bench: Bench, client: SyncClient) -> None:
    run = client.submit(bench.spec(STAY))
    here(bench, 2, attempt=1)
    kill_supervisor(run)
    assert run.resize(1, wait=True).holds
    leave(bench)
    assert run.wait(timeout=scaled(WAIT)).state == "succeeded"
    assert history(run.directory) == [(1, "resized", 2), (2, "succeeded", 1)]


def kill_supervisor(run: SyncRun) -> None:
    holder = run.directory.lease_holder()
    assert holder is not None
    os.kill(holder.pid, 9)
    wait_until(lambda: run.directory.lease_holder() is None, timeout=WAIT, what="the supervisor's end")


@pytest.mark.parametrize("when", ["after-tell", "after-end_attempt", "after-begin_attempt", "after-start"])
def test_a_supervisor_killed_while_it_resizes_neither_repeats_nor_forgets(bench: Bench, when: str) -> None:
    run = bench.run_dir(bench.spec(STAY))
    first = Threaded(bench, run, wait=WAIT)
    here(bench, 2, attempt=1)
    # The wish is there before the mortal supervisor comes, so that what lasts is counted from it.
    moment = {"after-tell": 1, "after-end_attempt": 1, "after-begin_attempt": 1, "after-start": 3}[when]
    first.control.release()
    assert first.join().state == "running"
    request_resize(run, role="worker", nodes=3)
    words = [sys.executable, str(Path(__file__).with_name("mortal.py")), str(run.path), str(moment), when]
    died = subprocess.run(words, capture_output=True, text=True, timeout=scaled(WAIT), check=False)
    assert died.returncode == -9, died.stderr
    leave(bench)
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    assert history(run) == [(1, "resized", 2), (2, "succeeded", 3)]
    assert len(list((run.path / "slots" / "attempt-2").iterdir())) == 3


# -- what is refused


@pytest.mark.parametrize(
    ("fields", "wish", "words"),
    [
        ({"nnodes": 2, "nnodes_max": 4}, (5, None), ["$.nnodes_max", "MAX of 2:4", "--nnodes 2:5"]),
        ({"nnodes": 2, "nnodes_max": 4}, (1, None), ["$.nnodes", "MIN of 2:4", "--nnodes 1:4"]),
        ({}, (0, None), ["at least 1"]),
        ({}, (3, "ps"), ["--role", "no role 'ps'", "worker"]),
    ],
)
def test_jobapi_s07_what_cannot_be_is_refused_and_nothing_is_asked_for(
    bench: Bench, client: SyncClient, fields: dict[str, int], wish: tuple[int, str | None], words: list[str]
) -> None:
    launcher = "torchrun" if "nnodes_max" in fields else "plain"
    made = bench.run_dir(bench.spec("pass", launcher=launcher, **fields))
    with pytest.raises((Refused, SpecError)) as error:
        client.get(made.id).resize(wish[0], role=wish[1])
    for word in words:
        assert word in str(error.value)
    assert unmet(made, {"worker": 2}) is None


def test_a_size_that_the_next_attempt_would_be_refused_for_is_refused_now(bench: Bench, client: SyncClient) -> None:
    words = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "train.py")
    made = bench.run_dir(msgspec.structs.replace(bench.spec(), command=words, launcher="auto"))
    with pytest.raises(SpecError, match="contradicts --nnodes 3"):
        client.get(made.id).resize(3)


def test_a_held_run_keeps_the_wish_for_its_next_attempt(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(STAY))
    supervisor = Threaded(bench, run, wait=WAIT)
    here(bench, 2, attempt=1)
    request_suspension(run.path, "suspend")
    request_resize(run, role="worker", nodes=1)
    wait_until(lambda: bench.texts("suspended"), timeout=WAIT, what="the suspension")
    request_suspension(run.path, "resume")
    here(bench, 1, attempt=2)
    leave(bench)
    assert supervisor.join().state == "succeeded"
    assert [row[1:] for row in history(run)] == [("suspended", 2), ("succeeded", 1)]


def test_jobapi_s07_one_role_of_several_gets_another_size_and_slots_stay_numbered_through(bench: Bench) -> None:
    stay = "open(f\"here-{os.environ['RANKFALL_SLOT']}-{os.environ['RANKFALL_ATTEMPT']}\", 'w').close()\n"
    made = bench.spec(f"{stay}while not os.path.exists('leave'): time.sleep(0.02)")
    roles = tuple(Role(name=name, nnodes=1, launcher="exec") for name in ("ps", "worker"))
    run = bench.run_dir(
        msgspec.structs.replace(made, nnodes=1, launcher="auto", roles=roles, command=("python3", *made.command))
    )
    supervisor = Threaded(bench, run, wait=WAIT)
    wait_until(lambda: len(list(bench.folder.glob("here-*-1"))) == 2, timeout=WAIT, what="both roles")
    request_resize(run, role="ps", nodes=2)
    wait_until(lambda: len(list(bench.folder.glob("here-*-2"))) == 3, timeout=WAIT, what="three slots")
    leave(bench)
    assert supervisor.join().state == "succeeded"
    with run.reader() as reader:
        assert [(slot.slot, slot.role) for slot in reader.status(0).slots] == [(0, "ps"), (1, "ps"), (2, "worker")]
