"""Workloads that are deleted, or removed by their time to live: no attempt follows, and what was recorded keeps its verdict."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Cancellation
from rankfall.model import InfrastructureError
from rankfall.rundir.cluster.journal import SnapshotWriter
from rankfall.rundir.cluster.workload_state import NativeState, WorkloadFact, workload_path
from rankfall.supervisor.supervise import supervise
from rankfall.supervisor.unattended import driver, monitor, workload_poller
from supervisor.conftest import Bench as Local
from supervisor.native_stories import AT, AWAY, DONE, FELL, GOING, HELD, Bench


class SplitChunk(LocalBackend):
    """A platform on which somebody deletes each attempt after its verdict."""

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        return f"job x-a{plan.attempt} was deleted in the cluster" if surely else None


def test_i19_p6_a_proven_cause_stands_and_no_attempt_follows_the_deletion(bench: Local) -> None:
    code = "from rankfall_inside import Retryable\nraise Retryable('dataset server') if rank else SystemExit(0)"
    run = bench.run_dir(bench.spec(code, policies={"max_restarts": 3}))
    outcome = supervise(run, backend=SplitChunk(), on_event=bench.events.append)
    assert (outcome.state, outcome.attempts, outcome.exit_origin) == ("failed", 1, "rank")
    assert outcome.code == 1
    with run.reader() as reader:
        row, decisions = reader.run(), reader.decisions(1)
    assert row.reason == "job x-a1 was deleted in the cluster"
    assert decisions[-1].decision.because == f"no new attempt followed: {row.reason}"
    assert (decisions[-1].decision.action, decisions[-1].decision.rule) == ("stop", "not_begun")
    # The next supervisor finds the end, and starts nothing either.
    assert supervise(run, backend=SplitChunk()).code == outcome.code


class Waiting(LocalBackend):
    """A platform that cannot place a slot of an attempt, until somebody deletes it."""

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
        raise InfrastructureError("slot 1 could not be created")

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        return f"job x-a{plan.attempt} was deleted in the cluster"


def test_i19_p6_whoever_deletes_an_attempt_that_waits_has_ended_it(bench: Local) -> None:
    run = bench.run_dir(bench.spec(policies={"max_restarts": 3}))
    outcome = supervise(run, backend=Waiting(), on_event=bench.events.append)
    assert (outcome.state, outcome.code, outcome.attempts) == ("deleted", 130, 1)
    with run.reader() as reader:
        assert reader.run().reason == "job x-a1 was deleted in the cluster"


# -- unattended


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(monitor, "_STEP_S", 0.002)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(workload_poller, "_BEHIND_S", 0.05)
    monkeypatch.setattr(workload_poller, "_AGAIN_S", 0.004)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(workload_poller, "_STORE_S", 0.05)
    monkeypatch.setattr(driver, "POLL_INTERVAL_S", 0.004)


def watched(bench: Bench, state: NativeState, *, attempt: int = 1, **fields: Any) -> None:
    """What the watch of the workload saw."""
    writer: SnapshotWriter[WorkloadFact] = SnapshotWriter(workload_path(bench.run.path, attempt), WorkloadFact)
    fact: dict[str, Any] = {"seen_ns": 1, "uid": bench.workload.uid, "kind": "JobSet", "gone": True}
    writer.add(WorkloadFact(state=state, **(fact | fields)))
    writer.close()


def gone(bench: Bench, *codes: int | None, state: NativeState | None = None, **fields: Any) -> None:
    """The next look finds the pods ended so and the workload gone."""

    def look() -> None:
        for slot, code in enumerate(codes):
            bench.pod(slot, code=code)
        if state is not None:
            watched(bench, state, **fields)

    bench.workload.looks += [GOING, look, None]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("state", "codes", "expected"),
    [(DONE, (0, 0), ("succeeded", 0)), (DONE, (0, 143), ("succeeded", 0)), (FELL, (201, 143), ("failed", 201))],
)
def test_i19_p7_what_a_time_to_live_removed_at_once_ends_as_its_watch_saw(tmp_path, state, codes, expected):
    bench = Bench(tmp_path / "home", GOING, ttl_s=0)
    gone(bench, *codes, state=state)
    outcome = bench.record()
    assert (outcome.state, outcome.code) == expected


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("watch", ["", "behind", "vanished"])
def test_i19_p7_slots_that_all_ended_well_had_done_their_work(tmp_path, watch):
    bench = Bench(tmp_path / "home", GOING, ttl_s=0)
    fields = {"gone": watch == "vanished", "vanished": watch == "vanished"}
    gone(bench, 0, 0, state=GOING if watch else None, **fields)
    assert (bench.record().state, bench.state()[0]) == ("succeeded", "succeeded")


@pytest.mark.usefixtures("quick")
def test_i19_p7_a_proven_failure_keeps_its_verdict_and_its_code_although_nobody_saw_it_end(tmp_path):
    bench = Bench(tmp_path / "home", GOING, ttl_s=0)

    def leaves() -> NativeState:
        bench.pod(0)
        bench.pod(1)
        for kind in ("start", "error", "end"):
            data = {
                "schema": "rankfall.record/1",
                "id": f"{kind:0<32}",
                "kind": kind,
                "run": bench.run.id,
                "attempt": 1,
            }
            data |= {
                "slot": 1,
                "role": "worker",
                "rank": 1,
                "ordinal": 0,
                "pid": 9,
                "at_ns": time.time_ns(),
                "node": "n1",
            }
            if kind == "error":
                data |= {"types": ["ValueError"], "message": "bad shard", "traceback": "ValueError: bad shard"}
            if kind == "end":
                data["exit"] = {"how": "code", "code": 1}
            bench.run.records_dir.mkdir(exist_ok=True)
            (bench.run.records_dir / f"{kind}-a1-worker-1-{kind:0<32}.json").write_text(json.dumps(data))
        return GOING

    bench.workload.looks.append(leaves)
    gone(bench, 1, 1)
    outcome = bench.record()
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.slot) == ("user_code_exception", 1)
    assert (outcome.verdict.cause.confidence, outcome.state, outcome.code) == ("proven", "failed", 1)
    assert "time to live of 0 s after its end has passed" in (bench.state()[1] or "")


@pytest.mark.usefixtures("quick")
def test_i19_p7_what_was_deleted_while_it_ran_is_deleted(tmp_path):
    bench = Bench(tmp_path / "home", GOING, ttl_s=0)
    gone(bench, 143, 143, state=GOING)
    outcome = bench.record()
    assert (outcome.state, outcome.code) == ("deleted", 130)
    assert outcome.verdict is not None
    assert outcome.verdict.cause.slug == "cancelled"


def of(gang_uid: str, state: NativeState = GOING) -> NativeState:
    return msgspec.structs.replace(state, gang=gang_uid)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["runs", "away", "undated"])
def test_i19_p10_another_gang_is_another_attempt_whose_restarts_count_from_0(tmp_path, how):
    bench = Bench(tmp_path / "home", of("s1"), backend="trainjob")

    def first() -> NativeState:
        bench.pod(0)
        bench.pod(1)
        return of("s1", NativeState(phase="going", start=f"0/{AT}"))

    def replaced() -> NativeState:
        bench.pod(0, code=143)
        bench.pod(1, code=143)
        return of("s2")

    def done() -> NativeState:
        bench.pod(0, code=0, attempt=2)
        bench.pod(1, code=0, attempt=2)
        return of("s2", DONE)

    again = {"runs": [of("s2")], "away": [AWAY, of("s2")], "undated": [of("s2"), NativeState(phase="going"), of("s2")]}
    bench.workload.looks = [of("s1"), first, of("s1"), replaced, *again[how], of("s2"), done]
    outcome = bench.record()
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    with bench.run.reader() as reader:
        rows, diagnosis, slots = reader.attempts(), reader.diagnosis(1), reader.slots(2)
    assert [row.state for row in rows] == ["cancelled", "succeeded"]
    place = rows[1].plan["cluster"]
    assert (place["gang"], place["restart"], place["named"]) == ("s2", 0, 1)
    assert place["selector"] == "a=b,jobset.sigs.k8s.io/restart-attempt=0"
    assert diagnosis is not None
    assert diagnosis.verdict.cause.slug == "cancelled"
    assert diagnosis.verdict.node is None
    assert diagnosis.verdict.decision is not None
    assert "was deleted in the cluster, and its controller created a new one" in diagnosis.verdict.decision.because
    assert [one.exit_code for one in slots] == [0, 0]


@pytest.mark.usefixtures("quick")
def test_i19_p10_a_restart_by_its_own_set_keeps_the_gang(tmp_path):
    bench = Bench(tmp_path / "home", of("s1"), backend="trainjob", policies={"max_restarts": 1})

    def done() -> NativeState:
        bench.pod(0, code=0, attempt=2)
        bench.pod(1, code=0, attempt=2)
        return of("s1", msgspec.structs.replace(DONE, start="1/", restarts=1))

    again = of("s1", NativeState(phase="going", start="1/", restarts=1))
    bench.workload.looks = [of("s1"), again, again, again, done]
    assert bench.record().attempts == 2
    with bench.run.reader() as reader:
        place = reader.attempts()[1].plan["cluster"]
    assert (place.get("gang", ""), place["restart"]) == ("", 1)


@pytest.mark.usefixtures("quick")
def test_i19_p10_a_gang_that_was_replaced_while_it_was_suspended_is_found_when_it_goes_on(tmp_path):
    bench = Bench(tmp_path / "home", of("s1"), backend="trainjob")

    def held() -> NativeState:
        bench.pod(0, code=143)
        bench.pod(1, code=143)
        return of("s1", HELD)

    def done() -> NativeState:
        bench.pod(0, code=0, attempt=2)
        bench.pod(1, code=0, attempt=2)
        return of("s2", DONE)

    bench.workload.looks = [of("s1"), of("s1"), held, of("s2", HELD), of("s2"), of("s2"), done]
    assert bench.record().attempts == 2
    with bench.run.reader() as reader:
        rows = reader.attempts()
    assert [row.state for row in rows] == ["suspended", "succeeded"]
    assert rows[1].plan["cluster"]["gang"] == "s2"
