"""Who only watches a run ends nothing: a signal to a viewer lets go, one to the supervisor cancels. Real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall.cli import session as sessions
from rankfall.cli.interrupts import Reading
from rankfall.cli.session import Session
from rankfall.cli.values import Ranks
from rankfall.cli.viewer import Viewer
from rankfall.client import Client
from rankfall.model import JobSpec, LockHeld, Outcome
from rankfall.rundir import RunDir, list_runs
from rankfall.supervisor import Control, read_cancel
from support.helpers import wait_until
from support.patience import scaled

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]
GANG = ("--nproc-per-node", "2", "--launcher", "plain")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
TALKS: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
HOLDS = """
import sys
from pathlib import Path
from rankfall.rundir import RunDir
with RunDir(Path(sys.argv[1])).lease():
    print("held", flush=True)
    sys.stdin.read()
"""
WAITS = """
from pathlib import Path
from rankfall.client import SyncClient
print("waiting", flush=True)
SyncClient(home=Path({home!r})).get({run!r}).wait()
"""


@pytest.fixture
def gate(folder: Path) -> Path:
    return folder / "gate"


@pytest.fixture
def submitted(rankfall: Runner, gate: Path, home: Path) -> RunDir:
    """A run with a supervisor of its own; its ranks wait for the gate."""
    done = rankfall("submit", "-q", *GANG, "train.py", GATE=str(gate))
    assert done.returncode == 0, done.stderr
    [run] = list_runs(home)
    wait_until(lambda: b"rank 1 to stderr" in said(run), timeout=40, what="lines of all ranks")
    return run


def said(run: RunDir) -> bytes:
    return b"".join(path.read_bytes() for path in run.logs_dir.rglob("*.log"))


def watches(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process catches SIGHUP, the last of the signals for which it installs a handler when it begins to watch."""
    status = Path(f"/proc/{process.pid}/status")

    def catches() -> bool:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGHUP - 1) & 1)

    wait_until(catches, timeout=40, what="its handlers")


def let_go(process: subprocess.Popen[bytes], number: int) -> str:
    """What the viewer says on stderr after the signal."""
    watches(process)
    process.send_signal(number)
    _, told = process.communicate(timeout=scaled(30))
    return told.decode()


def ends_by_itself(run: RunDir, rankfall: Runner) -> None:
    """The run was not touched: it lives, nobody asked for its end, and it succeeds in its first attempt."""
    assert read_cancel(run.path) is None
    with run.reader() as reader:
        assert reader.run().state in {"starting", "running"}
    (run.path.parents[2] / "work" / "gate").touch()
    done = rankfall("wait", run.id)
    assert (done.returncode, done.stdout) == (0, f"{run.id} succeeded\n"), done.stderr
    with run.reader() as reader:
        assert [row.attempt for row in reader.attempts()] == [1]


# Each verb with two signals and each signal with two verbs; the rest takes the same ways.
@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param(
            words,
            number,
            id=f"{' '.join(words)}-{number.name}",
            marks=[pytest.mark.full] * (verb == place),
        )
        for verb, words in enumerate((("attach",), ("wait",), ("logs", "-f")))
        for place, number in enumerate((signal.SIGINT, signal.SIGHUP, signal.SIGTERM))
    ],
)
def test_i18_p7_a_viewer_that_gets_a_signal_lets_go_and_the_run_goes_on(
    words: tuple[str, ...], number: int, submitted: RunDir, start: Starter, rankfall: Runner
) -> None:
    viewer = start(*words, submitted.id, **PIPES)
    told = let_go(viewer, number)
    assert f"{submitted.id} continues" in told
    assert f"rankfall attach {submitted.id}" in told
    assert f"rankfall cancel {submitted.id}" in told
    # A terminal that went away is a detach of attach, as ever.
    detached = number == signal.SIGHUP and words == ("attach",)
    assert viewer.returncode == (0 if detached else 128 + number), told
    if words != ("logs", "-f") and not detached:
        assert told.splitlines()[-1] == f"rankfall-exit: rankfall {128 + number}"
    ends_by_itself(submitted, rankfall)


def dropped_in_a_finaliser(number: int) -> None:
    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(number)

    Dropped()


def dropped_by_a_decoder(number: int) -> None:
    """Msgspec tries attributes of a type, some of which are Python code, and clears whatever they raise."""
    came: list[str] = []

    class Tried(type):
        def __getattr__(cls, name: str) -> object:
            if not came:
                came.append(name)
                signal.raise_signal(number)
            raise AttributeError(name)

    class Shape(metaclass=Tried):
        pass

    msgspec.json.Decoder(Shape)
    assert came


@pytest.mark.parametrize("drop", [dropped_in_a_finaliser, dropped_by_a_decoder])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: signal.Signals(n).name)
def test_a_signal_whose_exception_was_dropped_ends_the_verb_all_the_same(
    number: int, drop: Callable[[int], None]
) -> None:
    reading = Reading()
    before = signal.getsignal(number)
    with reading.until_signal():
        drop(number)
        threading.Event().wait(scaled(30))
        pytest.fail("the signal was lost")
    assert reading.code == 128 + number
    assert signal.getsignal(number) == before


def test_clean_up_after_a_signal_is_not_struck_by_it_again() -> None:
    reading, steps = Reading(), []
    with reading.until_signal():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for step in range(3):
                # Longer than until the signal is sent again.
                threading.Event().wait(0.3)
                steps.append(step)
    assert (reading.code, steps) == (143, [0, 1, 2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_i18_p7_a_run_command_that_found_another_supervisor_only_watches(
    number: int, start: Starter, rankfall: Runner, gate: Path, home: Path
) -> None:
    words = ("--request-token", "nightly", *GANG, "train.py")
    assert rankfall("submit", "-q", *words, GATE=str(gate)).returncode == 0
    [run] = list_runs(home)
    wait_until(lambda: b"rank 1 to stderr" in said(run), timeout=40, what="lines of all ranks")
    second = start("run", "--all", *words, env={"GATE": str(gate)}, **PIPES)
    assert second.stdout is not None
    assert b"rank" in second.stdout.readline()
    told = let_go(second, number)
    assert (second.returncode, f"{run.id} continues" in told) == (128 + number, True), told
    ends_by_itself(run, rankfall)


def test_i18_p7_a_signal_to_all_viewers_and_then_to_the_supervisor_cancels_once(
    start: Starter, rankfall: Runner, gate: Path, home: Path
) -> None:
    running = start("run", *GANG, "train.py", env={"GATE": str(gate)}, **PIPES)
    wait_until(lambda: any(b"rank 1 to stderr" in said(run) for run in list_runs(home)), timeout=40, what="lines")
    [run] = list_runs(home)
    viewer = start("attach", run.id, **PIPES)
    assert "continues. To watch it" in let_go(viewer, signal.SIGTERM)
    assert read_cancel(run.path) is None
    running.send_signal(signal.SIGTERM)
    _, told = running.communicate(timeout=scaled(30))
    assert (running.returncode, told.decode().splitlines()[-1]) == (130, "rankfall-exit: rankfall 130")
    request = read_cancel(run.path)
    assert request is not None
    assert "SIGTERM to rankfall" in request.text


def test_i18_p7_a_viewer_that_took_over_says_so_and_then_a_signal_cancels(
    submitted: RunDir, start: Starter, rankfall: Runner
) -> None:
    attached = start("attach", submitted.id, **PIPES)
    watches(attached)
    kill_supervisor(submitted)
    assert attached.stderr is not None
    lines = []
    while b"SIGTERM to it cancels the run" not in (lines[-1] if lines else b""):
        lines.append(attached.stderr.readline())
        assert lines[-1], lines
    assert supervisor(submitted) == attached.pid
    attached.send_signal(signal.SIGTERM)
    attached.communicate(timeout=scaled(30))
    assert attached.returncode == 130
    assert rankfall("wait", submitted.id).returncode == 130


def test_i18_p7_a_signal_that_came_before_a_viewer_could_take_over_cancels_nothing(
    submitted: RunDir, start: Starter, rankfall: Runner, gate: Path
) -> None:
    attached = start("attach", submitted.id, **PIPES)
    watches(attached)
    attached.send_signal(signal.SIGSTOP)
    kill_supervisor(submitted)
    attached.send_signal(signal.SIGTERM)
    attached.send_signal(signal.SIGCONT)
    _, told = attached.communicate(timeout=scaled(30))
    assert attached.returncode == 143
    if f"has no supervisor now. To supervise it: rankfall attach {submitted.id}" not in told.decode():
        # It took the run over before it saw the signal, and handed it to a supervisor that nobody watches.
        assert f"{submitted.id} continues." in told.decode()
        assert supervisor(submitted) != attached.pid
    assert read_cancel(submitted.path) is None
    gate.touch()
    assert rankfall("attach", submitted.id).returncode == 0


def test_i18_p7_who_asked_for_the_end_and_leaves_takes_nothing_back(
    submitted: RunDir, start: Starter, rankfall: Runner
) -> None:
    pid = supervisor(submitted)
    os.kill(pid, signal.SIGSTOP)
    try:
        asking = start("cancel", submitted.id, **PIPES)
        wait_until(lambda: read_cancel(submitted.path), timeout=40, what="the request")
        told = let_go(asking, signal.SIGTERM)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (asking.returncode, f"{submitted.id} is being cancelled" in told) == (130, True), told
    assert rankfall("wait", submitted.id).returncode == 130


def supervisor(run: RunDir) -> int:
    holder = run.lease_holder()
    assert holder is not None
    assert holder.pid > 1
    return holder.pid


def kill_supervisor(run: RunDir) -> None:
    pid = supervisor(run)
    os.kill(pid, signal.SIGKILL)

    def is_free() -> bool:
        # A viewer may take it over at once.
        holder = run.lease_holder()
        return holder is None or holder.pid != pid

    wait_until(is_free, timeout=20, what="the lease free")


def test_i18_p7_a_waiting_program_that_is_interrupted_ends_nothing(
    submitted: RunDir, rankfall: Runner, home: Path
) -> None:
    program = WAITS.format(home=str(home), run=submitted.id)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"waiting\n"
        waiting.send_signal(signal.SIGINT)
        _, told = waiting.communicate(timeout=scaled(30))
    assert b"KeyboardInterrupt" in told
    ends_by_itself(submitted, rankfall)


def test_i18_p7_a_cancelled_wait_of_the_client_ends_nothing(submitted: RunDir, rankfall: Runner, home: Path) -> None:
    async def give_up() -> None:
        run = await Client(home=home).get(submitted.id)
        waiting = asyncio.create_task(run.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(TimeoutError):
            await run.wait(timeout=0.01)

    asyncio.run(give_up())
    ends_by_itself(submitted, rankfall)


# What only a moment decides, with a supervisor that stands still in it.


class Still:
    """In place of ``supervise``: does what a test says.

    Attributes:
        begun: it was called.
        go: let it go on.
    """

    def __init__(self, *, held: bool, refused: bool = False, lost: bool = False) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self._held = held
        self._refused = refused
        self._lost = lost

    def __call__(self, directory: RunDir, *, control: Control, on_lease: Callable[[], None], **_: object) -> Outcome:
        if self._held:
            on_lease()
        if self._lost:
            control.lose("another machine")
        self.begun.set()
        while not self.go.is_set() and (self._lost or control.release_request is None):
            control.wait(0.02)
        if self._refused:
            raise LockHeld("another process supervises it")
        if control.cancelled is not None:
            return Outcome(run=directory.id, state="cancelled", code=130, exit_origin="rankfall", attempts=0)
        return Outcome(run=directory.id, state="running", code=0, exit_origin="rankfall", attempts=1)


def stays(run: RunDir, monkeypatch: pytest.MonkeyPatch, still: Still, *, own: bool) -> tuple[int, list[RunDir]]:
    """The exit code of a session that gets SIGTERM when its supervisor has begun, and what got a supervisor of its own."""
    spawned: list[RunDir] = []
    monkeypatch.setattr(sessions, "supervise", still)
    monkeypatch.setattr(sessions, "spawn_detached", spawned.append)
    session = Session(run, Viewer(run, ranks=Ranks(), quiet=True), own=own, standby=not own)

    main = threading.get_ident()

    def terminate() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, timeout=20, what="a handler")
        wait_until(still.begun.is_set, timeout=20, what="a supervisor")
        # To this very process, never by a number that could mean another one.
        signal.pthread_kill(main, signal.SIGTERM)
        threading.Timer(0.3, still.go.set).start()

    sender = threading.Thread(target=terminate)
    sender.start()
    code = session.exit_code(session.stay())
    sender.join()
    return code, spawned


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.create(JobSpec(command=("true",)), home=tmp_path / "home")


def test_i18_p7_who_waits_for_a_supervisor_on_another_machine_is_a_viewer(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, spawned = stays(run_dir, monkeypatch, Still(held=False), own=False)
    assert (code, read_cancel(run_dir.path)) == (143, None)
    assert spawned == []
    assert "cancelling" not in capsys.readouterr().err


def test_i18_p7_a_signal_before_the_lease_waits_for_who_gets_it(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(run_dir.path)], **TALKS) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        code, spawned = stays(run_dir, monkeypatch, Still(held=False, refused=True), own=True)
        other.communicate(timeout=scaled(30))
    assert (code, read_cancel(run_dir.path), spawned) == (143, None, [])


def test_i18_p7_who_lost_the_run_to_another_machine_cancels_it_no_more(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_dir.lease():
        code, spawned = stays(run_dir, monkeypatch, Still(held=True, lost=True), own=True)
    assert (code, read_cancel(run_dir.path), spawned) == (143, None, [])


def test_who_supervises_a_run_cancels_it_by_a_signal(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_dir.lease():
        code, spawned = stays(run_dir, monkeypatch, Still(held=False), own=True)
    assert (code, spawned) == (130, [])
    # Its lease is taken here, whoever else may supervise it on other machines is not known yet: its end is asked for.
    assert read_cancel(run_dir.path) is not None
