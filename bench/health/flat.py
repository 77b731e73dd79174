"""What a controller costs while nothing is wrong: CPU and requests with ten, a hundred and a thousand healthy nodes whose heartbeats go on.

The most first, then nodes are taken away: it is one controller, and one fleet. Each number is measured once the cluster itself has left its Nodes alone: it
writes to all of them when their number changes much.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.common import Row, cpu_seconds
from bench.health.controlling import Controlling, controlling
from bench.health.figures import Load, load_rows
from bench.health.processes import memory
from bench.health.soak_cluster import await_initialised, booted
from bench.health.watching import Watching
from testbed.bed import Bed
from testbed.errors import StartError
from testbed.ondemand import kwok

COUNTS: Final = (1_000, 100, 10)
#: A kubelet that has nothing new to say writes its Node's status so often, seconds (``nodeStatusReportFrequency``). KWOK does it every ten minutes.
HEARTBEAT_S: Final = 300.0
WINDOW_S: Final = 45.0
REQUESTS: Final = "rankfall_health_requests_total"
_READY_S: Final = 300.0
_QUIET_S: Final = 5.0
#: Changes of Nodes in that time that are the bed's own.
_OWN: Final = 5
_TIER: Final = "rankfall.test/tier"


def tiered(index: int, node: dict[str, Any]) -> None:
    """A boot id, and a label by which it is taken away."""
    booted(index, node)
    node["metadata"]["labels"][_TIER] = str(min(count for count in COUNTS if index < count))


def loads(bed: Bed, rows: list[Row], *, account: Path, namespace: str, folder: Path) -> None:
    """Measure.

    Args:
        bed: that is up.
        rows: get what was measured, before the nodes are removed: on a busy machine that takes minutes, and may fail.
        account: kubeconfig of the controller.
        namespace: of its own objects.
        folder: for its log.

    Raises:
        StartError: the fake nodes do not become ready, or the controller does not see what there is.
    """
    # Leases are renewed seldom, as in the soak: no controller sees them.
    with kwok.fleet(bed, nodes=max(COUNTS), pods=0, change=tiered, lease_s=60) as fleet:
        await_initialised(bed, fleet.nodes, limit_s=_READY_S)
        with controlling(folder, account=account, namespace=namespace) as controller:
            rows += load_rows(asyncio.run(_all(bed, controller, fleet.nodes)))


async def _all(bed: Bed, controller: Controlling, names: Sequence[str]) -> list[Load]:
    from rankfall.kube.auth.kubeconfig import load_access
    from rankfall.kube.client import Kube

    admin = bed.layout.kubeconfig("admin")
    found = []
    async with Watching(admin) as watch, Kube(load_access(kubeconfig=str(admin))) as kube:
        for count in COUNTS:
            for tier in (each for each in COUNTS if count < each):
                path = f"/api/v1/nodes?labelSelector={_TIER.replace('/', '%2F')}%3D{tier}"
                await asyncio.to_thread(bed.kubectl, "delete", "--raw", path)
            await _quiet(watch, controller)
            found.append(await _load(kube, controller, names[:count]))
    return found


async def _quiet(watch: Watching, controller: Controlling) -> None:
    """Wait until Nodes change no more, and the controller counts those that there are."""
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        before = watch.events
        await asyncio.sleep(_QUIET_S)
        if watch.events - before <= _OWN and await asyncio.to_thread(controller.nodes) == len(watch.names):
            return
    raise StartError(f"{watch.events - before} changes of Nodes in {_QUIET_S:g} s still; the controller counts {controller.nodes()} of {len(watch.names)} nodes")  # fmt: skip


async def _load(kube: Any, controller: Controlling, names: Sequence[str]) -> Load:
    beats = asyncio.create_task(_heartbeats(kube, names))
    requests = (await asyncio.to_thread(controller.numbers))[REQUESTS]
    used, at = cpu_seconds(controller.pid), time.monotonic()
    await asyncio.sleep(WINDOW_S)
    took = time.monotonic() - at
    used = cpu_seconds(controller.pid) - used
    requests = (await asyncio.to_thread(controller.numbers))[REQUESTS] - requests
    counted = await asyncio.to_thread(controller.nodes)
    if beats.done():
        beats.result()
    beats.cancel()
    minutes = took / 60
    return Load(
        nodes=len(names),
        counted=counted,
        cpu=used / took,
        requests=requests / minutes,
        memory=memory(controller.pid),
        heartbeats=len(names) * 60 / HEARTBEAT_S,
    )


async def _heartbeats(kube: Any, names: Sequence[str]) -> None:
    """As their kubelets would: each Node's status is written again, one Node after the other, for ever."""
    from rankfall.kube.resources import NODES

    begin = time.monotonic()
    number = 0
    while True:
        at = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": at}]}}
        await kube.patch(NODES, names[number % len(names)], body, kind="strategic", subresource="status")
        number += 1
        due = begin + number * HEARTBEAT_S / len(names)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
