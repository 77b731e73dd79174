"""The verbs over real runs: plain launcher, real processes, real signals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rankfall.model.schemas import DOCUMENTS, schema_of
from rankfall.rundir.streams.content import content_size, read_bytes
from support.helpers import wait_until
from support.patience import scaled

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]
GANG = ("--nproc-per-node", "3", "--launcher", "plain")


def valid(text: str, name: str) -> dict[str, Any]:
    data = json.loads(text)
    jsonschema.validate(data, schema_of(name))
    found: dict[str, Any] = data
    return found


def runs(home: Path) -> list[str]:
    return [path.parent.name for path in home.glob("runs/*/spec.json")]


def logged(home: Path) -> bytes:
    # Not what a compression has written so far.
    paths = [path for path in home.glob("runs/*/logs/**/*.log*") if path.suffix in {".log", ".zst"}]
    found = {str(path).removesuffix(".zst") for path in paths}
    return b"".join(read_bytes(Path(path), 0, content_size(Path(path))) for path in sorted(found))


def all_ranks_run(home: Path, ranks: int = 3) -> bool:
    return logged(home).count(b"to stderr") >= ranks


def test_run_shows_the_first_and_the_last_rank_and_ends_with_0(rankfall: Runner) -> None:
    done = rankfall("run", *GANG, "train.py", "--lr", "1e-3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("[rank 0]")] == [
        "[rank 0] rank 0 step 0",
        "[rank 0] rank 0 step 1",
        "[rank 0] rank 0 step 2",
        "[rank 0] rank 0 to stderr",
    ]
    assert "[rank 2] rank 2 step 2" in lines
    assert not [line for line in lines if line.startswith("[rank 1]")]
    assert "launcher: plain" in done.stderr
    assert "3 ranks started: 0-2" in done.stderr or "ranks started" in done.stderr
    assert re.search(r"run train-[0-9a-f]{6} succeeded after \d", done.stderr)
    assert done.stderr.splitlines()[-1] == "rankfall-exit: rankfall 0"


def test_the_start_of_a_rank_is_printed_before_its_end(rankfall: Runner) -> None:
    done = rankfall("run", "--launcher", "plain", "--max-restarts", "0", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert done.stderr.index("1 rank started: 0") < done.stderr.index("rank 0 on node0 ended with code 3")


def test_run_says_why_it_shows_nothing_or_no_document(rankfall: Runner) -> None:
    words = ("run", "--launcher", "plain", "--rank", "9", "-o", "json")
    done = rankfall(*words, "--", "sh", "-c", "echo hello")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no line of the chosen ranks; rankfall status " in done.stderr
    assert "-o json is for --dry-run, -d and -q; this run shows text" in done.stderr
    done = rankfall("run", "--launcher", "plain", "--rank", "0,9", "--", "sh", "-c", "echo hello")
    assert "hello" in done.stdout
    assert "no line of" not in done.stderr
    assert json.loads(rankfall(*words, "-q", "--", "true").stdout)["state"] == "succeeded"


def test_run_of_a_failing_rank_tells_it_all_and_ends_with_its_code(rankfall: Runner) -> None:
    done = rankfall("run", *GANG, "train.py", "fail")
    assert done.returncode == 1
    assert "[rank 1] TypeError: unsupported operand" in done.stdout
    assert "[rank 1] rank 1 step 0" not in done.stdout
    assert "Traceback" not in done.stderr
    assert re.search(
        r"\n\nrun     train-[0-9a-f]{6}, attempt 1, failed\n"
        r"rank    1 \(local rank 1, slot 0\)\n"
        r"node    node0\n"
        r"cause   Python exception in training code \(user_code_exception, proven\)\n"
        r"action  stop: .*\n",
        done.stderr,
    )
    assert re.search(r"      TypeError: unsupported operand\n        at .*/train.py:\d+\s+in <module>\n", done.stderr)
    assert re.search(r"\$ rankfall logs train-[0-9a-f]{6} --attempt 1 --rank 1 --tail 50", done.stderr)
    assert done.stderr.splitlines()[-1] == "rankfall-exit: rank 1"


@pytest.mark.parametrize(("word", "code"), [("exit", 17), ("kill", 137)])
def test_run_ends_with_the_root_ranks_own_code(word: str, code: int, rankfall: Runner) -> None:
    done = rankfall("run", *GANG, "--max-restarts", "0", "-q", "train.py", word)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == f"rankfall-exit: rank {code}"
    assert "rank    1" in done.stderr


def test_a_retried_attempt_is_explained_and_the_run_goes_on(rankfall: Runner) -> None:
    done = rankfall("run", *GANG, "train.py", "kill")
    assert done.returncode == 0
    assert "cause   SIGKILL without a known sender" in done.stderr
    assert "action  restart (2 restarts left, budget total): one restart to confirm" in done.stderr
    assert "succeeded in attempt 2" in done.stderr
    last = rankfall("logs", "--rank", "0").stdout.splitlines()
    before = rankfall("logs", "--rank", "0", "--previous").stdout.splitlines()
    assert last == before == ["rank 0 step 0", "rank 0 step 1", "rank 0 step 2", "rank 0 to stderr"]
    why = valid(rankfall("why", "--attempt", "1", "-o", "json").stdout, "rankfall.verdict-1")
    assert (why["rank"], why["cause"]["slug"], why["decision"]["state"]) == (1, "killed_unknown", "done")


def test_all_and_rank_choose_whose_lines_are_shown(rankfall: Runner) -> None:
    assert "[rank 1] rank 1 step 1" in rankfall("run", *GANG, "--all", "train.py").stdout
    only = rankfall("run", *GANG, "--rank", "1", "train.py").stdout.splitlines()
    assert only
    assert all(line.startswith("[rank 1] ") for line in only)


def test_a_dry_run_prints_the_plan_hides_secrets_and_creates_nothing(rankfall: Runner, home: Path) -> None:
    done = rankfall("run", "--dry-run", *GANG, "-e", "API_TOKEN=hunter2", "train.py")
    assert done.returncode == 0
    assert "slot 0 on node0" in done.stdout
    assert "hunter2" not in done.stdout
    plan = json.loads(rankfall("submit", "--dry-run", "-o", "json", "--nnodes", "2", *GANG, "train.py").stdout)
    assert [slot["node"] for slot in plan["slots"]] == ["node0", "node1"]
    assert not home.exists()


def test_a_job_file_runs(rankfall: Runner, folder: Path) -> None:
    (folder / "job.yaml").write_text("command: [train.py, x]\nnproc_per_node: 2\nlauncher: plain\nname: from-file\n")
    done = rankfall("run", "-f", "job.yaml")
    assert done.returncode == 0
    assert "run from-file-" in done.stderr


def test_the_documents_of_a_submitted_run_are_valid(rankfall: Runner, home: Path, folder: Path) -> None:
    gate = folder / "gate"
    words = ("submit", "--request-token", "nightly", *GANG, "-o", "json", "train.py", "fail")
    started = rankfall(*words, GATE=str(gate))
    told = json.loads(started.stdout)
    name, supervisor = told["run"], told["supervisor"]
    assert f"supervised by process {supervisor['pid']} on {supervisor['host']}" in started.stderr
    assert Path(f"/proc/{supervisor['pid']}").exists()
    assert json.loads(rankfall(*words, GATE=str(gate)).stdout) == told
    for verb, *more in (("submit", "--name", "other"), ("run", "--max-restarts", "2"), ("run", "-e", "LR=5")):
        other = rankfall(verb, *more, *words[1:3], *GANG, "train.py", "succeed", GATE=str(gate))
        assert (other.returncode, other.stdout) == (2, "")
        assert f"rankfall: run {name} has this request token, and its job differs: " in other.stderr
        assert 'command[1] is "succeed", in the run "fail"' in other.stderr
        assert f"another request token, or see that run: rankfall status {name}" in other.stderr
    assert runs(home) == [name]
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")

    def live() -> dict[str, Any]:
        return valid(rankfall("status", name, "-o", "json").stdout, "rankfall.status-1")

    status = wait_until(
        lambda: found if len((found := live())["ranks"]) == 3 else None, timeout=40, what="three ranks in status"
    )
    assert (status["state"], status["supervised"]) == ("running", True)
    assert {rank["hook"] for rank in status["ranks"]} == {"loaded"}
    assert "none so far" in rankfall("why", name).stdout
    gate.touch()
    waited = rankfall("wait", name, "-o", "json")
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["state"] == "failed"
    assert waited.stderr.splitlines()[-1] == "rankfall-exit: rank 1"
    listed = valid(rankfall("ps", "-o", "json").stdout, "rankfall.runs-1")
    assert [(run["run"], run["state"], run["cause"], run["rank"]) for run in listed["runs"]] == [
        (name, "failed", "user_code_exception", 1)
    ]
    verdict = valid(rankfall("why", name[:-2], "-o", "json").stdout, "rankfall.verdict-1")
    assert (verdict["run"], verdict["rank"], verdict["exit_origin"]) == (name, 1, "rank")
    assert yaml.safe_load(rankfall("why", "-o", "yaml").stdout) == verdict
    assert name in rankfall("ps").stdout
    assert "EXIT" in rankfall("status").stdout


def test_logs_filter_by_rank_stream_pattern_and_count(rankfall: Runner) -> None:
    rankfall("run", "-q", *GANG, "train.py")
    assert rankfall("logs", "--rank", "1", "--tail", "1", "--stream", "stdout").stdout == "rank 1 step 2\n"
    both = rankfall("logs", "--rank", "first,last", "--stream", "stderr").stdout.splitlines()
    assert sorted(both) == ["[rank 0] rank 0 to stderr", "[rank 2] rank 2 to stderr"]
    assert rankfall("logs", "--grep", "rank [12] step 1$", "--no-prefix", "--rank", "1").stdout == "rank 1 step 1\n"
    assert rankfall("logs", "--since", "2020-01-01").stdout.count("\n") == 12
    none = rankfall("logs", "--since", "2999-01-01T00:00:00Z")
    assert (none.returncode, none.stdout) == (0, "")
    stamped = rankfall("logs", "--rank", "0", "--tail", "1", "--timestamps").stdout
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z rank 0", stamped)
    objects = [json.loads(line) for line in rankfall("logs", "-o", "json", "--rank", "2").stdout.splitlines()]
    assert {(o["rank"], o["slot"], o["attempt"]) for o in objects} == {(2, 0, 1)}
    assert [o["text"] for o in objects if o["out"]] == ["rank 2 step 0", "rank 2 step 1", "rank 2 step 2"]
    bad = rankfall("logs", "--grep", "(")
    assert bad.returncode == 2
    assert "RE2" in bad.stderr


def test_logs_follow_until_the_end(rankfall: Runner, start: Starter, home: Path, folder: Path) -> None:
    gate = folder / "gate"
    name = rankfall("submit", "-q", *GANG, "train.py", "fail", GATE=str(gate)).stdout.strip()
    with (folder / "followed").open("wb") as file:
        follower = start("logs", "-f", name, stdout=file)
        wait_until(lambda: b"rank 1 step 2" in (folder / "followed").read_bytes(), timeout=40, what="live lines")
        gate.touch()
        assert follower.wait(scaled(20)) == 0
    lines = (folder / "followed").read_bytes().splitlines()
    assert lines.count(b"[rank 1] rank 1 step 2") == 1
    assert lines.count(b"[rank 1] TypeError: unsupported operand") == 1


def test_a_pipe_gets_the_jobs_own_bytes(rankfall: Runner, folder: Path, home: Path) -> None:
    (folder / "raw.py").write_text("import os; os.write(1, b'a\\x1b[31m\\xff\\rb\\n')")
    rankfall("run", "-q", "--launcher", "plain", "raw.py")
    done = subprocess.run(
        rankfall("logs", "--rank", "0").args,
        cwd=folder,
        env=os.environ,
        capture_output=True,
        check=True,
        timeout=scaled(30),
    )
    assert done.stdout == b"a\x1b[31m\xff\rb\n"


def test_a_reader_that_goes_away_does_not_end_the_job(start: Starter, folder: Path, home: Path) -> None:
    gate = folder / "gate"
    running = start("run", *GANG, "--all", "train.py", "exit", env={"GATE": str(gate)}, stdout=-1, stderr=-1)
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"[rank")
    running.stdout.close()
    running.stdout = None
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")
    gate.touch()
    assert running.wait(scaled(30)) == 17


def test_a_stdout_on_a_full_disk_does_not_end_the_job(start: Starter) -> None:
    with Path("/dev/full").open("wb") as full:
        running = start("run", *GANG, "--all", "train.py", "exit", stdout=full, stderr=-1)
        _, told = running.communicate(timeout=scaled(30))
    assert running.returncode == 17
    assert b"cannot write to stdout (No space left on device)" in told
    assert b"rank    1 (" in told
    assert told.splitlines()[-1] == b"rankfall-exit: rank 17"


def test_closed_standard_streams_are_no_trouble(rankfall: Runner, folder: Path, home: Path) -> None:
    words = " ".join(rankfall("run", "-q", *GANG, "train.py", "exit").args)
    done = subprocess.run(
        ["bash", "-c", f"{words} <&- >&- 2>&-"], cwd=folder, env=os.environ, timeout=scaled(40), check=False
    )
    assert done.returncode == 17
    assert len(runs(home)) == 2


def test_a_closed_pipe_ends_logs_quietly(rankfall: Runner, folder: Path) -> None:
    rankfall("run", "-q", *GANG, "--", "seq", "20000")
    words = " ".join(rankfall("logs").args)
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1; echo ${{PIPESTATUS[0]}}"],
        cwd=folder, env=os.environ, capture_output=True, timeout=scaled(30), check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == b"0"
    assert b"Traceback" not in done.stderr


def test_errors_s40_a_cancelled_run_is_cancelled_and_130(rankfall: Runner, folder: Path, home: Path) -> None:
    name = rankfall("submit", "-q", *GANG, "train.py", GATE=str(folder / "never")).stdout.strip()
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")
    assert rankfall("cancel").returncode == 2
    for timeout, said in (("0", f"{name} has not ended yet\n"), ("0.1s", f"{name} has not ended after 0.1s\n")):
        assert f"rankfall: {said}rankfall-exit: rankfall 124\n" in rankfall("wait", name, "--timeout", timeout).stderr
    done = rankfall("cancel", name, "--reason", "enough", "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["state"] == "cancelled"
    waited = rankfall("wait", name)
    assert waited.returncode == 130
    assert waited.stderr.splitlines()[-1] == "rankfall-exit: rankfall 130"
    assert "enough" in rankfall("why", name).stdout
    again = rankfall("cancel", name)
    assert again.returncode == 0
    assert "has already ended: cancelled" in again.stderr
    again = rankfall("cancel", name, "-o", "json")
    assert (again.returncode, json.loads(again.stdout)["state"]) == (0, "cancelled")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_terminal_a_signal_cancels(number: int, start: Starter, folder: Path, home: Path) -> None:
    running = start("run", *GANG, "train.py", env={"GATE": str(folder / "never")}, stdout=-3, stderr=-1, stdin=-3)
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")
    running.send_signal(number)
    _, told = running.communicate(timeout=scaled(30))
    assert running.returncode == 130
    assert told.decode().splitlines()[-1] == "rankfall-exit: rankfall 130"


def test_a_hangup_leaves_the_run_to_a_detached_supervisor(
    start: Starter, rankfall: Runner, folder: Path, home: Path
) -> None:
    gate = folder / "gate"
    running = start("run", *GANG, "train.py", "exit", env={"GATE": str(gate)}, stdout=-3, stderr=-1)
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")
    running.send_signal(signal.SIGHUP)
    _, errors = running.communicate(timeout=scaled(30))
    # With 0 a script would go on as after a job that succeeded.
    assert running.returncode == 129
    assert errors.decode().splitlines()[-1] == "rankfall-exit: rankfall 129"
    gate.touch()
    assert rankfall("wait").returncode == 17


def test_why_of_a_run_that_a_restart_saved_says_first_that_it_succeeded(rankfall: Runner) -> None:
    assert rankfall("run", *GANG, "--max-restarts", "1", "train.py", "kill").returncode == 0
    for attempt in ((), ("--attempt", "1")):
        text = " ".join(rankfall("why", *attempt).stdout.split())
        assert (
            "succeeded in attempt 2; attempt 1 failed: rank 1 on node0 was killed by SIGKILL" in text.split(" run ")[0]
        )
        shown = json.loads(rankfall("why", *attempt, "-o", "json").stdout)
        assert (shown["state"], shown["attempt"], shown["succeeded_in"]) == ("failed", 1, 2)
    assert "succeeded_in" not in json.loads(rankfall("why", "--attempt", "2", "-o", "json").stdout)
    assert rankfall("run", *GANG, "--max-restarts", "1", "train.py", "kill", "fail").returncode == 1
    shown = json.loads(rankfall("why", "--attempt", "1", "-o", "json").stdout)
    assert (shown["state"], "succeeded_in" in shown) == ("failed", False)


def test_a_run_that_ended_without_its_supervisor_is_not_shown_as_running(
    start: Starter, rankfall: Runner, folder: Path, home: Path
) -> None:
    gate = folder / "gate"
    running = start("run", *GANG, "train.py", "exit", env={"GATE": str(gate)}, stdout=-3, stderr=-3)
    wait_until(
        lambda: len(json.loads(rankfall("status", "-o", "json").stdout or '{"ranks": ""}')["ranks"]) == 3,
        timeout=40,
        what="the ranks in the database",
    )
    running.kill()
    running.wait(scaled(10))
    before = json.loads(rankfall("status", "-o", "json").stdout)
    assert (before["ended"], before["active"] > 0) == (None, True)
    gate.touch()
    wait_until(lambda: "ended, unsupervised" in rankfall("ps").stdout, timeout=40, what="the end in ps")
    shown = json.loads(rankfall("status", "-o", "json").stdout)
    assert (shown["state"], shown["active"], shown["supervised"]) == ("running", 0, False)
    assert {one["state"] for one in (*shown["slots"], *shown["ranks"])} == {"ended"}
    assert "17" in {one["exit"] for one in shown["ranks"]}
    text = " ".join(rankfall("status").stdout.split())
    assert "has ended in attempt 1 without its supervisor, after " in text
    assert "unsupervised: no process stores its end; rankfall attach " in text
    rankfall("attach")
    assert "failed in attempt 1" in rankfall("status").stdout


def test_attach_takes_over_from_a_killed_supervisor(start: Starter, rankfall: Runner, folder: Path, home: Path) -> None:
    gate = folder / "gate"
    running = start("run", *GANG, "train.py", "exit", env={"GATE": str(gate)}, stdout=-3, stderr=-3)
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")
    running.kill()
    running.wait(scaled(10))
    assert "unsupervised: no process restarts it, seen " in rankfall("status").stdout
    said = " ".join(rankfall("why").stdout.split())
    assert "is running; no failure so far." in said
    assert "unsupervised: no process restarts it, seen " in said
    attached = start("attach", "--all", stdout=-1, stderr=-1)
    wait_until(lambda: b"resumed" in _events(home), timeout=40, what="a supervisor that took over")
    gate.touch()
    out, told = attached.communicate(timeout=scaled(30))
    assert attached.returncode == 17
    assert told.decode().splitlines()[-1] == "rankfall-exit: rank 17"
    assert out.count(b"[rank 1] rank 1 step 2\n") == 1
    assert rankfall("logs", "--rank", "1").stdout.count("rank 1 step 2\n") == 1
    assert json.loads(rankfall("ps", "-o", "json").stdout)["runs"][0]["attempts"] == 1


def test_cancel_stops_a_run_that_nobody_supervises(start: Starter, rankfall: Runner, folder: Path, home: Path) -> None:
    running = start("run", *GANG, "train.py", env={"GATE": str(folder / "never")}, stdout=-3, stderr=-3)
    wait_until(lambda: all_ranks_run(home), timeout=40, what="lines of all ranks")
    running.kill()
    running.wait(scaled(10))
    [name] = runs(home)
    assert rankfall("cancel", name).returncode == 0
    slots = json.loads(rankfall("status", "-o", "json").stdout)
    assert slots["state"] == "cancelled"
    assert not [rank for rank in slots["ranks"] if rank["pid"] and Path(f"/proc/{rank['pid']}").exists()]


def test_why_of_files_and_of_a_pipe(rankfall: Runner, folder: Path) -> None:
    text = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "t.py", line 3, in <module>\n[rank1]: TypeError: no\n'
    (folder / "node1.log").write_text(text)
    of_file = valid(rankfall("why", "node1.log", "-o", "json").stdout, "rankfall.verdict-1")
    of_pipe = valid(rankfall("why", "-", "-o", "json", stdin=text.encode()).stdout, "rankfall.verdict-1")
    assert of_file["cause"]["slug"] == of_pipe["cause"]["slug"] == "user_code_exception"
    assert of_file["rank"] == of_pipe["rank"] == 1
    assert of_file["run"] is None
    assert of_file["decisive"]["where"].startswith("node1.log:")
    assert "run     none; input: node1.log" in rankfall("why", "node1.log").stdout
    nothing = rankfall("why", "-", stdin=b"")
    assert (nothing.returncode, "unknown" in nothing.stdout) == (0, True)


def test_doctor_tries_everything_and_finds_the_hook(rankfall: Runner) -> None:
    done = rankfall("doctor", "--json")
    document = valid(done.stdout, "rankfall.doctor-1")
    checks = {check["name"]: check for check in document["checks"]}
    assert document["schema"] == "rankfall.doctor/1"
    assert checks["hook"]["state"] == "pass"
    assert checks["home"]["state"] == "pass"
    assert all(check["next"] for check in document["checks"] if check["state"] == "fail")
    assert done.returncode == (69 if document["state"] == "fail" else 0)
    text = rankfall("doctor", "--python", "/no/python")
    assert text.returncode == 69
    assert re.search(r"^fail  job-python", text.stdout, re.MULTILINE)
    assert "next: " in text.stdout


def test_config_prints_the_schemas(rankfall: Runner) -> None:
    for name in DOCUMENTS:
        short = name.removeprefix("rankfall.").removesuffix("-1")
        assert json.loads(rankfall("config", "schema", short).stdout) == schema_of(name)


def test_i24_outcomes_of_a_failed_and_of_a_good_run_fit_their_schema(rankfall: Runner, folder: Path) -> None:
    """The text of the failed one is hostile."""
    (folder / "bad.py").write_text("raise ValueError('\\x1b[31m\\u202e<script>\\udcff')\n")
    for program, state in (("train.py", "succeeded"), ("bad.py", "failed")):
        run = rankfall("submit", "--launcher", "plain", program).stdout.strip()
        outcome = valid(rankfall("wait", run, "-o", "json").stdout, "rankfall.outcome-1")
        assert (outcome["schema"], outcome["run"], outcome["state"]) == ("rankfall.outcome/1", run, state)
        assert (outcome["verdict"] is None) == (state == "succeeded")
    assert valid(rankfall("why", run, "-o", "json").stdout, "rankfall.verdict-1") == outcome["verdict"]


@pytest.mark.torch
def test_torchrun_is_used_and_named_where_torch_is(rankfall: Runner) -> None:
    done = rankfall("run", "--nproc-per-node", "2", "train.py", "fail")
    assert "launcher: torchrun (torch " in done.stderr
    assert "rank    1 (local rank 1, slot 0)" in done.stderr
    assert done.returncode == 1


def _events(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("runs/*/events.jsonl"))


LOUD = """
import os
for step in range(20000):
    print(f"rank {os.environ['RANK']} step {step} " + "x" * 80, flush=False)
"""


def test_logs_s40_of_sixteen_by_eight_ranks_all_are_kept_and_two_are_shown(rankfall: Runner, home: Path) -> None:
    words = ("sh", "-c", "for n in 1 2 3; do echo word $n of rank $RANK; done")
    done = rankfall("run", "--nnodes", "16", "--nproc-per-node", "8", "--launcher", "plain", "--", *words)
    assert done.returncode == 0, done.stderr
    shown = sorted(done.stdout.splitlines())
    assert shown == [f"[rank {rank}] word {n} of rank {rank}" for rank in (0, 127) for n in (1, 2, 3)]
    kept = logged(home).decode().split("\n")
    assert sorted(filter(None, kept)) == sorted(f"word {n} of rank {rank}" for rank in range(128) for n in (1, 2, 3))


def test_logs_s44_a_console_that_does_not_read_keeps_nothing_from_the_record(
    rankfall: Runner, start: Starter, folder: Path, home: Path
) -> None:
    (folder / "loud.py").write_text(LOUD)
    # Far more than a pipe holds, and nobody reads it.
    watched = start("run", *GANG, "--all", "loud.py", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def over() -> bool:
        listed = json.loads(rankfall("ps", "-o", "json").stdout or "{}").get("runs")
        return bool(listed) and listed[0]["state"] == "succeeded"

    wait_until(over, timeout=40, what="the run is over")
    assert watched.poll() is None
    assert logged(home).count(b"\n") == 3 * 20000


def test_logs_s45_past_the_limit_of_bytes_the_job_the_record_and_the_report_go_on(
    rankfall: Runner, folder: Path, home: Path
) -> None:
    (folder / "loud.py").write_text(LOUD + "if os.environ['RANK'] == '1': raise KeyError('vocab')\n")
    done = rankfall("run", *GANG, "--all", "--max-bytes", "10K", "loud.py")
    assert done.returncode == 1
    assert len(re.sub(r"(?m)^\[(rank|slot) \d\] ", "", done.stdout)) < 10 * 1024 + 200
    assert "--max-bytes is reached" in done.stderr
    kept = re.search(r"rankfall logs (\S+), (\S+)", done.stderr)
    assert kept
    assert Path(kept[2]).stat().st_size > 3 * 20000 * 80
    assert "cause   " in done.stderr
    assert "KeyError: 'vocab'" in done.stderr
    assert logged(home).count(b" step ") == 3 * 20000


def test_a_limit_of_bytes_that_is_no_size_is_refused(rankfall: Runner, home: Path) -> None:
    done = rankfall("run", *GANG, "--max-bytes", "much", "train.py")
    assert done.returncode == 2
    assert "--max-bytes 'much' is no size" in done.stderr
    assert runs(home) == []


def test_i23_p8_a_copied_run_directory_is_that_run(rankfall: Runner, home: Path, tmp_path: Path) -> None:
    assert rankfall("run", *GANG, "train.py", "fail").returncode != 0
    (run,) = runs(home)
    copy = tmp_path / "from a colleague"
    shutil.copytree(home / "runs" / run, copy, ignore=shutil.ignore_patterns("*.sock", "slots"))
    # SQLite writes its shared index also to read.
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file() and path.name != "run.db-shm"}
    there = rankfall("why", str(copy), "-o", "json", RANKFALL_HOME=str(tmp_path / "other"))
    assert json.loads(there.stdout) == json.loads(rankfall("why", run, "-o", "json").stdout)
    fresh = json.loads(
        rankfall("why", str(copy), "--fresh", "-o", "json", RANKFALL_HOME=str(tmp_path / "other")).stdout
    )
    assert (fresh["run"], fresh["cause"], fresh["rank"]) == (run, json.loads(there.stdout)["cause"], 1)
    assert {
        path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file() and path.name != "run.db-shm"
    } == before
