"""One workload that Kubernetes restarts and ends by itself, as whoever records it or steers it by hand needs it.

It asks, suspends, releases and removes the very object of the launch and no other of its name. What it cannot see is an error, never "gone".
"""

from __future__ import annotations

from typing import Any

from rankfall.backends.cluster.launch_patience import Say
from rankfall.backends.cluster.ownership import uid_of
from rankfall.backends.cluster.remove import Removed, remove
from rankfall.backends.plan import ClusterPlan
from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, ObjectNotFound
from rankfall.kube.labels import JOBSET_NAME
from rankfall.kube.portal import Portal
from rankfall.kube.resources import JOBS, JOBSETS, PODS, WORKLOADS
from rankfall.observe.cluster.native_state import NativeState, native_state, of_restart, with_job_of_set
from rankfall.observe.cluster.workload_states import pods_of_gang


class Workload:
    """The workload of one launch.

    Args:
        portal: to its cluster.
        place: where it is.
        uid: of the object that was launched.

    Attributes:
        uid: as above.
        shown: names it.
        selector: of all its pods, whichever start of the gang they are of.
    """

    def __init__(self, portal: Portal, *, place: ClusterPlan, uid: str) -> None:
        self._portal = portal
        self._place = place
        self.uid = uid
        self.shown = f"{place.backend} {place.object}"
        self.selector = of_restart(place.selector, None)

    def look(self) -> NativeState | None:
        """Where it stands; None when it is not there any more.

        Raises:
            KubeError: it cannot be seen now.
        """
        return self._portal.look(self._look)

    def pods(self, selector: str, *, gang: str = "") -> dict[str, str]:
        """Phases of the pods that are there now, by UID.

        Args:
            selector: of labels.
            gang: UID of the JobSet of a TrainJob whose pods alone are asked for; empty = all.

        Raises:
            KubeError: they cannot be seen now.
        """
        return self._portal.look(lambda kube: self._pods(kube, selector, gang))

    def hold(self, *, suspend: bool) -> bool:
        """Suspend it, or release it; False when it is not there any more.

        Raises:
            KubeError: the server refuses, or cannot be asked.
        """
        return self._portal.call(lambda kube: self._hold(kube, suspend=suspend))

    def remove(self, *, wait_s: float, say: Say) -> Removed:
        """Delete it and wait until it and its pods are gone, ``wait_s`` seconds at most; ``say`` takes what is waited for.

        Raises:
            KubeError: what waiting does not heal: 401, 403.
        """
        place = self._place
        return self._portal.call(
            lambda kube: remove(
                kube,
                resource=WORKLOADS[place.backend],
                name=place.object,
                namespace=place.namespace,
                uid=self.uid,
                pods_selector=self.selector,
                wait_s=wait_s,
                say=say,
            )
        )

    async def _look(self, kube: Kube) -> NativeState | None:
        place = self._place
        try:
            found = await kube.get(WORKLOADS[place.backend], place.object, namespace=place.namespace)
        except ObjectNotFound:
            return None
        if uid_of(found) != self.uid:
            return None
        inner = await self._inner(kube) if place.backend == "trainjob" else None
        # An object that was asked for by name does not repeat its kind.
        state = native_state({**found, "kind": WORKLOADS[place.backend].kind}, inner=inner)
        if state.phase != "failed" or place.backend == "job":
            return state
        return with_job_of_set(
            state, (await kube.list(JOBS, namespace=place.namespace, labels=f"{JOBSET_NAME}={place.object}")).items
        )

    async def _inner(self, kube: Kube) -> dict[str, Any] | None:
        """The set of a TrainJob: another one of that name is none of ours. Listed, because a removal needs that right too."""
        place = self._place
        for found in (
            await kube.list(JOBSETS, namespace=place.namespace, fields=f"metadata.name={place.object}")
        ).items:
            owners = found.get("metadata", {}).get("ownerReferences") or ()
            if any(owner.get("uid") == self.uid for owner in owners):
                return found
        return None

    async def _pods(self, kube: Kube, selector: str, gang: str) -> dict[str, str]:
        found = await kube.list(PODS, namespace=self._place.namespace, labels=selector)
        items = await pods_of_gang(kube, found.items, gang, self._place.object, namespace=self._place.namespace)
        return {uid_of(item): str(item.get("status", {}).get("phase")) for item in items}

    async def _hold(self, kube: Kube, *, suspend: bool) -> bool:
        place = self._place
        body = {"metadata": {"uid": self.uid}, "spec": {"suspend": suspend}}
        try:
            # With the UID in it, the server refuses the change of another object of this name.
            await kube.patch(WORKLOADS[place.backend], place.object, body, namespace=place.namespace, kind="merge")
        except (ObjectNotFound, Conflict):
            return False
        return True
