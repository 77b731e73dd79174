"""The journal of pods: whole lines only, equal looks once, taken up by the next writer, never without end."""

from __future__ import annotations

import os

import msgspec
import pytest

from rankfall.rundir.cluster import journal as module
from rankfall.rundir.cluster.journal import JournalReader, JournalWriter, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact


def look(uid: str = "a", *, seen: int = 1, **fields: object) -> PodFact:
    return msgspec.structs.replace(PodFact(seen_ns=seen, name=f"pod-{uid}", uid=uid, slot=0), **fields)


@pytest.fixture
def path(tmp_path):
    return journal_path(tmp_path, 1)


def test_looks_are_read_as_they_come(path):
    writer, reader = JournalWriter(path), JournalReader(path)
    assert reader.poll() == []
    assert writer.add(look())
    assert reader.poll() == [look()]
    assert reader.poll() == []
    assert writer.add(look(seen=2, phase="Running"))
    assert reader.poll() == [look(seen=2, phase="Running")]
    assert reader.pods == {"a": look(seen=2, phase="Running")}
    writer.close()
    writer.close()


def test_a_reader_may_come_before_the_writer(path):
    reader = JournalReader(path)
    assert reader.poll() == []
    JournalWriter(path).close()
    assert reader.poll() == []


def test_equal_looks_are_written_once(path):
    writer = JournalWriter(path)
    assert [writer.add(look(seen=n)) for n in range(3)] == [True, False, False]
    assert writer.add(look(seen=4, log="complete"))
    assert not writer.add(look(seen=5, log="complete"))
    writer.close()
    assert len(path.read_bytes().splitlines()) == 2


def test_a_second_writer_takes_up_what_was_written_and_cuts_a_torn_line(path):
    writer = JournalWriter(path)
    writer.add(look())
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"seen_ns":2,"name":"pod-a","ui')
    reader = JournalReader(path)
    assert reader.poll() == [look()]
    writer = JournalWriter(path)
    assert writer.pods == {"a": look()}
    assert not writer.add(look(seen=3))
    assert writer.add(look("b"))
    writer.close()
    assert reader.poll() == [look("b")]
    assert reader.problems == []


def test_a_damaged_line_costs_that_line_only_and_is_told(path):
    writer = JournalWriter(path)
    writer.add(look())
    with path.open("ab") as file:
        for bad in (b"{}", b'{"seen_ns":"x"}', b"\xff\xfe", b"[" * 1000, *[b"x"] * 20):
            file.write(bad + b"\n")
    writer.add(look("b"))
    writer.close()
    reader = JournalReader(path)
    assert [fact.uid for fact in reader.poll()] == ["a", "b"]
    assert len(reader.problems) == 8


def test_a_line_that_could_not_be_written_as_a_whole_is_taken_back(path, monkeypatch):
    writer = JournalWriter(path)
    writer.add(look())
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: real(fd, data[:7]))
    with pytest.raises(OSError, match="No space left"):
        writer.add(look("b"))
    monkeypatch.setattr(module.os, "write", real)
    assert writer.add(look("b"))
    writer.close()
    reader = JournalReader(path)
    assert [fact.uid for fact in reader.poll()] == ["a", "b"]
    assert reader.problems == []


def test_a_large_journal_is_written_anew_and_its_readers_follow(path, monkeypatch):
    monkeypatch.setattr(module, "COMPACT", 4000)
    writer, reader = JournalWriter(path), JournalReader(path)
    for number in range(500):
        assert writer.add(look("ab"[number % 2], seen=number, message=f"look {number}"))
        if number % 97 == 0:
            reader.poll()
    assert path.stat().st_size < 5000
    reader.poll()
    assert {uid: fact.message for uid, fact in reader.pods.items()} == {"a": "look 498", "b": "look 499"}
    assert writer.pods == reader.pods
    writer.close()
    assert JournalWriter(path).pods == reader.pods


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"gone": True}, {}, "b"),
        ({}, {"gone": True}, "a"),
        ({"gone": True}, {"gone": True}, "b"),
        ({}, {}, "b"),
        ({"created": "2026-11-21T16:00:09Z"}, {"created": "2026-11-21T16:00:00Z"}, "a"),
        ({"created": "2026-11-21T16:00:00Z"}, {"created": "2026-11-21T16:00:09Z"}, "b"),
        ({"created": "2026-11-21T16:00:09Z", "gone": True}, {"created": "2026-11-21T16:00:00Z"}, "b"),
        ({}, {"slot": None}, "a"),
    ],
)
def test_the_newest_pod_of_a_slot(path, first, second, chosen):
    writer, reader = JournalWriter(path), JournalReader(path)
    writer.add(look("a", **first))
    writer.add(look("b", **second))
    # A later look at an old pod does not make it the newer one.
    writer.add(look("a", message="again", **first))
    writer.close()
    reader.poll()
    assert reader.by_slot()[0].uid == chosen
