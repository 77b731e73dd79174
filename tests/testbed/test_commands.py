"""Long commands: progress from their own output, nothing left running, failures in words."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.helpers import wait_until
from support.patience import scaled
from testbed import commands
from testbed.errors import BuildError

ROOT = Path(__file__).parents[2]


def run(script: str, log: Path, say=lambda _: None) -> None:
    commands.run(["sh", "-c", script], log=log, what="thing", seconds=7, say=say, every_s=0.05)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def test_progress_comes_from_the_commands_own_output(tmp_path):
    go_on, said = tmp_path / "go", []

    def say(line):
        said.append(line)
        if "compiling a/b" in line:
            go_on.touch()

    run(f"echo compiling a/b; until [ -e {go_on} ]; do sleep 0.01; done; echo end", tmp_path / "log", say)
    assert re.fullmatch(r"thing: \d+ s of about 7: compiling a/b", said[-1])
    assert (tmp_path / "log").read_text() == "compiling a/b\nend\n"


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("mkdir x: No space left on device", "free some disk space"),
        ("proxy: dial tcp 192.0.2.1:443: i/o timeout", "the network does not reach"),
        ("E: Failed getting release file", "the network does not reach"),
        ("verifying m@v1: checksum mismatch", "a download is not what it was"),
        ("compile: signal: killed", "ran out of memory"),
        ("main.go:3:1: undefined: x", "the whole log"),
    ],
)
def test_a_failure_says_what_to_do(tmp_path, output, advice):
    with pytest.raises(commands.CommandError) as caught:
        run(f"echo first; echo '{output}' >&2; exit 3", tmp_path / "log")
    error = caught.value.explain("thing could not be built")
    assert isinstance(error, BuildError)
    assert advice in str(error)
    for part in ("thing could not be built", "ended with code 3", "first", output, str(tmp_path / "log")):
        assert part in str(error)


def test_an_earlier_commands_output_in_the_same_log_is_not_this_ones_failure(tmp_path):
    run("echo dial tcp refused", tmp_path / "log")
    with pytest.raises(commands.CommandError) as caught:
        run("echo other; exit 1", tmp_path / "log")
    assert caught.value.tail == "other"
    assert not caught.value.network


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(BuildError, match="no program no-such-program"):
        commands.run(["no-such-program"], log=tmp_path / "log", what="thing", seconds=1, say=print)


def test_an_interrupt_ends_the_commands_children_too(tmp_path):
    pids = tmp_path / "pids"

    def interrupt(_):
        if pids.exists() and len(pids.read_text().split()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(f"sleep 600 & echo $! $$ > {pids}; wait", tmp_path / "log", interrupt)
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda one=pid: gone(one), timeout=10, what=f"process {pid} to end")


def test_a_killed_program_takes_its_command_with_it(tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "from pathlib import Path; from testbed import commands; "
        f"commands.run(['sh', '-c', 'echo $$ > {pid_file}; exec sleep 600'], "
        f"log=Path('{tmp_path}/log'), what='x', seconds=1, say=print)"
    )
    program = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        pid = int(wait_until(lambda: pid_file.exists() and pid_file.read_text(), timeout=20, what="the command"))
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.wait(scaled(10))
    wait_until(lambda: gone(pid), timeout=10, what="the command to end")
