"""Before the command starts: names of peers are waited for, and what starts the ranks is chosen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankfall.model.exit_codes import CAUSE_CODES
from rankfall_inside import procfs
from rankfall_inside.wrapper import preflight, startup
from support.helpers import wait_until
from support.patience import scaled

from .conftest import channel, text_lines

# A name that no name server answers for, by RFC 6761.
NEVER = "peer.invalid"
# A private copy of /etc/hosts for the wrapper: what is written to it there is what its resolver sees.
HOSTS = 'set -e; mount --bind "$HOSTS_FILE" /etc/hosts; exec "$@"'


def test_a_name_that_resolves_starts_the_command_at_once(pod) -> None:
    done = pod.run("echo", "ran", options=("--wait-for", "localhost", "--wait-for=127.0.0.1"))
    assert (done.returncode, text_lines(done.stdout), done.stderr) == (0, [b"ran"], b"")


@pytest.mark.root
def test_launch_the_command_starts_when_the_name_of_its_peer_is_there(pod) -> None:
    hosts = pod.base / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    pod.outer = ("unshare", "--mount", "sh", "-c", HOSTS, "sh")
    process = pod.start("echo", "ran", options=("--wait-for", NEVER), HOSTS_FILE=str(hosts))
    wait_until(lambda: pod.records("slot_start"), timeout=20, what="the wrapper")
    assert process.poll() is None
    # The same file, not a new one: the mount shows this one.
    with hosts.open("a") as file:
        file.write(f"127.0.0.1 {NEVER}\n")
    out, _ = process.communicate(timeout=scaled(20))
    assert (process.returncode, text_lines(out)) == (0, [b"ran"])
    assert [record.kind for record in channel(out)] == ["slot_start", "slot_end"]


def test_what_is_waited_for_is_said_on_stderr_and_on_the_channel(pod) -> None:
    process = pod.start("echo", "ran", options=("--wait-for", NEVER, "--wait-for", "localhost"))
    assert process.stderr is not None
    assert process.stdout is not None
    line = process.stderr.readline()
    assert line.startswith(b"rankfall: waiting for names to resolve: peer.invalid (")
    out = process.stdout.readline() + process.stdout.readline()
    waiting = channel(out, progress=True)[-1]
    assert (waiting.kind, waiting.phase, waiting.slot) == ("progress", "waiting", 1)
    assert NEVER in waiting.notes[0]
    process.terminate()
    process.communicate(timeout=scaled(20))


@pytest.mark.parametrize("how", ["signal", "stop"])
def test_an_order_to_end_ends_the_wait_at_once_and_starts_nothing(pod, how: str) -> None:
    process = pod.start("touch", str(pod.base / "ran"), options=("--wait-for", NEVER, "--grace", "3600"))
    wait_until(lambda: pod.records("slot_start"), timeout=20, what="the wrapper")
    children = [one.pid for one in procfs.descendants(process.pid)]
    # Each limit of this test ends long before the grace time does.
    if how == "signal":
        process.terminate()
    else:
        pod.control("stop 3600 another slot failed")
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 143
    assert not (pod.base / "ran").exists()
    assert not [pid for pid in children if procfs.stat(pid)]
    end = channel(out)[-1]
    assert (end.kind, end.exit.how, end.exit.code, end.exit.signal) == ("slot_end", "none", None, None)
    assert "was not started" in end.notes[0]
    assert end.exit.ours == (how == "stop")
    assert end.exit.reason == ("another slot failed" if how == "stop" else "signal 15 from outside")


def test_a_resolver_child_that_is_killed_begins_again(pod) -> None:
    process = pod.start("true", options=("--wait-for", NEVER))
    first = wait_until(lambda: procfs.descendants(process.pid), timeout=20, what="the child")[0]
    os.kill(first.pid, signal.SIGKILL)
    wait_until(
        lambda: [one for one in procfs.descendants(process.pid) if one.pid != first.pid],
        timeout=20,
        what="another child",
    )
    process.terminate()
    process.communicate(timeout=scaled(20))


def test_many_names_are_counted_and_each_is_said_once() -> None:
    said: list[str] = []
    names = preflight.Names([f"n{number}.invalid" for number in range(8)] * 2, say=said.append)
    names._due = 0.0
    names.step()
    names.step()
    names.close()
    assert len(said) == 1
    assert "n4.invalid and 3 more (0 s)" in said[0]


# -- what starts the ranks


def fake_python(folder: Path, *, torch: bool, hang: bool = False) -> Path:
    """A Python by its name, which has torch or not, and shows what it was started with."""
    folder.mkdir(parents=True, exist_ok=True)
    answer = "exec sleep 1000" if hang else "exit 0" if torch else "exit 3"
    path = folder / "python3"
    path.write_text(f'#!/bin/sh\ncase "$2" in *find_spec*) {answer};; esac\necho started "$@"\n')
    path.chmod(0o755)
    return path


def torchrun(*words: object) -> dict[str, str]:
    return {"RANKFALL_TORCHRUN": json.dumps([str(word) for word in words])}


def test_auto_takes_torchrun_where_its_python_has_torch(pod) -> None:
    python = fake_python(pod.base / "bin", torch=True)
    words = torchrun(python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    done = pod.run("echo", "plain", options=("--launcher", "auto", "--nproc", "2"), **words)
    assert text_lines(done.stdout) == [b"started -m torch.distributed.run --nproc-per-node 2 train.py"]
    start = channel(done.stdout)[0]
    assert (start.launcher, start.argv[0]) == ("torchrun", str(python))


def test_auto_starts_plain_ranks_where_no_torch_is(pod) -> None:
    python = fake_python(pod.base / "bin", torch=False)
    done = pod.run(
        "sh",
        "-c",
        "echo rank $RANK",
        options=("--launcher", "auto", "--nproc", "2"),
        RANKFALL_SLOT="0",
        **torchrun(python, "x"),
    )
    assert sorted(text_lines(done.stdout)) == [b"[rank 0] rank 0", b"[rank 1] rank 1"]
    start = channel(done.stdout)[0]
    assert start.launcher == "plain"
    assert start.notes == (f"started without torchrun: {python} finds no torch",)


@pytest.mark.parametrize("text", ["", "no json", "[]", '["a", 1]', '{"a": 1}', '[""]'])
def test_auto_without_a_torchrun_command_starts_plain_ranks(pod, text: str) -> None:
    done = pod.run("echo", "x", options=("--launcher=auto",), RANKFALL_TORCHRUN=text, RANKFALL_SLOT="0")
    assert text_lines(done.stdout) == [b"[rank 0] x"]
    assert "names no command" in channel(done.stdout)[0].notes[0]


def test_torchrun_that_is_demanded_and_missing_says_why_and_has_the_code_of_startup(pod) -> None:
    log = pod.base / "termination-log"
    log.touch()
    python = fake_python(pod.base / "bin", torch=False)
    done = pod.run(
        "touch",
        str(pod.base / "ran"),
        options=("--launcher", "torchrun"),
        RANKFALL_TERMINATION_LOG=str(log),
        **torchrun(python, "x"),
    )
    assert done.returncode == CAUSE_CODES["startup"]
    why = f"torchrun cannot be started: {python} finds no torch"
    assert why.encode() in done.stderr
    end = channel(done.stdout)[-1]
    assert (end.exit.code, end.exit.how, end.exit.reason, end.notes) == (218, "none", why, (why,))
    assert not (pod.base / "ran").exists()
    assert json.loads(log.read_text())["exit"]["reason"] == why


def test_a_python_that_does_not_answer_can_be_ended_by_a_signal(pod) -> None:
    python = fake_python(pod.base / "bin", torch=True, hang=True)
    process = pod.start("echo", "x", options=("--launcher", "auto"), **torchrun(python, "x"))
    children = wait_until(lambda: procfs.descendants(process.pid), timeout=20, what="the question")
    process.terminate()
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 143
    assert channel(out)[-1].exit.how == "none"
    assert not procfs.stat(children[0].pid)


def test_the_question_goes_to_the_python_that_stands_behind_the_words(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "bin", torch=True)
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = tmp_path / "bin" / "torchrun"
    script.write_text(f"#!{python}\nimport torch\n")
    script.chmod(0o755)
    assert startup.question(["python3", "-m", "x"], environ)[0] == str(python)
    assert startup.question(["torchrun"], environ)[:1] == [str(python)]
    script.write_text("#!/usr/bin/env python3\n")
    assert startup.question(["torchrun"], environ)[:2] == ["/usr/bin/env", "python3"]
    script.write_text("#!/bin/sh\n")
    assert startup.question(["torchrun"], environ) is None
    assert startup.question(["absent"], environ) is None


def test_the_same_interpreter_is_not_started_to_be_asked() -> None:
    assert startup.launch_known([sys.executable, "-m", "torch.distributed.run"]) is True
    assert startup.launch_known(["sh"]) is None
    assert startup.launch_known(["absent"]) is None


@pytest.mark.torch
@pytest.mark.timeout(120)
@pytest.mark.full
def test_a_real_torchrun_is_chosen_and_its_ranks_are_on_the_channel(pod) -> None:
    script = pod.script(
        "import os\nprint('rank', os.environ['RANK'])\nif os.environ['RANK'] == '1': raise ValueError('boom')"
    )
    words = torchrun(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
    process = pod.start(
        "echo", "plain", options=("--launcher", "auto", "--nproc", "2", "--exit-code", "cause"), **words
    )
    out, _ = process.communicate(timeout=scaled(100))
    assert process.returncode == CAUSE_CODES["user"]
    assert {b"[rank 0] rank 0", b"[rank 1] rank 1"} <= set(text_lines(out))
    assert [r.rank for r in channel(out) if r.kind == "error"] == [1]
    assert channel(out)[0].launcher == "torchrun"


# -- orders from inside the container


def tell(pod, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, str(pod.home), "tell", *words], env=pod.env | env, capture_output=True, check=False
    )


def test_a_stop_that_is_told_inside_the_container_is_an_order_of_ours(pod) -> None:
    process = pod.start("sleep", "1000")
    wait_until(lambda: (pod.dir / "ctl").exists() and pod.records("slot_start"), timeout=20, what="the wrapper")
    assert tell(pod, "stop 5 rank 5 failed\non n2").returncode == 0
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 143
    end = channel(out)[-1]
    assert (end.exit.ours, end.exit.reason) == (True, "rank 5 failed on n2")


@pytest.mark.parametrize(
    "words", [(), ("stop",), ("stop soon x",), ("signal",), ("signal x",), ("dance",), ("stop -1 x",)]
)
def test_wrong_words_are_refused(pod, words: tuple[str, ...]) -> None:
    done = tell(pod, *words)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_telling_without_a_slot_or_to_nobody_says_so(pod) -> None:
    assert tell(pod, "stacks", RANKFALL_SLOT_DIR="").returncode == 2
    done = tell(pod, "stacks")
    assert done.returncode == 3
    assert b"no wrapper listens" in done.stderr
    assert pod.run("true").returncode == 0
    # The pipe is there, but whoever read it is gone.
    assert (pod.dir / "ctl").exists()
    assert tell(pod, "stop", "5", "late").returncode == 3
