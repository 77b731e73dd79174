"""The Python API: the same answers as the directory's, without blocking the loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankfall
from rankfall.client import Client, Run, SyncClient, complete
from rankfall.model import EvidenceLost, JobFailed, JobSpec, NotFound, SpecError, UsageError
from support.helpers import wait_until, waits_for
from support.patience import scaled

from .conftest import QUICK, Bench

WAIT = 20.0
FALLS_ONCE = """
attempt = os.environ["RANKFALL_ATTEMPT"]
for line in range(3):
    print(f"attempt {attempt} line {line}", flush=True)
    time.sleep(0.02)
if attempt == "1" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def client(bench: Bench) -> Iterator[SyncClient]:
    made = SyncClient(home=bench.home)
    yield made
    for summary in made.runs():
        run = made.get(summary.run)
        bench.made.append(run.directory)
        holder = run.directory.lease_holder()
        if holder is not None and holder.pid != os.getpid():
            os.kill(holder.pid, signal.SIGKILL)


def test_submit_follow_wait_and_ask_why(bench: Bench) -> None:
    async def story() -> tuple[Run, list[tuple[int | None, int, bytes]], Any]:
        client = Client(home=bench.home)
        run = await client.submit(bench.spec(FALLS_ONCE))
        bench.made.append(run.directory)
        lines = [(line.rank, line.attempt, line.data) async for line in run.logs(follow=True)]
        outcome = await asyncio.wait_for(run.wait(), scaled(WAIT))
        assert (await client.get(run.id)).id == run.id
        assert (await run.status()).state == "succeeded"
        assert [found.run for found in await client.runs()] == [run.id]
        assert await client.why(run) == await client.why(run.id)
        assert (await client.why(run, attempt=1)).cause.slug == "killed_unknown"
        return run, lines, outcome

    run, lines, outcome = asyncio.run(story())
    assert (outcome.state, outcome.attempts, outcome.code) == ("succeeded", 2, 0)
    for rank in (0, 1):
        texts = [data.decode() for number, _, data in lines if number == rank]
        assert texts == [f"attempt {attempt} line {line}" for attempt in (1, 2) for line in range(3)]
    verdict = SyncClient(home=bench.home).get(run.id).verdict()
    assert verdict is not None
    assert (verdict.attempt, verdict.rank) == (1, 1)


def test_waiting_does_not_block_the_loop(bench: Bench) -> None:
    leave = bench.folder / "leave"

    async def story() -> None:
        client = Client(home=bench.home)
        run = await client.submit(bench.spec(waits_for(leave)))
        bench.made.append(run.directory)
        waiting = asyncio.create_task(run.wait())
        for _ in range(50):
            await asyncio.sleep(0.01)
        assert not waiting.done()
        # The job ends only when the loop has come here.
        leave.touch()
        assert (await asyncio.wait_for(waiting, scaled(WAIT))).state == "succeeded"

    asyncio.run(story())


def test_the_sync_client_does_the_same(client: SyncClient, bench: Bench) -> None:
    run = client.submit(bench.spec("print('here'); sys.exit(9 if rank == 0 else 0)", policies={"max_restarts": 0}))
    outcome = run.wait(timeout=scaled(WAIT))
    assert (outcome.state, outcome.code) == ("failed", 9)
    with pytest.raises(JobFailed, match="rank 0") as caught:
        outcome.raise_for_status()
    assert caught.value.code == 9
    assert [line.data for line in run.logs(ranks=[1])] == [b"here"]
    assert run.verdict(attempt=1) == client.why(run)
    assert run.cancel() == outcome
    assert not run.resume()
    assert repr(run) == f"SyncRun('{run.id}')"


def test_a_run_in_a_thread_of_this_process(client: SyncClient, bench: Bench) -> None:
    run = client.submit(bench.spec("print('here')"), detach=False)
    assert run.wait(timeout=scaled(WAIT)).state == "succeeded"


def test_cancel_with_and_without_a_supervisor(client: SyncClient, bench: Bench) -> None:
    for kill in (False, True):
        run = client.submit(bench.spec("print('here', flush=True)\ntime.sleep(600)"))
        wait_until(lambda run=run: len(list(run.logs())) == 2, timeout=WAIT, what="both ranks")
        if kill:
            holder = run.directory.lease_holder()
            assert holder is not None
            os.kill(holder.pid, signal.SIGKILL)
        outcome = run.cancel("enough")
        assert (outcome.state, outcome.code) == ("cancelled", 130)
        assert "enough" in (run.status().reason or "")


def test_a_run_whose_supervisor_was_killed_is_resumed(
    client: SyncClient, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfall.client.run._ALONE_S", 0.3)
    leave = bench.folder / "leave"
    run = client.submit(bench.spec(f"print('here', flush=True)\n{waits_for(leave)}"))
    holder = run.directory.lease_holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    with pytest.raises(EvidenceLost, match="has no supervisor, so nothing can finish it"):
        run.wait()
    assert run.resume()
    assert not run.resume()
    leave.touch()
    assert run.wait(timeout=scaled(WAIT)).state == "succeeded"


def test_a_wait_has_a_limit(client: SyncClient, bench: Bench) -> None:
    run = client.submit(bench.spec("time.sleep(600)"))
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.2)
    assert run.cancel().state == "cancelled"


def test_the_same_request_gives_the_same_run(client: SyncClient, bench: Bench) -> None:
    spec, request = bench.spec("print('once')"), "request-1"
    first = client.submit(spec, request_token=request)
    second = client.submit(spec, request_token=request)
    assert first.id == second.id
    first.wait(timeout=scaled(WAIT))
    assert client.submit(spec, request_token=request).wait(timeout=scaled(WAIT)).attempts == 1
    assert [line.data for line in first.logs()] == [b"once", b"once"]
    with pytest.raises(UsageError, match=f"run {first.id} has this request token, .*command"):
        client.submit(bench.spec("print('twice')"), request_token=request)
    assert [run.run for run in client.runs()] == [first.id]


def test_what_cannot_work_creates_nothing(client: SyncClient, bench: Bench) -> None:
    with pytest.raises(SpecError):
        client.submit(JobSpec(command=("absent.py",), cwd=str(bench.folder)))
    with pytest.raises(SpecError):
        client.plan(JobSpec(command=("absent.py",), cwd=str(bench.folder)))
    assert client.runs() == []
    assert not bench.home.exists()


def test_a_plan_is_shown_and_starts_nothing(client: SyncClient, bench: Bench) -> None:
    plan = client.plan(bench.spec(env={"API_TOKEN": "abc"}))
    assert plan["launcher"] == "plain"
    assert plan["env"] == {"API_TOKEN": "***"}
    assert client.runs() == []


def test_the_spec_is_completed_with_folder_and_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = complete(JobSpec(command=("x.py",), policies=QUICK))
    assert done.cwd == str(tmp_path)
    assert done.python
    assert complete(done) == done


def test_targets_of_why(client: SyncClient, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.folder / "rank0.log"
    log.write_text('Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: bad\n')
    assert client.why(log).cause.slug == "user_code_exception"
    assert client.why([log]).run is None
    monkeypatch.chdir(bench.folder)
    assert client.why("rank0.log").cause.slug == "user_code_exception"
    with pytest.raises(NotFound):
        client.why("no-such-run")
    with pytest.raises(UsageError, match="no attempts"):
        client.why(log, attempt=1)


def test_the_public_names() -> None:
    assert rankfall.Client is Client
    assert rankfall.SyncClient is SyncClient
    assert rankfall.Run is Run
