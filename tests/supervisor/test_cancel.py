"""The wish for the end, from wherever it comes; and letting go of a run without ending it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from rankfall.model import FINAL_STATES, EvidenceLost, LockHeld, Outcome, StoreError
from rankfall.rundir import RunDir
from rankfall.supervisor import CancelRequest, Control, read_cancel, request_cancel, spawn_detached
from rankfall.supervisor.__main__ import main
from rankfall.supervisor.requests import signals_to
from support.helpers import gone, wait_until, waits_for
from support.patience import scaled

from .conftest import Bench

WAIT = 20.0
SLEEP = "print('here', flush=True)\ntime.sleep(600)"


class Threaded:
    """A supervisor in a thread."""

    def __init__(self, bench: Bench, run: RunDir) -> None:
        self.control = Control()
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._work, args=(bench, run))
        self._thread.start()

    def _work(self, bench: Bench, run: RunDir) -> None:
        self.outcome = bench.supervise(run, control=self.control)

    def join(self) -> Outcome:
        self._thread.join(scaled(WAIT))
        assert self.outcome is not None
        self.control.close()
        return self.outcome


def state(run: RunDir) -> str:
    with run.reader() as reader:
        return reader.run().state


def until_output(run: RunDir, count: int = 2) -> None:
    """Waits for whole lines: a rank that still writes its line's end dies of its wrapper's pipe when the wrapper is killed."""

    def lines() -> bool:
        return sum(path.read_bytes().count(b"here\n") for path in run.logs_dir.rglob("*.log")) >= count

    wait_until(lines, timeout=WAIT, what=f"{count} ranks")


@pytest.fixture
def alone() -> Iterator[list[int]]:
    """Pids of supervisors that a test started; ended when they outlive it."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_errors_s40_cancel_by_request_means_cancelled_and_no_retry(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(SLEEP))
    supervisor = Threaded(bench, run)
    until_output(run)
    request = request_cancel(run.path, reason="wrong data")
    outcome = supervisor.join()
    assert (outcome.state, outcome.code, outcome.exit_origin, outcome.attempts) == ("cancelled", 130, "rankfall", 1)
    assert outcome.verdict is not None
    assert outcome.verdict.cause.slug == "cancelled"
    with run.reader() as reader:
        assert reader.run().reason == request.text
        assert "wrong data" in request.text
        assert all(facts.killed_by == "wrapper" for facts in reader.slots(1))


def test_the_first_request_stands_and_a_damaged_one_counts(bench: Bench) -> None:
    run = bench.run_dir(bench.spec())
    assert read_cancel(run.path) is None
    first = request_cancel(run.path, reason="one")
    assert request_cancel(run.path, reason="two") == first
    (run.path / "cancel").write_bytes(b"\x00")
    assert read_cancel(run.path) is not None
    assert bench.supervise(run).state == "cancelled"
    assert not list(run.logs_dir.iterdir())


def test_cancel_through_the_control_object(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(SLEEP))
    supervisor = Threaded(bench, run)
    until_output(run)
    supervisor.control.cancel("Ctrl-C")
    assert supervisor.join().state == "cancelled"


def test_cancel_between_two_attempts(bench: Bench) -> None:
    run = bench.run_dir(bench.spec("os.kill(os.getpid(), 9)", nnodes=1, policies={"backoff_s": 50.0}))
    supervisor = Threaded(bench, run)
    wait_until(lambda: state(run) == "restarting", timeout=WAIT, what="the back-off")
    request_cancel(run.path)
    outcome = supervisor.join()
    assert (outcome.state, outcome.code, outcome.attempts) == ("cancelled", 130, 1)


def test_a_released_run_goes_on_and_is_taken_up_again(bench: Bench) -> None:
    leave = bench.folder / "leave"
    run = bench.run_dir(bench.spec(f"print('here', flush=True)\n{waits_for(leave)}\nprint('done')"))
    supervisor = Threaded(bench, run)
    until_output(run)
    supervisor.control.release()
    assert supervisor.join().state == "running"
    assert len(bench.left()) >= 4
    leave.touch()
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)
    assert (run.path / "rank-00000.log").read_text() == "here\ndone\n"


def test_a_second_supervisor_is_refused(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(SLEEP))
    supervisor = Threaded(bench, run)
    until_output(run)
    with pytest.raises(LockHeld):
        bench.supervise(run)
    with pytest.raises(LockHeld):
        spawn_detached(run, wait=0.0)
    supervisor.control.cancel()
    supervisor.join()


def test_cancel_of_a_run_whose_supervisor_was_killed(bench: Bench, alone: list[int]) -> None:
    run = bench.run_dir(bench.spec(SLEEP))
    alone.append(spawn_detached(run))
    until_output(run)
    os.kill(alone[0], signal.SIGKILL)
    wait_until(lambda: run.lease_holder() is None, timeout=WAIT, what="the lease free")
    request_cancel(run.path)
    assert bench.supervise(run).state == "cancelled"


def test_a_cancel_during_the_stop_after_a_failure_leaves_that_failure(bench: Bench) -> None:
    ready = bench.folder / "ready"
    slow = f"signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w').close(); time.sleep(600)"
    code = f"if rank == 0: {slow}\n{waits_for(ready)}\nraise ValueError('bad shape')"
    run = bench.run_dir(bench.spec(code))
    supervisor = Threaded(bench, run)
    wait_until(lambda: bench.texts("stopping") != [], timeout=WAIT, what="the stop of rank 0")
    request_cancel(run.path)
    outcome = supervisor.join()
    assert outcome.verdict is not None
    assert (outcome.state, outcome.code, outcome.verdict.rank) == ("failed", 1, 1)
    assert outcome.verdict.cause.slug == "user_code_exception"


@pytest.mark.parametrize(
    ("end", "later_s", "expected"),
    [
        ("raise ValueError('bad shape')", 2.0, ("failed", "user_code_exception")),
        ("pass", 2.0, ("succeeded", None)),
        ("raise ValueError('bad shape')", -2.0, ("cancelled", "cancelled")),
        # Such a signal may be the cancel itself.
        ("os.kill(os.getpid(), 15)", 2.0, ("cancelled", "cancelled")),
    ],
)
def test_a_cancel_of_a_run_whose_ranks_had_ended_before(
    bench: Bench, alone: list[int], end: str, later_s: float, expected: tuple[str, str | None]
) -> None:
    leave = bench.folder / "leave"
    run = bench.run_dir(bench.spec(f"print('here', flush=True)\n{waits_for(leave)}\n{end}"))
    alone.append(spawn_detached(run))
    until_output(run)
    os.kill(alone[0], signal.SIGKILL)
    wait_until(lambda: run.lease_holder() is None, timeout=WAIT, what="the lease free")
    leave.touch()
    wait_until(lambda: not bench.left(), timeout=WAIT, what="the end of both slots")
    at = time.time_ns() + round(later_s * 1e9)
    (run.path / "cancel").write_bytes(msgspec.json.encode(CancelRequest(at=at)))
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.verdict.cause.slug if outcome.verdict else None) == expected


def test_a_detached_supervisor_brings_a_run_to_its_end_and_leaves(bench: Bench, alone: list[int]) -> None:
    run = bench.run_dir(bench.spec("print('here')"))
    alone.append(spawn_detached(run))
    wait_until(lambda: state(run) in FINAL_STATES, timeout=WAIT, what="the end")
    assert state(run) == "succeeded"
    wait_until(lambda: gone(alone[0]), timeout=WAIT, what="the supervisor gone")
    assert "ended: run" in (run.path / "supervisor.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_detached_supervisor_cancels(bench: Bench, alone: list[int], number: int) -> None:
    run = bench.run_dir(bench.spec(SLEEP))
    alone.append(spawn_detached(run))
    until_output(run)
    os.kill(alone[0], number)
    wait_until(lambda: state(run) == "cancelled", timeout=WAIT, what="the end")
    wait_until(lambda: gone(alone[0]), timeout=WAIT, what="the supervisor gone")


# The second name is the one by which a supervisor of the previous version hands its run over.
@pytest.mark.parametrize("module", ["rankfall.supervisor", "rankfall.supervise"])
def test_a_hangup_hands_the_run_to_a_detached_supervisor(bench: Bench, alone: list[int], module: str) -> None:
    leave = bench.folder / "leave"
    run = bench.run_dir(bench.spec(f"print('here', flush=True)\n{waits_for(leave)}"))
    command = [sys.executable, "-m", module, str(run.path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        until_output(run)
        first.send_signal(signal.SIGHUP)
        assert first.wait(scaled(WAIT)) == 0
        holder = run.lease_holder()
        assert holder is not None
        assert holder.pid != first.pid
        alone.append(holder.pid)
    leave.touch()
    wait_until(lambda: state(run) in FINAL_STATES, timeout=WAIT, what="the end")
    assert state(run) == "succeeded"
    with run.reader() as reader:
        assert [row.attempt for row in reader.attempts()] == [1]


def test_a_supervisor_that_cannot_start_says_why(bench: Bench) -> None:
    run = bench.run_dir(bench.spec())
    (run.path / "spec.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "rankfall.supervisor", str(run.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 74
    assert "Traceback" not in done.stderr
    assert "spec.json" in done.stderr


def test_a_job_that_prints_without_end_can_be_cancelled(bench: Bench) -> None:
    run = bench.run_dir(bench.spec("print('here')\nwhile True: sys.stdout.write(('x' * 99 + '\\n') * 1000)", nnodes=1))
    supervisor = Threaded(bench, run)
    until_output(run, 1)
    supervisor.control.cancel()
    assert supervisor.join().state == "cancelled"


def test_wrong_words_for_a_supervisor_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--wait"]) == 2
    assert "usage: python -m rankfall.supervisor" in capsys.readouterr().err


def test_a_supervisor_by_hand_ends_with_the_runs_code(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    run = bench.run_dir(bench.spec("sys.exit(3 if rank else 0)", policies={"max_restarts": 0}))
    assert main(["--wait", "1", str(run.path)]) == 3
    assert "verdict: user_exit" in capsys.readouterr().err
    assert main([str(run.path.parent / "absent-000000")]) == 74


def test_a_detached_supervisor_that_cannot_start_says_why(bench: Bench) -> None:
    run = bench.run_dir(bench.spec())
    (run.path / "spec.json").write_text("{")
    with pytest.raises(EvidenceLost, match=r"did not start: .*spec\.json"):
        spawn_detached(run)


def test_wishes_and_signals_wake_a_waiting_supervisor() -> None:
    control = Control()
    control.signalled(signal.SIGINT)
    control.wait(60.0)
    assert control.take_signals() == [signal.SIGINT]
    assert control.take_signals() == []
    control.cancel("first")
    control.cancel("second")
    control.release()
    control.wait(60.0)
    assert (control.cancelled, control.release_request) == ("first", "release")
    control.hand_over()
    assert control.release_request == "hand_over"
    control.close()
    control.close()
    control.cancel()


def test_what_stirs_ends_only_the_waits_that_heed_it_and_is_not_forgotten() -> None:
    control = Control()
    control.stir()
    control.wait(0.0)
    # Each would wait for a minute, which is longer than the test may take.
    control.wait(60.0, wake_after=0.0)
    stirring = threading.Timer(0.05, control.stir)
    stirring.start()
    control.wait(60.0, wake_after=0.01)
    stirring.join()
    control.cancel()
    control.wait(60.0, wake_after=59.0)
    control.close()
    control.stir()


def test_signals_are_handled_in_the_main_thread_and_put_back() -> None:
    control = Control()
    before = signal.getsignal(signal.SIGTERM)
    with signals_to(control):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(control.take_signals, timeout=WAIT, what="the signal")
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: control.release_request, timeout=WAIT, what="the wish")
    assert signal.getsignal(signal.SIGTERM) is before
    assert control.release_request == "hand_over"

    def elsewhere() -> None:
        with signals_to(control):
            assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    control.close()


def test_a_request_that_cannot_be_written_is_an_error_with_a_next_step(bench: Bench) -> None:
    with pytest.raises(StoreError) as caught:
        request_cancel(bench.home / "runs" / "absent")
    assert caught.value.hint
