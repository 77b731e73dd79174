"""Deletes one workload by UID and waits: gone, going or unknown. Never deletes foreign objects."""

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

# A set that disappears first leaves jobs that create pods. A TrainJob cannot go last: Trainer's webhook needs its
# runtime, even for the finalizer.
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
    """Deletes a workload and waits for its end; ``wait_s`` 0 = check once. Repeatable.

    ``uid`` None = unknown, then Rankfall's marks are required.

    Returns:
        ``gone``: object, children and pods. ``going``: deleted, but ``say`` received what remains. ``unknown``: no
            answer.

    Raises:
        NameTaken: The object is foreign.
        KubeError: A permanent error: 401, 403.
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
        say(f"{error.message}; cannot find out whether {resource.label(name, namespace)} still exists")
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
        say(f"{waited.unseen.message}; cannot find out whether {resource.label(name, namespace)} still exists")
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
    """Deletes one object by UID; accepts that it no longer exists.

    Raises:
        KubeError: Failed until the budget was spent.
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
    """Returns a function that reports remaining objects and the wait's duration."""
    began = time.monotonic()

    async def tell(left: Sequence[Left]) -> None:
        found = await blocked(kube, left)
        say(f"{doing}, for {span(time.monotonic() - began)}: {found.text}{f'; {found.hint}' if found.hint else ''}")

    return tell


def _check_ours(found: dict[str, Any], name: str, pods_selector: str) -> None:
    """Raises NameTaken for an object without Rankfall's marks, or of another run than ``pods_selector`` names."""
    run = label(found, LABEL_RUN)
    wanted = [part.partition("=")[2] for part in pods_selector.split(",") if part.partition("=")[0] == LABEL_RUN]
    if not run or any(run != one for one in wanted):
        raise NameTaken(
            f"did not remove {name}: it is not of this run ({described(found)})",
            hint="check it with kubectl describe; nothing was changed",
        )
