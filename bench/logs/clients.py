"""The clients as processes: kubectl, the official Python client, and the product as a user starts it. Measured from outside, all alike."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.common import ROOT
from bench.logs.scene import Scene

NAMES: Final = {"kubectl": "`kubectl logs -f -l`", "official": "official Python client, Watch", "ours": "Rankfall"}
NEEDED: Final = (
    "bench-logs needs the official Python client of Kubernetes beside Rankfall, for comparison only: "
    "uv pip install --python .venv/bin/python --group bench"
)
_END_S: Final = 10.0
# A client is at rest when it used at most so much CPU in so many seconds.
_CALM, _CALM_S = 4, 0.15


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
        from rankfall.store.content import content_size, read_bytes
        from rankfall.store.names import find_streams

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
        wall_s, cpu_s: from its start to the last line.
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


def measured(client: Client, *, until: Callable[[bytes], bool], least: int, limit_s: float) -> Cost:
    """Watch a client until it has everything.

    Args:
        client: just started.
        until: whether all is there, of all its bytes; asked when their number stands still.
        least: bytes below which it is not asked.
        limit_s: longest time.

    Raises:
        RuntimeError: it never had everything.
    """
    began = time.perf_counter()
    last, moved = 0, (0.0, 0.0)
    while True:
        size, now, cpu = client.size(), time.perf_counter() - began, client.cpu
        if size != last:
            last, moved = size, (now, cpu)
        elif size >= least and now - moved[0] > 1.0 and until(client.text()):
            return Cost(*moved, client.memory_kib("VmHWM"))
        if now > limit_s:
            raise RuntimeError(f"{client.tool} had {size} bytes after {now:.0f} s, and not all lines")
        if client.process.poll() is not None:
            raise RuntimeError(f"{client.tool} ended with {client.process.returncode} before it had all lines")
        time.sleep(0.05)
