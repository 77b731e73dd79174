"""A feed on a small server: every line once, every record once, and an end that is told, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfall.collect.pods import collector, log_tailer
from rankfall.collect.pods.collector import Session
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeConfigError
from rankfall.kube.request import Retry
from rankfall.rundir.cluster.marks import CURSOR_NAME
from rankfall.rundir.incomplete import lost_of_run
from rankfall.rundir.streams import writer
from support.feeding import Fed, quicken, record_line, until
from support.kubemodel import NS, Pod, World, world
from support.patience import scaled

Story = Callable[[World, Fed], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    quicken(monkeypatch)


def play(home: Path, story: Story, *, tls: Path | None = None) -> Fed:
    async def all_of_it() -> Fed:
        async with world(tls) as made:
            fed = Fed(home, made)
            try:
                async with asyncio.timeout(scaled(45)):
                    await story(made, fed)
            finally:
                await fed.stop()
            return fed

    return asyncio.run(all_of_it())


# -- any schedule

FAULTS = ("500", "503", "429", "404", "half", "complaint", "end")
steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 6)),
    st.tuples(st.just("fault"), st.integers(0, 1), st.sampled_from(FAULTS)),
    st.tuples(st.just("cut"), st.integers(0, 1), st.none()),
    st.tuples(st.just("freeze"), st.integers(0, 1), st.none()),
    st.tuples(st.just("sync"), st.integers(0, 1), st.none()),
    st.tuples(st.just("end"), st.integers(0, 1), st.sampled_from([0, 1, 137])),
    st.tuples(st.just("delete"), st.integers(0, 1), st.none()),
    st.tuples(st.just("watch"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


class Printer:
    """Prints lines of every kind, and knows what must be stored of them."""

    def __init__(self, made: World, fed: Fed, pod: Pod) -> None:
        self.world, self.fed, self.pod = made, fed, pod
        self.count = 0
        self.expected: dict[str, bytes] = {}
        self.records = 0

    def write(self, lines: int) -> None:
        for _ in range(lines):
            n = self.count = self.count + 1
            # Many share a second, some share a stamp, now and then a second goes by.
            step = (0, 7, NS // 3, 2 * NS)[n % 4]
            if n % 5 == 0:
                self.records += 1
                self.world.write(self.pod, record_line(self.fed.run.id, self.pod.slot, n, pid=n), step=step)
                continue
            name, mark = (("slot.out", b""), ("r0.out", b"[rank 0] "), ("r1.out", b"[rank 1] "))[n % 3]
            text = b"same" if n % 7 == 0 else b"line %d" % n
            self.world.write(self.pod, mark + text, step=step)
            self.expected[name] = self.expected.get(name, b"") + text + b"\n"

    async def stored(self) -> None:
        await until(lambda: self.fed.streams(self.pod) == self.expected, f"all lines of {self.pod.name}")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(schedule=st.lists(steps, max_size=14), past=st.booleans(), join=st.sampled_from([2, 250]))
def test_any_schedule_every_line_once_and_an_end(schedule, past, join, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(log_tailer, "_JOIN", join)

    async def story(made: World, fed: Fed) -> None:
        made.past = past
        printers = [Printer(made, fed, made.add(slot)) for slot in range(2)]
        fed.start()
        for what, slot, extra in schedule:
            if what == "watch":
                made.cut_watches()
                continue
            if what == "restart":
                await fed.restart()
                continue
            printer = printers[slot]
            pod = printer.pod
            assert pod.container is not None
            if what == "delete" and pod.container.ended and pod.name in made.pods:
                assert (await fed.closed(pod)).log == "complete"
                made.delete(pod)
            elif what == "sync":
                await printer.stored()
            elif what == "cut":
                made.cut(pod)
            elif what == "freeze":
                made.freeze(pod)
            elif what == "fault":
                pod.faults.append(extra)
            elif not pod.container.ended and what == "write":
                printer.write(extra)
            elif not pod.container.ended and what == "end":
                printer.write(2)
                made.end(pod, extra)
        for printer in printers:
            if printer.pod.container is not None and not printer.pod.container.ended:
                printer.write(1)
                made.end(printer.pod)
            fact = await fed.closed(printer.pod)
            assert (fact.log, fact.main.state if fact.main else None) == ("complete", "terminated")
            assert fed.streams(printer.pod) == printer.expected
            assert len(fed.records(f"start-a1-worker-{printer.pod.slot}-*.json")) == printer.records
            if printer.pod.name in made.pods:
                made.delete(printer.pod)
            await until(lambda pod=printer.pod: (found := fed.fact(pod)) and found.gone, "its deletion")
            gone = fed.fact(printer.pod)
            assert gone is not None
            assert (gone.log, gone.main) == ("complete", fact.main)
        assert fed.records("gap-*.json") == []

    play(tmp_path_factory.mktemp("run"), story)


# -- one by one


def test_over_tls_lines_records_and_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tailer, "IDLE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(log_tailer, "SETTLE_S", 10.0)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"hello", b"[rank 3] step 1", record_line(fed.run.id, 0, 1, rank=3, pid=7))
        await fed.holds(pod, b"step 1\n", stream="r3.out")
        made.end(pod, 1, reason="Error")
        fact = await fed.closed(pod)
        assert (fact.log, fact.main.exit_code if fact.main else None, fact.node) == ("complete", 1, "n0")
        assert fed.stream(pod) == b"hello\n"
        assert fed.records() == ["start-a1-worker-0-00000000-00000001.json"]
        # One stream to follow it, one for its end.
        assert [query.get("follow") for query in pod.requests] == ["true", None]

    assert play(tmp_path / "home", story, tls=tmp_path).troubles == []


def test_a_log_with_a_past_is_read_to_its_end_and_followed_from_there(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        made.past = True
        pod = made.add(0)
        made.write(pod, *(b"line %d" % number for number in range(1000)))
        fed.start()
        await fed.holds(pod, b"line 999\n")
        await until(lambda: made.open_logs == 1 and len(pod.requests) == 2, "the follow")
        made.write(pod, b"live")
        await fed.holds(pod, b"live\n")
        # One reading without a word of where from, and a follow that repeats little.
        assert [(query.get("follow"), query.get("tailLines")) for query in pod.requests] == [
            (None, None),
            ("true", "250"),
        ]
        assert all("sinceTime" not in query for query in pod.requests)
        made.end(pod)
        await fed.closed(pod)
        assert fed.stream(pod) == b"".join(b"line %d\n" % number for number in range(1000)) + b"live\n"

    assert play(tmp_path, story).troubles == []


def test_i19_p14_the_last_reading_of_an_ended_container_repeats_little(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        made.write(pod, *(b"line %d" % number for number in range(1000)))
        made.end(pod)
        fed.start()
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod) == b"".join(b"line %d\n" % number for number in range(1000))
        assert [(query.get("tailLines"), "sinceTime" in query) for query in pod.requests] == [
            (None, False),
            ("250", False),
        ]

    assert play(tmp_path, story).troubles == []


def test_i19_p14_the_end_of_a_log_whose_last_lines_are_unknown_again_is_complete(tmp_path, monkeypatch):
    """What a joining reading begins with is longer than what comes first of it, so that it cannot be known again."""
    monkeypatch.setattr(log_tailer, "_JOIN", 1)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        lines = [b"begin", *(b"%d" % number * 600_000 for number in range(3))]
        made.write(pod, *lines)
        made.end(pod)
        fed.start()
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod) == b"".join(line + b"\n" for line in lines)

    assert play(tmp_path, story).troubles == []


@pytest.mark.parametrize("alike", [False, True], ids=["more came", "alike"])
def test_a_follow_that_does_not_join_what_was_read_begins_at_the_cursor(tmp_path, monkeypatch, alike):
    """Because more came meanwhile than is asked for again, or because lines that are all alike do not tell where it begins."""
    monkeypatch.setattr(log_tailer, "_JOIN", 5)

    async def story(made: World, fed: Fed) -> None:
        made.past = True
        pod = made.add(0)
        made.write(pod, *[b"again"] * 20, step=0)
        if not alike:
            made.write(pod, *(b"line %d" % number for number in range(10)))
            # It prints before the follow is opened.
            pod.on_request = lambda query: "tailLines" in query and made.write(pod, *[b"burst"] * 9, step=0)
        fed.start()
        await fed.holds(pod, b"again\n" if alike else b"burst\n")
        await until(lambda: len(pod.requests) == (2 if alike else 3), "the follow")
        made.write(pod, *[b"again"] * 3, step=0)
        made.end(pod)
        await fed.closed(pod)
        text = b"again\n" * 20
        text += b"" if alike else b"".join(b"line %d\n" % number for number in range(10)) + b"burst\n" * 9
        assert fed.stream(pod) == text + b"again\n" * 3
        assert [query.get("tailLines") for query in pod.requests][:2] == [None, None if alike else "5"]
        assert "sinceTime" in pod.requests[1 if alike else 2]
        assert fed.records("gap-*.json") == []

    assert play(tmp_path, story).troubles == []


def test_launch_s28_a_late_pod_is_followed_from_its_first_line_and_the_others_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tailer, "IDLE_TIMEOUT_S", 60.0)

    async def story(made: World, fed: Fed) -> None:
        first, late = made.add(0), made.add(1, start=False)
        fed.start()
        made.write(first, b"one")
        await fed.holds(first, b"one\n")
        await until(lambda: fed.fact(late), "the late pod in the journal")
        made.start(late)
        made.write(late, b"begin")
        await fed.holds(late, b"begin\n")
        assert len(first.requests) == 1

    play(tmp_path, story)


def test_first_bytes_of_a_stream_and_changes_of_a_pod_stir_and_further_lines_do_not(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"[rank 0] one")
        await fed.holds(pod, b"one", stream="r0.out")
        stirs = 0
        # Of the pod, and of the stream.
        while fed.stirred.acquire(timeout=0.3):
            stirs += 1
        assert stirs >= 2
        for number in range(50):
            made.write(pod, b"[rank 0] more %d" % number)
            await fed.holds(pod, b"more %d" % number, stream="r0.out")
        assert not fed.stirred.acquire(blocking=False)
        made.write(pod, b"of no rank")
        await fed.holds(pod, b"of no rank")
        assert fed.stirred.acquire(timeout=scaled(20))
        made.end(pod)
        await fed.closed(pod)
        assert fed.stirred.acquire(timeout=scaled(20))

    play(tmp_path, story)


def test_a_feed_follows_when_each_log_of_a_running_container_was_opened(tmp_path, monkeypatch):
    """What a stop waits for: a log that is not open yet goes with its pod."""
    monkeypatch.setattr(log_tailer, "LIVE_S", 60.0)

    async def story(made: World, fed: Fed) -> None:
        first, second, late = made.add(0), made.add(1), made.add(2, start=False)
        second.faults += ["502"] * 10_000
        made.pods_refused = 503
        fed.start()
        assert fed.push is not None
        await until(lambda: fed.troubles, "a word of pods that cannot be listed")
        assert not fed.push.following
        assert fed.push.blind
        made.pods_refused = None
        await until(lambda: len(second.requests) >= 5 and first.requests, "tries of both logs")
        assert not fed.push.following
        second.faults.clear()
        # One that has not begun has no log.
        await until(lambda: fed.push.following, "that all logs are open")
        await until(lambda: not fed.push.blind, "that the pods are watched again")
        assert fed.fact(late) is not None

    play(tmp_path, story)


def test_a_log_that_cannot_be_had_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tailer, "LIVE_S", 0.05)

    async def story(made: World, fed: Fed) -> None:
        made.add(0).faults += ["502"] * 10_000
        fed.start()
        await until(lambda: fed.push.following, "that the log was tried for a while")

    play(tmp_path, story)


def test_a_container_that_is_replaced_in_place_is_read_to_its_end_first_launch_s26(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        # The connection breaks at once with its end; when it is opened anew another instance has begun.
        pod.faults += ["500"] * 3
        made.cut(pod)
        await until(lambda: len(pod.requests) >= 2, "another try")
        made.write(pod, b"last words")
        made.end(pod, 1, told=False)
        made.start(pod)
        made.write(pod, b"second")
        await fed.holds(pod, b"second\n", instance=1)
        await fed.holds(pod, b"last words\n")
        made.end(pod)
        assert (await fed.closed(pod)).log == "complete"
        assert fed.streams(pod) == {"slot.out": b"first\nlast words\n"}
        assert fed.streams(pod, instance=1) == {"slot.out": b"second\n"}
        assert fed.records("gap-*.json") == []

    play(tmp_path, story)


def test_two_restarts_between_two_looks_lose_an_instance_and_say_so(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        made.pods_refused = 403
        made.wake()
        await until(lambda: fed.troubles, "that pods cannot be watched")
        pod.faults += ["500"] * 10_000
        made.cut(pod)
        for code in (1, 2):
            made.end(pod, code, told=False)
            made.start(pod)
        made.write(pod, b"third")
        pod.faults.clear()
        made.pods_refused = None
        made.wake()
        await until(lambda: b"third\n" in fed.stream(pod, instance=1) + fed.stream(pod, instance=2), "the third one")
        await until(lambda: fed.records("gap-*.json"), "a gap")
        assert fed.streams(pod) == {"slot.out": b"first\n"}

    play(tmp_path, story)


def test_logs_s23_a_clean_end_of_a_container_that_runs_is_resumed_within_2_s_and_one_that_ended_is_left(
    tmp_path, monkeypatch
):
    # The pauses that the product has.
    monkeypatch.setattr(log_tailer, "_FIRST_S", 0.1)
    monkeypatch.setattr(log_tailer, "SETTLE_S", 1.0)
    monkeypatch.setattr(log_tailer, "IDLE_TIMEOUT_S", 60.0)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0, start=False)
        pod.faults += ["end"] * 2
        made.start(pod)
        made.write(pod, b"one", b"two")
        fed.start()
        await until(lambda: len(pod.requests) == 1, "the first request")
        for number in (2, 3):
            # Half of it is the product's own pause.
            async with asyncio.timeout(2.0):
                await until(lambda n=number: len(pod.requests) == n, f"request {number}")
        made.write(pod, b"three")
        await fed.holds(pod, b"three\n")
        made.end(pod)
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod) == b"one\ntwo\nthree\n"
        # Three follows, and one look for the end.
        assert [query.get("follow") for query in pod.requests] == ["true", "true", "true", None]

    play(tmp_path, story)


@pytest.mark.parametrize("faults", [["short"], ["torn"], ["short", "torn", "end"]])
def test_logs_s21_a_last_reading_that_is_ended_in_its_middle_is_not_taken_for_the_whole_log(tmp_path, faults):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0, start=False)
        pod.faults += faults
        made.start(pod)
        lines = [b"line %d of many" % number for number in range(100)]
        made.write(pod, *lines)
        made.end(pod)
        fed.start()
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod).splitlines() == lines
        assert not fed.records("gap-*.json")

    play(tmp_path, story)


def test_logs_s26_starts_of_a_container_that_nobody_saw_are_said_to_be_missing(tmp_path):
    """Before anybody looked for the first time, and between two looks."""

    def started(made: World, pod: Pod, *texts: bytes) -> None:
        for text in texts:
            made.end(pod, 1, told=False)
            made.start(pod)
            made.write(pod, text)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        made.write(pod, b"zero")
        started(made, pod, b"one", b"two")
        fed.start()
        await fed.holds(pod, b"two\n", instance=2)
        await until(lambda: len(fed.records("gap-*.json")) == 1, "the gap of the first one")
        closed = fed.run.stream_dir(1, "worker", 0, 1) / CURSOR_NAME
        await until(lambda: b'"closed":"complete"' in closed.read_bytes(), "the end of the second one")
        await fed.stop()
        started(made, pod, b"three", b"four", b"five")
        fed.start()
        await fed.holds(pod, b"five\n", instance=5)
        made.end(pod)
        assert (await fed.closed(pod)).log == "lost"
        found = {number: fed.streams(pod, instance=number) for number in range(6)}
        # Of the second one nothing was missing, as far as anybody read.
        assert found == {
            0: {},
            1: {"slot.out": b"one\n"},
            2: {"slot.out": b"two\n"},
            3: {},
            4: {"slot.out": b"four\n"},
            5: {"slot.out": b"five\n"},
        }
        notes = sorted(
            json.loads((fed.run.records_dir / name).read_text())["notes"][0].partition(" may be")[0]
            for name in fed.records("gap-*.json")
        )
        assert notes == ["lines of slot 0", "lines of slot 0, restart 2", "lines of slot 0, restart 3"]

    play(tmp_path, story)


def test_a_container_that_was_restarted_very_often_costs_few_records(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        for number in range(50):
            made.write(pod, b"start %d" % number)
            made.end(pod, 1, told=False)
            made.start(pod)
        made.write(pod, b"now")
        fed.start()
        # Folders are numbered in the order in which instances were seen: twenty of those that are gone, the one before, and this one.
        await fed.holds(pod, b"start 49\n", instance=20)
        await fed.holds(pod, b"now\n", instance=21)
        await until(lambda: len(fed.records("gap-*.json")) == 20, "a gap for each of the newest")
        assert any("most of them unrecorded" in text for text in fed.troubles)

    play(tmp_path, story)


def test_a_dead_connection_is_found_soon_where_the_log_had_spoken_until_then(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tailer, "IDLE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(log_tailer, "KNOWN_S", 0.2)
    monkeypatch.setattr(log_tailer, "QUIET_S", 0.2)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        for number in range(30):
            made.write(pod, b"line %d" % number)
            await fed.holds(pod, b"line %d\n" % number)
            await asyncio.sleep(0.01)
        made.freeze(pod)
        made.write(pod, b"while it was dead")
        await fed.holds(pod, b"while it was dead\n")
        assert fed.stream(pod).count(b"\n") == 31

    play(tmp_path, story)


def test_launch_s27_a_pod_that_is_deleted_at_once_keeps_what_came_and_its_gap_is_recorded(tmp_path, monkeypatch):
    # Its stream stays open and silent: the deletion alone tells that nothing more comes.
    monkeypatch.setattr(log_tailer, "IDLE_TIMEOUT_S", 60.0)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        made.freeze(pod)
        made.write(pod, b"never seen")
        made.end(pod, 137)
        made.delete(pod)
        fact = await fed.closed(pod)
        await until(lambda: (found := fed.fact(pod)) and found.gone, "its deletion")
        assert (fact.log, fact.main.exit_code if fact.main else None) == ("lost", 137)
        assert fed.stream(pod) == b"first\n"
        assert len(fed.records("gap-*.json")) == 1

    play(tmp_path, story)


def test_a_stream_that_ended_by_itself_is_complete_without_another_reading_when_the_pod_is_gone(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        # The API says only that it was deleted; its stream ended in order before, and then there is no such pod.
        pod.faults += ["404"] * 1000
        made.write(pod, b"last")
        made.end(pod, 0, told=False)
        await until(lambda: len(pod.requests) >= 3, "tries after the end")
        made.delete(pod)
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod) == b"first\nlast\n"

    play(tmp_path, story)


def test_a_pod_that_vanished_while_nobody_looked_is_gone_for_the_next_feed(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod, other = made.add(0), made.add(1)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        await until(lambda: fed.fact(other), "the other pod")
        await fed.stop()
        made.delete(pod)
        fed.start()
        fact = await fed.closed(pod)
        assert (fact.gone, fact.log, fact.main.state if fact.main else None) == (True, "lost", "running")
        found = fed.fact(other)
        assert found is not None
        assert not found.gone

    play(tmp_path, story)


def test_a_refused_pod_and_one_that_never_started_have_no_log(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        refused, waiting = made.add(0, start=False), made.add(1, start=False)
        fed.start()
        await until(lambda: fed.fact(refused) and fed.fact(waiting), "both pods")
        refused.phase, refused.status = "Failed", {"reason": "OutOfcpu", "message": "no"}
        made.tell("MODIFIED", refused)
        assert (await fed.closed(refused)).log == "none"
        made.delete(waiting)
        fact = await fed.closed(waiting)
        assert (fact.log, fact.gone) == ("none", True)

    play(tmp_path, story)


def test_a_node_that_is_lost_ends_the_log_after_some_patience(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tailer, "PATIENCE_S", 0.05)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        pod.faults += ["502"] * 10_000
        made.freeze(pod)
        # As the collector of pods leaves it: failed, and its container still shown as running.
        pod.phase = "Failed"
        made.tell("MODIFIED", pod)
        fact = await fed.closed(pod)
        assert (fact.log, fact.phase, fact.main.state if fact.main else None) == ("lost", "Failed", "running")
        assert any("502" in text for text in fed.troubles)

    play(tmp_path, story)


@pytest.mark.parametrize("clean", [True, False])
def test_i19_p4_a_pod_of_which_no_end_came_may_have_printed_more_than_was_read(tmp_path, clean):
    """Its node lost power beside the failure of another one: the attempt ends, and the API still shows it running."""

    async def story(made: World, fed: Fed) -> None:
        lost, ended = made.add(0), made.add(1)
        fed.start()
        for pod in (lost, ended):
            made.write(pod, b"first")
            await fed.holds(pod, b"first\n")
        made.write(ended, b"last")
        made.end(ended)
        assert (await fed.closed(ended)).log == "complete"
        if clean:
            # The API server ends a stream in good order, too, when it loses the node.
            lost.faults += ["end"]
        else:
            lost.faults += ["502"] * 10_000
        made.cut(lost)
        await fed.stop(over=True)
        (said,) = lost_of_run(fed.run)
        assert (said.slots, said.lines, said.before, said.unread) == ((0,), None, None, 1)
        assert said.after is not None
        assert said.why == f"no end of {lost.name} was reported by n0"
        assert fed.stream(lost) == b"first\n"

    play(tmp_path, story)


def test_i19_p4_a_reading_that_another_one_continues_loses_nothing(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        await fed.restart()
        assert lost_of_run(fed.run) == ()
        made.write(pod, record_line(fed.run.id, 0, 1, kind="slot_end", writer="wrapper", printed={"slot": (1, 6)}))
        await until(lambda: fed.records("slot_end-*.json"), "the last record")
        # The wrapper wrote its last record, and the kubelet's word is late.
        await fed.stop(over=True)
        assert lost_of_run(fed.run) == ()

    play(tmp_path, story)


def test_i19_p15_logs_that_cannot_be_read_are_counted_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tailer, "PATIENCE_S", 0.05)

    async def story(made: World, fed: Fed) -> None:
        pods = [made.add(slot) for slot in range(2)]
        for pod in pods:
            pod.faults += ["503"] * 10_000
        fed.start()
        for pod in pods:
            made.write(pod, b"never read")
            made.end(pod)
        for pod in pods:
            assert (await fed.closed(pod)).log == "lost"
        (lost,) = lost_of_run(fed.run)
        assert (lost.slots, lost.unread, lost.lines) == ((0, 1), 2, None)
        assert "the logs of 2 pods could not be read to their end (" in lost.text
        assert lost.why

    play(tmp_path, story)


def test_launch_s32_a_server_that_denies_a_last_reading_for_a_moment_costs_no_line(tmp_path, monkeypatch):
    """As one that has just started and has not read its roles."""
    monkeypatch.setattr(log_tailer, "DENIED_S", 60.0)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        made.freeze(pod)
        made.write(pod, b"last")
        pod.faults += ["403"] * 3
        made.end(pod)
        made.cut(pod)
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod) == b"first\nlast\n"

    play(tmp_path, story)


@pytest.mark.parametrize("back", ["at any moment", "after the last try"])
def test_launch_s32_an_api_that_is_away_spends_no_patience_with_a_log(tmp_path, monkeypatch, back):
    monkeypatch.setattr(log_tailer, "PATIENCE_S", 0.05)

    async def story(made: World, fed: Fed) -> None:
        fed.connect = lambda: Kube(made.access(), rate=10_000, burst=10_000, retry=Retry(attempts=1))
        pod = made.add(0)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")
        made.freeze(pod)
        made.write(pod, b"last")
        made.gets_refused = made.logs_refused = 503
        asked = len(pod.requests)
        made.end(pod)
        made.cut(pod)
        await until(lambda: len(pod.requests) > asked + 50, "many tries")
        fact = fed.fact(pod)
        assert fact is not None
        assert fact.log == "open"
        if back == "after the last try":
            made.back_at_get = True
        else:
            made.gets_refused = made.logs_refused = None
        assert (await fed.closed(pod)).log == "complete"
        assert fed.stream(pod) == b"first\nlast\n"
        assert fed.records("gap-*.json") == []

    play(tmp_path, story)


def test_a_pod_that_is_to_end_and_of_which_nobody_says_it_has_is_overdue(tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "OVERDUE_S", 0.05)

    async def story(made: World, fed: Fed) -> None:
        fed.connect = lambda: Kube(made.access(), rate=10_000, burst=10_000, retry=Retry(attempts=1))
        pod, other = made.add(0), made.add(1)
        fed.start()
        made.write(pod, b"first")
        await fed.holds(pod, b"first\n")

        # Not as long as nobody can be asked: it may have ended unseen.
        made.gets_refused = 503
        for one in (pod, other):
            one.deleting = True
            made.tell("MODIFIED", one)
        await until(lambda: (fact := fed.fact(pod)) and fact.deleting, "the deletion")
        assert not overdue(fed, pod)
        # Its end is told, as it should be.
        made.end(other, 143)
        await fed.closed(other)
        made.gets_refused = None
        await until(lambda: overdue(fed, pod), "that it is overdue")
        assert not overdue(fed, other)
        await fed.restart()
        assert overdue(fed, pod)
        made.write(pod, b"last")
        made.end(pod, 143)
        assert (await fed.closed(pod)).log == "complete"
        assert not overdue(fed, pod)
        assert fed.stream(pod) == b"first\nlast\n"

    play(tmp_path, story)


def overdue(fed: Fed, pod: Pod) -> bool:
    fact = fed.fact(pod)
    return fact is not None and fact.overdue


def test_what_a_container_left_in_its_status_stands_in_for_the_records_of_a_lost_log(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, record_line(fed.run.id, 0, 1, kind="error", rank=0))
        await until(fed.records, "the first record")
        made.logs_refused = 403
        made.cut(pod)
        one = pod.container
        assert one is not None
        shown = {"run": fed.run.id, "attempt": 1, "slot": 0, "id": "00000000-00000001", "kind": "error"}
        rows = [shown, shown | {"id": "e" * 8, "kind": "slot_end", "exit": {"code": 1}}, shown | {"slot": 1}, "odd"]
        one.message = "\n".join(json.dumps(row) for row in rows)
        made.end(pod, 1)
        assert (await fed.closed(pod)).log == "lost"
        names = [name for name in fed.records() if not name.startswith("gap-")]
        assert names == ["error-a1-worker-0-00000000-00000001.json", "slot_end-a1-worker-0-eeeeeeee.json"]
        # The one that came as a line says more, and stands.
        assert b'"rank":0' in (fed.run.records_dir / names[0]).read_bytes()

    play(tmp_path, story)


def test_launch_s31_what_the_kubelet_says_of_a_log_that_is_gone_is_no_line(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        made.write(pod, b"never had")
        made.end(pod)
        assert pod.container is not None
        pod.container.log_gone = True
        fed.start()
        assert (await fed.closed(pod)).log == "lost"
        assert fed.streams(pod) == {}
        assert len(fed.records("gap-*.json")) == 1
        assert any("unable to retrieve" in text for text in fed.troubles)

    play(tmp_path, story)


def test_without_the_right_to_read_logs_it_is_said_and_pods_are_watched_on(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod, other = made.add(0), made.add(1)
        made.logs_refused = 403
        fed.start()
        await until(lambda: fed.troubles, "that logs are refused")
        assert "403" in fed.troubles[0] or "forbidden" in fed.troubles[0].lower()
        made.end(other, 1)
        assert (await fed.closed(other)).log == "lost"
        made.logs_refused = None
        made.write(pod, b"now")
        await fed.holds(pod, b"now\n")
        assert len(fed.troubles) == 1

    play(tmp_path, story)


def test_without_the_right_to_watch_pods_it_is_said_and_logs_go_on(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"one")
        await fed.holds(pod, b"one\n")
        made.pods_refused = 403
        made.wake()
        await until(lambda: fed.troubles, "that pods are refused")
        assert "403" in fed.troubles[0]
        made.cut(pod)
        made.write(pod, b"two")
        await fed.holds(pod, b"two\n")
        made.end(pod, told=False)
        made.pods_refused = None
        made.tell("MODIFIED", pod)
        assert (await fed.closed(pod)).log == "complete"
        assert len(fed.troubles) == 1

    play(tmp_path, story)


def test_a_crash_is_told_and_the_work_taken_up_again(tmp_path, monkeypatch):
    seen = Session._see
    crashes = iter([True, True])

    def see(self, fact):
        if next(crashes, False):
            raise RuntimeError("a fault of ours")
        seen(self, fact)

    monkeypatch.setattr(Session, "_see", see)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"one")
        await fed.holds(pod, b"one\n")
        assert len(fed.troubles) == 1
        assert "RuntimeError: a fault of ours" in fed.troubles[0]

    play(tmp_path, story)


def test_a_crash_of_one_log_is_told_and_the_log_opened_again(tmp_path, monkeypatch):
    run = log_tailer.LogTailer.run
    crashes = iter([True])

    async def crash(self):
        if next(crashes, False):
            raise RuntimeError("a fault of ours")
        return await run(self)

    monkeypatch.setattr(log_tailer.LogTailer, "run", crash)

    async def story(made: World, fed: Fed) -> None:
        pod = made.add(0)
        fed.start()
        made.write(pod, b"one")
        await fed.holds(pod, b"one\n")
        assert ["fault of ours" in text for text in fed.troubles] == [True]
        assert made.watches == 1

    play(tmp_path, story)


def test_a_cluster_that_cannot_be_reached_yet_is_tried_again(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        reach, pod = fed.connect, made.add(0)
        tries = iter(range(3))

        def connect() -> Kube:
            if next(tries, None) is not None:
                raise KubeConfigError("no such context")
            return reach()

        fed.connect = connect
        fed.start()
        made.write(pod, b"one")
        await fed.holds(pod, b"one\n")
        assert len(fed.troubles) == 1
        assert "no such context" in fed.troubles[0]

    play(tmp_path, story)


def test_a_full_disk_is_told_once_and_nothing_is_lost(tmp_path, monkeypatch):
    full = False
    write, real = writer._all, os.write

    def append_all(fd: int, data: bytes) -> int:
        if full:
            write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    def to_journal(fd: int, data: bytes) -> int:
        if full and b'"uid"' in bytes(data[:200]):
            return real(fd, data[: len(data) // 2])
        return real(fd, data)

    monkeypatch.setattr(writer, "_all", append_all)
    monkeypatch.setattr("rankfall.rundir.cluster.journal.os.write", to_journal)

    async def story(made: World, fed: Fed) -> None:
        nonlocal full
        pods = [made.add(slot) for slot in range(2)]
        fed.start()
        for pod in pods:
            made.write(pod, b"one", b"[rank 0] two")
            await fed.holds(pod, b"two\n", stream="r0.out")
        full = True
        for pod in pods:
            made.write(pod, b"three", b"[rank 0] four")
            made.end(pod)
        await until(lambda: all(len(pod.requests) >= 4 for pod in pods), "tries on a full disk")
        assert "No space left" in fed.troubles[0]
        assert len([text for text in fed.troubles if "cannot store data from the cluster" in text]) == 1
        full = False
        for pod in pods:
            assert (await fed.closed(pod)).log == "complete"
            assert fed.streams(pod) == {"slot.out": b"one\nthree\n", "r0.out": b"two\nfour\n"}
        await until(lambda: any("storing continues" in text for text in fed.troubles), "word that there is room again")
        assert fed.journal.problems == []

    play(tmp_path, story)


def test_feeds_can_be_stopped_at_any_moment(tmp_path):
    async def story(made: World, fed: Fed) -> None:
        made.add(0)
        for _ in range(5):
            fed.start()
            await fed.stop()
        fed.start()
        assert fed.push is not None
        await asyncio.to_thread(fed.push.stop)
        await asyncio.to_thread(fed.push.stop)

    play(tmp_path, story)
