"""The removal of one attempt by the supervisor that holds the run: all its workloads, and the wait until their pods are gone.

Two gangs never run side by side, so what does not go is an error that names what blocks. The run's Lease stays: it goes with a workload, and
has to outlive this one.
"""

from __future__ import annotations

import time
from typing import Final

from rankfall.backends.cluster.hold import Hold
from rankfall.backends.cluster.launch_patience import Patience, Say
from rankfall.backends.cluster.remove import Removed, remove
from rankfall.backends.cluster.remove_wait import pods_of
from rankfall.backends.cluster.submitted import cluster_of, run_of, submitted_uid
from rankfall.backends.cluster.telling import Telling
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.kube.client import Kube
from rankfall.kube.resources import WORKLOADS
from rankfall.model import InfrastructureError

# How long the objects of an ended attempt may take to go before the next one begins, seconds.
_CLEAR_S: Final = 300.0


async def clear(kube: Kube, plan: Plan, *, hold: Hold | None, telling: Telling) -> None:
    """Delete the attempt's objects and wait until its pods are gone.

    Args:
        kube: an open client.
        plan: of the attempt.
        hold: of the run; None = it is supervised by nobody.
        telling: takes lines for people: what is waited for, and why.

    Raises:
        InfrastructureError: they do not go; names what blocks.
    """
    place, run_dir = cluster_of(plan), run_of(plan)
    # Without a mark of the launch it may have been killed in between: what carries our marks is removed then.
    uid = submitted_uid(run_dir, plan.attempt)
    if hold is not None:
        await hold.insist(kube, Patience(until=time.monotonic() + _CLEAR_S, say=telling.say), owners=[])
    answer = await _removed(kube, place, uid=uid, say=telling.say)
    if answer != "gone":
        raise InfrastructureError(
            f"attempt {plan.attempt} of {run_dir.id} is still going: {telling.last or place.object}",
            hint=f"look at it: kubectl get pods -n {place.namespace} -l {place.selector}",
        )


async def _removed(kube: Kube, place: ClusterPlan, *, uid: str | None, say: Say) -> Removed:
    answer: Removed = "gone"
    # The first one owns the others and goes last: its being gone says that they are.
    for name in reversed(place.workloads):
        own = name == place.object
        answer = await remove(
            kube,
            resource=WORKLOADS[place.backend],
            name=name,
            namespace=place.namespace,
            uid=uid if own else None,
            pods_selector=place.selector if own else f"{place.selector},{pods_of(WORKLOADS['job'], name)}",
            wait_s=_CLEAR_S,
            say=say,
        )
        if answer != "gone":
            break
    return answer
