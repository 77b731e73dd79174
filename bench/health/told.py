"""How soon the agent of a node shows a kernel line on the Node while the kernel talks much, and what it costs beside a plain tail of the same records."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.common import Row, cpu_seconds
from bench.health.figures import Noise, waits_row
from bench.health.processes import RATE, lines, memory, noise, unheard
from bench.health.watching import Watching

NODE = "n1"
EVERY_S = 0.2
SECONDS = 30.0
TAIL_S = 15.0
_BEGIN_S = 5.0


def agent_words(account: Path, *more: str, node: str = NODE) -> tuple[str, ...]:
    """The command line of an agent of this node with these rights."""
    return ("-m", "rankfall", "agent", "--node", node, "--kubeconfig", str(account), *more)


async def told(admin: Path, account: Path, folder: Path) -> list[Row]:
    """From the moment before a line is given to the moment in which a watch of the Node shows it.

    Args:
        admin: kubeconfig of who watches.
        account: of the agent.
        folder: for sockets and state.
    """
    with noise(folder, every=EVERY_S, seconds=SECONDS) as (path, source):
        words = agent_words(account, "--kmsg-socket", str(path), "--state", str(folder / "told"))
        async with Watching(admin, NODE) as watch:
            with unheard(*words) as agent:
                reading = asyncio.create_task(asyncio.to_thread(lines, source, "end"))
                await asyncio.sleep(_BEGIN_S)
                before, at = cpu_seconds(agent.pid), time.monotonic()
                await asyncio.sleep(SECONDS - _BEGIN_S - 2)
                used = (cpu_seconds(agent.pid) - before) / (time.monotonic() - at)
                found = await asyncio.wait_for(reading, 120)
                await asyncio.sleep(3)  # what was given last is shown by then, or is missed
                peak = memory(agent.pid)
            seen = dict(watch.devices)
    said = Noise(0, 0.0, RATE)
    waits: list[float | None] = []
    for line in found:
        name, *rest = line.split()
        if name == "end":
            said = Noise(int(rest[0]), float(rest[1]), RATE)
        else:
            shown = seen.get((NODE, name))
            waits.append(None if shown is None else shown - float(rest[0]))
    return [
        waits_row("kernel line until a watch shows the agent's report", waits, said, bound_s=1.0, bound="1 s", how="one device each"),
        Row("agent at that rate: CPU", f"{used:.1%} of a core", "-", None, "its publishing included"),
        Row("agent at that rate: peak memory", f"{peak:.0f} MiB", "50 MiB", peak < 50, "VmHWM"),
    ]  # fmt: skip


def plain(folder: Path) -> list[Row]:
    """The same records through a plain tail."""
    with (
        noise(folder, every=EVERY_S, seconds=TAIL_S) as (path, _),
        unheard("-m", "bench.health.tail", str(path)) as tail,
    ):
        time.sleep(3)
        before, at = cpu_seconds(tail.pid), time.monotonic()
        time.sleep(TAIL_S - _BEGIN_S)
        used = (cpu_seconds(tail.pid) - before) / (time.monotonic() - at)
        peak = memory(tail.pid)
    how = "twelve expressions on each line, nothing kept, nothing published"
    return [Row("plain tail at that rate: CPU, peak memory", f"{used:.1%} of a core, {peak:.0f} MiB", "-", None, how)]
