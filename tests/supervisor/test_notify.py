"""Messages about real runs: they reach what listens, are repeated where nobody answers, and a run waits for none of them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall import notify
from rankfall.model import JobSpec, Notify, NotifyTarget, decoding
from rankfall.model.run_status import Notification
from rankfall.model.timestamps import rfc3339
from rankfall.rundir import RunDir
from rankfall.supervisor import read_events, request_cancel
from support.helpers import gone, wait_until
from support.patience import scaled
from support.receiver import Receiver, receiver

from .conftest import Bench, Threaded

# Rank 1 fails in the first attempt; the second one goes on when the gate opens.
JOB = """
attempt = os.environ["RANKFALL_ATTEMPT"]
if attempt == "1":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)
open(f"second-{rank}", "w").close()
while not os.path.exists("gate"):
    time.sleep(0.01)
"""
NOTE = Notification(
    id="r/failure-1", event="failure", at="2026-01-01T00:00:00Z", run="r", name="r", state="running",
    text="Rank 1 failed.", command="rankfall why r",
)  # fmt: skip
ALL = ("failure", "restart", "end")


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run waits for messages as long as a busy machine needs to load a client."""
    monkeypatch.setattr("rankfall.supervisor.supervise.NOTIFY_WAIT_S", scaled(30.0))


@pytest.fixture
def one_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "TRY_S", 1.0)


def to(*urls: str, events: tuple[str, ...] = ALL) -> Notify:
    return Notify(events=events, targets=tuple(NotifyTarget(webhook=url) for url in urls))  # type: ignore[arg-type]


def senders(run: RunDir) -> list[int]:
    """Processes that send messages of a run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"rankfall.notify" in words and os.fsencode(run.path) in words:
            found.append(int(folder.name))
    return found


def wait_sent(run: RunDir) -> None:
    wait_until(lambda: not senders(run), timeout=90, what="the sender ends")


def told(run: RunDir) -> list[str]:
    return [event.text for event in read_events(run.path)[0] if event.kind == "notify"]


def documents(*hooks: Receiver) -> dict[str, dict[str, Any]]:
    """The one document of each event, the same in all requests to all receivers."""
    found: dict[str, dict[str, Any]] = {}
    for body in (body for hook in hooks for body in hook.bodies):
        assert found.setdefault(body["id"].partition("/")[2], body) == body
    return found


def files_with(folder: Path, secret: str) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()}


def test_each_event_is_sent_once_to_every_receiver(bench: Bench, hook: Receiver) -> None:
    (bench.folder / "gate").touch()
    letter, page = bench.folder / "letter", bench.folder / "page"
    tools = bench.folder / "tools"
    tools.mkdir()
    for path, out in ((tools / "sendmail", letter), (tools / "pager", page)):
        path.write_text(f'#!/bin/sh\necho "$@" >>{out}\ncat >>{out}\necho >>{out}\n')
        path.chmod(0o755)
    targets = (
        NotifyTarget(webhook=f"{hook.url}/services/PATHSECRET"),
        NotifyTarget(email="team@example.org"),
        NotifyTarget(command=(str(tools / "pager"), "--team", "ml")),
    )
    run = bench.run_dir(bench.spec(JOB, notify=Notify(events=ALL, targets=targets)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        assert bench.supervise(run).state == "succeeded"
    wait_sent(run)
    assert hook.ids == ["failure-1", "restart-2", "end"]
    first, second, last = (decoding.convert(body, Notification) for body in hook.bodies)
    assert first.text.startswith("Rank 1 on node1 was killed by SIGKILL")
    assert (first.cause, first.rank, first.node, first.attempt) == ("killed_unknown", 1, "node1", 1)
    assert (first.decision or "").startswith("restart")
    assert first.command == f"rankfall why {run.id}"
    assert (second.event, second.attempt) == ("restart", 2)
    assert (last.event, last.state, last.text) == ("end", "succeeded", "The run succeeded in attempt 2.")
    assert letter.read_text().count("Subject: [rankfall] ") == 3
    assert "-i -- team@example.org\nTo: team@example.org\n" in letter.read_text()
    assert page.read_text().count("--team ml\n") == 3
    assert [line for line in page.read_text().splitlines() if "failure-1" in line]
    assert told(run) == []
    assert files_with(run.path, "PATHSECRET") == {"secrets.json"}
    assert "PATHSECRET" not in repr(run.whole_spec())


def test_a_run_that_nothing_happens_to_sends_its_end_alone(bench: Bench, hook: Receiver) -> None:
    run, outcome = bench.run("pass", notify=to(hook.url))
    assert outcome.state == "succeeded"
    wait_sent(run)
    assert hook.ids == ["end"]
    _, outcome = bench.run("pass", notify=to(hook.url, events=("failure", "restart")))
    assert outcome.state == "succeeded"
    assert hook.ids == ["end"]


def test_a_run_restarts_and_ends_while_a_receiver_hangs_and_another_answers(
    bench: Bench, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfall.supervisor.supervise.NOTIFY_WAIT_S", 0.1)
    hook.hangs = True
    with receiver() as other:
        run = bench.run_dir(bench.spec(JOB, notify=to(f"{hook.url}/PATHSECRET", other.url)))
        thread = Threaded(bench, run, wait=60)
        wait_until(lambda: hook.bodies, timeout=60, what="the receiver hangs")
        # The second attempt runs although nobody has answered the first message.
        wait_until((bench.folder / "second-1").exists, timeout=60, what="attempt 2")
        (bench.folder / "gate").touch()
        outcome = thread.join()
        assert (outcome.state, outcome.attempts) == ("succeeded", 2)
        assert hook.hangs
        assert any("rankfall attach" in text for text in bench.texts("notify"))
        wait_until(lambda: len(other.ids) == 3, timeout=60, what="the other receiver has all")
        hook.close()
        wait_sent(run)
        assert other.ids == ["failure-1", "restart-2", "end"]
    undelivered = [text for text in told(run) if "did not get the message" in text]
    assert undelivered
    assert all("/*** " in text and "next: rankfall config notify --test" in text for text in undelivered)
    assert files_with(run.path, "PATHSECRET") == {"secrets.json"}


def test_late_and_repeated_messages_are_those_of_the_events(
    bench: Bench, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfall.supervisor.supervise.NOTIFY_WAIT_S", 0.1)
    hook.hangs, hook.statuses = True, [500]
    with receiver() as other:
        run = bench.run_dir(bench.spec(JOB, notify=to(hook.url, other.url)))
        thread = Threaded(bench, run, wait=60)
        wait_until(lambda: hook.bodies, timeout=60, what="the receiver hangs")
        (bench.folder / "gate").touch()
        assert thread.join().state == "succeeded"
        hook.let_go()
        wait_sent(run)
        assert set(hook.ids) == {"failure-1", "restart-2", "end"}
        found = documents(hook, other)
    with run.reader() as reader:
        (decision,), (_, second), row = reader.decisions(1), reader.attempts(), reader.run()
    assert [(found[key]["state"], found[key]["at"]) for key in ("failure-1", "restart-2", "end")] == [
        ("restarting", decision.decision.at),
        ("starting", rfc3339(second.started)),
        ("succeeded", rfc3339(row.ended)),
    ]


def test_a_cancel_during_the_back_off_changes_no_message_that_is_late(bench: Bench, hook: Receiver) -> None:
    policies = {"backoff_s": 600.0, "backoff_max_s": 600.0}
    run = bench.run_dir(bench.spec(JOB, notify=to(hook.url), policies=policies))
    with (run.path / notify.LOCK_NAME).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = Threaded(bench, run, wait=60)
        wait_until(lambda: bench.texts("decision"), timeout=60, what="the decision")
        thread.control.cancel("test")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rankfall.supervisor.supervise.NOTIFY_WAIT_S", 0.1)
            assert thread.join().state == "cancelled"
    wait_sent(run)
    found = documents(hook)
    assert list(found) == ["failure-1", "end"]
    assert found["failure-1"]["state"] == "restarting"
    assert found["failure-1"]["decision"].startswith("restart")
    assert found["end"]["state"] == "cancelled"


SLOW_CLIENT = """
import os, sys, time
until = time.monotonic() + {limit}
while not os.path.exists({page!r}) and time.monotonic() < until:
    time.sleep(0.01)
sys.path.remove({folder!r})
del sys.modules["aiohttp"]
import aiohttp
"""


def test_a_client_that_loads_slowly_delays_no_other_target_and_costs_no_try(
    bench: Bench, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client loads until the last target, a command, has its message, longer than a try may take."""
    page, folder = bench.folder / "page", bench.folder / "modules"
    folder.mkdir()
    limit = scaled(2 * notify.TRY_S)
    (folder / "aiohttp.py").write_text(SLOW_CLIENT.format(page=str(page), folder=str(folder), limit=limit))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    targets = (NotifyTarget(webhook=hook.url), NotifyTarget(command=("sh", "-c", f"sleep 0.1; cat >{page}")))
    hook.statuses = [500, 500, 500]
    run, outcome = bench.run("sys.exit(3)", notify=Notify(events=("end",), targets=targets))
    assert outcome.state == "failed"
    wait_sent(run)
    assert decoding.decode(page.read_bytes(), kind=Notification) == decoding.convert(hook.bodies[0], Notification)
    # The command came first, and each of the three tries reached the receiver.
    with (run.path / notify.MARKS_NAME).open("rb") as file:
        marks = [decoding.decode(line, kind=notify.Mark) for line in file]
    assert [mark.key for mark in marks] == ["end", "end:1", "end:0"]
    assert hook.ids == ["end"] * 3


def test_what_refuses_redirects_or_fails_for_a_while_is_told_and_tried_again(bench: Bench, hook: Receiver) -> None:
    with receiver() as gone:
        closed = gone.url
    hook.statuses = [500, 503]
    with receiver() as moved:
        moved.status = 302
        run, outcome = bench.run("sys.exit(3)", notify=to(hook.url, closed, moved.url, events=("end",)))
        assert outcome.state == "failed"
        wait_sent(run)
        assert moved.ids == ["end"]
        assert moved.paths == ["/"]
    assert hook.ids == ["end"] * 3
    assert hook.bodies[0] == hook.bodies[1] == hook.bodies[2]
    assert "The run failed in attempt 1. " in hook.bodies[0]["text"]
    texts = sorted(told(run))
    assert len(texts) == 2
    assert any("no connection: Connection refused" in text for text in texts)
    assert any("it answered 302, a redirect" in text for text in texts)


@pytest.mark.parametrize("also_sender", [False, True])
def test_a_takeover_sends_what_a_killed_supervisor_owed(bench: Bench, hook: Receiver, also_sender: bool) -> None:  # noqa: FBT001
    hook.hangs = True
    run = bench.run_dir(bench.spec(JOB, notify=to(hook.url)))
    first = subprocess.Popen([sys.executable, "-m", "rankfall.supervisor", str(run.path)], stderr=subprocess.DEVNULL)
    wait_until(lambda: hook.bodies, timeout=60, what="the receiver has the first message")
    first.kill()
    first.wait()
    if also_sender:
        for pid in senders(run):
            os.kill(pid, signal.SIGKILL)
    else:
        assert senders(run)
    hook.let_go()
    (bench.folder / "gate").touch()
    assert bench.supervise(run).state == "succeeded"
    wait_sent(run)
    sent = Counter(hook.ids)
    assert set(sent) == {"failure-1", "restart-2", "end"}
    assert sent["restart-2"] == sent["end"] == 1
    # Nobody knows if a killed process was answered.
    assert sent["failure-1"] == (2 if also_sender else 1)
    documents(hook)
    assert told(run) == []


def test_marks_without_room_repeat_nothing_while_the_supervisor_lives(bench: Bench, hook: Receiver) -> None:
    run = bench.run_dir(bench.spec(JOB, notify=to(hook.url)))
    (run.path / notify.MARKS_NAME).mkdir()
    thread = Threaded(bench, run, wait=60)
    wait_until(lambda: len(hook.ids) == 2, timeout=60, what="two messages")
    wait_sent(run)
    (bench.folder / "gate").touch()
    assert thread.join().state == "succeeded"
    wait_sent(run)
    assert hook.ids == ["failure-1", "restart-2", "end"]


def test_one_process_of_a_run_sends_at_a_time(bench: Bench, hook: Receiver) -> None:
    run = bench.run_dir(bench.spec("pass", notify=to(hook.url)))
    with (run.path / notify.LOCK_NAME).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rankfall.supervisor.supervise.NOTIFY_WAIT_S", 0.1)
            assert bench.supervise(run).state == "succeeded"
        assert senders(run)
        assert hook.ids == []
    wait_sent(run)
    assert hook.ids == ["end"]


def test_lost_secrets_are_told_and_end_no_run(bench: Bench, hook: Receiver) -> None:
    run = bench.run_dir(bench.spec(JOB, notify=to(hook.url)))
    thread = Threaded(bench, run, wait=60)
    wait_until(lambda: len(hook.ids) == 2, timeout=60, what="two messages")
    wait_sent(run)
    (run.path / "secrets.json").unlink()
    (bench.folder / "gate").touch()
    assert thread.join().state == "succeeded"
    wait_sent(run)
    assert hook.ids == ["failure-1", "restart-2"]
    assert any("messages cannot be sent: the value at /notify/targets/0/webhook" in text for text in told(run))


def sent_once(target: NotifyTarget) -> notify.Problem | None:
    return asyncio.run(notify.try_once(target, NOTE))


@pytest.mark.usefixtures("one_s")
def test_a_receiver_or_command_that_hangs_is_left(hook: Receiver, tmp_path: Path) -> None:
    hook.hangs = True
    assert sent_once(NotifyTarget(webhook=hook.url)) == notify.Problem("no answer within 1 s")
    code = f"echo $$ >{tmp_path}/pids; sleep 100 & echo $! >>{tmp_path}/pids; wait"
    assert sent_once(NotifyTarget(command=("sh", "-c", code))) == notify.Problem("no answer within 1 s")
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        wait_until(lambda pid=pid: gone(pid), timeout=10, what=f"process {pid} ends")  # type: ignore[misc]


def test_problems_name_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(notify, "_SBIN", str(tmp_path))
    for target, text in (
        (NotifyTarget(webhook="http://127.0.0.1:1/PATHSECRET"), "no connection: Connection refused"),
        (NotifyTarget(webhook="http://user:PATHSECRET@127.0.0.1:1/x"), "no connection: Connection refused"),
        (NotifyTarget(command=("nosuch", "--token", "PATHSECRET")), "it cannot start: No such file or directory"),
        (NotifyTarget(command=(sys.executable, "-c", "raise SystemExit(7)")), "it ended with 7"),
        (NotifyTarget(email="team@example.org"), "this machine has no sendmail"),
    ):
        problem = sent_once(target)
        assert problem is not None
        assert problem.text == text
        assert "PATHSECRET" not in notify.label_of(target)


def test_importing_the_supervisor_loads_no_client() -> None:
    code = "import sys; import rankfall.supervisor.supervise, rankfall.notify; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_python_job_may_name_receivers(bench: Bench, hook: Receiver) -> None:
    spec: JobSpec = bench.spec("sys.exit(3) if rank else None", notify=to(hook.url, events=("failure", "end")))
    run = bench.run_dir(spec)
    assert bench.supervise(run).state == "failed"
    wait_sent(run)
    assert hook.ids == ["failure-1", "end"]


def test_a_hang_is_sent_before_its_verdict_and_the_reason_of_a_cancel_at_the_end(bench: Bench, hook: Receiver) -> None:
    events = ("hang", "failure", "restart", "end")
    code = """
print("here", flush=True)
while os.environ["RANKFALL_ATTEMPT"] == "2":
    print("still here", flush=True)
    time.sleep(0.1)
time.sleep(600)
"""
    policies = {"hang_timeout_s": 2.0, "budgets": {"rank_stuck": 2}}
    run = bench.run_dir(bench.spec(code, notify=to(hook.url, events=events), policies=policies))
    thread = Threaded(bench, run, wait=60)
    wait_until(lambda: "restart-2" in hook.ids, timeout=90, what="the second attempt")
    request_cancel(run.path, reason="token=abcdefgh12345678 <!channel>")
    thread.control.cancel("test")
    assert thread.join().state == "cancelled"
    wait_sent(run)
    assert hook.ids == ["hang-1", "failure-1", "restart-2", "end"]
    assert hook.bodies[0]["text"].startswith("Hang in attempt 1: ")
    assert hook.bodies[0]["cause"] is None
    assert hook.bodies[1]["cause"] is not None
    assert hook.bodies[3]["text"].startswith("The run was cancelled: cancelled by ")
    assert "abcdefgh" not in hook.bodies[3]["text"]


def test_a_slot_that_restarts_alone_is_a_failure_of_its_own(bench: Bench, hook: Receiver) -> None:
    code = """
slot, again = os.environ["RANKFALL_SLOT"], os.path.exists("before")
if slot == "1" and not again:
    open("before", "w").close()
    sys.exit(130)
while not os.path.exists("before"):
    time.sleep(0.01)
"""
    spec = bench.spec(code, nnodes=2, launcher="exec", restart_scope="replica", notify=to(hook.url))
    run = bench.run_dir(msgspec.structs.replace(spec, command=(str(spec.python), *spec.command)))
    assert bench.supervise(run).state == "succeeded"
    wait_sent(run)
    assert hook.ids == ["failure-1-slot-1-0", "end"]
    assert hook.bodies[0]["decision"].startswith("restart")
