"""A feed on the small server: started and stopped as a test likes, and what it stored."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankfall.collect.pods import collector, log_tailer
from rankfall.collect.pods.collector import PodCollector
from rankfall.kube.client import Kube
from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource
from support.kubemodel import Pod, World
from support.patience import scaled

CHANNEL = "t0k3n"


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that only spare a server are as short as they can be."""
    for name in ("_FIRST_S", "_MOST_S", "_SELDOM_S", "SETTLE_S"):
        monkeypatch.setattr(log_tailer, name, 0.002)
    # Not so short that a busy machine takes a server that thinks for one that is gone.
    for name, seconds in (("READING_S", 3.0), ("DRAIN_S", 0.05), ("DENIED_S", 0.05)):
        monkeypatch.setattr(log_tailer, name, seconds)
    monkeypatch.setattr(log_tailer, "IDLE_TIMEOUT_S", 0.3)
    for name in ("AGAIN_S", "KEEP_S"):
        monkeypatch.setattr(collector, name, 0.01)
    for module in ("collector", "log_tasks"):
        monkeypatch.setattr(f"rankfall.collect.pods.{module}.AGAIN_S", 0.01)


def record_line(
    run: str, slot: int, number: int, *, word: str = CHANNEL, kind: str = "start", **fields: object
) -> bytes:
    data = {"schema": "rankfall.record/1", "id": f"{slot:08d}-{number:08d}", "kind": kind, "run": run, "attempt": 1}
    text = json.dumps(data | {"slot": slot, "role": "worker"} | fields).encode()
    return b"\x1erankfall/1 " + word.encode() + b" " + base64.urlsafe_b64encode(text)


async def until(true: Callable[[], object], what: str) -> None:
    """Look until it is so."""
    try:
        async with asyncio.timeout(scaled(20)):
            while not true():  # noqa: ASYNC110 - it happens in another thread, which tells nobody
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(f"never came: {what}")


class Fed:
    """The run directory, and the feed that writes it."""

    def __init__(self, home: Path, world: World, *, nnodes: int = 2) -> None:
        self.run = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=nnodes), home=home)
        self.world = world
        self.troubles: list[str] = []
        self.stirred = threading.Semaphore(0)
        self.journal = JournalReader(journal_path(self.run.path, 1))
        self.connect: Callable[[], Kube] = lambda: Kube(world.access(), rate=10_000, burst=10_000)
        self.push: PodCollector | None = None

    def start(self) -> None:
        self.push = PodCollector(
            self.run,
            attempt=1,
            source=PodSource(
                context="c",
                kubeconfig=None,
                namespace="here",
                selector="a=b",
                container="main",
                token=CHANNEL,
                bases={"worker": 0},
            ),
            connect=self.connect,
            trouble=self.troubles.append,
            stir=lambda *, lines=False: None if lines else self.stirred.release(),
        )
        self.push.start()

    async def stop(self, *, over: bool = False) -> None:
        if self.push is not None:
            await asyncio.to_thread(self.push.stop, over=over)
            assert not self.push._thread.is_alive()
            self.push = None

    async def restart(self) -> None:
        await self.stop()
        self.start()

    def fact(self, pod: Pod) -> PodFact | None:
        self.journal.poll()
        return self.journal.pods.get(pod.uid)

    async def closed(self, pod: Pod) -> PodFact:
        """Until the journal says that nothing more will come of this pod's log."""
        await until(lambda: (fact := self.fact(pod)) is not None and fact.log != "open", f"the end of {pod.name}'s log")
        found = self.fact(pod)
        assert found is not None
        return found

    async def holds(self, pod: Pod, text: bytes, *, stream: str = "slot.out", instance: int = 0) -> None:
        await until(lambda: text in self.stream(pod, stream, instance=instance), f"{text!r} of {pod.name}")

    def stream(self, pod: Pod, name: str = "slot.out", *, instance: int = 0) -> bytes:
        path = self.run.stream_dir(1, "worker", pod.slot, instance) / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def streams(self, pod: Pod, *, instance: int = 0) -> dict[str, bytes]:
        folder = self.run.stream_dir(1, "worker", pod.slot, instance)
        return {path.name.removesuffix(".log"): text for path in folder.glob("*.log") if (text := path.read_bytes())}

    def records(self, pattern: str = "*.json") -> list[str]:
        return sorted(path.name for path in self.run.records_dir.glob(pattern))
