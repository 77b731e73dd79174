"""The user's config.toml and variables give flags their defaults; ``config show`` names the source of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Runner
from rankfall.cli.app import run as main


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
    assert planned(capsys) == "train: 1 nodes x 1 ranks"
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
        ("[run]\n\nnnode = 2\n", ["run", "train.py"], ":3: 'nnode' is no flag\n  next: did you mean nnodes?"),
        ("[runn]\nnnodes = 2\n", ["ps"], ":1: 'runn' is no section\n  next: did you mean run?"),
        ("[nodes.lst]\n", ["nodes", "list"], "'lst' is no flag\n  next: did you mean list?"),
        ("[run\n", ["ps"], "no TOML: "),
        ("run = 1\n", ["ps"], ":1: 'run' is no section\n  next: as: [run]"),
        ("[run]\nnnodes = [1, 2]\n", ["run", "train.py"], ":2: nnodes needs one value"),
        ("[wait]\ntimeout = 'soon'\n", ["wait", "nosuch"], "--timeout 'soon' is no duration"),
        ("[logs]\ntail = -1\n", ["logs", "nosuch"], "config.toml)\n"),
        ("[retention]\nkep = 1\n", ["run", "--launcher", "plain", "train.py"], "kep is no rule\n  next: allowed: older-than, keep, max-size"),
        ("[retention]\nkeep = 'all'\n", ["prune", "-y"], "[retention] keep 'all' is no number of runs"),
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
    assert main(["--help"]) == 0


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
