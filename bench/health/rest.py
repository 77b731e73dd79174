"""What the agent of a node costs while its kernel is quiet, beside a plain tail of the same file."""

from __future__ import annotations

import time
from pathlib import Path

from bench.common import Row, cpu_seconds
from bench.health.processes import memory, unheard
from bench.health.told import agent_words

REST_S = 60.0
_BEGIN_S = 5.0


def at_rest(account: Path, folder: Path) -> list[Row]:
    """On this machine's own ring, which is quiet."""
    words = agent_words(account, "--state", str(folder / "quiet"))
    with unheard(*words) as agent, unheard("-m", "bench.health.tail", "/dev/kmsg") as tail:
        time.sleep(_BEGIN_S)
        before, at = {each.pid: cpu_seconds(each.pid) for each in (agent, tail)}, time.monotonic()
        time.sleep(REST_S)
        took = time.monotonic() - at
        used = {pid: (cpu_seconds(pid) - was) / took for pid, was in before.items()}
        return [
            Row("agent at rest: CPU", f"{used[agent.pid]:.2%} of a core", "0.5%", used[agent.pid] < 0.005, f"over {took:.0f} s on /dev/kmsg"),
            Row("agent at rest: peak memory", f"{memory(agent.pid):.0f} MiB", "50 MiB", memory(agent.pid) < 50, "VmHWM since its start, TLS connection open"),
            Row("plain tail at rest: CPU, peak memory", f"{used[tail.pid]:.2%}, {memory(tail.pid):.0f} MiB", "-", None, "the same file"),
        ]  # fmt: skip
