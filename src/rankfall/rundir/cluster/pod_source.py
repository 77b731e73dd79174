"""Describes an attempt's pods and how to reach their API server.

Imports no Kubernetes client: every run loads plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rankfall.model.foreign import PodMarks


class PodSource(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one attempt.

    Attributes:
        context, kubeconfig, namespace: Cluster, fixed at the launch.
        selector: Label selector.
        fields: Field selector, or empty.
        container: Training container; empty = by ``marks``, else first.
        token: Token of the log channel.
        bases: First slot of each role, in order.
        named: Attempt in the labels after a Kubernetes restart.
        apart: Earlier attempts with the same labels.
        marks: Identification of foreign pods; None = Rankfall's labels.
        gang: UID of the TrainJob's JobSet; empty = first found.
        backend, object: Workload as in a target, or empty.
        jobs: Workload of each role; the first owns the others.
        look_inside: Read unproved ranks from processes.
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
        """Names of all workloads, with the owner of the others first."""
        return tuple(self.jobs.values()) or (self.object,)

    def mine(self, pod: Mapping[str, Any]) -> bool:
        """True if a pod that the selectors matched belongs to this attempt's job."""
        if self.marks is None:
            return True
        meta = pod.get("metadata") or {}
        return self.marks.mine(meta.get("labels") or {}, meta.get("creationTimestamp"))

    def container_of(self, role: str | None, first: str) -> str:
        """Pod's training container, by role or ``first``."""
        own = self.marks.containers.get(role or "") if self.marks is not None else None
        return self.container or own or first

    def slot_of(self, role: str | None, index: int | None) -> int | None:
        """Completion index's slot, or None."""
        if index is None:
            return None
        if len(self.bases) == 1:
            # Pods of a platform's runtime have no role label.
            return index + next(iter(self.bases.values()))
        base = self.bases.get(role) if role is not None else None
        return None if base is None else base + index

    def role_of(self, slot: int) -> str:
        """Role of a slot."""
        return max(self.bases, key=lambda role: (self.bases[role] <= slot, self.bases[role]))
