"""The user's config.toml and variables give flags their defaults; ``config show`` names the source of each."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cli.conftest import Runner
from rankfall.cli.app import run as main
from rankfall.cli.job_options import Flags, make_spec
from support.helpers import wait_until
from support.receiver import receiver


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "rankfall" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["run", "--dry-run", "--launcher", "plain", *words, "train.py"]) == 0
    return capsys.readouterr().out.partition(",")[0]


def test_the_command_line_beats_a_variable_and_that_the_file(
    folder: Path, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert planned(capsys) == "train: 1 node x 1 rank"
    config.write_text('[run]\nnnodes = "2"\nnproc-per-node = 3\n')
    assert planned(capsys) == "train: 2 nodes x 3 ranks"
    monkeypatch.setenv("RANKFALL_RUN_NNODES", "4")
    assert planned(capsys) == "train: 4 nodes x 3 ranks"
    assert planned(capsys, "-N", "5") == "train: 5 nodes x 3 ranks"
    # submit takes the flags of run.
    assert main(["submit", "--dry-run", "--launcher", "plain", "train.py"]) == 0
    assert capsys.readouterr().out.startswith("train: 4 nodes x 3 ranks")
    config.write_text("[run]\nnnodes = 2\nnproc_per_node = 3\n[submit]\nnproc-per-node = 6\n")
    monkeypatch.setenv("RANKFALL_SUBMIT_NNODES", "7")
    assert main(["submit", "--dry-run", "--launcher", "plain", "train.py"]) == 0
    assert capsys.readouterr().out.startswith("train: 7 nodes x 6 ranks")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("[notify]\ntarget = []\n", ["run", "train.py"], "notify.target: is not a field; allowed here: events, targets, link\n  next: did you mean targets?"),
        ("[[notify.targets]]\nwebhook = 'ftp://h/PATHSECRET'\n", ["config", "show"], "notify.targets[0].webhook: is not a URL"),
        ("[notify]\n", ["config", "notify"], "notify has no targets"),
        ("[run]\n\nnnode = 2\n", ["run", "train.py"], ":3: 'nnode' is no flag\n  next: did you mean nnodes?"),
        ("[runn]\nnnodes = 2\n", ["ps"], ":1: 'runn' is no section\n  next: did you mean run?"),
        ("[nodes.lst]\n", ["nodes", "list"], "'lst' is no flag\n  next: did you mean list?"),
        ("[run\n", ["ps"], "no TOML: "),
        ("run = 1\n", ["ps"], ":1: 'run' is no section\n  next: as: [run]"),
        ("[run]\nnnodes = [1, 2]\n", ["run", "train.py"], ":2: nnodes needs one value"),
        ("[wait]\ntimeout = 'soon'\n", ["wait", "nosuch"], "--timeout 'soon' is no duration"),
        ("[attach]\ntail = 5\n[logs]\ntail = -1\n", ["logs", "nosuch"], "config.toml:4: tail is '-1'; allowed: whole numbers from 0\n  next: correct it there; what it sets: rankfall logs --help"),
        ("[run]\nmax-restarts = 'x'\n", ["submit", "train.py"], ":2: max-restarts is 'x'; allowed: whole numbers from 0 to "),
        ("[run]\nmax-restarts = 2.5\n", ["run", "train.py"], ":2: max-restarts is '2.5'; allowed: whole numbers from 0 to "),
        ("[run]\nnnodes = true\n", ["run", "train.py"], ":2: nnodes is 'True'; allowed: text in quotation marks, or a number"),
        ("[run]\nenv = ['A=1', 2020-01-01]\n", ["run", "train.py"], ":2: env is '2020-01-01'; allowed: text"),
        ("[run]\nsuspend = 'maybe'\n", ["run", "train.py"], ":2: suspend is 'maybe'; allowed: true, false"),
        ("[run]\nfile = 3\n", ["run", "train.py"], ":2: file is '3'; allowed: a path in quotation marks"),
        ("[ps]\nall = true\n[nodes.list]\noutput = 'xml'\n", ["nodes", "list"], ":4: output is 'xml'; allowed: table, json, yaml\n  next: correct it there; what it sets: rankfall nodes list --help"),
        ("[controller]\npoll = 'x'\n", ["config", "show"], ":2: poll is 'x'; allowed: numbers"),
        ("[retention]\nkep = 1\n", ["run", "--launcher", "plain", "train.py"], "kep is no rule\n  next: allowed: older-than, keep, max-size"),
        ("[retention]\nkeep = 'all'\n", ["prune", "-y"], "[retention] keep 'all' is no number of runs"),
        ("[retention]\nkeep = 'all'\n", ["config", "show"], "[retention] keep 'all' is no number of runs"),
        ("[retention]\nkeep = true\n", ["run", "--dry-run", "--launcher", "plain", "train.py"], "[retention] keep 'True' is no number of runs"),
        ("[retention]\nolder-than = 30\n", ["run", "--launcher", "plain", "train.py"], "[retention] older-than 30 has no unit\n  next: for days: 30d; allowed: 90s, 10m, 12h, 1d12h, 30d"),
        ("[retention]\nolder-than = '1x'\n", ["config", "show"], "[retention] older-than '1x' is no duration\n  next: allowed: 90s, 10m, 12h, 1d12h, 30d"),
        ("[retention]\nmax-size = 10\n", ["submit", "--launcher", "plain", "train.py"], "[retention] max-size 10 has no unit\n  next: for gigabytes: 10G; for bytes: 10B"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_its_place(  # noqa: PLR0917
    folder: Path, config: Path, text: str, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    config.write_text(text)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "PATHSECRET" not in err
    assert main(["--help"]) == 0


def test_a_folder_as_the_file_of_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKFALL_CONFIG", str(tmp_path))
    assert main(["config", "show"]) == 2
    assert "Is a directory\n  next: name a TOML file\n" in capsys.readouterr().err


def test_a_group_has_flags_and_commands_below(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('[controller]\npoll = 2.5\n[controller.manifests]\nnamespace = "gpu"\n')
    assert main(["config", "show"]) == 0
    out = capsys.readouterr().out
    assert "controller --poll" in out
    assert "controller manifests --namespace" in out
    assert main(["controller", "manifests", "--image", f"x@sha256:{'0' * 64}"]) == 0
    assert "namespace: gpu" in capsys.readouterr().out


def test_a_wrong_variable_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKFALL_PS_ALL", "maybe")
    assert main(["ps"]) == 2
    assert "(from RANKFALL_PS_ALL)" in capsys.readouterr().err


def test_variables_of_other_programs_change_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An image may name its version so, and a rank has the others.
    for name in ("RANKFALL_VERSION", "RANKFALL_VERBOSE", "RANKFALL_RUN", "RANKFALL_ATTEMPT", "RANKFALL_SLOT"):
        monkeypatch.setenv(name, "2")
    assert main(["ps"]) == 0


def test_each_setting_is_shown_with_its_source_and_secrets_masked(config: Path, rankfall: Runner) -> None:
    config.write_text('[run]\nenv = ["API_TOKEN=abcdefgh", "X=1"]\n[logs]\ntimestamps = true\n[retention]\nkeep = 5\n')
    done = rankfall("config", "show", RANKFALL_RUN_NNODES="3", RANKFALL_RUN_NNODE="4", RANKFALL_NODES_CHECK_PEER="n2")
    assert done.returncode == 0, done.stderr
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in done.stdout.splitlines()}
    assert rows["run", "--nnodes"] == ["3", "RANKFALL_RUN_NNODES"]
    assert rows["run", "--env"] == ["***", "X=1", str(config)]
    assert rows["logs", "--timestamps"] == ["True", str(config)]
    assert rows["retention", "keep"] == ["5", str(config)]
    assert "RANKFALL_HOME" in next(line for line in done.stdout.splitlines() if line.startswith("home"))
    assert "abcdefgh" not in done.stdout
    assert done.stderr == "rankfall: RANKFALL_RUN_NNODE belongs to no flag\n"
    whole = json.loads(rankfall("config", "show", "--all", "--json").stdout)
    assert whole["schema"] == "rankfall.settings/1"
    found = {row["setting"]: (row["value"], row["source"]) for row in whole["settings"]}
    assert found["attach --tail"] == ("20", "default")
    assert found["controller --poll"] == ("5.0", "default")


def test_the_path_of_the_file_is_the_users_choice(tmp_path: Path, rankfall: Runner) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[ps]\nall = true\n")
    done = rankfall("config", "show", RANKFALL_CONFIG=str(other))
    assert str(other) in done.stdout
    assert "ps --all" in done.stdout


def test_a_file_that_is_named_and_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    for path in (tmp_path / "absent.toml", tmp_path / "no" / "folder.toml"):
        monkeypatch.setenv("RANKFALL_CONFIG", str(path))
        for words in (
            ["run", "--launcher", "plain", "train.py"],
            ["prune", "-y"],
            ["config", "notify"],
            ["config", "show"],
        ):
            assert main(words) == 2
            err = capsys.readouterr().err
            assert (
                f"rankfall: RANKFALL_CONFIG names {path}, which does not exist\n  next: correct the path, or unset"
                in err
            )
    assert not home.exists()
    assert main(["--help"]) == 0
    # The file of the platform may be missing.
    monkeypatch.setenv("RANKFALL_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    assert main(["ps"]) == 0


def receivers(*urls: str, events: str = '"end"') -> str:
    return f"[notify]\nevents = [{events}]\n" + "".join(
        f"[[notify.targets]]\nwebhook = '{url}/PATHSECRET'\n" for url in urls
    )


def test_receivers_of_the_file_hear_of_runs_whose_job_names_none(config: Path, folder: Path, rankfall: Runner) -> None:
    (folder / "silent.yaml").write_text("command: [train.py]\nlauncher: plain\nnotify: {targets: []}\n")
    with receiver() as hook, receiver() as other:
        config.write_text(receivers(hook.url))
        (folder / "own.yaml").write_text(
            f"command: [train.py]\nlauncher: plain\nnotify: {{events: [end], targets: [{{webhook: '{other.url}'}}]}}\n"
        )
        assert rankfall("run", "--launcher", "plain", "train.py", "fail").returncode == 0
        assert rankfall("run", "-f", "silent.yaml").returncode == 0
        assert rankfall("run", "-f", "own.yaml").returncode == 0
        assert hook.ids == other.ids == ["end"]
        done = rankfall("submit", "--launcher", "plain", "train.py")
        wait_until(lambda: len(hook.ids) == 2, timeout=30, what="a detached supervisor sends")
        assert hook.bodies[1]["run"] == done.stdout.strip()
        assert hook.paths == ["/PATHSECRET"] * 2
        # A retry has the receivers of its run, and the run's secrets.
        assert rankfall("retry", done.stdout.strip()).returncode == 0
        assert hook.ids == ["end"] * 3


def test_receivers_of_the_file_are_left_out_where_no_supervisor_watches() -> None:
    section = {"targets": [{"email": "team@example.org"}]}
    flags = Flags(command=("train.py",), backend="job", image="x", unattended=True)
    assert make_spec(flags, notify=section).notify.targets == ()
    assert make_spec(msgspec.structs.replace(flags, unattended=False), notify=section).notify.targets != ()


def test_receivers_are_shown_masked_and_tested_without_a_run(config: Path, folder: Path, rankfall: Runner) -> None:
    with receiver() as hook, receiver() as broken:
        broken.status = 404
        config.write_text(receivers(hook.url, broken.url, events='"failure", "hang"'))
        shown = rankfall("config", "show")
        rows = {tuple(line.split()[:2]): line.split()[2:] for line in shown.stdout.splitlines()}
        assert rows["notify", "targets[1].webhook"] == [f"{broken.url}/***", str(config)]
        assert rows["notify", "events"] == ["failure", "hang", str(config)]
        listed = rankfall("config", "notify")
        assert listed.stdout == f"webhook {hook.url}/***\nwebhook {broken.url}/***\nevents: failure hang\n"
        assert hook.bodies == []
        tested = rankfall("config", "notify", "--test")
        assert tested.returncode == 69
        assert tested.stdout == f"webhook {hook.url}/***: delivered\nwebhook {broken.url}/***: it answered 404\n"
        assert "1 of 2 targets did not take the message" in tested.stderr
        assert [body["event"] for body in hook.bodies] == [None]
        (folder / "job.yaml").write_text(f"notify: {{targets: [{{webhook: '{hook.url}/x', shape: slack}}]}}\n")
        assert rankfall("config", "notify", "--test", "-f", "job.yaml").returncode == 0
        assert "blocks" in hook.bodies[1]
        for done in (shown, listed, tested):
            assert "PATHSECRET" not in done.stdout + done.stderr
