"""The program of docs/embedding.md, as it stands there, with a real job. Number 41 is that of launch-logs.md section 5."""

from __future__ import annotations

from support.patience import scaled

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
JOB = """
import os, sys
rank = os.environ["RANK"]
for step in range(50):
    print(f"rank {rank} step {step}", flush=True)
"""


@pytest.mark.timeout(180)
def test_logs_s41_the_program_of_the_page_prints_each_line_once(tmp_path: Path) -> None:
    (block,) = [part.split("```")[0] for part in PAGE.read_text("utf-8").split("```python\n")[1:]]
    (tmp_path / "program.py").write_text(block)
    (tmp_path / "train.py").write_text(JOB)
    done = subprocess.run(
        (sys.executable, "program.py"),
        cwd=tmp_path,
        env=os.environ | {"RANKFALL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=scaled(150),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    steps = [f"[rank {rank}] rank {rank} step {step}" for rank in range(2) for step in range(50)]
    of_replicas = Counter(line.partition(" ")[2] for line in lines if line.startswith("worker/"))
    assert of_replicas == Counter(steps)
    assert Counter(line for line in lines if not line.startswith("worker/")) == Counter(steps)
