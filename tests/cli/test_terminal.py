"""What happens at a real terminal: a pseudo-terminal, so that colours, escapes and Ctrl-C are the real ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.helpers import wait_until

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]
GANG = ("--nproc-per-node", "2", "--launcher", "plain")
CTRL_C = b"\x03"


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, start: Starter, *words: str, **env: str) -> None:
        self.side, other = pty.openpty()
        os.set_blocking(self.side, False)
        self.text = b""
        # setsid and the controlling terminal make Ctrl-C a SIGINT to this command only.
        self.process = start(
            *words, stdin=other, stdout=other, stderr=other, start_new_session=True,
            env={"CI": "", "TERM": "xterm"} | env, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(other)

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError, OSError):
            while part := os.read(self.side, 65536):
                self.text += part
        return self.text

    def until(self, part: bytes, *, times: int = 1) -> None:
        wait_until(lambda: self.read().count(part) >= times, timeout=25, what=f"{part!r} in {self.text!r}")

    def type(self, keys: bytes) -> None:
        os.write(self.side, keys)

    def end(self) -> int:
        wait_until(lambda: self.read() is not None and self.process.poll() is not None, timeout=25, what="its end")
        self.read()
        return self.process.returncode


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def at_terminal(start: Starter) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def call(*words: str, **env: str) -> Terminal:
        made.append(Terminal(start, *words, **env))
        return made[-1]

    yield call
    for one in made:
        os.close(one.side)


def asked(terminal: Terminal) -> None:
    """Types Ctrl-C when the ranks have printed, and waits for the question."""
    terminal.until(b"to stderr", times=2)
    terminal.type(CTRL_C)
    terminal.until(b"or continue (Enter)?")


def test_ctrl_c_asks_and_detaching_leaves_the_run_alone(
    at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path
) -> None:
    gate = folder / "gate"
    terminal = at_terminal("run", *GANG, "--all", "train.py", "exit", GATE=str(gate))
    asked(terminal)
    terminal.type(b"d\n")
    assert terminal.end() == 0
    assert b"To watch it: rankfall attach train-" in terminal.text
    gate.touch()
    assert rankfall("wait").returncode == 17


def test_a_shell_command_typed_after_ctrl_c_cancels_nothing(
    at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path
) -> None:
    gate = folder / "gate"
    rankfall("submit", "-q", *GANG, "train.py", "exit", GATE=str(gate))
    terminal = at_terminal("attach", "--all")
    asked(terminal)
    terminal.type(b"cd /tmp\n")
    terminal.until(b"type d, c or nothing, then Enter")
    terminal.type(b"clear; date\n")
    terminal.until(b"type d, c or nothing, then Enter", times=2)
    terminal.type(b"detach\n")
    assert terminal.end() == 0
    gate.touch()
    assert rankfall("wait").returncode == 17


def test_enter_goes_on_and_c_cancels(at_terminal: Callable[..., Terminal], folder: Path) -> None:
    terminal = at_terminal("run", *GANG, "--all", "train.py", GATE=str(folder / "never"))
    asked(terminal)
    terminal.type(b"\n")
    terminal.until(b"rankfall: continuing")
    terminal.type(CTRL_C)
    terminal.until(b"or continue (Enter)?", times=2)
    terminal.type(b"c\n")
    assert terminal.end() == 130
    assert b"rankfall-exit: rankfall 130" in terminal.text


def test_ctrl_c_twice_detaches(at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path) -> None:
    gate = folder / "gate"
    terminal = at_terminal("run", *GANG, "--all", "train.py", GATE=str(gate))
    asked(terminal)
    terminal.type(CTRL_C)
    assert terminal.end() == 0
    assert b"detached" in terminal.text
    gate.touch()
    assert rankfall("wait").returncode == 0


def test_leaving_attach_leaves_the_other_supervisor_alone(
    at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path
) -> None:
    gate = folder / "gate"
    rankfall("submit", "-q", *GANG, "train.py", "exit", GATE=str(gate))
    terminal = at_terminal("attach", "--all")
    asked(terminal)
    terminal.type(CTRL_C)
    assert terminal.end() == 0
    gate.touch()
    assert rankfall("wait").returncode == 17


@pytest.mark.parametrize("answer", [pytest.param(b"d\n", marks=pytest.mark.full), b"c\n", CTRL_C, b"SIGTERM"], ids=repr)
def test_i18_p7_at_a_viewers_terminal_only_an_answer_cancels(
    answer: bytes, at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path
) -> None:
    gate = folder / "gate"
    rankfall("submit", "-q", *GANG, "train.py", GATE=str(gate))
    terminal = at_terminal("attach", "--all")
    asked(terminal)
    terminal.type(b"\n")
    terminal.until(b"rankfall: continuing")
    terminal.type(CTRL_C)
    terminal.until(b"or continue (Enter)?", times=2)
    if answer == b"SIGTERM":
        terminal.process.send_signal(signal.SIGTERM)
    else:
        terminal.type(answer)
    cancelled = answer == b"c\n"
    assert terminal.end() == (130 if cancelled else 143 if answer == b"SIGTERM" else 0)
    assert (b"continues. To watch it" in terminal.text) is not cancelled
    gate.touch()
    assert rankfall("wait").returncode == (130 if cancelled else 0)


def test_cancel_without_a_run_asks_first(at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path) -> None:
    rankfall("submit", "-q", *GANG, "train.py", GATE=str(folder / "never"))
    terminal = at_terminal("cancel")
    terminal.until(b"[y/N]")
    terminal.type(b"n\n")
    assert terminal.end() == 130
    terminal = at_terminal("cancel")
    terminal.until(b"[y/N]")
    terminal.type(b"y\n")
    assert terminal.end() == 0
    assert b"cancelled" in terminal.text


def test_a_terminal_gets_colour_and_harmless_text(
    at_terminal: Callable[..., Terminal], rankfall: Runner, folder: Path
) -> None:
    (folder / "evil.py").write_text(r"import os; os.write(1, b'\x1b]0;owned\x07 \xe2\x80\xae a\r\n')")
    rankfall("run", "-q", "--launcher", "plain", "evil.py")
    terminal = at_terminal("logs", "--prefix")
    assert terminal.end() == 0
    assert b"\x1b[36m[rank 0]\x1b[0m \\x1b]0;owned\\x07 \\u202e a" in terminal.text
    assert b"\x1b]" not in terminal.text
    plain = at_terminal("logs", "--prefix", NO_COLOR="1")
    assert plain.end() == 0
    assert b"\x1b" not in plain.text


def test_no_colour_without_a_terminal(rankfall: Runner) -> None:
    done = rankfall("run", *GANG, "train.py", "fail")
    assert not re.search(r"\x1b", done.stdout + done.stderr)


AREA = b"\x1b[?7l"


@pytest.mark.parametrize(
    ("words", "env", "shown"),
    [
        ((), {}, True),
        (("--no-live",), {}, False),
        (("-q",), {}, False),
        ((), {"RANKFALL_RUN_LIVE": "0"}, False),
        ((), {"TERM": "dumb"}, False),
        ((), {"CI": "true"}, False),
        (("--live",), {"CI": "true"}, True),
        (("--live",), {"TERM": "dumb"}, False),
    ],
    ids=repr,
)
def test_an_area_appears_where_a_person_sees_it_and_wants_it(
    words: tuple[str, ...], env: dict[str, str], *, shown: bool, at_terminal: Callable[..., Terminal], folder: Path
) -> None:
    gate = folder / "gate"
    terminal = at_terminal("run", *GANG, *words, "train.py", "exit", GATE=str(gate), **env)
    if shown:
        terminal.until(b"# 2 running")
    gate.touch()
    assert terminal.end() == 17
    assert (AREA in terminal.text) is shown
    # What was drawn is removed before the verdict, and nothing of the terminal stays changed.
    assert b"# 2 running" not in terminal.text[terminal.text.rfind(b"\x1b[J") :]
    assert terminal.text.count(AREA) == terminal.text.count(b"\x1b[?7h")
    assert b"\x1b[?25l" not in terminal.text
    assert b"\x1b[?1049h" not in terminal.text
    assert b"rankfall-exit: rank 17" in terminal.text


def test_no_area_appears_if_only_one_stream_is_a_terminal(start: Starter, folder: Path) -> None:
    side, other = pty.openpty()
    done = start("run", *GANG, "--live", "train.py", stdout=subprocess.PIPE, stderr=other, env={"TERM": "xterm"})
    os.close(other)
    lines, _ = done.communicate(timeout=40)
    text = os.read(side, 1 << 20)
    os.close(side)
    assert b"rank 0 step 2" in lines
    assert b"succeeded" in text
    assert AREA not in lines + text
