"""A foreign object as whoever records it sees it: where it stands, which pods it has. It can only be looked at."""

from __future__ import annotations

from rankfall.backends.foreign.find import made_set
from rankfall.backends.foreign.kinds import RESOURCES
from rankfall.backends.foreign.state import state_of
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound
from rankfall.kube.portal import Portal
from rankfall.kube.resources import PODS
from rankfall.model.foreign import Foreign
from rankfall.observe.cluster.native_state import NativeState
from rankfall.observe.cluster.workload_states import pods_of_gang


class ForeignWorkload:
    """The object of one record.

    Args:
        portal: to its cluster.
        foreign: the object.
    """

    def __init__(self, portal: Portal, *, foreign: Foreign) -> None:
        self._portal = portal
        self._foreign = foreign
        self.uid = foreign.uid
        self.shown = f"{foreign.kind} {foreign.name}"

    def look(self) -> NativeState | None:
        """Where it stands; None when it is not there any more.

        Raises:
            KubeError: it cannot be seen now.
        """
        return self._portal.look(self._look)

    def pods(self, selector: str, *, gang: str = "") -> dict[str, str]:
        """Phases of its pods that are there now, by UID; with ``gang`` of one JobSet of a TrainJob alone.

        Raises:
            KubeError: they cannot be seen now.
        """
        return self._portal.look(lambda kube: self._pods(kube, selector, gang))

    async def _look(self, kube: Kube) -> NativeState | None:
        foreign = self._foreign
        resource = RESOURCES[foreign.kind]
        try:
            found = await kube.get(resource, foreign.name, namespace=foreign.namespace)
        except ObjectNotFound:
            return None
        if found.get("metadata", {}).get("uid") != foreign.uid:
            return None
        inner = await made_set(kube, found, namespace=foreign.namespace) if foreign.kind == "trainjob" else None
        # An object that was asked for by name does not repeat its kind.
        return state_of(foreign.kind, {**found, "kind": resource.kind}, inner=inner)

    async def _pods(self, kube: Kube, selector: str, gang: str) -> dict[str, str]:
        foreign = self._foreign
        found = await kube.list(
            PODS, namespace=foreign.namespace, labels=selector or None, fields=foreign.fields or None
        )
        mine = [
            item
            for item in await pods_of_gang(kube, found.items, gang, foreign.name, namespace=foreign.namespace)
            if gang
            or foreign.marks.mine(item["metadata"].get("labels") or {}, item["metadata"].get("creationTimestamp"))
        ]
        return {str(item["metadata"].get("uid")): str((item.get("status") or {}).get("phase")) for item in mine}
