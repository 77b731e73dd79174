from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rankfall.model import JobSpec
from rankfall.rundir import RunDir, Writer


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


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def as_user() -> Callable[[], AbstractContextManager[None]]:
    """Permissions count inside the context, also where the tests run as root.

    Python itself may lie where that user cannot read. A codec that is first asked for in there is not found, and Python remembers that for the
    rest of the process: whichever codec the product asks for by name is therefore loaded before.
    """
    for name in ("ascii", "utf-8", "latin-1"):
        codecs.lookup(name)

    @contextlib.contextmanager
    def drop() -> Iterator[None]:
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(before)

    return drop
