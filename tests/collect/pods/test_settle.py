"""What a wrapper printed against what is stored of it: what is missing is written down with its numbers, and what is all there is said to be."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from rankfall.collect.pods import log_gaps
from rankfall.collect.pods.instance_folders import Instances
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.collect.pods.log_tasks import LogTasks
from rankfall.model import Record
from rankfall.rundir.cluster.log_routes import stamp_text
from support.feeding import Fed, quicken, record_line, until
from support.kubemodel import World, world
from support.loki_world import World as LokiWorld
from support.loki_world import at
from support.patience import scaled


@pytest.mark.parametrize(
    "printed", [{"r0": (-1, 0)}, {"../x": (1, 1)}, {"r99999999": (1, 1)}, {f"r{n}": (1, 1) for n in range(5000)}]
)
def test_counts_that_are_none_are_not_compared(printed):
    assert log_gaps.clean(printed) is None


def test_the_sum_of_many_streams_is_compared_with_the_sum():
    held = {"r0": (3, 30), "r1": (4, 44)}
    returns = {"r1": 4}
    assert log_gaps.compare({"all": (7, 70)}, held, returns=lambda: returns) == ((), True)
    assert log_gaps.compare({"all": (9, 99)}, held, returns=lambda: returns) == ((("all", 2, 29),), False)


def test_a_piece_of_a_line_is_missed_though_no_line_is():
    assert log_gaps.compare({"r0": (3, 31)}, {"r0": (3, 30)}, returns=dict) == ((("r0", 0, 1),), False)


def test_lines_that_came_twice_are_no_proof_that_none_is_missing():
    assert log_gaps.compare({"r0": (3, 30)}, {"r0": (4, 40)}, returns=dict) == ((), False)


# -- by the ways that records and lines come

NUMBERS = [b"[rank 0] number %04d" % number for number in range(400)]
PRINTED = {"r0": [400, 400 * 12]}


@pytest.mark.parametrize("by_message", [False, True])
@pytest.mark.parametrize("missing", [0, 37])
def test_a_feed_writes_down_what_a_kubelet_left_out_in_silence(tmp_path, monkeypatch, missing, by_message):
    """``by_message``: the wrapper's last word is left out too, and comes with the container's status."""
    quicken(monkeypatch)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, *NUMBERS[:100], *NUMBERS[100 + missing :])
        end = {"exit": {"code": 0}, "writer": "wrapper", "printed": PRINTED}
        if by_message:
            assert pod.container is not None
            pod.container.message = json.dumps({"id": "f" * 8, "kind": "slot_end", "slot": 0} | end)
        else:
            made.write(pod, record_line(fed.run.id, 0, 1, kind="slot_end", **end))
        made.end(pod)
        assert (await fed.closed(pod)).log == "complete"
        names = fed.records("gap-*.json")
        assert len(names) == bool(missing)
        for name in names:
            gap = msgspec.json.decode((fed.run.records_dir / name).read_bytes(), type=Record)
            assert gap.lost is not None
            assert (gap.rank, gap.lost.stream, gap.lost.lines, gap.lost.bytes) == (0, "r0", missing, missing * 12)

    async def all_of_it() -> None:
        async with world() as made:
            fed = Fed(tmp_path, made)
            try:
                async with asyncio.timeout(scaled(45)):
                    await story(made, fed)
            finally:
                await fed.stop()

    asyncio.run(all_of_it())


def test_a_feed_that_is_stopped_while_counts_are_compared_closes_the_log_after_it(tmp_path, monkeypatch):
    """The comparison reads the log's files in a thread of its own, which nothing ends from outside."""
    quicken(monkeypatch)
    compares, goes_on = threading.Event(), threading.Event()
    did: list[str] = []
    whole, close = Instances.settle, InstanceLog.close

    def settled(*args: Any, **how: Any) -> bool | None:
        compares.set()
        goes_on.wait(scaled(20))
        try:
            return whole(*args, **how)
        finally:
            did.append("compared")

    def closed(log: InstanceLog) -> None:
        did.append("closed")
        close(log)

    tasks: list[asyncio.Task[Any]] = []
    settling = LogTasks._settled

    async def noted(*args: Any, **how: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        return await settling(*args, **how)

    monkeypatch.setattr(LogTasks, "_settled", noted)
    monkeypatch.setattr(Instances, "settle", settled)
    monkeypatch.setattr(InstanceLog, "close", closed)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, *NUMBERS, record_line(fed.run.id, 0, 1, kind="slot_end", writer="wrapper", printed=PRINTED))
        made.end(pod)
        await until(compares.is_set, "a comparison")
        ended = asyncio.create_task(fed.stop())
        await until(tasks[0].cancelling, "a log that is cancelled")
        goes_on.set()
        await ended
        assert did == ["compared", "closed"]

    async def all_of_it() -> None:
        async with world() as made:
            fed = Fed(tmp_path, made)
            try:
                async with asyncio.timeout(scaled(45)):
                    await story(made, fed)
            finally:
                goes_on.set()
                await fed.stop()

    asyncio.run(all_of_it())


def test_loki_is_asked_on_where_the_last_word_came_by_the_status_before_the_lines(tmp_path):
    """It was believed that all is there, because the slot's end was."""
    scene = LokiWorld(tmp_path)
    scene.pod()
    scene.followed(f"{stamp_text(at(1))} [rank 0] one\n".encode())
    instances = scene.instances()
    end = {"id": "f" * 8, "kind": "slot_end", "slot": 0, "writer": "wrapper", "printed": {"r0": [3, 14]}}
    assert instances.take_message(0, json.dumps(end), uid="0a-uid", number=0) == 1
    instances.close()
    scene.loki.add(at(1), "[rank 0] one")
    scene.loki.add(at(2), "[rank 0] two")
    assert scene.take() == 1
    assert any(note.startswith("1 lines of rank 0 are missing, 6 bytes") for note in scene.gaps())
    scene.loki.add(at(3), "[rank 0] three")
    assert scene.take() == 1
    assert (scene.stream("r0.out"), scene.gaps()) == (b"one\ntwo\nthree\n", [])
