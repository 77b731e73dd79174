"""The strategy of a job, from the flag to the verdict: real runs, and a real package that declares one."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankfall import Client, register_strategy, strategy_registry
from rankfall.model import Case, Diagnosis, JobSpec, SpecError, UsageError
from rankfall.verdict.diagnose import diagnose

from .conftest import Runner

# The victim speaks first; its words say that it is one. The culprit waits until they are written.
FALL = """
import os, pathlib, time
print("strategy", os.environ["RANKFALL_STRATEGY"], flush=True)
if os.environ["RANK"] == "0":
    raise ConnectionResetError("[Errno 104] Connection reset by peer")
while not list(pathlib.Path(os.environ["RANKFALL_RECORD_DIR"]).glob("error-*.json")):
    time.sleep(0.01)
raise KeyError("vocab")
"""
QUICK = ("--max-restarts", "0", "--launcher", "plain", "--nnodes", "2")


@pytest.fixture(autouse=True)
def _job(folder: Path) -> None:
    (folder / "fall.py").write_text(FALL)


def why(rankfall: Runner, *words: str, **env: str) -> dict[str, Any]:
    done = rankfall("why", "-o", "json", *words, **env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_errors_s11_a_run_is_explained_by_its_own_strategy(rankfall: Runner, home: Path) -> None:
    done = rankfall("run", *QUICK, "--strategy", "earliest", "--all", "fall.py")
    assert "strategy earliest" in done.stdout
    stored = why(rankfall)
    assert (stored["rank"], stored["cause"]["slug"]) == (0, "peer_lost")
    assert "strategy earliest chose this cause" in stored["missing"][0]
    again = why(rankfall, "--fresh")
    assert (again["rank"], again["missing"][0]) == (0, stored["missing"][0])
    other = why(rankfall, "--strategy", "causal")
    assert (other["rank"], other["cause"]["slug"]) == (1, "user_code_exception")
    assert why(rankfall)["rank"] == 0


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_errors_s11_an_unknown_strategy_is_refused_before_anything_is_created(
    rankfall: Runner, folder: Path, home: Path, verb: str
) -> None:
    (folder / "job.yaml").write_text("command: [fall.py]\nstrategy: newest\n")
    for words in (("--strategy", "newest", "fall.py"), ("-f", "job.yaml")):
        done = rankfall(verb, *words)
        assert done.returncode == 2
        assert "$.strategy: there is no strategy 'newest'" in done.stderr
        assert "allowed: causal, earliest, first-listed" in done.stderr
    assert not list(home.glob("runs/*"))


def test_errors_s11_why_refuses_an_unknown_strategy(rankfall: Runner, folder: Path) -> None:
    done = rankfall("why", "--strategy", "newest", "train.py")
    assert done.returncode == 2
    assert "--strategy: there is no strategy 'newest'" in done.stderr


def test_files_are_explained_by_the_strategy_that_is_asked_for(rankfall: Runner, folder: Path) -> None:
    (folder / "node.log").write_text("[rank1]: KeyError: 'x'\n")
    assert "the strategy causal was used" in why(rankfall, "--strategy", "first-listed", "node.log")["missing"][0]


def test_the_default_is_told_to_the_ranks_too(rankfall: Runner) -> None:
    assert "strategy causal" in rankfall("run", *QUICK, "--all", "fall.py").stdout


def test_errors_s11_a_package_brings_its_own(rankfall: Runner, tmp_path: Path) -> None:
    info = tmp_path / "lib" / "loudest-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loudest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rankfall.strategies]\nloudest = loudest:pick\n")
    (tmp_path / "lib" / "loudest.py").write_text(
        "import msgspec\nfrom rankfall.verdict.diagnose import diagnose\n\n\n"
        "def pick(case):\n"
        "    kept = tuple(piece for piece in case.evidence if piece.rank == 0)\n"
        "    return diagnose(msgspec.structs.replace(case, evidence=kept, ranks=case.ranks[:1]))\n"
    )
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])])}
    submitted = rankfall("submit", *QUICK, "--strategy", "loudest", "fall.py", **path)
    assert submitted.returncode == 0, submitted.stderr
    rankfall("wait", submitted.stdout.strip())
    # What the detached supervisor stored is read where the package is not.
    found = why(rankfall)
    assert "strategy loudest chose this cause" in found["missing"][0]
    assert found["cause"]["slug"] == "peer_lost"
    # Made anew without the package: the run is explained all the same, and says by whom.
    anew = why(rankfall, "--fresh")
    assert (anew["rank"], anew["cause"]["slug"]) == (1, "user_code_exception")
    assert "there is no strategy 'loudest'" in anew["missing"][0]


def test_errors_s11_python_code_registers_one(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy_registry, "_registered", {})
    asked: list[Case] = []

    def ours(case: Case) -> Diagnosis:
        asked.append(case)
        return diagnose(case)

    register_strategy("ours", ours)
    spec = JobSpec(command=("fall.py",), cwd=str(folder), nnodes=2, launcher="plain", strategy="ours")

    async def story() -> None:
        client = Client()
        with pytest.raises(SpecError, match="in this process only"):
            await client.submit(spec)
        assert list((home / "runs").iterdir()) == []
        run = await client.submit(spec, detach=False)
        outcome = await run.wait()
        assert outcome.verdict is not None
        assert outcome.verdict.rank == 1
        assert "strategy ours chose this cause" in outcome.verdict.missing[0]
        assert (await client.why(run, strategy="earliest")).rank == 0
        with pytest.raises(UsageError, match="no strategy 'newest'"):
            await client.why(run, strategy="newest")

    asyncio.run(story())
    assert asked
    assert asked[-1].ended
