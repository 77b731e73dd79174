from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfall.model import JobSpec
from rankfall.store import RunDir, Writer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run_dir(home: Path) -> RunDir:
    return RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=2, nproc_per_node=2), home=home)


@pytest.fixture
def writer(run_dir: RunDir) -> Iterator[Writer]:
    with run_dir.lease() as found:
        yield found
