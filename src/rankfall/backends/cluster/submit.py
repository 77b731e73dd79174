"""The launch of one attempt by the supervisor that holds the run: its code first, then its objects, and the Lease goes with them.

Nothing is created before the Lease is renewed. Whatever was created already, by an earlier call or another process, is found again.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from rankfall.backends.cluster.hold import NOTE_ATTEMPT, Hold
from rankfall.backends.cluster.launch import Launched, launch
from rankfall.backends.cluster.launch_patience import Patience, Say
from rankfall.backends.cluster.objects import Compiled
from rankfall.backends.cluster.ownership import owner_reference
from rankfall.backends.cluster.submitted import cluster_of, run_of
from rankfall.backends.cluster.workspace import bring_code
from rankfall.backends.plan import Plan
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import WORKLOADS
from rankfall.store.who import who

# How long a cluster may fail a launch, or an object of the same name may take to go, seconds.
_LAUNCH_S: Final = 300.0


async def submit(kube: Kube, plan: Plan, compiled: Compiled, *, hold: Hold | None, say: Say) -> Launched:
    """Create the attempt's objects, or find those that were made for it.

    Args:
        kube: an open client.
        plan: of the attempt.
        compiled: its manifests.
        hold: of the run; None = it is supervised by nobody.
        say: takes lines for people: what is waited for, and why.

    Raises:
        InfrastructureError: they cannot be created, in the server's own words; or somebody removed them since.
    """
    place, run_dir = cluster_of(plan), run_of(plan)
    objects, number = compiled.objects, compiled.workload
    others = len(objects) - compiled.others
    resource = WORKLOADS[place.backend]
    if hold is not None:
        patience = Patience(until=time.monotonic() + _LAUNCH_S, say=say)
        await hold.insist(kube, patience, notes={NOTE_ATTEMPT: str(plan.attempt)})
    if run_dir.spec.code_folders:
        await bring_code(kube, run_dir, namespace=place.namespace, say=say)
    done = await launch(
        kube,
        objects[number],
        objects[number + 1 : others],
        first=objects[:number],
        others=objects[others:],
        resource=resource,
        request_token=compiled.request_token,
        hold=not compiled.release,
        replace=run_dir.replaces and plan.attempt == 1,
        wait_s=_LAUNCH_S,
        say=say,
        owner=who(),
    )
    if hold is not None:
        meta = {"name": place.object, "uid": done.uid}
        workload = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        # What cannot be written now is written with the next renewal.
        with contextlib.suppress(KubeError):
            await hold.write(kube, owners=[owner_reference(workload)])
    return done
