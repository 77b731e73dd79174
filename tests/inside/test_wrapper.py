"""The wrapper with real processes: codes, signals, descendants, bad directories."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankfall.evidence.attempt.activity import StepFolders
from rankfall_inside import procfs
from rankfall_inside.wrapper.slot_files import SlotFiles
from support.helpers import wait_until
from support.patience import scaled

FOREVER = "import signal, sys, time\nprint('ready', flush=True)\nwhile True: signal.pause()"


def living(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and found.state != "Z"


@pytest.mark.parametrize(
    ("command", "code", "signum"),
    [
        (["sh", "-c", "exit 0"], 0, None),
        (["sh", "-c", "exit 3"], 3, None),
        (["sh", "-c", "kill -9 $$"], 137, 9),
        (["sh", "-c", "kill -TERM $$"], 143, 15),
        (["sh", "-c", "kill -SEGV $$"], 139, 11),
    ],
)
def test_the_exit_code_is_the_commands(slot, command: list[str], code: int, signum: int | None) -> None:
    assert slot.run(*command).returncode == code
    end = slot.one("slot_end")
    assert (end.exit.signal, end.exit.code) == ((signum, None) if signum else (None, code))
    assert (end.run, end.attempt, end.role, end.slot, end.node, end.instance) == (
        "demo-abc123",
        2,
        "worker",
        1,
        "n1",
        "0",
    )
    assert json.loads((slot.dir / "end.json").read_bytes())["id"] == end.id
    assert slot.one("slot_start").argv == tuple(command)


def test_a_command_that_cannot_start_says_so_as_a_shell_would(slot) -> None:
    assert slot.run("no-such-command").returncode == 127
    assert slot.stream("slot.err") == b"rankfall: no-such-command: command not found\n"
    slot.stream_dir = slot.base / "logs" / "1"
    (slot.base / "plain.txt").write_text("x")
    assert slot.run(str(slot.base / "plain.txt")).returncode == 126
    assert slot.stream("slot.err").endswith(b"Permission denied\n")
    slot.stream_dir = slot.base / "logs" / "2"
    windows = slot.base / "windows"
    windows.write_bytes(b"#!/bin/sh\r\n")
    windows.chmod(0o755)
    assert slot.run(str(windows)).returncode == 127
    assert slot.stream("slot.err").endswith(b"windows: bad interpreter: No such file or directory\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["wrap", "--stream-dir", "x"],
        ["wrap", "--", "true"],
        ["other"],
        ["wrap", "--nproc", "0", "--", "x"],
        ["wrap", "--bad", "--", "x"],
    ],
)
def test_wrong_options_are_refused_with_the_usage(slot, argv: list[str]) -> None:
    done = subprocess.run([sys.executable, str(slot.home), *argv], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"usage:" in done.stderr


def test_errors_s18_a_signal_from_outside_is_passed_on_and_its_sender_recorded(slot) -> None:
    text = "import signal, sys\nsignal.signal(15, lambda *a: sys.exit(7))\n" + FOREVER
    process = slot.start(sys.executable, slot.script(text))
    slot.wait_text("slot.out", b"ready\n")
    process.terminate()
    assert process.wait(scaled(20)) == 7
    kill = slot.one("kill")
    assert (kill.exit.signal, kill.exit.sender_pid, kill.exit.ours) == (15, os.getpid(), False)
    end = slot.one("slot_end")
    assert (end.exit.code, end.exit.sender_pid) == (7, os.getpid())
    assert not (slot.dir / "kills.jsonl").read_bytes()


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_other_signals_are_passed_on_to_a_command_with_a_clean_mask(slot, signum: int) -> None:
    text = f"import signal, sys\nassert not signal.pthread_sigmask(signal.SIG_BLOCK, [])\nsignal.signal({int(signum)}, lambda *a: sys.exit(9))\n"
    process = slot.start(sys.executable, slot.script(text + FOREVER))
    slot.wait_text("slot.out", b"ready\n")
    process.send_signal(signum)
    assert process.wait(scaled(20)) == 9


def test_a_stop_is_marked_before_it_is_sent_and_ends_everything(slot) -> None:
    text = "import subprocess, sys\nc = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint('child', c.pid, flush=True)\n"
    text += "import signal\nsignal.signal(15, signal.SIG_IGN)\n"
    process = slot.start(sys.executable, slot.script(text + FOREVER))
    slot.wait_text("slot.out", b"ready\n")
    child = int(slot.stream("slot.out").split()[1])
    slot.control("stop 0.3 rank 5 failed on n2")
    assert process.wait(scaled(20)) == 137
    assert not living(child)
    marks = [json.loads(line) for line in (slot.dir / "kills.jsonl").read_text().splitlines()]
    assert marks[0]["signal"] == 15
    assert marks[0]["reason"] == "rank 5 failed on n2"
    assert {mark["pid"] for mark in marks if mark["signal"] == 9} >= {child}
    end = slot.one("slot_end")
    assert end.exit.ours
    assert end.exit.reason == "rank 5 failed on n2"
    assert all(kill.exit.ours for kill in slot.records("kill"))


def test_a_second_request_shortens_the_grace_time(slot) -> None:
    process = slot.start(sys.executable, slot.script("import signal\nsignal.signal(15, signal.SIG_IGN)\n" + FOREVER))
    slot.wait_text("slot.out", b"ready\n")
    slot.control("stop 1000 slow")
    wait_until(lambda: slot.records("kill"), timeout=10, what="the stop")
    process.terminate()
    assert process.wait(scaled(20)) == 137


def test_the_supervisor_can_send_a_signal(slot) -> None:
    process = slot.start(
        sys.executable, slot.script("import signal, sys\nsignal.signal(10, lambda *a: sys.exit(5))\n" + FOREVER)
    )
    slot.wait_text("slot.out", b"ready\n")
    slot.control("nonsense\nsignal x\nsignal 10")
    assert process.wait(scaled(20)) == 5


DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"daemon %d\\n" % os.getpid())
        while True: signal.pause()
    os._exit(0)
os.wait()
sys.stdin = None
while b"daemon" not in open(sys.argv[1], "rb").read(): pass
sys.exit(4)
"""


def test_a_daemon_made_by_setsid_and_double_fork_is_ended_too(slot) -> None:
    slot.stream_dir.mkdir(parents=True)
    (slot.stream_dir / "slot.out.log").touch()
    done = slot.run(
        sys.executable, slot.script(DAEMON), str(slot.stream_dir / "slot.out.log"), options=("--grace", "0.2")
    )
    assert done.returncode == 4
    daemon = int(slot.stream("slot.out").split()[1])
    assert not living(daemon)
    marks = [json.loads(line) for line in (slot.dir / "kills.jsonl").read_text().splitlines()]
    assert [(mark["pid"], mark["signal"]) for mark in marks] == [(daemon, 15), (daemon, 9)]


def test_without_a_slot_directory_the_command_runs_plainly(slot) -> None:
    (slot.base / "file").touch()
    folder = str(slot.base / "file" / "slot")
    done = slot.run("sh", "-c", "echo out; exit 6", RANKFALL_SLOT_DIR=folder, RANKFALL_TOKEN="")
    assert (done.returncode, done.stdout) == (6, b"out\n")
    assert done.stderr.count(b"rankfall:") == 1
    assert b"without records" in done.stderr


def test_a_missing_record_directory_does_not_lose_records(slot) -> None:
    (slot.base / "file").touch()
    assert slot.run("true", RANKFALL_RECORD_DIR=str(slot.base / "file" / "records")).returncode == 0
    assert len(list((slot.dir / "records").glob("slot_end-*.json"))) == 1


def test_a_second_wrapper_does_nothing_on_a_locked_directory(slot) -> None:
    slot.dir.mkdir()
    with (slot.dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = slot.run("sh", "-c", "echo ran")
    assert done.returncode == 125
    assert b"ran" not in done.stdout
    assert not slot.records()


def test_i24_p10_a_file_system_without_flock_hinders_no_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    files = SlotFiles({"RANKFALL_SLOT_DIR": str(tmp_path / "slot")}, instance="0")
    assert (tmp_path / "slot" / "lock").read_text().split()[0] == str(os.getpid())
    assert files.unwritten == 0


def test_i24_p10_a_supervisor_elsewhere_sees_steps_and_processor_time_in_files(slot) -> None:
    path = slot.dir / "heartbeats" / "0.json"
    # The first one may be older than the step, and the next follows after ten seconds.
    code = f"""
import json, os, time, rankfall_inside
rankfall_inside.progress(7, "step")
while not os.path.exists({str(path)!r}) or json.load(open({str(path)!r}))["step"] != 7:
    time.sleep(0.02)
"""
    assert slot.rank(code, RANKFALL_HEARTBEATS="1", RANKFALL_TOKEN="").returncode == 0
    (found,) = StepFolders("heartbeats").read(slot.dir)
    assert (found.ordinal, found.step, found.phase) == (0, 7, "step")
    assert found.cpu_s is not None
    assert found.cpu_at is not None
    assert not list(slot.dir.glob("heartbeats/*.tmp"))


def test_a_directory_used_before_gives_ordinals_from_zero(slot) -> None:
    for instance in ("0", "1"):
        slot.stream_dir = slot.base / "logs" / instance
        assert slot.rank(f"print('instance {instance}')").returncode == 0
        assert slot.stream("0.out") == f"instance {instance}\n".encode()
    assert [(r.instance, r.ordinal) for r in sorted(slot.records("start"), key=lambda r: r.instance)] == [
        ("0", 0),
        ("1", 0),
    ]


def test_closed_standard_files_do_not_matter(slot) -> None:
    argv = [
        sys.executable,
        str(slot.home),
        "wrap",
        "--console",
        "--stream-dir",
        str(slot.stream_dir),
        "--",
        "sh",
        "-c",
        "echo x; exit 3",
    ]
    assert subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *argv], env=slot.env, check=False).returncode == 3
    assert slot.stream("slot.out") == b"x\n"


def test_a_wrapper_killed_with_sigkill_leaves_readable_files_and_no_command(slot) -> None:
    process = slot.start(sys.executable, slot.script("print('begin')\n" + FOREVER))
    slot.wait_text("slot.out", b"ready\n")
    children = [one.pid for one in procfs.descendants(process.pid)]
    assert children
    process.kill()
    process.wait(scaled(10))
    wait_until(lambda: not any(living(pid) for pid in children), timeout=10, what="the command's end")
    assert slot.stream("slot.out") == b"begin\nready\n"
    assert slot.index("slot.out")[0][:2] == (0, 0)
    assert slot.one("slot_start")
    assert not (slot.dir / "end.json").exists()


def test_plain_ranks_get_the_variables_of_torchrun_and_streams_of_their_own(slot) -> None:
    names = "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"
    text = f"import os\nprint(*[os.environ[n] for n in {names.split()!r}])"
    options = ("--launcher", "plain", "--nproc", "2")
    env = {"RANKFALL_PLAIN_NNODES": "3", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"}
    assert slot.run(sys.executable, slot.script(text), options=options, **env).returncode == 0
    assert slot.stream("0.out") == b"2 0 1 6 2 3 10.0.0.9 1234 demo-abc123 0\n"
    assert slot.stream("1.out") == b"3 1 1 6 2 3 10.0.0.9 1234 demo-abc123 0\n"
    starts = {record.ordinal: record for record in slot.records("start")}
    assert {o: (r.rank, r.writer, r.streams) for o, r in starts.items()} == {0: (2, "hook", True), 1: (3, "hook", True)}
    assert {r.rank: (r.exit.code, r.exit.how) for r in slot.records("end")} == {2: (0, "wait"), 3: (0, "wait")}


def test_errors_s22_siblings_of_a_failed_plain_rank_are_marked_as_our_own_kills(slot) -> None:
    text = "import os, sys\nif os.environ['RANK'] == '0': sys.exit(11)\n" + FOREVER
    done = slot.run(
        sys.executable, slot.script(text), options=("--launcher", "plain", "--nproc", "3"), RANKFALL_SLOT="0"
    )
    assert done.returncode == 11
    ends = {record.rank: record.exit for record in slot.records("end")}
    assert (ends[0].code, ends[0].ours) == (11, False)
    assert {(ends[rank].signal, ends[rank].ours) for rank in (1, 2)} == {(15, True)}
    assert {record.rank for record in slot.records("kill")} == {1, 2}


def test_ranks_without_hook_are_found_in_proc_with_their_exit(slot) -> None:
    text = "import signal, os\nprint('alive', flush=True)\nwhile True: signal.pause()"
    script = slot.script(text)
    command = f"RANK=4 LOCAL_RANK=0 {sys.executable} -I {script} & wait $!; exit 0"
    process = slot.start("bash", "-c", command)
    slot.wait_text("slot.out", b"alive\n")
    start = wait_until(lambda: slot.records("start"), timeout=10, what="a start record from /proc")[0]
    assert (start.rank, start.rank_source, start.writer, start.streams) == (4, "proc:RANK", "wrapper", False)
    assert "hook absent" in start.notes
    os.kill(start.pid, signal.SIGKILL)
    assert process.wait(scaled(20)) == 0
    end = slot.one("end")
    assert (end.exit.signal, end.pid, end.exit.ours) == (9, start.pid, False)
    assert end.exit.how in ("proc", "pidfd")


def test_stacks_of_a_rank_come_from_python_and_the_kernel(slot) -> None:
    text = "import signal, threading\ndef stuck_here():\n    print('ready', flush=True)\n    while True: signal.pause()\nstuck_here()"
    process = slot.start(sys.executable, slot.script(text), RANK="0", LOCAL_RANK="0")
    slot.wait_text("0.out", b"ready\n")
    slot.control("stacks")
    record = wait_until(lambda: slot.records("stacks"), timeout=10, what="a stacks record")[0]
    assert "in stuck_here" in record.stacks
    assert "Kernel view:" in record.stacks
    assert (record.rank, record.ordinal) == (0, 0)
    slot.control("stop 5 done")
    assert process.wait(scaled(20)) == 143


def test_a_rank_with_busy_threads_survives_many_questions_for_stacks(slot) -> None:
    """With the frames of all threads one question in five ended it with SIGSEGV: the others change while they are read."""
    text = """
import json, threading
def busy():
    while True:
        [json.loads(json.dumps({"a": [n] * 3})) for n in range(9)]
for _ in range(2):
    threading.Thread(target=busy, daemon=True).start()
def stuck_here():
    print('ready', flush=True)
    threading.Event().wait()
stuck_here()
"""
    process = slot.start(sys.executable, slot.script(text), RANK="0", LOCAL_RANK="0")
    slot.wait_text("0.out", b"ready\n")
    for number in range(1, 16):
        slot.control("stacks")
        wait_until(lambda: len(slot.records("stacks")) == number or slot.records("end"), timeout=10, what="stacks")  # noqa: B023 - called at once
        assert slot.records("end") == []
    assert all("in stuck_here" in record.stacks for record in slot.records("stacks"))
    slot.control("stop 5 done")
    assert process.wait(scaled(20)) == 143


def test_a_rank_without_handler_is_not_killed_by_the_question_for_stacks(slot) -> None:
    process = slot.start("sleep", "1000", RANK="0")
    wait_until(lambda: slot.records("start"), timeout=10, what="the rank")
    slot.control("stacks")
    record = wait_until(lambda: slot.records("stacks"), timeout=10, what="a stacks record")[0]
    assert "state=S" in record.stacks
    assert "no Python stacks" in record.notes[0]
    assert process.poll() is None
    slot.control("stop 5 done")
    assert process.wait(scaled(20)) == 143


def test_the_oom_counter_is_read_where_the_kernel_shows_it() -> None:
    path = procfs.oom_counter_path()
    assert procfs.oom_kills(path) is None or path is not None
    assert procfs.oom_kills("/nonexistent/memory.events") is None
    assert procfs.oom_kills(None) is None


def test_the_oom_counter_of_both_versions_is_understood(tmp_path: Path) -> None:
    for number, text in enumerate(("low 0\noom 3\noom_kill 2\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")):
        path = tmp_path / str(number)
        path.write_text(text)
        assert procfs.oom_kills(str(path)) == 2


def test_a_stop_of_a_child_that_wants_to_be_traced_is_no_end(slot) -> None:
    text = "import ctypes, os\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), 28)\nprint('went on')\nos.kill(os.getpid(), 5)"
    assert slot.run(sys.executable, slot.script(text)).returncode == 128 + 5
    assert b"went on" in slot.stream("slot.out")
    assert slot.one("slot_end").exit.signal == 5
