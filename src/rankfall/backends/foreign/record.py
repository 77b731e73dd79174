"""The record of a job that Rankfall did not start: its run directory, and the job in the words of a job of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankfall.model import JobSpec, Kubernetes, Policies, StoreError
from rankfall.model.foreign import FOREIGN, Foreign
from rankfall.model.roles import Role
from rankfall.store import RunDir
from rankfall.store.fs import write_file

_NO_EXEC: Final = "no-exec"


def spec_of(foreign: Foreign) -> JobSpec:
    """What is known of the job, as a spec: its slots, and where it is. No command, no variable: they may hold secrets, and prove nothing."""
    roles = tuple(Role(name=name, nnodes=count) for name, count in foreign.slots.items())
    one = roles[0] if len(roles) == 1 else None
    return JobSpec(
        name=foreign.target.shown,
        backend=FOREIGN,
        inside="off",
        unattended=True,
        role=one.name if one else "worker",
        nnodes=one.nnodes if one else 1,
        roles=() if one else roles,
        policies=Policies(max_restarts=foreign.restarts),
        kubernetes=Kubernetes(namespace=foreign.namespace, context=foreign.context, kubeconfig=foreign.kubeconfig),
    )


def record_of(foreign: Foreign, *, home: Path) -> RunDir:
    """The run directory of this object: the one that there is, or a new one.

    Raises:
        StoreError: it cannot be made.
    """
    return RunDir.of_foreign(spec_of(foreign), foreign, home=home)


def looks_inside(run_dir: RunDir) -> bool:
    """Whether its recorder may look into the pods for the ranks of their processes."""
    return not (run_dir.path / _NO_EXEC).exists()


def set_look_inside(run_dir: RunDir, *, look: bool) -> None:
    """Say whether recorders that begin from now on may.

    Raises:
        StoreError: it cannot be written.
    """
    path = run_dir.path / _NO_EXEC
    try:
        if look:
            path.unlink(missing_ok=True)
        else:
            write_file(path, b"")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}", hint="make its folder writable") from error
