"""Facts of ranks and slots out of records: who ended of what, where several signals were about."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.evidence.cluster.pod_evidence import PodView
from rankfall.evidence.facts import Facts
from rankfall.model import ErrorInfo, ExitInfo, Record, SlotFacts
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


def around(code: int, *starts: tuple[int, int]) -> Facts:
    """A rank of the plain launcher: a shell with pid 10 ran these processes, each with its start."""
    facts = Facts({0: SlotFacts(slot=0, launcher="plain")})
    for pid, at in starts:
        facts.add(found("start", at=at, rank=0, pid=pid, ordinal=0, writer="hook"))
    end = {"rank": 0, "pid": 10, "ordinal": 0, "rank_source": "launcher"}
    facts.add(found("end", at=9, exit=ExitInfo(code=code, how="wait"), **end))
    return facts


def test_a_rank_inside_a_shell_ended_with_what_the_shell_reports():
    (sheet,) = around(3, (11, 1)).ranks()
    assert (sheet.pid, sheet.state, sheet.exit_code, sheet.ended_at) == (11, "ended", 3, 9 * NS)
    (sheet,) = around(137, (11, 1)).ranks()
    assert (sheet.signal, sheet.exit_code, sheet.killed_by) == (9, None, "foreign")
    # A program's request for a new attempt is no signal.
    (sheet,) = around(138, (11, 1)).ranks()
    assert (sheet.signal, sheet.exit_code) == (None, 138)


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_programs_inside_a_shell_the_last_one_gave_the_code(order):
    ranks = around(3, *[(11, 1), (12, 2)][::order]).ranks()
    assert {rank.pid: rank.exit_code for rank in ranks} == {11: None, 12: 3}


def test_an_exit_that_a_shell_passed_on_is_explained_by_the_program_inside():
    facts = around(3, (11, 1))
    left = found("error", at=8, rank=0, pid=11, ordinal=0, error=ErrorInfo(types=("SystemExit",), exit_code=3)).record
    assert facts.explains_exit(left)
    assert not facts.explains_exit(msgspec.structs.replace(left, error=ErrorInfo(exit_code=4)))
