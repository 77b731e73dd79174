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
    """

    context: str
    kubeconfig: str | None = None
    namespace: str
    selector: str
    container: str
    token: str
