"""Facts of ranks and slots out of records: who ended of what, where several signals were about."""

from __future__ import annotations

from rankfall.evidence.cluster.pod_evidence import PodView
from rankfall.evidence.facts import Facts
from rankfall.model import ExitInfo, Record, SlotFacts
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.marks import Stop, abandon, mark_stop
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.rundir.records import Found

NS = 1_000_000_000


def found(kind, *, at, **fields):
    record = Record(id=f"{kind}-{at}", kind=kind, slot=0, at_ns=at * NS, **fields)
    return Found(record=record, name=f"{kind}.json", mtime=at * NS)


def killers(died_at: int, signalled_at: int, *, stop_at: int | None = None) -> str | None:
    facts = Facts({0: SlotFacts(slot=0)})
    if stop_at is not None:
        facts.set_stop(stop_at * NS)
    facts.add(found("start", at=1, rank=0, pid=10, ordinal=0))
    facts.add(found("end", at=died_at, rank=0, pid=10, exit=ExitInfo(signal=9, how="proc")))
    facts.add(found("kill", at=signalled_at, exit=ExitInfo(signal=15, how="received", sender_pid=0)))
    (sheet,) = facts.ranks()
    return sheet.killed_by


def test_who_died_before_its_slot_was_told_to_stop_did_not_die_of_that():
    assert killers(died_at=5, signalled_at=6) == "foreign"
    assert killers(died_at=7, signalled_at=6) == "agent"


def test_a_signal_that_came_after_rankfall_had_asked_for_the_end_was_rankfalls():
    assert killers(died_at=7, signalled_at=6, stop_at=5) == "wrapper"
    # Somebody else's, which came before; and what died before any signal died of its own.
    assert killers(died_at=9, signalled_at=6, stop_at=8) == "agent"
    assert killers(died_at=5, signalled_at=6, stop_at=4) == "foreign"


def slot_after_stop(tmp_path, *, ended: int, signal: int = 15) -> SlotFacts:
    journal = JournalWriter(journal_path(tmp_path, 1))
    main = ContainerFact(state="terminated", exit_code=128 + signal)
    journal.add(PodFact(seen_ns=20 * NS, name="p", uid="u", slot=0, node="n1", main=main))
    journal.close()
    mark_stop(tmp_path, 1, Stop(at_ns=10 * NS, reason="another part of the job failed"))
    view = PodView(tmp_path, attempt=1)
    view.poll()
    held = SlotFacts(slot=0, state="ended", signal=signal, killed_by="foreign", ended_at=ended * NS, where="records/x")
    return view.merged(held, late_ns=1_000_000_000)


def test_a_slot_that_ended_of_our_own_stop_was_killed_by_us_although_its_wrapper_cannot_know(tmp_path):
    assert slot_after_stop(tmp_path, ended=12).killed_by == "wrapper"


def test_a_slot_that_ended_before_our_stop_was_not_killed_by_us(tmp_path):
    assert slot_after_stop(tmp_path, ended=8).killed_by == "foreign"


def test_a_slot_that_crashed_after_our_stop_crashed_by_itself(tmp_path):
    assert slot_after_stop(tmp_path, ended=12, signal=11).killed_by == "foreign"


def test_a_slot_that_is_not_waited_for_any_more_is_lost_and_its_pod_is_left_alone(tmp_path):
    journal = JournalWriter(journal_path(tmp_path, 1))
    journal.add(PodFact(seen_ns=1, name="p", uid="u", slot=0, node="n1", main=ContainerFact(state="running")))
    journal.close()
    view = PodView(tmp_path, attempt=1)
    view.poll()
    assert view.merged(SlotFacts(slot=0, state="running")).state == "running"
    mark_stop(tmp_path, 1, Stop(at_ns=10, reason="another part of the job failed"))
    abandon(tmp_path, 1, [0])
    abandon(tmp_path, 1, [0])
    view.poll()
    assert view.merged(SlotFacts(slot=0, state="running")).state == "lost"
    assert view.merged(SlotFacts(slot=0, state="ended", exit_code=0)).state == "ended"
