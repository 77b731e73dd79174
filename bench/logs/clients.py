"""The clients as processes: kubectl, the official Python client, and the product as a user starts it. Measured from outside, all alike."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.common import ROOT
from bench.logs.scene import Scene

NAMES: Final = {
    "kubectl": "`kubectl logs -f -l`",
    "official": "official Python client, Watch",
    "ours": "`rankfall wait`",
    "typed": "`rankfall logs -f`",
}
# Those of Rankfall.
OURS: Final = frozenset({"ours", "typed"})
NEEDED: Final = (
    "bench-logs needs the official Python client of Kubernetes beside Rankfall, for comparison only: "
    "uv pip install --python .venv/bin/python --group bench"
)
_END_S: Final = 10.0
# A client is at rest when it used at most so much CPU in so many seconds.
_CALM, _CALM_S = 4, 0.15
# Work on the last lines counts that is done so soon after they came, seconds.
AFTER_S: Final = 3.0


def missing() -> str | None:
    """Why the bench cannot begin, with the next step; None when all is there."""
    return NEEDED if importlib.util.find_spec("kubernetes") is None else None


@dataclass
class Client:
    """One running client.

    Attributes:
        tool: which.
        process: it.
        size: bytes that it has printed or stored so far.
        text: all of them.
    """

    tool: str
    process: subprocess.Popen[bytes]
    size: Callable[[], int]
    text: Callable[[], bytes]

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far, user and system; of its children too, once they have ended."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[number]) for number in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")

    def memory_kib(self, name: str = "VmRSS") -> int:
        """Of its memory as the kernel counts it."""
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) if found else 0

    def end(self) -> int:
        """Stop it; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def start(tool: str, scene: Scene, folder: Path) -> Client:
    """Start a client on all pods of a scene, from their first line on.

    Args:
        tool: a key of ``NAMES``.
        scene: whose pods run.
        folder: for what it prints or stores; made.
    """
    folder.mkdir(parents=True)
    out = folder / "out"
    if tool == "ours":
        # The run's own recorder, as a user starts it: every line into the run directory, all signatures looked for, the state kept.
        from rankfall.rundir.streams.content import content_size, read_bytes
        from rankfall.rundir.streams.files import find_streams

        run = scene.copy(folder / "home")
        argv = [sys.executable, "-m", "rankfall", "wait", scene.run]
        env = scene.environment(folder / "home")

        def streams() -> list[Path]:
            return [name.path for name in find_streams(run / "logs") if name.path.name != "slot.err.log"]

        def size() -> int:
            return sum(content_size(path) for path in streams())

        def text() -> bytes:
            return b"".join(read_bytes(path, 0, content_size(path)) for path in streams())

    else:
        env = scene.environment()
        if tool == "kubectl":
            argv = scene.kubectl.command(
                "logs", "-f", "-n", scene.namespace, "-l", scene.selector, "--prefix", "--timestamps"
            )
            argv = [_config(word, scene) for word in argv] + [f"--max-log-requests={scene.pods}", "--tail=-1"]
        elif tool == "typed":
            # Of a job that somebody else started: it stores each line too, and shows it.
            env = scene.environment(folder / "home")
            argv = [sys.executable, "-m", "rankfall", "logs", "-f", f"job/{scene.job}", "-n", scene.namespace]
        else:
            argv = [sys.executable, "-m", "bench.logs.official", scene.namespace, *scene.names()]

        def size() -> int:
            return out.stat().st_size

        def text() -> bytes:
            return out.read_bytes()

    with out.open("wb") as stdout, (folder / "err").open("wb") as stderr:
        process = subprocess.Popen(argv, env=env, stdout=stdout, stderr=stderr, cwd=ROOT)
    return Client(tool, process, size, text)


def _config(word: str, scene: Scene) -> str:
    """The administrator's command, with the clients' own kubeconfig."""
    return f"--kubeconfig={scene.config}" if word.startswith("--kubeconfig") else word


@dataclass(frozen=True)
class Cost:
    """What a client used.

    Attributes:
        wall_s: from its start to the last line.
        cpu_s: the same, and ``AFTER_S`` more.
        peak_kib: resident memory at most.
    """

    wall_s: float
    cpu_s: float
    peak_kib: int

    def rate(self, lines: int, *, start_s: float) -> float:
        """Lines per second of CPU.

        Args:
            lines: that came.
            start_s: CPU that the same client uses on as many pods that say one line each: what it takes to start is no part of following.
        """
        return lines / max(0.01, self.cpu_s - start_s)


def settled(client: Client, *, limit_s: float) -> float:
    """Wait until a client has started and has nothing to do; the CPU it has used by then, seconds."""
    deadline = time.monotonic() + limit_s
    used = [client.cpu]
    while time.monotonic() < deadline:
        time.sleep(1.0)
        used.append(client.cpu)
        if len(used) > _CALM and client.size() and used[-1] - used[-1 - _CALM] <= _CALM_S:
            break
    return used[-1]


def measured(clients: Sequence[Client], *, until: Callable[[bytes], bool], least: int, limit_s: float) -> list[Cost]:
    """Watch clients that run side by side until each has everything.

    Args:
        clients: just started, or following.
        until: whether all is there, of all bytes of one; asked when their number stands still.
        least: bytes below which it is not asked.
        limit_s: longest time.

    Returns:
        Of each, in the same order: its CPU until ``AFTER_S`` after its last byte, so that what it does with its lines later counts too.

    Raises:
        RuntimeError: one never had everything.
    """
    began = time.perf_counter()
    sizes = [0] * len(clients)
    moved = [0.0] * len(clients)
    costs: dict[int, Cost] = {}
    whole: set[int] = set()
    while len(whole) < len(clients):
        time.sleep(0.05)
        for number, client in enumerate(clients):
            size, now = client.size(), time.perf_counter() - began
            if size != sizes[number]:
                sizes[number], moved[number] = size, now
                costs.pop(number, None)
            elif number not in costs and size >= least and now - moved[number] >= AFTER_S:
                costs[number] = Cost(moved[number], client.cpu, client.memory_kib("VmHWM"))
            if now > limit_s:
                raise RuntimeError(f"{client.tool} had {size} bytes after {now:.0f} s, and not all lines")
            if client.process.poll() is not None:
                raise RuntimeError(f"{client.tool} ended with {client.process.returncode} before it had all lines")
        if len(costs) == len(clients):
            # Looked at only now: that takes a while, in which the others would go on.
            whole = {number for number, client in enumerate(clients) if until(client.text())}
            for number in range(len(clients)):
                if number not in whole:
                    # It had only paused.
                    moved[number] = time.perf_counter() - began
                    del costs[number]
    return [costs[number] for number in range(len(clients))]
