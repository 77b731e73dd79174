"""Creates a run directory from a job spec and facts of the submitting process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from rankfall.model import JobSpec, StoreError, UsageError
from rankfall.model.jobspec.check import typed
from rankfall.rundir import RunDir


def complete(spec: JobSpec) -> JobSpec:
    """Returns the spec with absolute paths; jobs outside clusters get this folder and Python.

    Raises:
        SpecError: Fields are wrong or contradict each other.
    """
    spec = typed(spec)
    folders = tuple(str(Path(folder).expanduser().absolute()) for folder in spec.code_folders)
    if folders:
        spec = msgspec.structs.replace(spec, code=folders)
    if spec.log_dir is not None:
        spec = msgspec.structs.replace(spec, log_dir=str(Path(spec.log_dir).expanduser().absolute()))
    if not spec.writes_run_dir:
        from rankfall.backends.kubernetes.planning import pinned  # noqa: PLC0415

        return pinned(spec)
    if folders:
        return msgspec.structs.replace(spec, python=spec.python or sys.executable)
    here = Path(spec.cwd).expanduser() if spec.cwd else Path.cwd()
    return msgspec.structs.replace(spec, cwd=str(here.absolute()), python=spec.python or sys.executable)


def create_run(spec: JobSpec, *, home: Path, request_token: str | None = None, replace: bool = False) -> RunDir:
    """Creates a run directory with a snapshot of the job's code; ``spec`` comes from :func:`complete`.

    Raises:
        UsageError: Code not copyable, or another run's ``log_dir`` or request token; nothing was created.
        StoreError: Home is not writable.
    """
    if spec.log_dir is None:
        return _created(spec, home=home, request_token=request_token, replace=replace)
    from rankfall.rundir.lines.log_dir import claimed  # noqa: PLC0415

    with claimed(Path(spec.log_dir), request_token=request_token) as claim:
        made = _created(spec, home=home, request_token=request_token, replace=replace)
        claim.give_to(made)
        return made


def _created(spec: JobSpec, *, home: Path, request_token: str | None, replace: bool) -> RunDir:
    if not spec.code_folders:
        return RunDir.create(spec, home=home, request_token=request_token, replace=replace)
    from rankfall.backends.files import across  # noqa: PLC0415
    from rankfall.backends.payload import CODE, code_tree  # noqa: PLC0415
    from rankfall_inside.transfer.frames import TransferError  # noqa: PLC0415

    tree = code_tree(spec, skip=home)
    try:
        return RunDir.create(
            spec,
            home=home,
            request_token=request_token,
            replace=replace,
            fill=lambda fresh: across(tree, os.fsencode(fresh / CODE), alone=True),
        )
    except TransferError as error:
        # The home is at fault, not the code.
        if str(error).startswith(f"{home}{os.sep}"):
            raise StoreError(
                f"cannot copy the code: {error}",
                hint=f"make room in {home}, or set RANKFALL_HOME to a folder on another disk",
            ) from None
        raise UsageError(f"$.code: {error}", hint="leave it out with code_exclude (--code-exclude)") from None
