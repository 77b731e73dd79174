"""The example's own promises: whole checkpoints, a resumed run that computes the same, a fault that strikes only where it was ordered."""

from __future__ import annotations

from support.patience import scaled

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_char_lm.py"


def train(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_RANK": "0"}
    return subprocess.run(
        (sys.executable, str(EXAMPLE), "--log-every", "1", "--batch-size", "2", *arguments),
        cwd=cwd,
        env=os.environ | alone | env,
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )


def losses(text: str) -> dict[str, str]:
    return dict(re.findall(r"step (\d+)/\d+ loss ([\d.]+)", text))


@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.full
def test_a_resumed_run_computes_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    whole = train("--steps", "6", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    folder = str(tmp_path / "checkpoints")
    fallen = train(
        "--steps",
        "6",
        "--checkpoint-dir",
        folder,
        "--checkpoint-every",
        "2",
        cwd=tmp_path,
        DEMO_FAULT="rank=0,step=5,kind=exception",
    )
    assert fallen.returncode == 1
    assert "KeyError: 'temperature'" in fallen.stderr
    # The newest checkpoint is damaged: the one before it is taken.
    (tmp_path / "checkpoints" / "step-000004.pt").write_bytes(b"PK\x03\x04 half of a file")
    resumed = train("--steps", "6", "--checkpoint-dir", folder, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "step-000004.pt cannot be read" in resumed.stdout
    assert "resumed from the checkpoint of step 2" in resumed.stdout
    assert losses(resumed.stdout).items() <= losses(whole.stdout).items()


@pytest.mark.parametrize(
    "text", ["rank=1", "rank=1,step=2,kind=flood", "rank=1,step=x,kind=hang", "rank=1,step=2,kind=hang,when=now"]
)
def test_a_fault_that_makes_no_sense_is_refused(text: str, tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-c", "import demo_fault, sys; demo_fault.parse(sys.argv[1])", text),
        cwd=EXAMPLE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ValueError" in done.stderr
