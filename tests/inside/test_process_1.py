"""The wrapper as process 1 of a pid namespace, as in a container: no default actions of signals, and all orphans are its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rankfall_inside import procfs
from support.helpers import wait_until
from support.patience import scaled

from .conftest import channel, text_lines

# Root may make a pid namespace.
pytestmark = pytest.mark.root
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture
def container(pod):
    pod.outer = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    return pod


def wrapper_of(process: subprocess.Popen[bytes]) -> int:
    """Pid, seen from here, of the process 1 that ``unshare`` has started."""

    def look() -> int | None:
        below = [one.pid for one in procfs.descendants(process.pid)]
        return below[0] if below and b"wrap" in b" ".join(map(os.fsencode, procfs.cmdline(below[0]))) else None

    return wait_until(look, timeout=20, what="process 1")


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    assert process.stdout is not None
    out = b""
    while text not in out:
        line = process.stdout.readline()
        assert line, out
        out += line
    return out


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)],
)
def test_the_exit_code_of_the_command_is_kept(container, command: str, code: int) -> None:
    done = container.run("sh", "-c", command)
    assert done.returncode == code
    start = channel(done.stdout)[0]
    assert (start.kind, start.pid) == ("slot_start", 1)


def test_a_sigterm_of_the_kubelet_is_on_the_channel_before_anything_else_and_passed_on(container) -> None:
    # Waited for and not handled: a handler may run inside of the write of "ready", where Python's print refuses a second one.
    text = "import signal, sys\nsignal.pthread_sigmask(0, [15])\nprint('ready', flush=True)\nsignal.sigwait([15])\nprint('goodbye')\nsys.exit(7)"
    process = container.start(sys.executable, container.script(text), options=("--grace", "20"), **RANK)
    read_until(process, b"[rank 0] ready")
    os.kill(wrapper_of(process), signal.SIGTERM)
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 7
    records = channel(out)
    # The start of the rank is another process's to say.
    kill = next(record for record in records if record.kind != "start")
    # Its sender is in another pid namespace, as a container runtime is.
    assert (kill.kind, kill.exit.signal, kill.exit.sender_pid, kill.exit.ours) == ("kill", 15, 0, False)
    assert text_lines(out) == [b"[rank 0] goodbye"]
    assert out.index(b"\x1e") < out.index(b"goodbye")
    assert (records[-1].kind, records[-1].exit.code, records[-1].exit.sender_pid) == ("slot_end", 7, 0)


def test_a_command_that_does_not_hear_is_killed_after_the_grace_time_with_all_it_started(container) -> None:
    command = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo ready; while :; do sleep 1; done"
    )
    process = container.start("sh", "-c", command, options=("--grace", "0.3"))
    read_until(process, b"ready")
    os.kill(wrapper_of(process), signal.SIGTERM)
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 137
    end = channel(out)[-1]
    assert (end.kind, end.exit.signal) == ("slot_end", 9)


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGHUP, signal.SIGINT])
def test_signals_without_default_action_reach_the_command(container, signum: int) -> None:
    text = f"import signal, sys\nsignal.pthread_sigmask(0, [{int(signum)}])\nprint('ready', flush=True)\nsignal.sigwait([{int(signum)}])\nsys.exit(9)"
    process = container.start(sys.executable, container.script(text), **RANK)
    read_until(process, b"ready")
    os.kill(wrapper_of(process), signum)
    process.communicate(timeout=scaled(20))
    assert process.returncode == 9


def test_orphans_are_reaped_and_their_ranks_have_ends(container) -> None:
    script = container.script("import time\nprint('orphan', flush=True)\nraise SystemExit(5)")
    text = f"""
import os, subprocess, sys, time
for i in range(20):
    subprocess.run(['sh', '-c', 'sleep 0 & exit 0'])
# A daemon that is a rank, two levels away from process 1.
subprocess.run(['sh', '-c', 'RANK=0 LOCAL_RANK=0 setsid {sys.executable} {script} & exit 0'])
def states():
    found = []
    for name in os.listdir('/proc'):
        if name.isdigit():
            try: found.append(open('/proc/' + name + '/stat').read().rpartition(')')[2].split()[0])
            except OSError: pass
    return found
deadline = time.monotonic() + 30
while ('Z' in states() or len(states()) > 2) and time.monotonic() < deadline: time.sleep(0.02)
print('left', len(states()), flush=True)
"""
    done = container.run(sys.executable, container.script(text, "launcher.py"))
    assert done.returncode == 0
    assert b"left 2" in text_lines(done.stdout)
    assert b"[rank 0] orphan" in text_lines(done.stdout)
    end = next(record for record in channel(done.stdout) if record.kind == "end")
    assert (end.rank, end.exit.code) == (0, 5)
