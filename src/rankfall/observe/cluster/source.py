"""Which pods are an attempt's, and how to reach their API: what a backend hands to the feed. Cheap to import."""

from __future__ import annotations

import msgspec


class PodSource(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one attempt.

    Attributes:
        context, kubeconfig, namespace: where, as pinned at the launch.
        selector: of labels.
        container: name of the training container.
        token: of the log channel.
        bases: first slot of each role, in order.
        named: the attempt that the pods themselves name, where Kubernetes started the gang again without telling them; None = this one.
        apart: earlier attempts whose pods bear the same labels; theirs are not this one's.
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
