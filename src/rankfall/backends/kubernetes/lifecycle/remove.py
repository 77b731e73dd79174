"""Deletes one workload by UID and waits until object and pods are gone: the answer is gone, going or unknown.

What is not ours is never deleted: without a UID the object must carry our marks; with one, another object of
the same name stays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Literal

from rankfall.backends.kubernetes.lifecycle.errors import NameTaken, RetryBudget, Say, look, passes
from rankfall.backends.kubernetes.lifecycle.ownership import described, label, span, uid_of
from rankfall.backends.kubernetes.lifecycle.wait_gone import Left, Tell, blocked, groups_of, wait_gone
from rankfall.backends.kubernetes.manifests.names import LABEL_RUN
from rankfall.kube.client import Kube, Propagation
from rankfall.kube.errors import Conflict, KubeError, ObjectNotFound
from rankfall.kube.resources import JOBSETS, Resource

Removed = Literal["gone", "going", "unknown"]

# A set that is gone before its jobs would leave jobs that still make pods, until the garbage collector gets to them. A TrainJob cannot stay
# until the last: its runtime goes with it, and without that Trainer's webhook refuses every change, the removal of the finalizer too.
_IN_ORDER: Final = (JOBSETS,)


async def remove(
    kube: Kube,
    *,
    resource: Resource,
    name: str,
    namespace: str,
    uid: str | None,
    pods_selector: str,
    wait_s: float,
    say: Say,
) -> Removed:
    """Delete a workload and wait for its end. Can be called again at any time.

    Args:
        kube: an open client.
        resource: of the workload.
        name: of the workload.
        namespace: where it is.
        uid: of the workload; None = not known: then the object must carry our marks.
        pods_selector: label selector of exactly this attempt's pods.
        wait_s: longest wait in seconds; 0 = order it, take one look.
        say: takes lines for people: what is waited for and why.

    Returns:
        ``gone``: neither object, nor children, nor pods are there. ``going``: it was deleted, and something is still there; ``say`` was told what.
        ``unknown``: the server could not be asked until the time was over.

    Raises:
        NameTaken: the object of this name is not ours.
        KubeError: what waiting does not heal: 401, 403.
    """
    patience = RetryBudget(until=time.monotonic() + wait_s, say=say)
    try:
        if uid is None:
            found = await look(kube, resource, name, namespace=namespace, patience=patience)
            if found is not None:
                _check_ours(found, resource.label(name, namespace), pods_selector)
                uid = uid_of(found)
        if uid is not None:
            order: Propagation = "Foreground" if resource in _IN_ORDER else "Background"
            await order_delete(kube, resource, name, namespace=namespace, uid=uid, propagation=order, patience=patience)
    except KubeError as error:
        if not passes(error):
            raise
        say(f"{error.message}; whether {resource.label(name, namespace)} is gone is not known")
        return "unknown"
    waited = await wait_gone(
        kube,
        groups_of(resource, name, uid=uid, pods=pods_selector),
        namespace=namespace,
        until=patience.until,
        say=say,
        tell=teller(kube, f"removing {resource.label(name, namespace)}", say=say),
    )
    if waited.unseen is not None:
        say(f"{waited.unseen.message}; whether {resource.label(name, namespace)} is gone is not known")
        return "unknown"
    return "gone" if waited.gone else "going"


async def order_delete(
    kube: Kube,
    resource: Resource,
    name: str,
    *,
    namespace: str,
    uid: str,
    propagation: Propagation,
    patience: RetryBudget,
) -> None:
    """Have one object deleted, and no other one of its name. Its being gone already is fine.

    Raises:
        KubeError: it could not be ordered, until patience was over.
    """
    while True:
        try:
            await kube.delete(resource, name, namespace=namespace, uid=uid, propagation=propagation)
        except ObjectNotFound:
            return
        except Conflict as error:
            found = await look(kube, resource, name, namespace=namespace, patience=patience)
            if found is None or uid_of(found) != uid:
                return
            await patience.or_raise(error)
        except KubeError as error:
            await patience.or_raise(error)
        else:
            return


def teller(kube: Kube, doing: str, *, say: Say) -> Tell:
    """Words about what is left, each time with the age of the wait.

    Args:
        kube: asked for nodes.
        doing: what waits: ``removing job here/train``.
        say: takes the line.
    """
    began = time.monotonic()

    async def tell(left: Sequence[Left]) -> None:
        found = await blocked(kube, left)
        say(f"{doing}, for {span(time.monotonic() - began)}: {found.text}{f'; {found.hint}' if found.hint else ''}")

    return tell


def _check_ours(found: dict[str, Any], name: str, pods_selector: str) -> None:
    """Refuse what carries no marks of ours, or those of another run than the pods that are asked for."""
    run = label(found, LABEL_RUN)
    wanted = [part.partition("=")[2] for part in pods_selector.split(",") if part.partition("=")[0] == LABEL_RUN]
    if not run or any(run != one for one in wanted):
        raise NameTaken(
            f"did not remove {name}: it is not of this run ({described(found)})",
            hint="nothing was touched; look at it with kubectl describe",
        )
