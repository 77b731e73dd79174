"""Where the files of a run are: on this machine its folder, in a cluster the volume of its workspace.

Which one, and where on it, stands in the run's record, so any process and any user finds the same. A run without a volume has no files to copy, and
that is an answer too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rankfall.backends.code import CODE
from rankfall.backends.files import Files, LocalFiles, Place
from rankfall.store import RunDir


def place_of(run_dir: RunDir, *, say: Callable[[str], None], image: str | None = None) -> Place | None:
    """Where a run's files are; None: it has no volume.

    Args:
        run_dir: of the run.
        say: takes lines for people while something is copied.
        image: of the pod that copies in a cluster; None = the job's.
    """
    spec = run_dir.spec
    if spec.backend != "local":
        from rankfall.backends.cluster.workspace import place_of_run  # noqa: PLC0415 - runs of this machine need no client of Kubernetes

        return place_of_run(spec, run_dir.id, say=say, image=image)
    root = run_dir.path / CODE if spec.code_folders else Path(spec.cwd or "/")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Files]:
        yield LocalFiles(root)

    return Place(open=opened, root=os.fsencode(root), start=b"", shown=f"the folder of run {run_dir.id}")
