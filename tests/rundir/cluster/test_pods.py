"""Slots as their pods tell: waiting, running, ended once the log is stored, lost; and whose signal ended them."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.evidence.cluster.pod_evidence import PodView
from rankfall.model import SlotFacts
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.marks import Stop, mark_stop
from rankfall.rundir.cluster.pod_facts import Condition, ContainerFact, PodFact, later
from support.kubemodel import NS

DAY = "2026-11-21T16:00:00Z"
DAY_NS = 1_795_276_800 * NS
RUNNING = ContainerFact(state="running", started=DAY)


def look(**fields: object) -> PodFact:
    base = PodFact(seen_ns=DAY_NS + NS, name="job-0-x", uid="u", slot=0, node="n0", phase="Running")
    return msgspec.structs.replace(base, **fields)


def ended(code: int | None, *, reason: str = "Error", signal: int | None = None) -> ContainerFact:
    return ContainerFact(state="terminated", exit_code=code, signal=signal, reason=reason, started=DAY, finished=DAY)


def expected(**fields: object) -> SlotFacts:
    return msgspec.structs.replace(SlotFacts(slot=0, role="worker", state="expected"), **fields)


class ObservedPods:
    def __init__(self, run) -> None:
        self.run = run
        self.writer = JournalWriter(journal_path(run, 1))
        self.view = PodView(run, attempt=1)

    def see(self, *looks: PodFact, held: SlotFacts | None = None, slack: float = 0.0) -> SlotFacts:
        for fact in looks:
            self.writer.add(fact)
        self.view.poll()
        return self.view.merged(held or expected(), late_ns=round(slack * 1_000_000_000))


@pytest.fixture
def pods(tmp_path):
    made = ObservedPods(tmp_path)
    yield made
    made.writer.close()


def test_a_slot_without_a_pod_is_as_it_was(pods):
    assert pods.see() == expected()
    assert pods.see(look(slot=None, log="none", gone=True)) == expected()


def test_waiting_then_running(pods):
    waiting = pods.see(look(phase="Pending", main=ContainerFact(state="waiting")))
    assert (waiting.state, waiting.node, waiting.pod, waiting.started_at) == ("expected", "n0", "job-0-x", None)
    running = pods.see(look(main=RUNNING))
    assert (running.state, running.started_at) == ("running", DAY_NS)


def test_a_slot_has_ended_when_its_log_is_stored(pods):
    early = pods.see(look(phase="Failed", main=ended(3)))
    assert (early.state, early.exit_code) == ("running", None)
    late = pods.see(look(phase="Failed", main=ended(3), log="complete"))
    assert (late.state, late.exit_code, late.signal, late.killed_by) == ("ended", 3, None, None)
    assert (late.ended_at, late.where) == (DAY_NS, "kube/attempt-1/pods.jsonl")
    # What a kubelet says is of whole seconds.
    assert late.ended_uncertainty == 1.0


def test_a_log_that_is_lost_keeps_no_slot_waiting(pods):
    assert pods.see(look(phase="Failed", main=ended(3), log="lost")).exit_code == 3


@pytest.mark.parametrize(("code", "signal"), [(137, 9), (143, 15), (139, 11), (129, 1)])
def test_a_code_above_128_is_the_signal_that_ended_the_container(pods, code, signal):
    found = pods.see(look(phase="Failed", main=ended(code), log="complete"))
    assert (found.state, found.exit_code, found.signal, found.killed_by) == ("ended", None, signal, "foreign")


@pytest.mark.parametrize("code", [128, 193, 211, 255])
def test_other_codes_are_codes(pods, code):
    found = pods.see(look(phase="Failed", main=ended(code), log="complete"))
    assert (found.exit_code, found.signal) == (code, None)


def test_what_the_runtime_calls_a_signal_is_one(pods):
    found = pods.see(look(phase="Failed", main=ended(None, signal=7), log="complete"))
    assert (found.exit_code, found.signal) == (None, 7)


@pytest.mark.parametrize(
    "fact",
    [
        look(gone=True, main=RUNNING, log="lost"),
        look(gone=True, phase="Pending", log="none"),
        look(phase="Failed", reason="OutOfcpu", log="none"),
        look(phase="Failed", main=RUNNING, log="lost"),
        look(phase="Failed", main=ended(137, reason="ContainerStatusUnknown"), log="lost"),
    ],
    ids=["deleted", "never started", "refused by its kubelet", "its node is lost", "its kubelet found it no more"],
)
def test_a_pod_that_ended_without_a_word_of_its_container_is_lost(pods, fact):
    found = pods.see(fact)
    assert (found.state, found.exit_code, found.signal) == ("lost", None, None)


def test_a_pod_whose_end_nobody_tells_is_lost_until_it_is_told(pods):
    leaving = look(main=RUNNING, deleting=DAY)
    assert pods.see(leaving, held=expected(state="running")).state == "running"
    overdue = msgspec.structs.replace(leaving, overdue=True, seen_ns=DAY_NS + 90 * NS)
    assert pods.see(overdue, held=expected(state="running")).state == "lost"
    # Its node is back.
    back = later(overdue, look(main=ended(0), deleting=DAY, log="complete", seen_ns=DAY_NS + 95 * NS))
    assert pods.see(back, held=expected(state="running")).state == "ended"


def test_the_wrappers_own_end_is_kept(pods):
    own = expected(state="ended", exit_code=1, ended_at=5, where="records/slot_end")
    found = pods.see(look(phase="Failed", main=ended(137), log="complete"), held=own)
    assert (found.exit_code, found.signal, found.ended_at, found.where) == (1, None, 5, "records/slot_end")
    assert (found.pod, found.node) == ("job-0-x", "n0")


def test_a_start_that_was_recorded_is_kept(pods):
    assert pods.see(look(main=RUNNING), held=expected(state="running", started_at=7)).started_at == 7


STOP = Stop(at_ns=DAY_NS + NS // 2, reason="another part failed")


@pytest.mark.parametrize(
    ("code", "seen", "finished", "slack", "by"),
    [
        (143, 2.0, "16:00:01", 0.0, "wrapper"),
        (137, 2.0, "16:00:00", 0.0, "wrapper"),
        # Seen before the stop: it was somebody else, however its stamp reads.
        (137, 0.2, "16:00:00", 0.0, "foreign"),
        # Long before the stop, only seen late; unless that clock is behind by as much.
        (137, 60.0, "15:59:30", 0.0, "foreign"),
        (137, 60.0, "15:59:30", 90.0, "wrapper"),
        # No signal of ours.
        (139, 2.0, "16:00:01", 0.0, "foreign"),
    ],
)
def test_whose_signal_ended_a_container(pods, code, seen, finished, slack, by):  # noqa: PLR0917 - columns of a table
    mark_stop(pods.run, 1, STOP)
    end = msgspec.structs.replace(ended(code), finished=f"2026-11-21T{finished}Z")
    first = look(phase="Failed", main=end, seen_ns=DAY_NS + round(seen * NS))
    done = msgspec.structs.replace(first, log="complete", seen_ns=DAY_NS + 100 * NS)
    assert pods.see(first, done, slack=slack).killed_by == by


@pytest.mark.parametrize(
    ("signalled", "at", "by"),
    [
        (True, DAY_NS + NS, "wrapper"),
        # Its own code, without a signal from outside or before we stopped anything.
        (False, DAY_NS + NS, None),
        (True, DAY_NS, None),
    ],
)
def test_a_command_that_answered_our_signal_with_a_code_of_its_own_was_stopped_by_us(pods, signalled, at, by):
    mark_stop(pods.run, 1, STOP)
    held = expected(state="ended", exit_code=1, ended_at=at, signalled=signalled)
    assert pods.see(look(main=ended(1), phase="Failed"), held=held).killed_by == by


def test_a_pod_is_ready_as_its_condition_says(pods):
    def shown(status: str, **fields: object) -> bool | None:
        return pods.see(
            look(main=RUNNING, conditions=(Condition(type="Ready", status=status),), **fields)
        ).platform_ready

    assert [shown("False"), shown("True"), shown("True", gone=True)] == [False, True, False]
    assert expected().platform_ready is None


def test_evidence_of_an_end_is_told_once_as_it_was_seen_first(pods):
    view = pods.view
    pods.writer.add(look(phase="Failed", reason="Evicted", seen_ns=5))
    changed, found = view.poll()
    assert (changed, [piece.slug for piece in found], found[0].at) == (True, ["pod_evicted"], 5)
    pods.writer.add(look(phase="Failed", reason="Evicted", seen_ns=50_000, gone=True, log="none"))
    assert view.poll() == (True, [])
    assert view.poll() == (False, [])


def test_waiting_is_told_for_the_newest_pod_only(pods):
    waiting = ContainerFact(state="waiting", reason="ImagePullBackOff")
    pods.see(look(uid="old", phase="Pending", main=waiting, gone=True))
    pods.see(look(uid="new", main=RUNNING))
    assert pods.view.waiting() == []
    assert set(pods.view.pods()) == {0}
    pods.see(look(uid="new2", phase="Pending", main=waiting))
    assert [piece.slug for piece in pods.view.waiting()] == ["image_pull"]


def test_a_damaged_journal_is_told(pods):
    with journal_path(pods.run, 1).open("ab") as file:
        file.write(b"{}\n")
    pods.view.poll()
    assert len(pods.view.problems) == 1


def test_what_kept_a_pod_from_starting_is_still_known_when_it_was_stopped(pods):
    waits = ContainerFact(state="waiting", reason="ImagePullBackOff", message="not found")
    pods.see(look(phase="Pending", main=waits))
    (before,) = pods.view.waiting()
    pods.see(look(phase="Failed", main=ended(137), deleting=DAY, gone=True, seen_ns=DAY_NS + 3 * NS))
    (after,) = pods.view.waiting()
    assert (before.id, before.slug) == (after.id, after.slug) == (after.id, "image_pull")
    assert [fact.uid for fact in pods.view.counting()] == ["u"]
    assert pods.view.before()["u"].phase == "Pending"
