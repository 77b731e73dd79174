"""The status area at real terminals, through tmux: what a person sees, and what the terminal's history keeps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankfall.rundir import list_runs
from support.helpers import wait_until

TMUX = shutil.which("tmux")
pytestmark = pytest.mark.skipif(TMUX is None, reason="needs tmux")
# Rank 0 prints more lines than the terminal has, before and after the fall of rank 3; all draw bars as tqdm does.
TRAIN = r"""
import os, sys, time
rank = int(os.environ["RANK"])
def bar(n):
    sys.stderr.write(f"\rEpoch 1: {n * 100 // 40:3d}%|{'#' * (n // 4):10}| {n}/40 [00:01<00:02, 10.1it/s]")
    sys.stderr.flush()
for n in range(21):
    bar(n)
    if rank == 0:
        print("\n".join(f"line {n}.{m} of rank 0" for m in range(4)), flush=True)
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.01)
if rank == 3:
    raise ValueError("[bold]no[/bold] \x1b[2J\x1b]0;owned\x07")
while not os.path.exists(os.environ["GATE"] + "-2"):
    time.sleep(0.01)
"""


class Screen:
    """One window of a tmux server of its own."""

    def __init__(self, folder: Path, columns: int, rows: int, *words: str, **env: str) -> None:
        self._home = tempfile.mkdtemp(prefix="rankfall-tmux-")
        config = Path(self._home) / "conf"
        config.write_text("set -g remain-on-exit on\nset -g history-limit 5000\nset -g status off\n")
        # pytest-xdist sets the size of a terminal that is not this one.
        without = {"CI", "TMUX", "NO_COLOR", "COLUMNS", "LINES"}
        clean = {key: value for key, value in os.environ.items() if key not in without}
        self._env = clean | env | {"LC_ALL": "C.UTF-8"}
        self.call("-f", str(config), "new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(folder),
                  sys.executable, "-m", "rankfall", *words)  # fmt: skip

    def call(self, *words: str) -> str:
        done = subprocess.run(
            [str(TMUX), "-u", "-S", f"{self._home}/socket", *words], env=self._env, capture_output=True, check=True
        )
        return done.stdout.decode()

    def shown(self, *words: str) -> str:
        return self.call("capture-pane", "-p", "-J", *words)

    def history(self) -> str:
        """All lines since the start; wrapped ones joined."""
        return self.call("capture-pane", "-p", "-J", "-S", "-")

    def value(self, name: str) -> str:
        return self.call("display-message", "-p", f"#{{{name}}}").strip()

    def until(self, part: str) -> str:
        wait_until(lambda: part in self.shown(), timeout=45, what=f"{part!r} on the screen")
        return self.shown()

    def end(self) -> str:
        wait_until(lambda: self.value("pane_dead") == "1", timeout=45, what="its end")
        return self.history()

    def close(self) -> None:
        self.call("kill-server")
        shutil.rmtree(self._home, ignore_errors=True)


@pytest.fixture
def screen(folder: Path, rankfall: object) -> Iterator[Callable[..., Screen]]:
    (folder / "bars.py").write_text(TRAIN)
    made: list[Screen] = []

    def call(columns: int, rows: int, *words: str, **env: str) -> Screen:
        made.append(Screen(folder, columns, rows, *words, GATE=str(folder / "gate"), **env))
        return made[-1]

    yield call
    for one in made:
        one.close()


RUN = ("run", "--nnodes", "2", "--nproc-per-node", "2", "--launcher", "plain", "bars.py")


@pytest.mark.parametrize(
    ("columns", "rows", "color"),
    [(80, 24, True), pytest.param(80, 24, False, marks=pytest.mark.full), (200, 60, False),
     pytest.param(200, 60, True, marks=pytest.mark.full)],
)  # fmt: skip
def test_an_area_below_the_lines_shows_bars_and_ranks_and_gives_way_to_the_verdict_after_a_resize(
    screen: Callable[..., Screen], folder: Path, columns: int, rows: int, *, color: bool
) -> None:
    window = screen(columns, rows, *RUN, **({} if color else {"NO_COLOR": "1"}))
    window.until("line 20.3 of rank 0")
    window.until("rank 0: step 20 of 40")
    # Rank 0 may wait at its gate before the others have started.
    shown = window.until("# 4 running")
    assert "## ##" in shown
    assert "rank 0: step 20 of 40" in shown
    assert "Epoch 1:  50%|#####     | 20/40" in shown
    assert ("\x1b[32m##" in window.shown("-e")) is color
    # Two troubles at once: the terminal becomes narrower while a rank falls.
    window.call("resize-window", "-x", str(columns - 30), "-y", str(rows - 6))
    (folder / "gate").touch()
    window.until("raised ValueError")
    (folder / "gate-2").touch()
    lines = window.end().splitlines()
    # The terminal's history has each line once and nothing of the area.
    assert [line for line in lines if " of rank 0" in line] == [
        f"[rank 0] line {n}.{m} of rank 0" for n in range(21) for m in range(4)
    ]
    text = "\n".join(lines)
    assert "newest line" not in text
    assert "running" not in text
    # Of the bars only what their lines' ends show: the last state, once for each rank whose lines appear.
    assert text.count("Epoch 1:") <= 2
    assert "[bold]no[/bold] \\x1b]0;owned\\x07" in text
    assert "Rank 3 on" in text
    assert text.count("rankfall-exit: rank 1") == 1


def test_ctrl_c_while_the_area_is_shown_asks_and_leaves_a_clean_terminal(
    screen: Callable[..., Screen], folder: Path
) -> None:
    window = screen(80, 24, *RUN)
    window.until("rank 0: step 20 of 40")
    window.call("send-keys", "C-c")
    asked = window.until("or continue (Enter)?")
    assert "newest line" not in asked
    window.call("send-keys", "Enter")
    window.until("rankfall: continuing")
    window.until("newest line")
    # A dead pane has no cursor, so this is asked before the end.
    assert window.value("cursor_flag") == "1"
    window.call("send-keys", "C-c")
    wait_until(lambda: window.history().count("or continue") == 2, timeout=25, what="the question")
    window.call("send-keys", "c", "Enter")
    text = window.end()
    assert "newest line" not in text
    assert "rankfall-exit: rankfall 130" in text
    assert window.value("wrap_flag") == "1"


def test_status_watch_fits_the_terminal(
    screen: Callable[..., Screen], folder: Path, rankfall: Callable[..., object]
) -> None:
    rankfall("submit", "-q", *RUN[1:], GATE=str(folder / "gate"))
    window = screen(100, 12, "status", "-w")
    shown = window.until("more lines: rankfall status bars-")
    assert "# 4 running" in window.until("# 4 running"), shown
    assert window.value("history_size") == "0"
    (folder / "gate").touch()
    (folder / "gate-2").touch()
    assert " failed in attempt 1" in window.end()


def test_a_followed_log_shows_bars_in_their_last_state_and_stores_every_byte(
    screen: Callable[..., Screen], folder: Path, home: Path, rankfall: Callable[..., object]
) -> None:
    rankfall("submit", "-q", *RUN[1:], GATE=str(folder / "gate"))
    window = screen(120, 30, "logs", "-f")
    window.until("rank 2: Epoch 1:  50%|#####     | 20/40")
    window.until("rank 0: Epoch 1:  50%|#####     | 20/40")
    (folder / "gate").touch()
    (folder / "gate-2").touch()
    text = window.end()
    # The last line of each rank has no end, but for that of the traceback's.
    assert text.count("Epoch 1:") == 4
    assert text.count("Epoch 1:  50%") == 4
    [run] = list_runs(home)
    stored = b"".join(path.read_bytes() for path in run.logs_dir.rglob("*.log"))
    assert stored.count(b"\rEpoch 1:") == 4 * 21
