"""What is shown of a rank that ended without an exception: its code, its last lines, the stack of a crash."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Runner = Callable[..., subprocess.CompletedProcess[str]]
ENDS = """
import ctypes, os, sys, time
print("reads the settings")
print("the settings lack lr; cannot go on", flush=True)
def crash():
    ctypes.string_at(0)
if os.environ["RANK"] == "1":
    crash() if sys.argv[1] == "crash" else os._exit(3) if sys.argv[1] == "hard" else sys.exit(3)
time.sleep(100)
"""


@pytest.fixture
def ended(folder: Path, rankfall: Runner) -> Callable[[str], str]:
    (folder / "ends.py").write_text(ENDS)

    def call(how: str) -> str:
        job = ("--nproc-per-node", "2", "--launcher", "plain", "--max-restarts", "0")
        assert rankfall("run", *job, "ends.py", how).returncode not in {0, 74}
        return rankfall("why").stdout

    return call


@pytest.mark.parametrize("how", ["exit", "hard"])
def test_a_code_stands_in_the_sentence_and_the_last_lines_in_the_proof(ended: Callable[[str], str], how: str) -> None:
    shown = ended(how)
    assert shown.startswith("Rank 1 on node0 exited with code 3")
    assert "      reads the settings\n      the settings lack lr; cannot go on\n" in shown


def test_a_crash_names_the_users_frames_below_it(ended: Callable[[str], str]) -> None:
    # A long path has its function on a line of its own.
    shown = " ".join(ended("crash").split())
    assert "ends.py:6 in crash" in shown
    assert "string_at" not in shown
