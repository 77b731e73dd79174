"""Describes which pods belong to an attempt and how to reach their API server.

Returned by a backend and read by the pod collector. Imports no Kubernetes client: plans hold it and every
run loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rankfall.model.foreign import PodMarks


class PodSource(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one attempt.

    Attributes:
        context, kubeconfig, namespace: where, as pinned at the launch.
        selector: of labels.
        fields: selector of fields; empty = none.
        container: name of the training container; empty = that of the pod's role by ``marks``, else the pod's first one.
        token: of the log channel.
        bases: first slot of each role, in order.
        named: the attempt that the pods themselves name, where Kubernetes started the gang again without telling them; None = this one.
        apart: earlier attempts whose pods bear the same labels; theirs are not this one's.
        marks: how pods that Rankfall did not make say who they are; None = they bear Rankfall's own labels.
        gang: UID of the JobSet of a TrainJob whose pods they are; empty = of the one that is seen first.
        backend, object: kind and name of the workload that makes them, as a target has them; empty = nothing is known of it.
        jobs: names of the workloads by role, where each role has one of its own; the first owns the others.
        look_inside: of such pods, learn the ranks from their processes where nothing else proves them.
    """

    context: str
    kubeconfig: str | None = None
    namespace: str
    selector: str
    container: str
    token: str
    bases: dict[str, int]
    named: int | None = None
    apart: tuple[int, ...] = ()
    fields: str = ""
    marks: PodMarks | None = None
    look_inside: bool = True
    gang: str = ""
    backend: str = ""
    object: str = ""
    jobs: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def workloads(self) -> tuple[str, ...]:
        """All of them, the one that owns the others first."""
        return tuple(self.jobs.values()) or (self.object,)

    def mine(self, pod: Mapping[str, Any]) -> bool:
        """Whether a pod that the selectors found is of this attempt's job."""
        if self.marks is None:
            return True
        meta = pod.get("metadata") or {}
        return self.marks.mine(meta.get("labels") or {}, meta.get("creationTimestamp"))

    def container_of(self, role: str | None, first: str) -> str:
        """The training container of a pod.

        Args:
            role: of the pod.
            first: the pod's first container.
        """
        own = self.marks.containers.get(role or "") if self.marks is not None else None
        return self.container or own or first

    def slot_of(self, role: str | None, index: int | None) -> int | None:
        """The slot of the pod with this completion index; None when it is not known whose index that is."""
        if index is None:
            return None
        if len(self.bases) == 1:
            # Pods of a platform's own runtime do not say their role.
            return index + next(iter(self.bases.values()))
        base = self.bases.get(role) if role is not None else None
        return None if base is None else base + index

    def role_of(self, slot: int) -> str:
        """The role of a slot."""
        return max(self.bases, key=lambda role: (self.bases[role] <= slot, self.bases[role]))
