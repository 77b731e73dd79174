"""The agent: each record told once, over kills and overruns; what a process wrote is told from what the kernel did; storms stay small."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from nodes.agent_world import BOOT, XID_79, XID_94, Ring, World, lines, record, seqs
from rankfall.kernellog.reader import Cursor, Opened
from rankfall.kernellog.reader import Ring as Reader
from rankfall.model import EvidenceLost
from rankfall.nodes.agent.agent_loop import pod_of
from rankfall.nodes.agent.state_file import AgentState, StateFile
from support.patience import scaled

POD = "2002ee4c-199f-4ba2-be27-39cb1be5a9ee"


def test_what_concerns_the_node_is_printed_and_shown_and_nothing_else(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(1), record(2, XID_79), record(3))
    found = world.read()
    assert [each.kind for each in found] == ["start", "record"]
    line = found[1]
    assert (line.node, line.boot, line.seq, line.code, line.device) == ("n1", BOOT, 2, "xid/79", "gpu 0000:4e:00")
    assert (line.trust, line.facility, line.level, line.stamp_us, line.text) == ("kernel", 0, 3, 2_000_000, XID_79)
    shown = world.shows.offers[-1].report
    assert (shown.boot, [each.code for each in shown.entries]) == (BOOT, ["xid/79"])
    assert [each.code for each in world.shows.new] == ["xid/79"]


def test_with_all_every_record_is_printed_once(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(1), record(2, XID_79), b"nonsense", record(3))
    assert seqs(world.read(all_=True), "plain", "record", "unreadable") == [1, 2, None, 3]
    assert seqs(world.read(all_=True), "plain", "record") == []


def test_an_agent_that_starts_again_neither_loses_nor_repeats(tmp_path):
    world = World(tmp_path)
    told: list[int | None] = []
    for number in range(1, 12, 2):
        world.ring.write(record(number, XID_79), record(number + 1, XID_94))
        told += seqs(world.read())
    assert told == list(range(1, 13))
    assert {each.code: each.count for each in world.shows.offers[-1].report.entries} == {"xid/79": 6, "xid/94": 6}


def test_an_agent_that_is_killed_before_it_kept_its_cursor_tells_the_same_again_and_counts_it_once(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(1, XID_94))
    world.read()
    kept = (tmp_path / "agent.json").read_bytes()
    world.ring.write(record(2, XID_94))
    first = world.read()
    (tmp_path / "agent.json").write_bytes(kept)
    again = world.read()
    assert seqs(first) == seqs(again) == [2]
    assert [each.count for each in world.shows.offers[-1].report.entries] == [2]


def test_health_s39_records_that_were_overwritten_are_a_counted_gap(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(1))
    world.read()
    world.ring.records = [record(90, XID_79)]
    found = world.read()
    gap = next(each for each in found if each.kind == "gap")
    assert (gap.seq, gap.last_seq, gap.count) == (2, 89, 88)
    assert seqs(found) == [90]
    assert world.shows.offers[-1].report.lost == 88
    assert any("88 records" in each for each in world.said)


def test_another_boot_begins_anew(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(700, XID_79))
    world.read()
    world.ring = Ring("b-2")
    world.ring.write(record(0), record(1, XID_94))
    assert seqs(world.read()) == [1]
    report = world.shows.offers[-1].report
    assert (report.boot, [each.code for each in report.entries], report.lost) == ("b-2", ["xid/94"], 0)
    assert world.shows.forgotten == 2


def test_what_a_process_wrote_is_printed_with_its_trust_and_shown_only_in_the_test_mode(tmp_path):
    world = World(None)
    world.ring.write(record(1, XID_79, facility=1))
    found = world.read()
    assert [(each.code, each.trust) for each in found if each.kind == "record"] == [("xid/79", "injected")]
    assert [each.report.entries for each in world.shows.offers] == [()]
    found = world.read(injected=True)
    assert "TEST MODE" in found[0].note
    report = world.shows.offers[-1].report
    assert (report.injected, [each.trust for each in report.entries]) == (True, ["injected"])


def test_a_storm_is_ten_lines_a_count_and_one_entry_and_hides_no_other_fault(tmp_path):
    world = World(tmp_path)
    out = io.BytesIO()
    many = [record(n, XID_94) for n in range(1_500)] + [record(1_500, XID_79)]
    steps = iter(many)
    read_end, write_end = os.pipe()  # a descriptor to poll; the records come from the list
    with world.agent(out, open_=lambda: Opened(os.dup(read_end), BOOT)) as agent:
        agent._follow = lambda opened: feed(agent, steps)  # type: ignore[method-assign]
        agent.run()
    os.close(read_end)
    os.close(write_end)
    found = lines(out)
    assert len([each for each in found if each.kind == "record"]) == 11
    fold = next(each for each in found if each.kind == "fold")
    assert (fold.code, fold.seq, fold.last_seq, fold.count) == ("xid/94", 10, 1_499, 1_490)
    report = world.shows.offers[-1].report
    assert {each.code: each.count for each in report.entries} == {"xid/94": 1_500, "xid/79": 1}
    assert [each.code for each in world.shows.new] == ["xid/94", "xid/79"]
    assert report.entries[-1].code == "xid/79"


def feed(agent, steps) -> bool:
    """Give an agent records without a descriptor: a socket takes only some hundred at once."""

    def read(fd: int, size: int) -> bytes:
        data = next(steps, None)
        if data is None:
            raise BlockingIOError
        return data

    agent._begin(BOOT)
    ring = Reader(0, boot=BOOT, after=None, read=read)
    while entries := ring.take():
        agent._batch(ring, entries, live=False)
    return True


def test_a_process_of_a_pod_is_named(tmp_path):
    for pid, path in ((7, f"/kubepods/burstable/pod{POD}/abc"), (8, f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-x"), (9, "/init.scope")):  # fmt: skip
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::{path}\n")
    assert [pod_of(pid, proc=tmp_path) for pid in (7, 8, 9, 10)] == [POD, POD, None, None]
    (tmp_path / "2503421").mkdir()
    (tmp_path / "2503421" / "cgroup").write_text(f"0::/kubepods/pod{POD}/x\n")
    world = World(tmp_path)
    world.ring.write(record(1, XID_94), record(2, XID_94.replace("2503421", "2503422")), record(3, XID_94, facility=1))
    assert [each.job for each in world.read(proc=tmp_path) if each.kind == "record"] == [POD, None, None]
    assert [each.job for each in world.shows.offers[-1].report.entries] == [POD, None]


def test_a_ring_that_cannot_be_opened_is_shown_on_the_node_and_opened_again(tmp_path):
    world = World(tmp_path)
    world.ring.write(record(1, XID_79))
    answers = [EvidenceLost("cannot read it", hint="mend it")]

    def open_() -> Opened:
        if answers:
            raise answers.pop()
        return world.ring.open()

    out = io.BytesIO()
    with world.agent(out, open_=open_, boot=BOOT, once=False) as agent:
        thread = threading.Thread(target=agent.run)
        thread.start()
        for _ in range(1_000):
            if world.shows.new:
                break
            thread.join(0.01)
        agent.stop()
        thread.join(scaled(10))
    assert not thread.is_alive()
    first = world.shows.offers[0]
    assert (first.readable, first.note) == (False, "cannot read it")
    assert world.shows.offers[-1].readable
    assert world.said.count("cannot read it\n  next: mend it") == 1
    assert 1 in seqs(lines(out))
    with world.agent(io.BytesIO(), open_=lambda: (_ for _ in ()).throw(EvidenceLost("no"))) as agent, pytest.raises(EvidenceLost):  # fmt: skip
        agent.run()


def test_a_quiet_ring_gives_a_sign_of_life_and_keeps_its_cursor(tmp_path):
    world = World(tmp_path)
    out = io.BytesIO()
    now = [0.0]
    with world.agent(out, monotonic=lambda: now[0]) as agent:
        agent._begin(BOOT)
        agent._cursor = Cursor(BOOT, 5)
        assert agent._patience() == 10.0
        now[0] = 11.0
        agent._idle()
        assert StateFile(tmp_path, say=print).load().cursor == Cursor(BOOT, 5)
        assert agent._patience() == 49.0
        now[0] = 61.0
        agent._idle()
    assert [(each.kind, each.seq) for each in lines(out)][1:] == [("alive", 5)]


def test_a_device_that_breaks_is_opened_again_where_it_was(tmp_path):
    world = World(tmp_path)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.write(write_end, record(1, XID_79))
    opened = [Opened(read_end, BOOT)]

    def open_() -> Opened:
        if opened:
            return opened.pop()
        return Opened(os.open(tmp_path, os.O_RDONLY), BOOT)  # a folder cannot be read

    out = io.BytesIO()
    with world.agent(out, open_=open_, once=False) as agent:
        thread = threading.Thread(target=agent.run)
        thread.start()
        os.close(write_end)
        for _ in range(1_000):
            if any("broke" in each for each in world.said):
                break
            thread.join(0.01)
        agent.stop()
        thread.join(scaled(10))
    assert seqs(lines(out)) == [1]
    assert any("reading the kernel log failed" in each for each in world.said)


def test_a_state_that_cannot_be_read_or_written_stops_nobody(tmp_path):
    said: list[str] = []
    (tmp_path / "agent.json").write_text("{nonsense")
    assert StateFile(tmp_path, say=said.append).load() == AgentState()
    assert "all records of the kernel ring are reported again" in said[0]
    file = tmp_path / "file"
    file.write_text("")
    broken = StateFile(file, say=said.append)
    broken.save(AgentState())
    broken.save(AgentState())
    assert len(said) == 2
    assert "cannot be written" in said[1]
    assert StateFile(None, say=said.append).load() == AgentState()
    StateFile(None, say=said.append).save(AgentState())
    assert StateFile(Path("/nonexistent"), say=said.append).load() == AgentState()
