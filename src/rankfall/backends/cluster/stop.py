"""The end of an attempt's slots: they are asked by a suspension of their workloads, and given up after a time; never forced.

A pod that is deleted by force leaves the API while its processes may still run on a node that does not answer: the next attempt would be a
second gang beside them. So a slot that does not end counts as lost after a while, and the next attempt waits until its pod is gone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from typing import Final

from rankfall.backends.plan import ClusterPlan
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound
from rankfall.kube.resources import WORKLOADS
from rankfall.observe.cluster.stops import abandon, read_stop
from rankfall.store import RunDir

# How long a pod may outlive the grace time of a stop before its slot counts as lost, seconds: the kubelet's own margin many times over.
_DEAF_S: Final = 60.0
_NS: Final = 1_000_000_000


async def suspend(kube: Kube, place: ClusterPlan) -> None:
    """Suspend the workloads, one request each: their pods get SIGTERM and the grace time of their template.

    Raises:
        KubeError: the server refuses, or cannot be asked; it can be asked again.
    """
    for name in place.workloads:
        with contextlib.suppress(ObjectNotFound):
            await kube.patch(
                WORKLOADS[place.backend],
                name,
                {"spec": {"suspend": True}},
                namespace=place.namespace,
                kind="merge",
            )


def give_up(run_dir: RunDir, attempt: int, slots: Collection[int], *, absent: Collection[int] = ()) -> None:
    """Write down that slots are not waited for any more, when their stop is old enough.

    Args:
        run_dir: the run.
        attempt: its number.
        slots: that have not ended.
        absent: those of them that have no pod. A quota or a webhook may have refused it; while the workload is suspended none is made.

    Raises:
        OSError: it cannot be written.
    """
    stop = read_stop(run_dir.path, attempt)
    patience = run_dir.spec.policies.grace_s + _DEAF_S
    if stop is not None:
        overdue = time.time_ns() - stop.at_ns > patience * _NS
        abandon(run_dir.path, attempt, slots if overdue else absent)
