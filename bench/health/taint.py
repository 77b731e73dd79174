"""How soon a kernel line has become a taint: the agent's report and the controller's write both in it, seen by a watch of the Nodes.

A node has one taint, so after each the administrator takes it away, as a person would, and the next Xid is newer evidence. Between the two lies the time that
an agent's stamps are unsure of: what may be older than the clearance would rightly not count.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

from bench.common import Row
from bench.health.controlling import KEY, controlling
from bench.health.figures import waits_row
from bench.health.processes import Speaker, ring_speaking, speaking, unheard
from bench.health.soak_cluster import boot
from bench.health.told import NODE, agent_words
from bench.health.watching import Watching
from testbed.bed import Bed
from testbed.kernel_log import loud

COUNT: Final = 40
#: A second is how unsure an agent is of its stamps (``kmsg_clock``); a little more than that.
APART_S: Final = 1.3
LIMIT_S: Final = 20.0
_BEGIN_S: Final = 60.0


async def by_socket(bed: Bed, *, node: str, agent: Path, account: Path, namespace: str, folder: Path) -> list[Row]:
    """Of a fake node, whose kernel is a socket.

    Args:
        bed: that is up.
        node: a fake one, with a boot id of its own.
        agent: kubeconfig of the agent.
        account: of the controller.
        namespace: of the controller's own objects.
        folder: for sockets, logs and state.
    """
    with (
        speaking(folder, boot=boot(node)) as (path, speaker),
        controlling(folder, account=account, namespace=namespace),
        unheard(*agent_words(agent, "--kmsg-socket", str(path), node=node)),
    ):
        async with Watching(bed.layout.kubeconfig("admin")) as watch:
            return [await _measured(bed, watch, speaker, node=node, how="agent over its socket")]


async def by_ring(bed: Bed, *, agent: Path, account: Path, namespace: str, folder: Path) -> list[Row]:
    """Of one of the bed's nodes, by the real ring, in the test mode: it is a process that writes the lines. Arguments as above."""
    words = ("--accept-injected-kmsg", "--shared-kernel-node", NODE)
    untouched(bed)
    try:
        with (
            loud(),
            ring_speaking() as speaker,
            controlling(folder, account=account, namespace=namespace, words=words),
            unheard(*agent_words(agent, "--accept-injected-kmsg")),
        ):
            async with Watching(bed.layout.kubeconfig("admin")) as watch:
                row = await _measured(
                    bed, watch, speaker, node=NODE, how="agent on /dev/kmsg, by the ring's own numbers"
                )
                return [row]
    finally:
        await asyncio.to_thread(untouched, bed)


async def _measured(bed: Bed, watch: Watching, speaker: Speaker, *, node: str, how: str) -> Row:
    await watch.until(lambda: node in watch.lost, _BEGIN_S)
    # One that is not counted: with it agent and controller have come up, whatever that took.
    await speaker.give()
    await watch.until(lambda: node in watch.tainted, _BEGIN_S)
    before = watch.lost[node]
    waits: list[float | None] = []
    for _ in range(COUNT):
        await _clean(bed, watch, node)
        at = await speaker.give()
        try:
            await watch.until(lambda: node in watch.tainted, LIMIT_S)
            waits.append(watch.tainted[node] - at)
        except TimeoutError:
            waits.append(None)
    said = await speaker.end()
    how += f"; {watch.lost[node] - before:,} records were overwritten before it read them"
    return waits_row("kernel line until a watch shows the taint", waits, said, bound_s=1.0, bound="1 s", how=how)


async def _clean(bed: Bed, watch: Watching, node: str) -> None:
    """Take the taint away, wait until the controller has written that down, and then until what comes is surely newer."""
    while True:
        if node in watch.tainted:
            await asyncio.to_thread(bed.kubectl, "taint", "node", node, f"{KEY}-")
        await watch.until(lambda: node not in watch.tainted and node not in watch.open, LIMIT_S)
        await asyncio.sleep(APART_S)
        # One that was given up may come late: it must not pass for the next.
        if node not in watch.tainted:
            return


def untouched(bed: Bed, node: str = NODE) -> None:
    """Take from one of the bed's nodes what agents and controllers left there."""
    from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION
    from rankfall.model.node_health.records import ANNOTATION

    bed.kubectl.run("annotate", "node", node, f"{REPORT_ANNOTATION}-", f"{ANNOTATION}-")
    bed.kubectl.run("taint", "node", node, f"{KEY}-")
    kept = bed.kubectl.get("node", node)["status"]["conditions"]
    kept = [each for each in kept if not each["type"].startswith("Rankfall")]
    patch = json.dumps([{"op": "replace", "path": "/status/conditions", "value": kept}])
    bed.kubectl.run("patch", "node", node, "--subresource=status", "--type=json", "-p", patch)
