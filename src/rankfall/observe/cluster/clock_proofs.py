"""What stamps on the API's objects prove of the clocks that made them. Pure; each proof is one fact about what can have come first.

The API server stamps when a pod is bound to its node; its kubelet stamps when it takes the pod, when a container starts and ends, and when it
renews its Lease. So a kubelet's stamp of a pod is of a moment after the server's, and every stamp is of a moment before it was seen here. Stamps of
whole seconds are cut, not rounded: the moment is up to a second later than they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rankfall.kube.fields import mapping, mappings, word
from rankfall.model.clocks import Bound
from rankfall.model.times import nanoseconds
from rankfall.observe.cluster.podfacts import PodFact, stamp_ns

_NS: Final = 1_000_000_000
# Between the binding of a pod and its kubelet's taking it, with what cut stamps add.
_TAKEN_WITHIN_S: Final = 10


def of_pod(fact: PodFact, *, server: Bound) -> Bound:
    """How far the clock of a pod's node is ahead of this machine's, by the pod's stamps.

    Args:
        fact: the newest look.
        server: how far the API server's clock is ahead of this machine's.
    """
    stamps = _stamps(fact)
    if not stamps:
        return Bound()
    most = _most_after_binding(fact)
    return Bound(max(stamps) - fact.seen_ns, None).meet(Bound(None, most).plus(server))


def _stamps(fact: PodFact) -> list[int]:
    """All that the kubelet stamped on a pod."""
    times = [fact.accepted]
    for one in (fact.last, fact.main):
        if one is not None and one.state in {"running", "terminated"}:
            times += [one.started, one.finished]
    # Kubernetes writes 1970 where it does not know.
    return [at for text in times if (at := stamp_ns(text))]


def _most_after_binding(fact: PodFact) -> int | None:
    """How far the node's clock is ahead of the server's at most: what the kubelet stamped first came after the server had bound the pod."""
    stamps, binding = _stamps(fact), fact.condition("PodScheduled")
    after = stamp_ns(binding.at) if binding is not None and binding.status == "True" else None
    return None if after is None or not stamps else min(stamps) + _NS - after


def by_server(fact: PodFact, at: int) -> int:
    """A stamp of a pod's node by the API server's clock, at the earliest; as it is where the pod's own stamps tell nothing of the two clocks.

    Args:
        fact: the pod.
        at: nanoseconds since the epoch by the node's clock.
    """
    hi = _most_after_binding(fact)
    # A pod is taken a moment after it is bound, which is worth no doubt about clocks that agree.
    return at if hi is None or 0 <= hi <= _TAKEN_WITHIN_S * _NS else at - hi


class LeaseLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at the Lease that a kubelet renews.

    Attributes:
        node: whose.
        seen_ns: nanoseconds since the epoch by this machine's clock.
        renewed: by the kubelet's clock, with microseconds.
        written: when the server took that, by its clock, in whole seconds.
    """

    node: str
    seen_ns: int
    renewed: int
    written: int | None = None


def lease_look(item: Mapping[str, Any], *, seen_ns: int) -> LeaseLook | None:
    """A look at a Lease of ``kube-node-lease``; None where it bears no stamp."""
    meta, spec = mapping(item, "metadata"), mapping(item, "spec")
    renewed = nanoseconds(word(spec.get("renewTime")) or "")
    if renewed is None:
        return None
    writers = [
        at
        for one in mappings(meta, "managedFields")
        if "f:renewTime" in mapping(mapping(one, "fieldsV1"), "f:spec") and (at := stamp_ns(word(one.get("time"))))
    ]
    return LeaseLook(
        node=word(meta.get("name")) or "", seen_ns=seen_ns, renewed=renewed, written=max(writers, default=None)
    )


def of_lease(look: LeaseLook, before: LeaseLook | None, *, server: Bound) -> Bound:
    """How far a node's clock is ahead of this machine's, by one look at its Lease and one before.

    A kubelet renews with what the server answered to the renewal before, so each renewal is after the server's stamp of any earlier one.

    Args:
        look: the newer one.
        before: an earlier one; None = there is none.
        server: how far the API server's clock is ahead of this machine's.
    """
    ahead = Bound(look.renewed - look.seen_ns, None)
    if look.written is not None:
        ahead = ahead.meet(Bound(look.renewed - look.written - _NS, None).plus(_below(server)))
    if before is not None and before.written is not None and before.renewed != look.renewed:
        ahead = ahead.meet(Bound(None, look.renewed - before.written).plus(server))
    return ahead


def _below(server: Bound) -> Bound:
    return Bound(server.lo, None)
