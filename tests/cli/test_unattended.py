"""The commands on runs that nobody supervises: they look, record and steer by themselves, and leave without ending anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from rankfall.cli import app
from rankfall.cli.commands import run as run_command
from rankfall.client import Client, Run
from rankfall.collect.pods.lazy_collector import LazyCollector
from rankfall.model import InfrastructureError, JobSpec
from rankfall.rundir import RunDir
from rankfall.supervisor import stopping, supervise
from rankfall.supervisor.unattended import control, driver, monitor, workload_poller
from supervisor.native_stories import AWAY, DONE, FELL, GOING, HELD, Bench
from support.helpers import wait_until


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(monitor, "_STEP_S", 0.002)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(workload_poller, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(driver, "POLL_INTERVAL_S", 0.004)
    monkeypatch.setattr(control, "_STEP_S", 0.002)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKFALL_HOME", str(tmp_path / "home"))
    made = Bench(tmp_path / "home", GOING)
    for module in (supervise, driver, control):
        monkeypatch.setattr(module, "backend_for", lambda _: made.cluster)
    return made


def launched(bench):
    driver.launch(bench.run, backend=bench.cluster)
    return bench.run.id


def test_submit_launches_and_leaves(bench, monkeypatch, capsys):
    monkeypatch.setattr(run_command, "_made", lambda *_, **__: bench.run)
    assert app.run(["submit", "--unattended", "x"]) == 0
    out = capsys.readouterr()
    assert out.out == f"{bench.run.id}\n"
    assert "unattended: Kubernetes alone restarts this run" in out.err
    assert (bench.cluster.launched, bench.run.lease_holder()) == ([1], None)


def test_status_looks_first_and_says_who_looks_after_it(bench, capsys):
    run = launched(bench)
    assert app.run(["status", run]) == 0
    text = capsys.readouterr().out
    assert "unattended: Kubernetes restarts and ends it; no process records its lines, seen 0" in text
    assert f" ago; rankfall attach {run} does" in text
    with bench.run.lease():
        assert app.run(["status", run]) == 0
    assert "another process records its lines" in capsys.readouterr().out
    bench.workload.looks = [DONE]
    assert app.run(["status", run, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], document["unattended"], document["supervised"]) == ("succeeded", True, False)
    assert app.run(["status", run]) == 0
    assert "unattended" not in capsys.readouterr().out


def test_a_cluster_that_cannot_be_asked_leaves_what_was_seen_last(bench, monkeypatch, capsys):
    run = launched(bench)

    def away(_):
        raise AWAY

    monkeypatch.setattr(driver, "backend_for", away)
    assert app.run(["logs", run]) == 0
    assert "cannot query the job now; this is its last recorded state: no answer" in capsys.readouterr().err


def test_why_of_a_run_that_nobody_saw(bench, capsys):
    run = launched(bench)
    bench.workload.looks = [FELL]
    assert app.run(["why", run]) == 0
    assert "no process recorded it" in capsys.readouterr().out


def test_wait_looks_itself_and_its_own_time_ends_only_itself(bench, capsys):
    run = launched(bench)
    assert app.run(["wait", run, "--timeout", "0.2s"]) == 124
    assert bench.run.lease_holder() is None
    bench.workload.looks = [DONE]
    assert app.run(["wait", run]) == 0
    assert f"{run} succeeded" in capsys.readouterr().out


def test_wait_leaves_the_recording_to_who_records(bench):
    run = launched(bench)
    with bench.run.lease() as writer:
        timer = threading.Timer(0.3, writer.set_run, ("succeeded",), {"reason": None, "at": 1})
        timer.start()
        assert app.run(["wait", run]) == 0
        timer.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_watches_lets_go_by_a_signal_and_ends_nothing(bench, number, capsys):
    run = launched(bench)
    sender = threading.Thread(
        target=lambda: (
            wait_until(bench.run.lease_holder, timeout=20, what="a recorder"),
            os.kill(os.getpid(), number),
        )
    )
    sender.start()
    assert app.run(["attach", run]) == 0
    sender.join()
    assert f"detached; {run} continues" in capsys.readouterr().err
    assert (bench.workload.asked, bench.run.lease_holder()) == ([], None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_i18_p7_who_waits_for_an_unattended_run_lets_go_by_a_signal_and_ends_nothing(bench, number, capsys):
    run = launched(bench)
    main = threading.get_ident()

    def send():
        wait_until(lambda: signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL, timeout=20, what="handlers")
        wait_until(bench.run.lease_holder, timeout=20, what="a recorder")
        signal.pthread_kill(main, number)

    sender = threading.Thread(target=send)
    sender.start()
    assert app.run(["wait", run]) == 128 + number
    sender.join()
    assert f"{run} continues" in capsys.readouterr().err
    assert (bench.workload.asked, bench.run.lease_holder()) == ([], None)


def gone_after(bench):
    """The workload is not there any more once its removal was asked for."""
    bench.workload.looks = [lambda: None if bench.workload.asked else GOING]


@pytest.mark.parametrize("answer", ["gone", "going", "unknown"])
def test_cancel_asks_itself_and_gives_one_of_three_answers(bench, answer, capsys):
    run = launched(bench)
    gone_after(bench)
    bench.workload.removed = answer
    code = app.run(["cancel", run, "--reason", "enough"])
    out = capsys.readouterr()
    if answer == "gone":
        assert (code, out.out) == (0, f"{run} cancelled\n")
    else:
        assert code == 69
        assert (
            "it still runs: waits" if answer == "going" else "its state in the cluster cannot be read: waits"
        ) in out.err
        assert f"rankfall cancel {run}" in out.err
        wait_until(lambda: bench.state()[0] == "cancelled", timeout=20, what="the recorder's end")


def test_suspend_and_resume_ask_themselves(bench, capsys):
    run = launched(bench)
    bench.pod(0)

    def look():
        if "suspend" not in bench.workload.asked:
            return GOING
        bench.pod(0, code=143)
        return HELD

    bench.workload.looks = [look]
    assert app.run(["suspend", run, "--reason", "lunch"]) == 0
    assert f"{run} suspended" in capsys.readouterr().out
    assert bench.state()[0] == "suspended"
    assert "lunch" in (bench.state()[1] or "")
    assert app.run(["resume", run]) == 0
    assert bench.workload.asked == ["suspend", "resume"]
    assert app.run(["resume", run]) == 0
    assert "is not suspended" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["suspend", "cancel", "cancel from Python"])
def test_logs_are_open_before_pods_are_told_to_end(bench, monkeypatch, verb):
    """What a kubelet has goes with the pod: who stops a run that nobody recorded may be faster than the recorder that it starts for that."""
    run = launched(bench)
    bench.pod(0)
    looks, opened, asked = [], [], bench.workload.asked

    def look():
        looks.append(len(asked))
        if not asked:
            return GOING
        bench.pod(0, code=143)
        return HELD if verb == "suspend" else None

    def following(_):
        opened.append(len(looks) >= 10)
        return opened[-1]

    bench.workload.looks = [look]
    monkeypatch.setattr(LazyCollector, "following", property(following))
    if verb == "cancel from Python":
        assert asyncio.run(Run(bench.run).cancel()).state == "cancelled"
    else:
        assert app.run([verb, run]) == 0
    assert opened[-1]
    assert looks[:10] == [0] * 10


def test_a_suspended_run_is_cancelled_without_waiting_for_logs(bench, monkeypatch):
    monkeypatch.setattr(stopping, "LOGS_OPEN_TIMEOUT_S", 1e9)
    run = launched(bench)
    bench.pod(0, code=143)
    bench.workload.looks = [lambda: None if "remove" in bench.workload.asked else HELD]
    driver.refresh_unattended(bench.run, backend=bench.cluster)
    assert bench.state()[0] == "suspended"
    assert app.run(["cancel", run]) == 0
    assert bench.state()[0] == "cancelled"


def test_logs_of_a_recorder_that_is_dead_or_of_an_attempt_before_count_as_not_open(bench, monkeypatch):
    monkeypatch.setattr(stopping, "LOGS_OPEN_TIMEOUT_S", 0.01)
    launched(bench)
    stopping.mark_logs_open(bench.run, 1)
    assert not stopping.wait_until_logs_open(bench.run)
    with bench.run.lease() as writer:
        assert not stopping.logs_are_open(bench.run)
        stopping.mark_logs_open(bench.run, 1)
        assert stopping.wait_until_logs_open(bench.run)
        writer.begin_attempt(2, at=5, plan=writer.attempts()[0].plan)
        assert not stopping.logs_are_open(bench.run)
    with bench.run.lease():
        # The same process, at another time.
        stopping.mark_logs_open(bench.run, 2)
        assert stopping.logs_are_open(bench.run)
    with bench.run.lease():
        assert not stopping.logs_are_open(bench.run)


def test_from_python_the_same(bench, tmp_path, monkeypatch):
    run = Run(bench.run)
    launched(bench)
    bench.workload.removed = "going"
    monkeypatch.setattr(stopping, "LOGS_OPEN_TIMEOUT_S", 0.01)
    with pytest.raises(InfrastructureError, match="was cancelled, but it still runs: waits"):
        asyncio.run(run.cancel())
    bench.workload.removed = "gone"
    gone_after(bench)
    assert asyncio.run(run.cancel()).state == "cancelled"
    assert asyncio.run(run.suspend()) is False
    assert asyncio.run(run.wait()).state == "cancelled"
    spec = JobSpec(command=("x",), backend="jobset", unattended=True)
    client = Client(home=tmp_path / "home")
    monkeypatch.setattr(Client, "_plan", lambda *_, **__: None)
    monkeypatch.setattr("rankfall.client.client.complete", lambda spec: spec)
    bench.cluster.launched.clear()
    again = asyncio.run(client.submit(spec))
    assert bench.cluster.launched == [1]
    bench.workload.looks = [DONE]
    assert asyncio.run(again.wait()).state == "succeeded"


def test_a_suspension_that_does_not_come_is_said(bench, monkeypatch):
    launched(bench)
    bench.workload.there = {"u": "Running"}
    monkeypatch.setattr(control, "_MARGIN_S", -1e9)
    with pytest.raises(InfrastructureError, match="was suspended, but it still runs"):
        asyncio.run(Run(bench.run).suspend())


def test_a_run_whose_spec_is_lost_is_still_shown(bench, capsys):
    (Path(bench.run.path) / "spec.json").write_text("{")
    assert app.run(["status", bench.run.id]) == 0
    assert RunDir(bench.run.path).id in capsys.readouterr().out
