"""Unattended runs as their recorder sees them: launched once, ended by nobody but Kubernetes, and each of its starts of the gang an attempt."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from rankfall.evidence.attempt.observer import AttemptObserver, Delta
from rankfall.model import FINAL_STATES, InfrastructureError, Refused
from rankfall.rundir.cluster.marks import read_stop
from rankfall.supervisor import request_cancel, request_suspension, stopping
from rankfall.supervisor.requests import Control
from rankfall.supervisor.unattended import control as steering
from rankfall.supervisor.unattended import driver, monitor, workload_poller
from supervisor.native_stories import AGAIN, AT, AWAY, DONE, FELL, GOING, HELD, Bench
from support.flyte_errors import document

# AT, in nanoseconds since the epoch.
T0 = 1_795_287_600 * 10**9


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(monitor, "_STEP_S", 0.002)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(workload_poller, "_AGAIN_S", 0.004)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(workload_poller, "_STORE_S", 0.05)
    monkeypatch.setattr(driver, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(steering, "_STEP_S", 0.002)
    # Nobody records while these tests steer.
    monkeypatch.setattr(stopping, "LOGS_OPEN_TIMEOUT_S", 0.01)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def ended(bench, *codes):
    """A look that finds the pods ended so."""

    def look():
        for slot, code in enumerate(codes):
            bench.pod(slot, code=code)
        return DONE if not any(codes) else FELL

    return look


def test_a_run_that_its_workload_completes_has_succeeded(home):
    bench = Bench(home, GOING, GOING)
    bench.workload.looks.append(ended(bench, 0, 0))
    outcome = bench.record()
    assert (outcome.state, outcome.code, outcome.attempts, bench.cluster.launched) == ("succeeded", 0, 1, [1])
    with bench.run.reader() as reader:
        assert [facts.state for facts in reader.slots(1)] == ["ended", "ended"]
    assert bench.record() == outcome
    assert bench.cluster.launched == [1]


def flyte(folder, name, **fields):
    """A worker's error file of Flyte's, written while the slots run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(document("ValueError: bad shard", **fields))


@pytest.mark.parametrize("where", ["slot", "shared", "shared, of a pod"])
def test_errors_s17_an_error_file_beats_a_workload_that_says_complete(home, where):
    """Workers of Flyte's end with 0 although they failed: nobody is attached to say so, and Kubernetes alone calls the run succeeded."""
    bench = Bench(home, GOING)

    def leaves():
        bench.pod(0)
        bench.pod(1)
        if where == "slot":
            flyte(bench.run.slot_dir(1, "worker", 1) / "errors", "error.pb")
        else:
            flyte(bench.run.records_dir / "errors", "error-5f0c.pb", worker="p1" if where.endswith("pod") else "")
        return GOING

    bench.workload.looks += [leaves, GOING, ended(bench, 0, 0)]
    outcome = bench.record()
    assert (outcome.state, outcome.exit_origin, outcome.attempts) == ("failed", "rankfall", 1)
    assert outcome.code != 0
    verdict = outcome.verdict
    assert verdict is not None
    assert verdict.cause.slug == "user_code_exception"
    assert verdict.decisive is not None
    assert "bad shard" in verdict.decisive.line
    if where != "shared":
        assert (verdict.slot, verdict.pod, verdict.node) == (1, "p1", "n1")
    assert bench.state() == ("failed", "AllJobsCompleted, but a worker left an error file")


def test_errors_s24_an_error_file_of_a_strange_worker_or_from_before_denies_no_success(home):
    bench = Bench(home, GOING)

    def leaves():
        bench.pod(0)
        bench.pod(1)
        flyte(bench.run.records_dir / "errors", "error-1.pb", worker="somebody-else")
        flyte(bench.run.slot_dir(1, "worker", 1) / "errors", "error.pb", at=1_000_000_000 * 10**9)
        return GOING

    bench.workload.looks += [leaves, GOING, ended(bench, 0, 0)]
    assert bench.record().state == "succeeded"


def test_errors_s8_the_one_error_file_of_torchelastic_names_the_cause_of_a_run_without_recorder(home):
    bench = Bench(home, GOING, launcher="plain")
    said = {
        "message": {
            "message": "KeyError: 'vocab'",
            "extraInfo": {"timestamp": str(T0 // 10**9 + 2), "py_callstack": ""},
        }
    }

    def leaves():
        bench.pod(0)
        bench.pod(1)
        folder = bench.run.slot_dir(1, "worker", 1) / "errors"
        folder.mkdir(parents=True)
        (folder / "0.json").write_bytes(msgspec.json.encode(said))
        # What the wrapper saw of ranks that have no recorder of their own.
        for rank in (0, 1):
            seen = {"run": bench.run.id, "attempt": 1, "role": "worker", "slot": rank, "pid": 7, "writer": "wrapper"}
            start = seen | {"rank": rank, "local_rank": 0, "at_ns": T0}
            end = seen | {"exit": {"code": rank, "how": "wait"}, "at_ns": T0 + 5 * 10**9}
            for kind, row in (("start", start), ("end", end)):
                name = f"{kind}-a1-worker-{rank}-{kind}{rank}0000.json"
                found = row | {"kind": kind, "id": f"{kind}{rank}0000"}
                (bench.run.records_dir / name).write_bytes(msgspec.json.encode(found))
        return GOING

    bench.workload.looks += [leaves, GOING, ended(bench, 0, 1)]
    outcome = bench.record()
    assert outcome.state == "failed"
    assert outcome.verdict is not None
    assert (outcome.verdict.rank, outcome.verdict.slot) == (1, 1)
    assert outcome.verdict.cause.slug == "user_code_exception"
    assert outcome.verdict.decisive is not None
    assert "KeyError: 'vocab'" in outcome.verdict.decisive.line


def test_a_failure_is_told_from_what_was_recorded_and_the_rest_was_stopped_by_kubernetes(home):
    bench = Bench(home, GOING)
    bench.workload.looks.append(ended(bench, 3, 143))
    outcome = bench.record()
    assert (outcome.state, outcome.code) == ("failed", 3)
    assert outcome.verdict is not None
    assert (outcome.verdict.slot, outcome.verdict.cause.slug) == (0, "user_exit")
    assert bench.state() == ("failed", "FailedJobs: no more")


def test_what_kubernetes_ends_after_the_first_fall_is_no_cause(home):
    bench = Bench(home, GOING)

    def falling():
        bench.pod(0, code=3)
        bench.pod(1)
        return GOING

    bench.workload.looks += [falling, GOING, GOING, GOING]
    bench.workload.looks.append(ended(bench, 3, 143))
    outcome = bench.record()
    stop = read_stop(bench.run.path, 1)
    assert stop is not None
    assert stop.reason.startswith("Kubernetes ends the other slots")
    with bench.run.reader() as reader:
        assert [(facts.slot, facts.killed_by) for facts in reader.slots(1)] == [(0, None), (1, "wrapper")]
    assert outcome.verdict is not None
    assert outcome.verdict.slot == 0


@pytest.mark.parametrize(
    ("codes", "killed_by"),
    [
        ((137, 143), ["foreign", "wrapper"]),
        ((137, 137), ["foreign", "foreign"]),
        ((3, 143), [None, "wrapper"]),
        ((143, 143), ["foreign", "foreign"]),
    ],
)
def test_i19_p13_the_slot_whose_end_made_kubernetes_stop_the_others_was_not_stopped_itself(home, codes, killed_by):
    bench = Bench(home, GOING)
    bench.workload.looks.append(ended(bench, *codes))
    outcome = bench.record()
    assert outcome.verdict is not None
    assert outcome.verdict.slot in {0, None}
    with bench.run.reader() as reader:
        assert [facts.killed_by for facts in reader.slots(1)] == killed_by
        status = reader.status(time.time_ns())
    assert (status.failed, status.stopped) == (2 - killed_by.count("wrapper"), killed_by.count("wrapper"))


def test_i19_p13_a_container_beside_the_ranks_that_failed_the_pod_is_named(home):
    bench = Bench(home, GOING)

    def over():
        bench.pod(0, code=0, phase="Succeeded", others=("pre: Error: exit code 1",))
        bench.pod(1, code=0, phase="Failed", others=("log-out: Error: exit code 3", "proxy: Error: exit code 143"))
        return FELL

    bench.workload.looks.append(over)
    found = bench.record().verdict
    assert found is not None
    assert (found.cause.slug, found.slot, found.pod, found.rank) == ("user_exit", 1, "p1", None)
    assert found.decisive is not None
    assert found.decisive.line == "container log-out: Error: exit code 3; the ranks of this pod ended with 0"


def test_i19_p13_where_a_rank_failed_a_container_beside_it_is_context(home):
    bench = Bench(home, GOING)

    def over():
        bench.pod(0, code=3, phase="Failed")
        bench.pod(1, code=0, phase="Failed", others=("log-out: Error: exit code 4",))
        return FELL

    bench.workload.looks.append(over)
    found = bench.record().verdict
    assert found is not None
    assert (found.cause.slug, found.slot) == ("user_exit", 0)


def test_launch_s11_a_restart_of_the_gang_is_restarting_and_an_attempt_of_its_own(home):
    states: list[tuple[str, str | None]] = []
    bench = Bench(home, GOING, policies={"max_restarts": 2})

    def first():
        bench.pod(0, code=143)
        bench.pod(1, code=143)
        return GOING

    def restarted():
        states.append(bench.state())
        return AGAIN

    def running():
        states.append(bench.state())
        bench.pod(0, attempt=2)
        return AGAIN

    def done():
        states.append(bench.state())
        bench.pod(0, code=0, attempt=2)
        bench.pod(1, code=0, attempt=2)
        return msgspec.structs.replace(DONE, start="1/", restarts=1)

    bench.workload.looks += [first, restarted, AGAIN, AGAIN, running, AGAIN, AGAIN, done]
    outcome = bench.record()
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    assert not {state for state, _ in states} & FINAL_STATES
    assert states[1] == ("restarting", "attempt 2 of 3")
    assert states[2] == ("running", "attempt 2 of 3")
    with bench.run.reader() as reader:
        rows = reader.attempts()
        diagnosis = reader.diagnosis(1)
    assert [(row.attempt, row.state) for row in rows] == [(1, "failed"), (2, "succeeded")]
    assert rows[1].plan["cluster"]["selector"] == "a=b,jobset.sigs.k8s.io/restart-attempt=1"
    assert (rows[1].plan["cluster"]["named"], rows[1].plan["cluster"]["apart"]) == (1, [1])
    assert diagnosis is not None
    assert diagnosis.verdict.decision is not None
    assert (diagnosis.verdict.decision.rule, diagnosis.verdict.decision.state) == ("native", "done")


def test_starts_that_nobody_saw_are_attempts_without_a_word_and_say_how_to_have_them(home):
    bench = Bench(
        home, msgspec.structs.replace(FELL, start="2/", restarts=2, message="exit: failed with exit code 203 now")
    )
    outcome = bench.record()
    assert (outcome.state, outcome.attempts) == ("failed", 3)
    for attempt in (1, 2, 3):
        with bench.run.reader() as reader:
            found = reader.diagnosis(attempt)
        assert found is not None
        assert any("no process recorded it when it failed" in text for text in found.verdict.missing)
        assert found.verdict.rank is None
    assert outcome.verdict is not None
    # A controller repeats that something failed: that is shown, and is no cause.
    assert (outcome.verdict.cause.slug, outcome.verdict.cause.confidence) == ("unknown", "unknown")
    assert outcome.verdict.evidence[0].slug == "controller_verdict"
    assert any("only repeat that something failed" in text for text in outcome.verdict.missing)
    assert any("group of causes data" in text for text in outcome.verdict.missing)


def test_a_code_of_the_wrapper_tells_the_cause_where_its_records_are_lost(home):
    bench = Bench(home, GOING)
    bench.workload.looks.append(ended(bench, 201, 143))
    outcome = bench.record()
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.slot) == ("import_error", 0)


def test_a_native_deadline_blames_nobody(home):
    late = msgspec.structs.replace(FELL, reason="DeadlineExceeded", message="Job was active longer than specified")
    bench = Bench(home, GOING, late, deadlines={"attempt_s": 5.0})
    outcome = bench.record()
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank) == ("deadline_exceeded", None)


@pytest.mark.parametrize("ttl", [None, 60])
def test_a_workload_that_is_gone_was_deleted(home, ttl):
    bench = Bench(home, GOING, None, ttl_s=ttl)
    outcome = bench.record()
    assert (outcome.state, outcome.code) == ("deleted", 130)
    assert ("time to live of 60 s after its end has passed" in (bench.state()[1] or "")) == (ttl is not None)
    assert "while this process recorded it" in (bench.state()[1] or "")


def test_a_failure_before_the_deletion_remains_the_cause(home):
    bench = Bench(home, GOING)

    def failed():
        bench.pod(0)
        bench.pod(1, code=3)
        return GOING

    bench.workload.looks += [failed, GOING, None]
    outcome = bench.record()
    assert outcome.verdict is not None
    assert (outcome.state, outcome.verdict.cause.slug, outcome.verdict.slot) == ("failed", "user_exit", 1)
    assert "no longer exists" in (bench.state()[1] or "")


def test_an_end_after_the_request_to_delete_is_no_failure(home):
    bench = Bench(home, GOING)

    def stopped():
        bench.pod(0)
        bench.pod(1, code=3, deleting=AT)
        return GOING

    bench.workload.looks += [stopped, GOING, None]
    assert bench.record().state == "deleted"


def test_a_deletion_that_has_begun_is_one(home):
    bench = Bench(home, msgspec.structs.replace(GOING, deleting=True))
    assert bench.record().state == "deleted"


def test_a_cluster_that_does_not_answer_is_no_state_and_is_told_once(home):
    bench = Bench(home, GOING, AWAY, AWAY, AWAY)
    bench.workload.looks.append(ended(bench, 0, 0))
    assert bench.record().state == "succeeded"
    assert sum("cannot read " in text for text in bench.texts("gap")) == 1


def test_logs_that_do_not_come_to_their_end_are_waited_for_and_then_noted(home):
    bench = Bench(home, GOING, policies={"grace_s": 0.02})
    bench.pod(0)
    bench.workload.looks.append(DONE)
    bench.workload.there = {"u10": "Running"}
    assert bench.record().state == "succeeded"
    with bench.run.reader() as reader:
        assert any("could not be read completely: p0" in text for text in reader.run().incomplete)


def test_a_queue_and_a_suspension_are_shown_and_a_resumed_run_is_another_attempt(home):
    states = []
    bench = Bench(home, HELD, kubernetes={"queue": "gpu"})

    def shown(state):
        def look():
            states.append(bench.state()[0])
            return state

        return look

    def begun():
        bench.pod(0)
        return GOING

    def stopped():
        bench.pod(0, code=143)
        return HELD

    resumed = msgspec.structs.replace(GOING, start=f"0/{AT}")

    def done():
        bench.pod(0, code=0, attempt=2)
        bench.pod(1, code=0, attempt=2)
        return msgspec.structs.replace(DONE, start=f"0/{AT}")

    bench.workload.looks += [HELD, shown(HELD), begun, GOING, stopped, HELD, shown(HELD), AWAY, resumed, resumed, done]
    outcome = bench.record()
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    assert states == ["queued", "suspended"]
    with bench.run.reader() as reader:
        assert [row.state for row in reader.attempts()] == ["suspended", "succeeded"]
    assert bench.texts("suspended") == [
        f"suspended in the cluster, by a queue or a user; to continue: rankfall resume {bench.run.id}"
    ]


def test_a_resumption_that_nobody_saw_is_told_by_its_time(home):
    bench = Bench(home, GOING)
    bench.pod(0)

    def resumed():
        bench.pod(0, code=143, gone=True)
        return msgspec.structs.replace(GOING, start=f"0/{AT}")

    def done():
        bench.pod(0, code=0, attempt=2)
        bench.pod(1, code=0, attempt=2)
        return msgspec.structs.replace(DONE, start=f"0/{AT}")

    bench.workload.looks += [GOING, resumed, done]
    assert bench.record().attempts == 2


def test_who_lets_go_leaves_the_run_as_it_is_and_the_next_one_goes_on(home):
    bench = Bench(home, GOING)
    control = Control()
    control.release()
    assert bench.record(control=control).state == "running"
    control.close()
    assert (bench.state()[0], bench.run.lease_holder()) == ("starting", None)
    bench.workload.looks = [ended(bench, 0, 0)]
    assert bench.record().state == "succeeded"
    assert bench.cluster.launched == [1]


def test_a_look_takes_in_what_has_come_to_pass_and_leaves_what_goes_on(home):
    bench = Bench(home, GOING)
    driver.launch(bench.run, backend=bench.cluster)
    driver.launch(bench.run, backend=bench.cluster)
    assert (bench.cluster.launched, bench.state()[0]) == ([1], "starting")
    bench.workload.there = {"u10": "Running"}
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state()[0] == "running"
    bench.workload.looks = [AWAY]
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state()[0] == "running"
    bench.workload.looks = [ended(bench, 0, 0)]
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state()[0] == "succeeded"


@pytest.mark.parametrize("end", ["goes on", "gone", "stays"])
def test_a_look_at_a_suspended_run(home, end):
    bench = Bench(home, HELD)
    driver.launch(bench.run, backend=bench.cluster)
    bench.pod(0, code=143)
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state()[0] == "suspended"
    bench.workload.looks = [{"goes on": GOING, "gone": None, "stays": HELD}[end]]
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state()[0] == {"goes on": "starting", "gone": "deleted", "stays": "suspended"}[end]


def test_a_launch_that_the_server_refuses_ends_the_run_in_its_words(home):
    bench = Bench(home, GOING)
    bench.cluster.refusal = InfrastructureError("admission webhook says no")
    with pytest.raises(InfrastructureError, match="says no"):
        driver.launch(bench.run, backend=bench.cluster)
    assert bench.state() == ("failed", "the run could not be launched: admission webhook says no")
    with bench.run.reader() as reader:
        found = reader.diagnosis(1)
    assert found is not None
    assert found.verdict.decisive is not None
    assert "says no" in found.verdict.decisive.line


def test_a_plan_that_is_refused_ends_the_run(home):
    bench = Bench(home, GOING)
    bench.cluster.unplanned = Refused("no such kind")
    with pytest.raises(Refused):
        bench.record()
    assert bench.state()[0] == "failed"


def test_cancelled_before_anything_was_launched_nothing_is(home):
    bench = Bench(home, GOING)
    request_cancel(bench.run.path, reason="no")
    assert bench.record().state == "cancelled"
    assert bench.cluster.launched == []


def test_a_launch_that_was_killed_is_taken_back_by_a_cancel(home):
    bench = Bench(home, GOING)
    bench.cluster.refusal = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        bench.record()
    bench.cluster.refusal = None
    request_cancel(bench.run.path)
    assert bench.record().state == "cancelled"
    assert (bench.cluster.cleared, bench.cluster.launched) == ([1], [])


@pytest.mark.parametrize("answer", ["gone", "going", "unknown"])
def test_cancel_removes_it_itself_and_gives_one_of_three_answers(home, answer):
    bench = Bench(home, GOING)
    assert steering.cancel(bench.run, reason="r", say=print, backend=bench.cluster) == "gone"
    bench = Bench(home, GOING)
    driver.launch(bench.run, backend=bench.cluster)
    bench.workload.removed = answer
    said: list[str] = []
    assert steering.cancel(bench.run, reason="enough", say=said.append, backend=bench.cluster) == answer
    assert (bench.workload.asked, said) == (["remove"], ["waits"])
    bench.workload.looks = [None]
    outcome = bench.record()
    assert outcome.state == "cancelled"
    assert "enough" in (bench.state()[1] or "")
    stop = read_stop(bench.run.path, 1)
    assert stop is not None
    assert "enough" in stop.reason


def test_suspend_waits_until_no_pod_runs_and_resume_lets_it_go_on(home, monkeypatch):
    bench = Bench(home, GOING, policies={"grace_s": 0.01})
    assert steering.suspend(bench.run, reason="", backend=bench.cluster) == "unknown"
    assert not steering.resume(bench.run, reason="", backend=bench.cluster)
    driver.launch(bench.run, backend=bench.cluster)
    bench.workload.there = {"u10": "Running", "u11": "Succeeded"}
    timer = threading.Timer(0.05, bench.workload.there.pop, ("u10",))
    timer.start()
    assert steering.suspend(bench.run, reason="", backend=bench.cluster) == "gone"
    timer.join()
    assert steering.resume(bench.run, reason="", backend=bench.cluster)
    assert bench.workload.asked == ["suspend", "resume"]
    monkeypatch.setattr(steering, "_MARGIN_S", 0.0)
    bench.workload.there = {"u10": "Running"}
    assert steering.suspend(bench.run, reason="", backend=bench.cluster) == "going"

    def away(selector):
        raise AWAY

    monkeypatch.setattr(bench.workload, "pods", away)
    assert steering.suspend(bench.run, reason="", backend=bench.cluster) == "unknown"
    bench.workload.looks = [None]
    assert steering.suspend(bench.run, reason="", backend=bench.cluster) == "gone"


def test_who_suspended_it_is_said(home):
    bench = Bench(home, HELD)
    driver.launch(bench.run, backend=bench.cluster)
    request_suspension(bench.run.path, "suspend", reason="lunch")
    bench.pod(0, code=143)
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert "lunch" in (bench.state()[1] or "")


def test_plans_of_starts_without_a_cluster_or_of_a_job(home):
    bench = Bench(home, GOING, backend="job")
    plan = driver.first_start(bench.cluster.plan(bench.run.spec, bench.run, 1))
    assert plan.cluster is not None
    assert plan.cluster.selector == "a=b"
    second = driver.next_start(plan, bench.run, restarted=False)
    assert second.cluster is not None
    assert (second.attempt, second.cluster.selector, second.cluster.apart) == (2, "a=b", (1,))
    nowhere = msgspec.structs.replace(plan, cluster=None)
    assert driver.first_start(nowhere) is nowhere
    assert driver.next_start(nowhere, bench.run, restarted=True).cluster is None


def test_a_pod_that_the_journal_does_not_have_yet_is_waited_for(home):
    bench = Bench(home, GOING, DONE)
    bench.workload.there = {"u10": "Running"}
    asked = []

    def pods(selector, *, gang="", execution=None):
        asked.append(selector)
        if len(asked) == 3:
            bench.pod(0, code=0)
        return {"u10": "Succeeded"}

    bench.workload.pods = pods
    assert bench.record().state == "succeeded"
    assert len(asked) >= 3
    with bench.run.reader() as reader:
        assert reader.run().incomplete == ()
        assert [facts.state for facts in reader.slots(1)] == ["ended", "expected"]


def test_a_pod_that_a_job_replaces_by_itself_is_the_next_start_of_its_slot(home):
    bench = Bench(
        home, GOING, backend="job", restart_scope="replica", policies={"max_restarts": 2}, success={"policy": "all"}
    )

    def fallen():
        bench.pod(0, code=3, created="2026-11-21T19:00:00Z")
        bench.pod(1)
        return GOING

    def replaced():
        bench.pod(0, uid="next", created="2026-11-21T19:00:09Z")
        return GOING

    def done():
        bench.pod(0, uid="next", created="2026-11-21T19:00:09Z", code=0)
        bench.pod(1, code=0)
        return DONE

    bench.workload.looks += [fallen, GOING, GOING, replaced, *[GOING] * 20, done]
    outcome = bench.record()
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)
    with bench.run.reader() as reader:
        (row,) = reader.falls()
        slots = reader.slots(1)
        status = reader.status(0)
    assert (row.fall.slot, row.fall.instance, row.fall.rule, row.done_at is not None) == (0, 0, "native", True)
    assert row.fall.diagnosis.verdict.cause.slug == "user_exit"
    assert [(facts.slot, facts.instance, facts.exit_code) for facts in slots] == [(0, 1, 0), (1, 0, 0)]
    assert status.restarts.count == 1
    assert read_stop(bench.run.path, 1) is None


def test_replacements_that_nobody_saw_are_found_when_all_is_over(home):
    bench = Bench(home, GOING, backend="job", restart_scope="replica", policies={"max_restarts": 2})
    driver.launch(bench.run, backend=bench.cluster)
    for number, code in enumerate((3, 4, 5)):
        bench.pod(0, code=code, uid=f"u{number}", created=f"2026-11-21T19:00:0{number}Z")
    bench.pod(1, code=0)
    bench.workload.looks = [FELL]
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    with bench.run.reader() as reader:
        assert [row.fall.instance for row in reader.falls()] == [0, 1]
        found = reader.diagnosis(1)
    assert found is not None
    assert (found.verdict.slot, found.exit_code) == (0, 5)


def test_the_wrappers_code_for_a_stop_from_outside_is_the_stops(home):
    bench = Bench(home, GOING)

    def falling():
        bench.pod(0, code=3)
        bench.pod(1)
        return GOING

    bench.workload.looks += [falling, *[GOING] * 5, ended(bench, 3, 213)]
    verdict = bench.record().verdict
    assert verdict is not None
    assert (verdict.slot, verdict.cause.slug) == (0, "user_exit")
    assert all(one.rejected for one in verdict.alternatives)
    assert [one.slug for one in verdict.alternatives] == []


def test_a_suspension_whose_pods_were_gone_before_anybody_looked_ends_the_start_that_was_seen(home):
    bench = Bench(home, GOING)
    driver.launch(bench.run, backend=bench.cluster)
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    request_suspension(bench.run.path, "suspend", reason="lunch")
    bench.workload.looks = [HELD]
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    with bench.run.reader() as reader:
        assert [row.state for row in reader.attempts()] == ["suspended"]
    assert "lunch" in (bench.state()[1] or "")


def test_a_run_that_begins_suspended_says_so(home):
    bench = Bench(home, HELD, suspend=True)
    driver.launch(bench.run, backend=bench.cluster)
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state() == ("suspended", "suspended by its job spec")


def test_looks_are_seldom_only_while_nothing_but_lines_comes(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    watch = monitor.PollInterval()
    lines = Delta(records=(), evidence=(), failures=0, changed=False, bytes=1000, new_streams=0)
    assert watch.pause(lines, took=0.001) == monitor.BUSY_INTERVAL_S
    now[0] += monitor.QUIET_S
    assert watch.pause(lines, took=0.001) == monitor.IDLE_INTERVAL_S
    for more in ({"changed": True}, {"new_streams": 1}, {"bytes": monitor.MANY}):
        now[0] += monitor.QUIET_S
        assert watch.pause(msgspec.structs.replace(lines, **more), took=0.001) == monitor.BUSY_INTERVAL_S
    # What takes long is done seldom at once.
    assert watch.pause(lines, took=0.02) == 0.02 * monitor.IDLE_FACTOR
    assert watch.pause(lines, took=60.0) == monitor.IDLE_INTERVAL_S


def test_what_stirs_is_answered_after_ten_times_a_usual_look():
    watch = monitor.PollInterval()
    assert watch.wake_after(took=0.1) == 0.1 * monitor.WAKE_FACTOR
    # Dear only once: the looks around it are what one costs.
    assert watch.wake_after(took=0.001) == 0.001 * monitor.WAKE_FACTOR
    assert watch.wake_after(took=0.1) == 0.001 * monitor.WAKE_FACTOR
    assert watch.wake_after(took=0.002) == 0.002 * monitor.WAKE_FACTOR
    # Dear each time.
    assert [watch.wake_after(took=took) for took in (0.2, 0.2)] == [
        0.002 * monitor.WAKE_FACTOR,
        0.2 * monitor.WAKE_FACTOR,
    ]


def test_a_stir_need_not_wait_as_long_as_calm_does_after_a_dear_look(home, monkeypatch):
    """A first line makes a look dear. What comes next was shown two seconds later, whatever stirred."""
    waits: list[tuple[float, float]] = []

    class Heeding(Control):
        def wait(self, seconds: float, *, wake_after: float | None = None) -> None:
            if wake_after is not None:
                waits.append((seconds, wake_after))
            super().wait(0.0)

    bench = Bench(home, GOING)
    bench.workload.looks += [*[GOING] * 6, ended(bench, 0, 0)]
    # Begin and end of each look, seconds of CPU: the third is dear.
    clock = iter([took for number in range(1000) for took in (0.0, 0.3 if number == 2 else 0.001)])
    # Of this module alone: what a look reads counts its own time.
    monkeypatch.setattr(monitor, "time", SimpleNamespace(**vars(time) | {"thread_time": lambda: next(clock)}))
    bench.record(control=Heeding())
    assert len(waits) > 3
    assert waits[2] == (monitor.IDLE_INTERVAL_S, 0.001 * monitor.WAKE_FACTOR)


def test_signatures_are_compiled_before_the_first_line(home, monkeypatch):
    prepared: list[int] = []
    prepare, poll = AttemptObserver.prepare, AttemptObserver.poll

    def preparing(self):
        prepared.append(0)
        prepare(self)

    def polling(self, now):
        assert prepared
        return poll(self, now)

    monkeypatch.setattr(AttemptObserver, "prepare", preparing)
    monkeypatch.setattr(AttemptObserver, "poll", polling)
    bench = Bench(home, GOING)
    bench.workload.looks += [GOING, ended(bench, 0, 0)]
    bench.record()
    assert prepared
