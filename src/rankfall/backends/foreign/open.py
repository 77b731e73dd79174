"""From a target to its record: the object is looked up, and its run directory found or made.

What is gone from the cluster but was recorded here is answered from the record. An object of one of Rankfall's own runs leads to that run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankfall.backends.foreign.find import Located, locate
from rankfall.backends.foreign.record import record_of, set_look_inside
from rankfall.kube.access import Access
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.kubeconfig import load_access
from rankfall.kube.portal import Portal
from rankfall.model import NotFound, RankfallError
from rankfall.model.foreign import Target
from rankfall.store import RunDir, list_runs


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A target's record.

    Attributes:
        run: its directory.
        note: what a person should know of it; None = it is there, and as it should be.
    """

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
    """The record of a target.

    Args:
        target: kind and name.
        home: Rankfall's home.
        namespace: None = the context's.
        context: None = the current one.
        kubeconfig: one file; None = as kubectl finds them.
        look_inside: learn the ranks of its pods from their processes, by exec, where nothing else proves them.

    Raises:
        NotFound: there is no such object, and no record of one.
        KubeError: the cluster cannot be asked, and there is no record either.
        StoreError: the record cannot be made.
    """
    # Written into the record, which is read from anywhere.
    kubeconfig = None if kubeconfig is None else str(Path(kubeconfig).expanduser().absolute())
    access = load_access(kubeconfig=kubeconfig, context=context, namespace=namespace)
    try:
        found = _located(access, target, kubeconfig)
    except (NotFound, KubeError) as error:
        held = _recorded(home, target, access)
        if held is None:
            raise
        return Opened(run=held, note=f"as it was seen last: {error.message}")
    if found.run is None:
        run = record_of(found.foreign, home=home)
        set_look_inside(run, look=look_inside)
        return Opened(run=run)
    try:
        own = RunDir.open(home, found.run)
    except RankfallError:
        raise NotFound(
            f"{target.shown} is of Rankfall's own run {found.run[:100]!r}, whose record is not in {home}",
            hint="ask where that run was started, or set RANKFALL_HOME to a copy of its directory",
        ) from None
    return Opened(run=own, note=f"{target.shown} is of run {own.id}")


def _located(access: Access, target: Target, kubeconfig: str | None) -> Located:
    portal = Portal(lambda: Kube(access))
    try:
        return portal.call(lambda kube: locate(kube, target, kubeconfig=kubeconfig))
    finally:
        portal.close()


def _recorded(home: Path, target: Target, access: Access) -> RunDir | None:
    """The newest record of an object of this name in this place."""
    for run in list_runs(home):
        foreign = run.foreign if run.id.startswith(f"{target.kind}-") else None
        place = (access.context, access.namespace)
        if foreign is not None and foreign.target == target and (foreign.context, foreign.namespace) == place:
            return run
    return None
