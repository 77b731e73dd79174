"""A run directory, a Loki that gives what a real one would, and what takes lines from one to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from rankfall.collect.loki.attempt_lines import LokiCollector, LokiLive
from rankfall.collect.pods.instance_folders import Instances
from rankfall.loki import LokiError
from rankfall.loki.reader import SECOND, Entry
from rankfall.loki.settings import LokiSettings
from rankfall.model import JobSpec, Record
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.rundir.cluster.pod_source import PodSource
from support.feeding import CHANNEL, record_line

BEGAN = 1_800_000_000 * SECOND
SETTINGS = LokiSettings(url="http://loki")
UID = "0a-uid"


def at(second: float) -> int:
    return BEGAN + int(second * SECOND)


class FakeLoki:
    """Gives what a real one would (tests/cluster/test_loki.py); ``dies`` after so many pages."""

    def __init__(self) -> None:
        self.rows: list[Entry] = []
        self.asked: list[str] = []
        self.dies: int | None = None
        self.error: LokiError | None = None

    def add(self, at: int, text: str, *, pod: str = "job-0-abcde", **labels: str) -> None:
        labels = {"namespace": "here", "container": "main", "pod": pod} | labels
        self.rows.append(Entry(at=at, key=tuple(labels.values()), text=text, labels=labels))

    async def query_range(self, query: str, *, start: int, end: int, limit: int) -> list[Entry]:
        if self.error is not None:
            raise self.error
        if self.dies is not None:
            self.dies -= 1
            if self.dies < 0:
                raise LokiError("killed")
        self.asked.append(query)
        rows = [one for one in self.rows if f'pod="{one.labels["pod"]}"' in query or "|=" in query]
        rows = [one for one in rows if "|=" not in query or f"rankfall/1 {CHANNEL} " in one.text]
        return sorted((one for one in rows if start <= one.at < end), key=lambda one: one.at)[:limit]


class World:
    def __init__(self, home: Path) -> None:
        self.run = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=2), home=home)
        self.loki = FakeLoki()
        self.said: list[str] = []
        self.until = at(60)
        self.source = PodSource(
            context="c", namespace="here", selector="a=b", container="main", token=CHANNEL, bases={"worker": 0}
        )

    def pod(
        self,
        *,
        slot: int = 0,
        log: str = "lost",
        restarts: int = 0,
        gone: bool = True,
        uid: str = UID,
        container: str = "",
    ) -> None:
        writer = JournalWriter(journal_path(self.run.path, 1))
        main = ContainerFact(state="terminated", restarts=restarts, id="c1")
        last = ContainerFact(state="terminated", restarts=restarts - 1, id="c0") if restarts else None
        fact = PodFact(
            seen_ns=1,
            name=f"job-{slot}-abcde",
            uid=uid,
            slot=slot,
            gone=gone,
            log=log,
            main=main,
            last=last,
            container=container,
        )
        writer.add(fact)
        writer.close()

    def instances(self) -> Instances:
        return Instances(self.run, attempt=1, role_of=lambda _: "worker", token=CHANNEL)

    def followed(self, text: bytes) -> None:
        """What the API gave before the pod vanished."""
        instances = self.instances()
        log = instances.open(0, uid=UID, number=0)
        log.opened()
        log.push(text)
        log.lose()
        log.cursor.closed = "lost"
        log.cursor.commit({})
        instances.close()

    def take(self, *, over: bool = False) -> int:
        one = LokiCollector(
            self.run, attempt=1, source=self.source, loki=self.loki, settings=SETTINGS, over=over,
            since=BEGAN, until=self.until, say=self.said.append,
        )  # fmt: skip
        return asyncio.run(one.take())

    def stream(self, name: str, *, slot: int = 0, instance: int = 0) -> bytes:
        path = self.run.stream_dir(1, "worker", slot, instance) / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def gaps(self) -> list[str]:
        found = [msgspec.json.decode(path.read_bytes(), type=Record) for path in self.run.records_dir.glob("gap-*")]
        return [note for one in found for note in one.notes]

    def record(self, number: int, kind: str, **fields: object) -> str:
        return record_line(self.run.id, fields.pop("slot", 0), number, kind=kind, writer="wrapper", **fields).decode()

    def live(self, tick: Callable[[float], None], *, slots: tuple[int, ...] = (0,)) -> None:
        """Follow until the end; ``tick`` gets the seconds on the virtual clock before each look after the first."""
        take = LokiCollector(
            self.run, attempt=1, source=self.source, loki=self.loki, settings=SETTINGS, over=False, live=True,
            since=BEGAN, until=BEGAN, say=self.said.append,
        )  # fmt: skip
        now = 0.0

        async def pause(seconds: float) -> None:
            nonlocal now
            now += seconds
            tick(now)

        asyncio.run(
            LokiLive(
                [take], ended=lambda: take.ended(slots), say=self.said.append, clock=lambda: at(now), pause=pause
            ).run()
        )
