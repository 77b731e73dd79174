"""The code that a job brings: folders of this machine, laid over each other, as they are at the submission.

It lies in the run directory from then on, so an edit changes nothing of a run that has begun, and every attempt has the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rankfall.model import JobSpec, UsageError
from rankfall.store import RunDir
from rankfall_inside.carry_frames import CarryError
from rankfall_inside.carry_tree import Tree, merged, scan

CODE: Final = "code"
"""Its folder in the run directory."""


def code_of(spec: JobSpec, run_dir: RunDir) -> Tree:
    """The code of a run, or of a job that is only looked at yet.

    Raises:
        UsageError: there is no such folder, or it cannot be copied.
    """
    kept = run_dir.path / CODE
    if kept.is_dir():
        return scan(os.fsencode(kept))
    return code_tree(spec, skip=run_dir.path.parent.parent)


def code_tree(spec: JobSpec, *, skip: Path) -> Tree:
    """The folders of ``code`` laid over each other.

    Args:
        spec: of the job.
        skip: Rankfall's home, which is no code wherever it lies.

    Raises:
        UsageError: there is no such folder, or it cannot be copied.
    """
    trees = []
    try:
        for folder in spec.code_folders:
            path = Path(folder).expanduser()
            if not path.is_dir():
                raise UsageError(f"$.code: {folder!r} is no folder", hint="give a folder of this machine")
            trees.append(scan(os.fsencode(path), exclude=spec.code_exclude, skip=os.fsencode(skip)))
        return merged(trees)
    except CarryError as error:
        raise UsageError(f"$.code: {error}", hint="leave it out with code_exclude (--code-exclude)") from None
