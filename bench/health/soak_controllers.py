"""The two controllers of a soak: started with the rights of their manifests alone, killed at random, started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from bench.health.processes import memory
from bench.health.soak_cluster import SPACE
from bench.health.soak_faults import SMALL_BUDGET

POLICY: Final = f"""[policy]
rate_nodes = 100
rate_s = 60
breaker_nodes = 100000
budget = {{ nodes = 100000, percent = 100 }}
pools = {{ small = {{ nodes = {SMALL_BUDGET}, percent = 100 }} }}
"""


class Controllers:
    """Two of them, each started again some seconds after it was killed."""

    def __init__(self, folder: Path, *, kubeconfig: Path, url: str) -> None:
        self._folder = folder
        config = folder / "policy.toml"
        config.write_text(POLICY)
        self._environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "LOG_ENDPOINT": url, "WATCHED_NAMESPACES": "team"}
        words = ("-m", "rankfall", "controller", "--poll", "2", "-n", SPACE, "--config", str(config))
        self._command = [sys.executable, *words]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0
        self.ended: list[str] = []

    def start(self, name: str) -> None:
        """Start one."""
        with (self._folder / f"{name}.log").open("ab") as log, (self._folder / f"{name}.audit").open("ab") as audit:
            environ = {**self._environ, "POD_NAME": name}
            self._running[name] = subprocess.Popen(self._command, env=environ, stdout=audit, stderr=log)

    async def trouble(self, rng: random.Random, *, every: tuple[float, float]) -> None:
        """Kill one now and then, for ever."""
        while True:
            await asyncio.sleep(rng.uniform(*every))
            name = rng.choice(sorted(self._running))
            victim = self._running[name]
            if victim.poll() is not None:
                self.ended.append(f"{name} had ended by itself with {victim.returncode}")
            victim.send_signal(signal.SIGKILL)
            try:
                await asyncio.to_thread(victim.wait)
                self.kills += 1
                await asyncio.sleep(rng.uniform(0.5, 5.0))
            finally:
                # Also where the soak's time is over just now: at its end both run.
                self.start(name)

    def peak(self) -> float:
        """Largest memory of those that run, MiB."""
        return max(memory(each.pid) for each in self._running.values() if each.poll() is None)

    def end(self) -> None:
        """End those that run."""
        for name, each in self._running.items():
            if each.poll() is not None:
                self.ended.append(f"{name} had ended by itself with {each.returncode}")
            each.terminate()
        for each in self._running.values():
            each.wait(60)

    def said(self) -> Counter[str]:
        """What their logs hold, by a few words."""
        words = {"this controller leads": "leads", "answers again": "Loki back", "] Traceback": "traceback"}
        found: Counter[str] = Counter()
        for path in self._folder.glob("*.log"):
            text = path.read_text(errors="replace")
            for word, name in words.items():
                found[name] += text.count(word)
            found["traceback"] += text.count("Traceback (most recent call last)")
        return found
