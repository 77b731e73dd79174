"""``resize`` as people type it: the answer, the wait, what is over, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from support.helpers import wait_until

from .conftest import Runner

WAIT = 20.0


def status(rankfall: Runner, run: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(rankfall("status", run, "-o", "json").stdout)
    return found


def test_jobapi_s07_resize_says_what_is_done_and_waits_for_it(rankfall: Runner, folder: Path) -> None:
    gate = folder / "gate"
    run = rankfall("submit", "--launcher", "plain", "-e", f"GATE={gate}", "train.py").stdout.strip()
    wait_until(lambda: status(rankfall, run)["state"] == "running", timeout=WAIT, what="the job")
    done = rankfall("resize", run, "1")
    assert (done.returncode, done.stdout) == (0, f"{run} worker: 1 node, unchanged\n")
    done = rankfall("resize", run, "2", "--wait", "--reason", "more")
    assert (done.returncode, done.stdout) == (0, f"{run} worker: 1 -> 2 nodes, done\n")
    assert f"rankfall status {run}" in done.stderr
    assert status(rankfall, run)["sizes"] == {"worker": 2}
    rankfall("suspend", run)
    done = rankfall("resize", run, "3")
    assert done.stdout == f"{run} worker: 2 -> 3 nodes, from the next attempt\n"
    done = rankfall("resize", run, "3", "--wait")
    assert "gets its new size when it continues" in done.stderr
    assert "worker: 2 nodes, 3 requested" in rankfall("status", run).stdout
    gate.touch()
    rankfall("resume", run)
    assert rankfall("wait", run, "--timeout", "30s").returncode == 0
    assert status(rankfall, run)["sizes"] == {"worker": 3}
    late = rankfall("resize", run, "4")
    assert late.returncode == 2
    assert "has ended (succeeded): there is nothing to resize" in late.stderr


def test_resize_refuses_what_is_no_size_of_the_job(rankfall: Runner, folder: Path) -> None:
    run = rankfall("submit", "--launcher", "plain", "-e", f"GATE={folder / 'gate'}", "train.py").stdout.strip()
    for words, said in ((("0",), "0 is not in the range"), (("2", "--role", "ps"), "name one of its roles: worker")):
        done = rankfall("resize", run, *words)
        assert done.returncode == 2
        assert said in done.stderr
    rankfall("cancel", run, "-y")
