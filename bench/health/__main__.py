"""How soon an agent tells of a kernel line while the kernel talks much, and what it costs: CPU and memory beside a plain tail of the same records.

Needs a test bed (``make bench-health`` starts one if none is up). The agent runs with its own account and writes to a real API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.bed import bed_machine, bench_bed
from bench.common import ROOT, Row, table
from testbed import accounts

RATE = 10_000
EVERY_S = 0.2
SECONDS = 45.0
REST_S = 60.0
NODE = "n1"
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu(pid: int) -> float:
    """Seconds of CPU that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> float:
    """Peak resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of this machine, ended afterwards."""
    environ = {key: value for key, value in os.environ.items() if key not in {"KUBECONFIG", "NODE_NAME"}}
    made = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT)
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


def lines(made: subprocess.Popen[str], last: str) -> list[str]:
    """What it prints, up to the line that begins so."""
    found: list[str] = []
    for line in made.stdout or ():
        found.append(line)
        if line.startswith(last):
            break
    return found


@contextlib.contextmanager
def noise(folder: Path, *, every: float, seconds: float) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A kernel that talks much, and its socket."""
    path = folder / f"{time.monotonic_ns()}.sock"
    with process("-m", "bench.health.noise", str(path), str(RATE), str(every), str(seconds)) as made:
        lines(made, "ready")
        yield path, made


async def watched(config: Path, seen: dict[str, float]) -> None:
    """Note when each device first stands on the Node."""
    from rankfall.kube.client import Kube
    from rankfall.kube.kubeconfig import load_access
    from rankfall.model.health_report import REPORT_ANNOTATION, decode_report

    params = {"watch": "1", "fieldSelector": f"metadata.name={NODE}"}
    async with (
        Kube(load_access(kubeconfig=str(config))) as kube,
        kube.stream("/api/v1/nodes", params=params, read_timeout=None) as answer,
    ):
        rest = b""
        async for chunk in answer.content.iter_any():
            now = time.time()
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                note = json.loads(line)["object"]["metadata"].get("annotations", {}).get(REPORT_ANNOTATION)
                for entry in decode_report(note).entries if note else ():
                    seen.setdefault(str(entry.device).removeprefix("gpu "), now)


async def latency(admin: Path, account: Path, folder: Path) -> list[Row]:
    """From the moment before a line is given to the moment in which a watch of the Node shows it."""
    seen: dict[str, float] = {}
    with noise(folder, every=EVERY_S, seconds=SECONDS) as (path, source):
        words = ("-m", "rankfall", "agent", "--node", NODE, "--kubeconfig", str(account), "--kmsg-socket", str(path))
        watch = asyncio.create_task(watched(admin, seen))
        await asyncio.sleep(1)
        with process(*words, "--state", str(folder / "state")) as agent:
            task = asyncio.create_task(asyncio.to_thread(lines, source, "end"))
            await asyncio.sleep(5)
            before, at = cpu(agent.pid), time.monotonic()
            await asyncio.sleep(SECONDS - 7)
            used = (cpu(agent.pid) - before) / (time.monotonic() - at)
            found = await asyncio.wait_for(task, 120)
            await asyncio.sleep(3)
            peak = memory(agent.pid)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
    rate = 0.0
    given: dict[str, float] = {}
    for line in found:
        name, *rest = line.split()
        if name == "end":
            rate = int(rest[0]) / float(rest[1])
        else:
            given[name] = float(rest[0])
    late = sorted(seen[name] - at for name, at in given.items() if name in seen)
    missed = len(given) - len(late)
    last = late[min(len(late) - 1, int(len(late) * 0.99))]
    return [
        Row(
            "kernel line until a watch of the Node shows it, p50, p99, most",
            f"{late[len(late) // 2] * 1e3:.0f}, {last * 1e3:.0f}, {late[-1] * 1e3:.0f} ms",
            "p99 1 s",
            last < 1.0 and not missed and rate > 0.95 * RATE,
            f"{len(given)} Xids of different devices, {missed} missed, among {rate:,.0f} harmless records a second",
        ),
        Row("agent at that rate: CPU", f"{used:.1%} of a core", "-", None, "its publishing included"),
        Row("agent at that rate: peak memory", f"{peak:.0f} MiB", "50 MiB", peak < 50, "VmHWM"),
    ]


def plain(folder: Path) -> list[Row]:
    """The same records through a plain tail."""
    with (
        noise(folder, every=EVERY_S, seconds=15) as (path, _),
        process("-m", "bench.health.tail", str(path)) as tail,
    ):
        time.sleep(3)
        before, at = cpu(tail.pid), time.monotonic()
        time.sleep(10)
        used = (cpu(tail.pid) - before) / (time.monotonic() - at)
        peak = memory(tail.pid)
    how = "twelve expressions on each line, nothing kept, nothing published"
    return [Row("plain tail at that rate: CPU, peak memory", f"{used:.1%} of a core, {peak:.0f} MiB", "-", None, how)]


def rest(account: Path, folder: Path) -> list[Row]:
    """On this machine's own ring, which is quiet."""
    words = ("-m", "rankfall", "agent", "--node", NODE, "--kubeconfig", str(account), "--state", str(folder / "quiet"))
    with process(*words) as agent, process("-m", "bench.health.tail", "/dev/kmsg") as tail:
        time.sleep(5)
        before = {each.pid: cpu(each.pid) for each in (agent, tail)}
        time.sleep(REST_S)
        used = {pid: (cpu(pid) - was) / REST_S for pid, was in before.items()}
        return [
            Row("agent at rest: CPU", f"{used[agent.pid]:.2%} of a core", "0.5%", used[agent.pid] < 0.005, f"over {REST_S:.0f} s on /dev/kmsg"),
            Row("agent at rest: peak memory", f"{memory(agent.pid):.0f} MiB", "50 MiB", memory(agent.pid) < 50, "VmHWM since its start, TLS connection open"),
            Row("plain tail at rest: CPU, peak memory", f"{used[tail.pid]:.2%}, {memory(tail.pid):.0f} MiB", "-", None, "the same file"),
        ]  # fmt: skip


def main() -> int:
    """Measure, print the table, write the page; 1 when a bound is broken."""
    from rankfall.health.manifests.agent import CLUSTER_RULES, EVENT_RULES, NAME
    from rankfall.model.health_report import REPORT_ANNOTATION

    with bench_bed() as bed:
        rules = [*CLUSTER_RULES, *EVENT_RULES]
        account = accounts.create(
            bed.control, bed.kubectl, NAME, namespace="bench-health", rules=[], cluster_rules=rules
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found = asyncio.run(latency(bed.layout.kubeconfig("admin"), account, folder))
            found += plain(folder)
            found += rest(account, folder)
        bed.kubectl("annotate", "node", NODE, f"{REPORT_ANNOTATION}-")
    page = table(found)
    print(page)
    head = f"# The agent of a node\n\nWritten by `make bench-health` on {dt.datetime.now(tz=dt.UTC).date()} ({bed_machine()}).\n\n"
    tail = (
        "\nRecords come over the agent's socket, a record a message, because writes of programs to `/dev/kmsg` are limited by the kernel and go to every reader "
        "of the machine. The plain tail stands for node-problem-detector's kernel monitor, whose expressions it uses; it is not that program.\n"
    )
    (ROOT / "docs/results/bench-health.md").write_text(head + page + "\n" + tail, encoding="utf-8")
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
