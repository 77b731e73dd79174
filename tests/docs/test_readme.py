"""Every command of the README is run, and every file that the documents point to is there.

Those of a cluster are ``console`` blocks; ``tests/cluster`` runs them.
"""

from __future__ import annotations

from support.patience import scaled

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/seeds.md",
    "docs/cli.md",
    "docs/local.md",
    "docs/logs.md",
    "docs/verdicts.md",
    "docs/kubernetes.md",
    "docs/node-health.md",
    "docs/security.md",
    "SECURITY.md",
)
# What a reader would have in front of him when he types the README's commands.
TRAIN = """
import os, sys, time
print("step 1", flush=True)
if os.environ["RANK"] == "2":
    raise KeyError("token_type_ids")
time.sleep(60)
"""
CONSOLE = """[rank2]: Traceback (most recent call last):
[rank2]:   File "train.py", line 9, in <module>
[rank2]:     main()
[rank2]: KeyError: 'token_type_ids'
"""
# A run that fails ends with the rank's own code; everything else ends with 0.
CODES = {"rankfall run": {1}, "rankfall doctor": {0, 1}}


def commands(heading: str = "") -> list[str]:
    """Returns what a reader types: lines of the shell blocks of the README, or of one section of it."""
    text = (ROOT / "README.md").read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "console.txt").write_text(CONSOLE)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank2.log").write_text(CONSOLE)
    return tmp_path


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_every_rankfall_command_of_the_readme_works(place: Path) -> None:
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "RANKFALL_HOME": str(place / "home"), "NO_COLOR": "1"}
    typed = [line for line in commands("Use") if not line.startswith("make ")]
    assert len(typed) >= 8
    for line in typed:
        # A shell, because a reader has one: one of the commands is a pipe.
        done = subprocess.run(
            ("sh", "-c", line), cwd=place, env=env, capture_output=True, text=True, timeout=scaled(120), check=False
        )
        expected = next((codes for start, codes in CODES.items() if line.startswith(start)), {0})
        assert done.returncode in expected, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        if "why" in line:
            assert "token_type_ids" in done.stdout, line


def example() -> str:
    text = (ROOT / "README.md").read_text()
    (first, *_) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(first)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("body", "lines"), [("print(1)", 1), ("raise KeyError('token_type_ids')", 2)])
def test_the_python_example_works_when_a_run_succeeds_and_when_it_fails(tmp_path: Path, body: str, lines: int) -> None:
    (tmp_path / "train.py").write_text(f"{body}\n")
    (tmp_path / "program.py").write_text(example())
    done = subprocess.run(
        (sys.executable, "program.py"),
        cwd=tmp_path,
        env=os.environ | {"RANKFALL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=scaled(200),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == ("succeeded" if lines == 1 else "failed")
    assert len(done.stdout.splitlines()) == lines


@pytest.mark.timeout(240)
def test_the_python_example_passes_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(example())
    done = subprocess.run(
        (BIN / "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache"), "program.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(200),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", commands("Install"))
def test_every_way_to_install_gives_a_program_that_starts(line: str, tmp_path: Path) -> None:
    source, venv = tmp_path / "clone", tmp_path / "venv"
    source.mkdir()
    files = subprocess.run(("git", "archive", "HEAD"), cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(("tar", "x"), cwd=source, input=files, check=True)
    subprocess.run((sys.executable, "-m", "venv", venv), check=True)
    env = os.environ | {
        "PATH": f"{venv / 'bin'}:{tmp_path / 'bin'}:{BIN}:{os.environ['PATH']}",
        "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin"),
    }  # fmt: skip
    program = line.split()[0]
    if program == "pipx":
        subprocess.run((venv / "bin" / "pip", "install", "--quiet", "pipx"), env=env, check=True)
    done = subprocess.run(shlex.split(line), cwd=source, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if program == "pipx":
        assert "rankfall" in done.stdout
        return
    made = (venv if program == "pip" else tmp_path) / "bin" / "rankfall"
    assert subprocess.run((made, "--version"), env=env, check=False).returncode == 0


def test_the_first_screen_is_short_and_shows_a_verdict() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    picture = (ROOT / "docs" / "images" / "verdict.svg").read_text()
    assert "docs/images/verdict.svg" in text
    assert "Rank 2 on node1 raised ValueError; 3 other ranks were stopped because of it." in picture


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_the_demo_falls_is_explained_and_succeeds(tmp_path: Path) -> None:
    env = os.environ | {"RANKFALL_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    done = subprocess.run(
        (sys.executable, "scripts/demo.py"),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=scaled(280),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rank    2" in done.stderr
    assert "killed_unknown" in done.stderr
    assert "resumed from the checkpoint of step 40" in done.stdout
    assert "succeeded in attempt 2" in done.stderr


def test_every_make_target_of_the_readme_exists() -> None:
    targets = [shlex.split(line)[1] for line in commands() if line.startswith("make ")]
    assert targets == ["demo", "test", "test-cluster"]
    for target in (*targets, "test-all", "coverage", "explore", "steady", "bench", "lint", "clean"):
        done = subprocess.run(("make", "--dry-run", target), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_ci_runs_both_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.index("\nmake test ") < script.index("\nmake test-cluster ")
    assert "set -euo pipefail" in script


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_the_documents_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (ROOT / name).parent.joinpath(target).exists(), target


def test_seeds_name_tests_that_exist() -> None:
    known = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", (ROOT / "docs" / "seeds.md").read_text()):
        assert re.search(rf"def {name}\b", known), name


def test_every_acceptance_scenario_has_a_row_that_names_a_test() -> None:
    text = (ROOT / "docs" / "seeds.md").read_text()
    for heading, numbers in (
        ("Acceptance scenarios: errors", [str(number) for number in range(1, 42)]),
        ("Acceptance scenarios: job model", [str(number) for number in range(1, 31)]),
        (
            "Acceptance scenarios: launch and logs",
            [f"{'A' if n < 13 else 'F'} {n}" for n in (*range(1, 13), *range(49, 57))],
        ),
        (
            "Logs: scenarios B-E",
            [f"{'B' if n < 20 else 'C' if n < 33 else 'D' if n < 40 else 'E'} {n}" for n in range(13, 49)],
        ),
    ):
        section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| ((?:[A-F] )?\d+) \|(.*)$", section, re.MULTILINE)
        assert [number for number, _ in rows] == numbers
        for number, row in rows:
            assert "`test_" in row, f"{heading} {number} names no test"


def test_every_scenario_of_node_health_has_a_test_on_the_bed_with_its_number() -> None:
    bed = "\n".join(path.read_text() for path in (ROOT / "tests" / "cluster").glob("test_*.py"))
    names = re.findall(r"def (test_health_\w+)\(", bed)
    text = (ROOT / "docs" / "seeds.md").read_text()
    section = text.partition("\n## Scenarios: node health")[2].partition("\n## ")[0]
    for number in range(1, 46):
        found = [name for name in names if f"_s{number:02}_" in name]
        assert found, f"S{number:02} has no test on the bed"
        assert any(f"`{name}`" in section for name in found), f"S{number:02}: none of {found} is named"


def test_no_document_names_a_place_of_one_machine() -> None:
    for name in (*DOCUMENTS, "constraints.txt", "Makefile"):
        text = (ROOT / name).read_text()
        assert not re.search(r"(?<![\w.])/(?:root|home|work)/", text), name


def example() -> str:
    text = (ROOT / "README.md").read_text()
    (first, *_) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(first)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("body", "lines"), [("print(1)", 1), ("raise KeyError('token_type_ids')", 2)])
def test_the_python_example_works_when_a_run_succeeds_and_when_it_fails(tmp_path: Path, body: str, lines: int) -> None:
    (tmp_path / "train.py").write_text(f"{body}\n")
    (tmp_path / "program.py").write_text(example())
    done = subprocess.run(
        (sys.executable, "program.py"),
        cwd=tmp_path,
        env=os.environ | {"RANKFALL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=scaled(200),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == ("succeeded" if lines == 1 else "failed")
    assert len(done.stdout.splitlines()) == lines


@pytest.mark.timeout(240)
def test_the_python_example_passes_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(example())
    done = subprocess.run(
        (BIN / "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache"), "program.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(200),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_page_of_demands_says_which_command_runs_each_test() -> None:
    done = subprocess.run(
        (sys.executable, "scripts/seeds.py", "--check"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
