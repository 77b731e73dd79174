"""Words and flags that users of kubectl, docker, torchrun and Slurm type before they read the manual."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

from cli.conftest import Runner
from rankfall.backends.command import gpus_here
from rankfall.cli import console
from rankfall.cli.app import VERBS, load, table
from rankfall.cli.app import run as main
from rankfall.cli.job_options import Flags, make_spec
from rankfall.model.schemas import schema_of
from rankfall.rundir import list_runs
from support.patience import scaled

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def flags(verb: str) -> set[str]:
    command = load(verb)
    below = list(command.commands.values()) if isinstance(command, click.Group) else []
    return {opt for one in (command, *below) for param in one.params for opt in param.opts if opt.startswith("--")}


def verbs_in(text: str) -> set[str]:
    return set(re.findall(r"rankfall ([a-z]+)", text))


def test_every_answer_names_a_verb_and_flags_that_exist() -> None:
    words = table("words")
    assert not (words["works"].keys() | words["answers"].keys()) & VERBS.keys()
    for line in words["works"].values():
        verb, *rest = line.split()
        assert set(rest) <= flags(verb)
    for text in words["answers"].values():
        named = verbs_in(text)
        assert named
        assert named <= VERBS.keys()
        assert set(FLAG.findall(text)) <= set().union(*map(flags, named)), text
    for verb, answers in words["flags"].items():
        known = flags(verb)
        for flag, text in answers.items():
            assert f"--{flag}" not in known, "the flag exists now"
            others = set().union(*map(flags, verbs_in(text) & VERBS.keys()), known)
            assert set(FLAG.findall(text)) - {"--rdzv-conf"} <= others, text


@pytest.mark.parametrize("word", ["delete", "stop", "kill", "restart", "launch", "events", "completion", "srun"])
def test_a_word_of_another_tool_is_answered_in_one_line(
    home: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "some-run"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"rankfall: there is no command {word!r}: {table('words')['answers'][word]}"]
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["run", "--master-port", "29500", "train.py"], "each attempt gets a free port"),
        (["submit", "--master_port", "29500", "train.py"], "each attempt gets a free port"),
        (["run", "--ntasks", "4", "train.py"], "--nproc-per-node"),
        (["run", "--nodes", "4", "train.py"], "--nnodes"),
        (["logs", "--lines", "4"], "--tail"),
        (["run", "--webhook", "http://127.0.0.1", "train.py"], "config notify --test"),
        (["run", "--config", "job.yaml"], "--file"),
        (["report", "--html", "RUN"], "-o FILE.html"),
        (["wait", "--quiet"], "one line"),
        (["rm", "--all"], "prune --keep 0"),
    ],
)
def test_a_flag_of_another_tool_is_answered(
    home: Path, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("rankfall: there is no option --")
    assert answer in first


def test_help_and_version_are_words_too(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (["help"], ["--help"], ["help", "run"], ["run", "--help"], ["version"], ["--version"], ["-V"]):
        assert main(words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[4] == texts[5] == texts[6]
    assert re.search(r"counts as a hang;\s+default: 30m", texts[3])
    assert re.search(r"new attempts;\s+default: 3", texts[3])


def test_verbose_shows_the_traceback_of_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["-v", "status", "nosuch"], ["status", "-v", "nosuch"], ["status", "nosuch", "--verbose"]):
        assert main(words) == 66
        assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert main(["status", "nosuch"]) == 66
    assert "Traceback" not in capsys.readouterr().err


def test_a_harmless_word_works_and_json_has_a_short_flag(rankfall: Runner) -> None:
    run = rankfall("submit", "--name", "one", "--launcher", "plain", "train.py").stdout.strip()
    rankfall("wait", run)
    for words in (("ls",), ("list",), ("jobs",)):
        assert run in rankfall(*words).stdout
    assert json.loads(rankfall("ps", "--json").stdout)["runs"][0]["run"] == run
    assert json.loads(rankfall("ps", "-o", "yaml", "--json").stdout)["runs"][0]["run"] == run
    assert rankfall("describe", run).stdout.startswith(f"Run {run} succeeded")
    shown = rankfall("top", run).stdout
    assert shown.count(f"Run {run} succeeded") == 1
    assert "\x1b" not in shown


def test_lines_are_counted_with_n_stamped_with_t_and_chosen_by_time_and_node(rankfall: Runner) -> None:
    done = rankfall("run", "-q", "--name", "two", "--launcher", "plain", "-N", "2", "train.py")
    assert done.returncode == 0, done.stderr
    whole = rankfall("logs", "two").stdout.splitlines()
    assert len(whole) == 8
    assert rankfall("logs", "two", "-n", "3").stdout.splitlines() == whole[-3:]
    assert rankfall("logs", "two", "-n", "3", "--tail", "1").stdout.splitlines() == whole[-1:]
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in rankfall("logs", "two", "-t").stdout.splitlines())
    on_second = rankfall("logs", "two", "--node", "node1").stdout.splitlines()
    assert on_second == [line for line in whole if line.startswith("[rank 1]")]
    assert rankfall("logs", "two", "--until", "1h").stdout == ""
    assert rankfall("logs", "two", "--until", "0s").stdout.splitlines() == whole
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60))
    assert rankfall("logs", "two", "--until", stamp, "-n", "2").stdout.splitlines() == whole[-2:]
    wrong = rankfall("logs", "two", "--node", "node7")
    assert wrong.returncode == 66
    assert "its nodes: node0, node1" in wrong.stderr
    assert rankfall("logs", "two", "--node", "node1", "--attempt", "all").returncode == 2
    assert rankfall("logs", "two", "-f", "--until", "1h").returncode == 2


def test_watching_shows_each_state_until_the_end(folder: Path, rankfall: Runner, start) -> None:
    gate = folder / "open"
    run = rankfall("submit", "--name", "three", "--launcher", "plain", "-e", f"GATE={gate}", "train.py").stdout.strip()
    watching = start("status", "-w", run, stdout=subprocess.PIPE)
    assert watching.stdout is not None
    first = watching.stdout.readline().decode()
    assert run in first
    assert "succeeded" not in first
    gate.touch()
    rest = watching.stdout.read()
    assert watching.wait() == 0
    assert f"Run {run} succeeded".encode() in rest


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["--standalone", "--nproc-per-node", "3", "train.py"], "1 node x 3 ranks"),
        (["--standalone", "-N", "1", "train.py"], "1 node x 1 rank"),
        (["-N", "2", "--rdzv-backend", "static", "train.py"], "2 nodes x 1 rank"),
        (["--nproc_per_node", "cpu", "train.py"], "1 node x 5 ranks"),
        (["--nproc_per_node", "auto", "train.py"], "1 node x 5 ranks"),
    ],
)
def test_flags_of_torchrun_have_their_meaning(
    folder: Path, words: list[str], size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    monkeypatch.setattr("rankfall.cli.job_options.gpus_here", lambda python: 0)
    assert main(["run", "--dry-run", "--launcher", "plain", *words]) == 0
    assert size in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--standalone", "-N", "2", "train.py"], "--standalone contradicts"),
        (["--nproc-per-node", "gpu", "train.py"], "shows no GPU"),
        (["--nproc-per-node", "0", "train.py"], "is no number of ranks"),
        (["--nproc-per-node", "many", "train.py"], "is no number of ranks"),
        (["--backend", "job", "--image", "x", "--nproc-per-node", "gpu", "train.py"], "--gpus N"),
        (["-n", "4", "train.py"], "--nproc-per-node"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    folder: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("rankfall.cli.job_options.gpus_here", lambda python: 0)
    assert main(["run", "--dry-run", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_gpus_of_a_pod_are_the_ranks_of_its_node() -> None:
    spec = make_spec(Flags(command=("train.py",), backend="job", image="x", gpus=8, nproc_per_node="gpu"))
    assert spec.nproc_per_node == 8


def test_gpus_are_counted_by_the_torch_of_the_job_else_by_device_files(tmp_path: Path) -> None:
    assert gpus_here(sys.executable, devices=tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho warning\necho 7\n")
    python.chmod(0o755)
    assert gpus_here(python, devices=tmp_path) == 7
    python.write_text("#!/bin/sh\necho no torch >&2\nexit 1\n")
    assert gpus_here(python, devices=tmp_path) == 2


def test_values_of_a_torchrun_command_are_those_of_the_job() -> None:
    words = ("torchrun", "--standalone", "--nnodes=1", "--nproc_per_node", "2", "--max-restarts=1", "--tee", "3", "train.py", "--nnodes", "9")  # fmt: skip
    spec = make_spec(Flags(command=words))
    assert (spec.nnodes, spec.nproc_per_node, spec.policies.max_restarts) == (1, 2, 1)
    assert spec.command == ("torchrun", "--tee", "3", "train.py", "--nnodes", "9")
    elastic = make_spec(Flags(command=("python", "-m", "torch.distributed.run", "--nnodes", "1:4", "-m", "pkg.train")))
    assert (elastic.nnodes, elastic.nnodes_max) == (1, 4)
    assert elastic.command == ("python", "-m", "torch.distributed.run", "-m", "pkg.train")
    # A flag of Rankfall wins; what then contradicts it is refused later, as before.
    both = make_spec(Flags(command=("torchrun", "--nproc-per-node", "2", "train.py"), nproc_per_node="4"))
    assert both.nproc_per_node == 4
    assert both.command == ("torchrun", "--nproc-per-node", "2", "train.py")
    # exec starts the unchanged command.
    assert make_spec(Flags(command=words, launcher="exec")).command == words


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_a_torchrun_command_runs_with_its_own_number_of_ranks(rankfall: Runner) -> None:
    words = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    done = rankfall("run", "--all", *words)
    assert done.returncode == 0, done.stderr
    ranks = {line.partition("]")[0] for line in done.stdout.splitlines()}
    assert ranks - {"[slot 0"} == {"[rank 0", "[rank 1"}


def test_a_run_is_tried_again_with_its_secrets(folder: Path, home: Path, rankfall: Runner) -> None:
    (folder / "show.py").write_text("import os\nprint(os.environ['API_TOKEN'][::-1], flush=True)\n")
    first = rankfall("submit", "--name", "four", "--launcher", "plain", "-e", "API_TOKEN", "show.py", API_TOKEN="terces-si-siht")  # noqa: S106  # fmt: skip
    run = first.stdout.strip()
    rankfall("wait", run)
    again = rankfall("retry", run)
    assert again.returncode == 0, again.stderr
    assert "[rank 0] this-is-secret" in again.stdout
    found = list_runs(home)
    assert len(found) == 2
    assert {one.spec.env["API_TOKEN"] for one in found} == {"***"}
    assert found[0].spec == found[1].spec
    third = rankfall("retry", run, "-d").stdout.strip()
    assert third in {one.id for one in list_runs(home)}
    rankfall("wait", third)


def test_a_run_is_tried_again_with_another_variable_beside_its_secrets(
    folder: Path, home: Path, rankfall: Runner
) -> None:
    (folder / "show.py").write_text("import os\nprint(os.environ['API_TOKEN'][::-1], os.environ['A'], flush=True)\n")
    words = ("--launcher", "plain", "-e", "API_TOKEN", "-e", "A=1", "show.py")
    run = rankfall("submit", *words, API_TOKEN="terces-si-siht").stdout.strip()  # noqa: S106
    rankfall("wait", run)
    again = rankfall("retry", run, "-e", "A=2")
    assert again.returncode == 0, again.stderr
    assert "[rank 0] this-is-secret 2" in again.stdout
    other = rankfall("retry", run, "--lr", "5")
    assert other.returncode == 2
    assert "rankfall run -f HOME/runs/RUN/spec.json SCRIPT ARGS" in other.stderr
    assert "rankfall-exit: rankfall 2" in other.stderr


def test_a_quiet_run_prints_its_outcome_as_a_document(rankfall: Runner) -> None:
    done = rankfall("run", "-q", "--json", "--nproc-per-node", "2", "--launcher", "plain", "train.py", "exit")
    outcome = json.loads(done.stdout)
    jsonschema.validate(outcome, schema_of("rankfall.outcome-1"))
    assert (outcome["state"], outcome["code"], outcome["exit_origin"]) == ("failed", 17, "rank")
    assert outcome["verdict"]["rank"] == 1
    assert done.returncode == 17
    assert done.stderr.splitlines()[-1] == "rankfall-exit: rank 17"


def test_a_quiet_run_still_reports_that_its_message_was_not_delivered(rankfall: Runner, folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "command: [train.py]\nlauncher: plain\nnotify: {targets: [{command: ['false']}]}\n"
    )
    done = rankfall("run", "-q", "-f", "job.yaml")
    assert done.returncode == 0
    assert "command false did not get the message end" in done.stderr
    assert "attempt 1" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "answer"),
    [("train.py", "rankfall run train.py"), ("job.yaml", "rankfall run -f job.yaml"), ("a b.log", "why 'a b.log'")],
)
def test_a_file_in_place_of_a_command_is_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str, answer: str
) -> None:
    monkeypatch.chdir(folder)
    Path(name).write_text("")
    assert main([name]) == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["why", "deploy/dep"], "unknown kind"),
        (["logs", "cronjob/nightly"], "unknown kind"),
        (["why", "job", "train"], "has one name: job/train"),
    ],
)
def test_a_target_in_the_manner_of_kubectl_is_answered(
    home: Path, words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert answer in capsys.readouterr().err


def test_a_long_silence_is_broken_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = threading.Event()
    monkeypatch.setattr(console, "_SLOW_S", 0.0)
    monkeypatch.setattr(console, "say", lambda _: said.set())
    with console.notice_if_slow("still reading"):
        assert said.wait(scaled(10))
    said.clear()
    monkeypatch.setattr(console, "_SLOW_S", 600.0)
    with console.notice_if_slow("still reading"):
        pass
    assert not said.is_set()


def test_all_summaries_of_commands_fit_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["config", "--help"]):
        assert main(words) == 0
        assert "...\n" not in capsys.readouterr().out.partition("Commands:")[2]


def test_lines_of_the_failed_rank_where_none_is_recorded(rankfall: Runner) -> None:
    rankfall("run", "-q", "--launcher", "plain", "train.py")
    done = rankfall("logs", "--rank", "failed")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no failed rank is recorded" in done.stderr
    assert "--tail 20" in done.stderr


def test_a_cancel_of_a_run_that_ended_asks_nothing(rankfall: Runner) -> None:
    rankfall("run", "-q", "--launcher", "plain", "train.py")
    done = rankfall("cancel")
    assert done.returncode == 0
    assert "has already ended: succeeded" in done.stderr
    assert "-y" not in done.stderr


def test_a_live_run_is_not_tried_again(folder: Path, rankfall: Runner) -> None:
    run = rankfall("submit", "--name", "five", "--launcher", "plain", "-e", f"GATE={folder / 'never'}", "train.py").stdout.strip()  # fmt: skip
    refused = rankfall("retry", run)
    assert refused.returncode == 2
    assert f"rankfall cancel {run}" in refused.stderr


def _offered(rankfall: Runner, verb: str, begun: str) -> str:
    """What bash is offered for the beginning of a run's id."""
    return rankfall(COMP_WORDS=f"rankfall {verb} {begun}", COMP_CWORD="2", _RANKFALL_COMPLETE="bash_complete").stdout


def test_several_runs_are_cancelled_at_once_or_none(folder: Path, rankfall: Runner) -> None:
    runs = [
        rankfall("submit", "--name", name, "--launcher", "plain", "-e", f"GATE={folder / 'never'}", "train.py").stdout.strip()
        for name in ("six", "seven", "eight")
    ]  # fmt: skip
    missing = rankfall("cancel", "nosuch", runs[0], "other")
    assert missing.returncode == 66
    assert "'nosuch'" in missing.stderr
    assert "'other'" in missing.stderr
    states = {row["run"]: row["state"] for row in json.loads(rankfall("ps", "--json").stdout)["runs"]}
    assert states[runs[0]] != "cancelled"
    offered = [_offered(rankfall, verb, "s") for verb in ("cancel", "rm", "attach")]
    assert [runs[0] in text for text in offered] == [True, False, True]
    both = rankfall("cancel", runs[0], runs[1], runs[0])
    assert both.returncode == 0, both.stderr
    assert both.stdout.splitlines() == [f"{runs[0]} cancelled", f"{runs[1]} cancelled"]
    unsure = rankfall("cancel", "--all")
    assert unsure.returncode == 2
    assert "-y" in unsure.stderr
    last = rankfall("cancel", "--all", "--yes")
    assert last.stdout.splitlines() == [f"{runs[2]} cancelled"]
    assert rankfall("cancel", "--all", runs[2]).returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_ids_of_runs_are_completed(home: Path, rankfall: Runner, shell: str) -> None:
    run = rankfall("submit", "--name", "nine", "--launcher", "plain", "train.py").stdout.strip()
    rankfall("wait", run)
    script = rankfall("config", "completion", shell)
    assert script.returncode == 0
    assert f"_RANKFALL_COMPLETE={shell}_complete" in script.stdout
    assert rankfall("config", "completion", SHELL=f"/usr/bin/{shell}").stdout == script.stdout
    assert rankfall("config", "completion", SHELL="/bin/dash").returncode == 2
    for verb in ("logs", "cancel", "rm", "retry", "status"):
        words = {"COMP_WORDS": f"rankfall {verb} ni", "COMP_CWORD": "2" if shell != "fish" else "ni"}
        done = rankfall(**words, _RANKFALL_COMPLETE=f"{shell}_complete")
        # Only a live run can be cancelled.
        assert (run in done.stdout) is (verb != "cancel"), (verb, done)
    for verb, begun in (("why", "ni"), ("report", "ni"), ("why", "logs/"), ("run", "tr")):
        words = {"COMP_WORDS": f"rankfall {verb} {begun}", "COMP_CWORD": "2" if shell != "fish" else begun}
        done = rankfall(**words, _RANKFALL_COMPLETE=f"{shell}_complete")
        assert (run in done.stdout) is (begun == "ni"), (verb, done)
        # The shell completes paths itself.
        assert "file" in done.stdout, (verb, done)
