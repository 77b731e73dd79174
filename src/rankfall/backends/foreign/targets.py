"""Maps a target to its record: finds the object, finds or creates its run directory.

Only reads. For a deleted job its record is used, for an object of a Rankfall run that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.backends.foreign.objects import RESOURCES, foreign_of
from rankfall.kube.auth.access import Access
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, KubeError, ObjectNotFound
from rankfall.kube.loop_thread import EventLoopThread
from rankfall.kube.resources import JOBSETS, PODS
from rankfall.model import JobSpec, Kubernetes, NotFound, Policies, RankfallError, StoreError
from rankfall.model.foreign import FOREIGN, Foreign, Target
from rankfall.model.jobspec.job import Role
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.lease import write_file

RUN_LABEL: Final = "rankfall.dev/run"
_NEEDED: Final = {
    "jobset": "JobSet",
    "trainjob": "Kubeflow Trainer",
    "pytorchjob": "the training operator of Kubeflow (v1)",
    "tfjob": "the training operator of Kubeflow (v1)",
    "mpijob": "the training operator of Kubeflow (v1)",
}


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """An existing target; ``run`` is the id of the Rankfall run that created it, or None."""

    foreign: Foreign
    run: str | None


async def locate(kube: Kube, target: Target, *, kubeconfig: str | None) -> Located:
    """Finds the object of a target.

    Raises:
        NotFound: No such object, or kind not served.
        Forbidden: Names the missing right.
        KubeError: The request failed.
    """
    resource = RESOURCES[target.kind]
    try:
        item = await kube.get(resource, target.name)
    except ObjectNotFound as error:
        raise _missing(error, target, kube.namespace) from None
    except Forbidden as error:
        raise _denied(error, resource.plural, resource.group) from None
    inner = await made_set(kube, item, namespace=kube.namespace) if target.kind == "trainjob" else None
    found = msgspec.structs.replace(
        foreign_of(target.kind, item, inner=inner), context=kube.access.context, kubeconfig=kubeconfig
    )
    try:
        await kube.list(PODS, labels=found.selector or None, fields=found.fields or None)
    except Forbidden as error:
        raise _denied(error, "pods", "", also="; and get of pods/log for their lines") from None
    labels = (item.get("metadata") or {}).get("labels") or {}
    run = labels.get(RUN_LABEL) if isinstance(labels, Mapping) else None
    return Located(foreign=found, run=run if isinstance(run, str) else None)


async def made_set(kube: Kube, item: Mapping[str, Any], *, namespace: str) -> dict[str, Any] | None:
    """JobSet of the TrainJob ``item``, its owner, under the same name; None if there is none.

    Raises:
        Forbidden: The account may not read JobSets; names the missing right.
        KubeError: The request failed.
    """
    meta = item["metadata"]
    try:
        found = await kube.get(JOBSETS, meta["name"], namespace=namespace)
    except ObjectNotFound:
        return None
    except Forbidden as error:
        raise _denied(error, JOBSETS.plural, JOBSETS.group) from None
    owners = found.get("metadata", {}).get("ownerReferences") or ()
    return found if any(owner.get("uid") == meta.get("uid") for owner in owners) else None


def _missing(error: ObjectNotFound, target: Target, namespace: str) -> NotFound:
    if error.details.get("name") == target.name:
        return NotFound(
            f"there is no {target.label} in namespace {namespace}",
            hint=f"find it with kubectl get {RESOURCES[target.kind].plural} -A; name its namespace with -n",
        )
    needed = _NEEDED.get(target.kind)
    return NotFound(
        f"the cluster serves no {RESOURCES[target.kind].plural} ({RESOURCES[target.kind].api_version})",
        hint=f"check the cluster, or name another with --context: that kind comes with {needed}" if needed else None,
    )


def _denied(error: Forbidden, plural: str, group: str, *, also: str = "") -> Forbidden:
    return Forbidden(
        error.message,
        status=error.status,
        reason=error.reason,
        details=error.details,
        hint=f"request the rights get, list and watch of {plural}{f' ({group})' if group else ''} in this namespace{also}",
    )


_NO_EXEC: Final = "no-exec"


def spec_of(foreign: Foreign) -> JobSpec:
    """Spec with slots and location; omits command and variables, which may hold secrets."""
    roles = tuple(Role(name=name, nnodes=count) for name, count in foreign.slots.items())
    one = roles[0] if len(roles) == 1 else None
    return JobSpec(
        name=foreign.target.label,
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
    """Existing or a new run directory of this object.

    Raises:
        StoreError: Cannot be created.
    """
    return RunDir.of_foreign(spec_of(foreign), foreign, home=home)


def may_exec(run_dir: RunDir) -> bool:
    """True if the recorder may use exec to find ranks in the pods."""
    return not (run_dir.path / _NO_EXEC).exists()


def set_may_exec(run_dir: RunDir, *, look: bool) -> None:
    """Permits exec (``look``) or forbids it, for recorders that start later.

    Raises:
        StoreError: The setting cannot be written.
    """
    path = run_dir.path / _NO_EXEC
    try:
        if look:
            path.unlink(missing_ok=True)
        else:
            write_file(path, b"")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}", hint="make its folder writable") from error


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Run directory of a target; ``note`` is a message for users, or None."""

    run: RunDir
    note: str | None = None


def open_target(
    target: Target,
    *,
    home: Path,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    look_inside: bool = True,
) -> Opened:
    """Record of a target; ``look_inside`` permits exec if nothing else proves ranks.

    Raises:
        NotFound: Neither object nor record exists.
        KubeError: No answer and no record.
        StoreError: The record cannot be created.
    """
    # The record stores it.
    kubeconfig = None if kubeconfig is None else str(Path(kubeconfig).expanduser().absolute())
    access = load_access(kubeconfig=kubeconfig, context=context, namespace=namespace)
    try:
        found = _located(access, target, kubeconfig)
    except (NotFound, KubeError) as error:
        held = _recorded(home, target, access)
        if held is None:
            raise
        return Opened(run=held, note=f"this is its last recorded state: {error.message}")
    if found.run is None:
        run = record_of(found.foreign, home=home)
        set_may_exec(run, look=look_inside)
        return Opened(run=run)
    try:
        own = RunDir.open(home, found.run)
    except RankfallError:
        raise NotFound(
            f"{target.label} belongs to Rankfall's run {found.run[:100]!r}, which has no run directory in {home}",
            hint="run the command where that run was started, or set RANKFALL_HOME to a copy of its directory",
        ) from None
    return Opened(run=own, note=f"{target.label} belongs to run {own.id}")


def _located(access: Access, target: Target, kubeconfig: str | None) -> Located:
    loop_thread = EventLoopThread(lambda: Kube(access))
    try:
        return loop_thread.call(lambda kube: locate(kube, target, kubeconfig=kubeconfig))
    finally:
        loop_thread.close()


def _recorded(home: Path, target: Target, access: Access) -> RunDir | None:
    """Newest record with this name, context and namespace; None without one."""
    for run in list_runs(home):
        foreign = run.foreign if run.id.startswith(f"{target.kind}-") else None
        place = (access.context, access.namespace)
        if foreign is not None and foreign.target == target and (foreign.context, foreign.namespace) == place:
            return run
    return None
