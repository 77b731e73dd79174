"""A feed beside a log store: the lines of ranks come from there, under the instance that its own record names, and its end is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from rankfall.collect.stores import log_store
from rankfall.collect.stores.log_store import AT
from rankfall.model import JobSpec
from rankfall.model.jobspec.kubernetes import Kubernetes
from rankfall.rundir import RunDir
from rankfall_inside.delivery import log_store_backends
from rankfall_inside.delivery.bucket import Bucket as Put
from rankfall_inside.delivery.log_store import LogStore
from support.feeding import Fed, quicken, record_line, until
from support.kubemodel import World, world
from support.patience import scaled

Story = Callable[[World, Fed], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    quicken(monkeypatch)
    monkeypatch.setattr(log_store, "POLL_INTERVAL_S", 0.01)


def play(home: Path, story: Story, *, place: str) -> Fed:
    async def all_of_it() -> Fed:
        async with world(None) as made:
            fed = Fed(home, made)
            spec = JobSpec(name="job", command=("x",), nnodes=2, backend="job", kubernetes=Kubernetes(log_store=place))
            fed.run = RunDir.create(spec, home=home)
            fed.journal = type(fed.journal)(fed.run.path / "kube" / "attempt-1" / "pods.jsonl")
            try:
                async with asyncio.timeout(scaled(45)):
                    await story(made, fed)
            finally:
                await fed.stop()
            return fed

    return asyncio.run(all_of_it())


def start_line(fed: Fed, name: str) -> bytes:
    return record_line(fed.run.id, 0, 1, kind="slot_start", writer="wrapper", log_store=name)


def test_lines_of_ranks_come_from_the_store_and_its_end_is_waited_for(tmp_path):
    made = LogStore(str(tmp_path / "volume"), "run/attempt-1/worker-0/u-1")
    (tmp_path / "volume").mkdir()

    async def story(world: World, fed: Fed) -> None:
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, made.name), b"of the launcher")
        sink = made.sink("0.out")
        sink.write(b"one\n")
        await fed.holds(pod, b"one\n", stream="0.out")
        await fed.restart()
        sink.write(b"two\n")
        await fed.holds(pod, b"one\ntwo\n", stream="0.out")
        world.end(pod)
        sink.write(b"three\n")
        sink.close()
        assert made.finish(20.0) == []
        assert (await fed.closed(pod)).log == "complete"
        assert fed.streams(pod) == {"slot.out": b"of the launcher\n", "0.out": b"one\ntwo\nthree\n"}
        await fed.restart()
        assert fed.streams(pod)["0.out"] == b"one\ntwo\nthree\n"

    play(tmp_path / "home", story, place=f"file://{tmp_path / 'volume'}")


def test_a_store_that_this_machine_does_not_see_is_said_and_the_log_is_not_all_here(tmp_path):
    async def story(world: World, fed: Fed) -> None:
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, "run/attempt-1/worker-0/u-1"))
        world.end(pod)
        assert (await fed.closed(pod)).log == "lost"
        assert any("which this machine cannot reach" in text for text in fed.troubles)

    play(tmp_path / "home", story, place="volume:/workspace/logs")


def test_a_folder_without_an_end_is_given_up_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(log_store, "PATIENCE_S", 0.2)
    name = "run/attempt-1/worker-0/u-1"
    folder = tmp_path / "elsewhere" / name
    folder.mkdir(parents=True)
    (folder / "0.out-000000000000000.log").write_bytes(b"half\n")
    monkeypatch.setenv(AT, str(tmp_path / "elsewhere"))

    async def story(world: World, fed: Fed) -> None:
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, name))
        world.end(pod)
        assert (await fed.closed(pod)).log == "lost"
        assert any("has no end mark of its writer" in text for text in fed.troubles)
        assert fed.streams(pod)["0.out"] == b"half\n"

    play(tmp_path / "home", story, place="volume:/workspace/logs")


def test_a_store_that_cannot_be_read_is_told_and_tried_again(tmp_path):
    name = "run/attempt-1/worker-0/u-1"
    folder = tmp_path / "volume" / name
    folder.mkdir(parents=True)
    bad = folder / "0.out-000000000000000.log"
    bad.symlink_to("/dev/null")

    async def story(world: World, fed: Fed) -> None:
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, name))
        await until(lambda: any("cannot be copied" in text for text in fed.troubles), "the trouble")
        bad.unlink()
        bad.write_bytes(b"now\n")
        (folder / "end.json").write_text('{"sizes": {"0.out": 4}}')
        world.end(pod)
        assert (await fed.closed(pod)).log == "complete"
        assert fed.streams(pod)["0.out"] == b"now\n"

    play(tmp_path / "home", story, place=f"file://{tmp_path / 'volume'}")


@pytest.fixture
def bucket(monkeypatch):
    """A bucket in memory, for the product's writer and reader alike; ``failing`` words keep the reader from it."""
    made = MemoryStore()
    failing: list[str] = []

    def opened(_url: str) -> MemoryStore:
        if failing:
            raise OSError(failing[0])
        return made

    monkeypatch.setattr(Put, "__init__", lambda *_: None)
    monkeypatch.setattr(Put, "put", lambda _, key, data: obstore.put(made, key, data))
    monkeypatch.setattr("rankfall.collect.stores.log_bucket.open_bucket", opened)
    monkeypatch.setattr(log_store_backends, "EVERY_S", 0.0)
    return failing


def test_lines_of_ranks_come_from_a_bucket_also_after_it_was_away(tmp_path, bucket):
    made = LogStore("s3://logs", "run/attempt-1/worker-0/u-1")
    bucket.append("no route")

    async def story(world: World, fed: Fed) -> None:
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, made.name), b"of the launcher")
        sink = made.sink("0.out")
        sink.write(b"one\n")
        await until(lambda: any("does not return" in text for text in fed.troubles), "the trouble")
        bucket.clear()
        await fed.holds(pod, b"one\n", stream="0.out")
        await fed.restart()
        sink.write(b"two\n")
        await fed.holds(pod, b"one\ntwo\n", stream="0.out")
        world.end(pod)
        sink.write(b"three\n")
        sink.close()
        assert made.finish(20.0) == []
        assert (await fed.closed(pod)).log == "complete"
        assert fed.streams(pod) == {"slot.out": b"of the launcher\n", "0.out": b"one\ntwo\nthree\n"}

    play(tmp_path / "home", story, place="s3://logs")


def test_a_bucket_that_stays_away_is_given_up_and_so_is_a_folder_without_an_end(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(log_store, "PATIENCE_S", 0.2)
    bucket.append("no route")

    async def story(world: World, fed: Fed) -> None:
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, "run/attempt-1/worker-0/u-1"))
        world.end(pod)
        assert (await fed.closed(pod)).log == "lost"
        assert any("cannot be read to its end" in text for text in fed.troubles)
        bucket.clear()
        killed = world.add(1)
        world.write(killed, record_line(fed.run.id, 1, 1, kind="slot_start", writer="wrapper", log_store="run/a/w-1/u"))
        world.end(killed)
        assert (await fed.closed(killed)).log == "lost"

    play(tmp_path / "home", story, place="s3://logs")


def test_a_job_without_a_store_takes_no_folder_that_a_record_names(tmp_path):
    async def story(world: World, fed: Fed) -> None:
        fed.run = RunDir.create(JobSpec(name="none", command=("x",), nnodes=2), home=tmp_path / "home")
        fed.journal = type(fed.journal)(fed.run.path / "kube" / "attempt-1" / "pods.jsonl")
        fed.start()
        pod = world.add(0)
        world.write(pod, start_line(fed, "run/attempt-1/worker-0/u-1"), b"x")
        world.end(pod)
        assert (await fed.closed(pod)).log == "complete"

    play(tmp_path / "home", story, place="file:///nowhere")
