"""How soon a line that a collector brings to Loki has become a taint, while the same collectors bring ten thousand harmless lines a second. Each Xid is on a node of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.common import Row
from bench.health.controlling import controlling
from bench.health.figures import waits_row
from bench.health.processes import RATE, Speaker, lines, process
from bench.health.soak_faults import SECOND, UPTIME_S, Fault
from bench.health.soak_inject import kernel_labels, push
from bench.health.taint import LIMIT_S
from bench.health.watching import Watching
from testbed.bed import Bed

COUNT: Final = 40
POLL_S: Final = 2.0
BOUND_S: Final = 2.0 + POLL_S
#: Between two Xids, seconds: so that they fall anywhere between two looks.
APART_S: Final = (0.7, 1.7)
_LONGEST_S: Final = 600


async def by_loki(
    bed: Bed, *, url: str, nodes: Sequence[str], account: Path, namespace: str, folder: Path
) -> list[Row]:
    """Measure.

    Args:
        bed: that is up.
        url: of Loki.
        nodes: fake ones; the first is for what is not counted, and all talk.
        account: kubeconfig of the controller.
        namespace: of its own objects.
        folder: for its log.
    """
    begun = time.time_ns() - UPTIME_S * SECOND
    rng = random.Random(8)
    words = ("--poll", f"{POLL_S:g}")

    async def given(number: int) -> float:
        """The moment before the line is brought, which is its stamp too."""
        at = time.time_ns()
        fault = Fault(number, nodes[number], "loki")
        await asyncio.to_thread(push, url, kernel_labels(fault.node), [(at, fault.dmesg(at=at, begun=begun))])
        return at / SECOND

    async def waited(number: int) -> float | None:
        at = await given(number)
        try:
            await watch.until(lambda: nodes[number] in watch.tainted, LIMIT_S)
        except TimeoutError:
            return None
        return watch.tainted[nodes[number]] - at

    with (
        process("-m", "bench.health.loki_noise", url, str(RATE), str(_LONGEST_S), *nodes) as noise,
        controlling(folder, account=account, namespace=namespace, words=words, loki=url),
    ):
        lines(noise, "ready")
        async with Watching(bed.layout.kubeconfig("admin")) as watch:
            # As by the agent: with the first one all has come up.
            await given(0)
            await watch.until(lambda: nodes[0] in watch.tainted, 60.0)
            tasks = []
            for number in range(1, len(nodes)):
                await asyncio.sleep(rng.uniform(*APART_S))
                tasks.append(asyncio.create_task(waited(number)))
            waits = await asyncio.gather(*tasks)
            said = await Speaker(noise).end()
    how = f"a look every {POLL_S:g} s; from the moment before the line is brought to Loki"
    return [waits_row("kernel line until a watch shows the taint", waits, said, bound_s=BOUND_S, bound=f"2 s and the {POLL_S:g} s between two looks", how=how)]  # fmt: skip
