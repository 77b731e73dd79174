"""Ranks that ended silently, or that only never joined, beside ranks whose own failures followed from that."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.evidence.builders import of_rank_end
from rankfall.model import JobSpec, SlotFacts
from rankfall.render.summary import advice_text, first_sentence, summary
from rankfall.verdict.decide import RootFacts, decide
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.diagnose.cause_tables import DELETED_POD
from rankfall.verdict.diagnose.subjects import Subject
from support.cases import at, case, died, left, piece, rank, slots


def victims(verdict):
    return [item.rank for item in verdict.consequences]


def named(verdict):
    return verdict.rank, verdict.cause.slug, verdict.cause.confidence


def ranks_of(first, *, codes=(1, 1), seconds=1.3):
    """Rank 2 ended as ``first`` says, ranks 0 and 1 later on the same node."""
    return [*(left(n, code, per_node=4, seconds=seconds) for n, code in enumerate(codes)), first]


def raised(slug, number, *, seconds, **fields):
    return piece(slug, number, seconds=seconds, slot=0, **fields)


KILLED = died(2, 9, per_node=4, seconds=1.0)
EXIT_3 = left(2, 3, per_node=4, seconds=1.0)
EXIT_1 = left(2, 1, per_node=4, seconds=1.0)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (KILLED, (2, "killed_unknown", "likely")),
        (EXIT_3, (2, "user_exit", "likely")),
        # Python's code is also that of a consequence.
        (EXIT_1, (2, "user_exit", "suspected")),
    ],
)
def test_two_handlers_that_fail_after_a_lost_peer_are_consequences_of_the_silent_rank(first, expected):
    """The ends are so close that the clocks do not order them; the chains do."""
    evidence = [
        raised("disk_full", 0, seconds=1.03, lost_peer=True),
        raised("permission_denied", 1, seconds=1.04, lost_peer=True),
    ]
    verdict = diagnose(case(ranks_of(first), evidence, slots=slots(1))).verdict
    assert named(verdict) == expected
    assert victims(verdict) == [0, 1]
    assert {(item.rank, item.slug) for item in verdict.alternatives} >= {(0, "disk_full"), (1, "permission_denied")}


def test_a_full_disk_that_follows_from_no_lost_peer_outweighs_the_silent_rank_beside_it():
    evidence = [
        raised("disk_full", 0, seconds=1.03),
        raised("permission_denied", 1, seconds=1.04, lost_peer=True),
    ]
    verdict = diagnose(case(ranks_of(KILLED), evidence, slots=slots(1))).verdict
    assert named(verdict) == (0, "disk_full", "proven")


def test_an_exception_before_the_silent_end_stays_the_root_though_it_handled_a_lost_peer():
    evidence = [
        raised("disk_full", 0, seconds=0.5, lost_peer=True),
        raised("permission_denied", 1, seconds=1.4, lost_peer=True),
    ]
    verdict = diagnose(case(ranks_of(KILLED), evidence, slots=slots(1))).verdict
    assert named(verdict)[:2] == (0, "disk_full")


@pytest.mark.parametrize(("heard", "expected"), [(1.2, (2, "user_exit")), (0.3, (0, "import_error"))])
def test_a_lost_peer_that_a_rank_only_printed_counts_from_the_silent_end_on(heard, expected):
    evidence = [
        raised("peer_lost", 0, seconds=heard, role="secondary", source="log", trust="job"),
        raised("import_error", 0, seconds=1.5),
        raised("peer_lost", 1, seconds=1.4, role="secondary"),
    ]
    verdict = diagnose(case(ranks_of(EXIT_3, seconds=1.6), evidence, slots=slots(1))).verdict
    assert named(verdict)[:2] == expected


@pytest.mark.parametrize(
    ("first", "seconds", "expected"),
    [
        (EXIT_1, 1.2, (2, "user_exit", "suspected")),
        # Within the clocks' error, or from a rank whose output nobody could attribute, nothing shows who was first.
        (EXIT_1, 1.04, (0, "user_code_exception", "proven")),
        (left(2, 1, per_node=4, seconds=1.0, hook="absent"), 1.2, (0, "user_code_exception", "proven")),
    ],
)
def test_an_unconnected_exception_long_after_a_silent_end_proves_nothing(first, seconds, expected):
    evidence = [
        raised("user_code_exception", 0, seconds=seconds, line="ValueError: own trouble"),
        raised("peer_lost", 1, seconds=1.25, role="secondary"),
    ]
    verdict = diagnose(case(ranks_of(first), evidence, slots=slots(1))).verdict
    assert named(verdict) == expected


def stop_line(number, *, seconds):
    line = f"Sending process {1000 + number} closing signal SIGTERM"
    return raised(
        "peer_teardown",
        number,
        seconds=seconds,
        role="secondary",
        source="log",
        trust="job",
        line=line,
        uncertainty=0.05,
    )


def test_handlers_that_exit_after_their_launchers_signal_are_no_failure_of_all_ranks():
    """Rank 1 lost its peer too before the signal came."""
    evidence = [
        *(
            raised("user_exit", n, seconds=at, line="SystemExit: 1", exit_code=1)
            for n, at in ((2, 1.0), (0, 1.2), (1, 1.18))
        ),
        *(stop_line(n, seconds=1.15) for n in (0, 1)),
        raised("peer_lost", 1, seconds=1.05, role="secondary", source="log", trust="job"),
    ]
    verdict = diagnose(case(ranks_of(EXIT_1), evidence, slots=slots(1))).verdict
    assert (verdict.rank, verdict.scope, verdict.cause.slug) == (2, "rank", "user_exit")
    assert victims(verdict) == [0, 1]
    # Ends before the signal are ends of the ranks themselves.
    late = [e for e in evidence if e.slug == "user_exit"] + [stop_line(n, seconds=1.5) for n in (0, 1)]
    assert diagnose(case(ranks_of(EXIT_1), late, slots=slots(1))).verdict.scope == "all"


def test_of_two_equal_failures_and_two_stopped_handlers_not_all_ranks_failed():
    ranks = [left(n, 5, per_node=4, seconds=at) for n, at in enumerate((1.0, 1.02, 1.4, 1.41))]
    evidence = [stop_line(n, seconds=1.1) for n in (2, 3)]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert (verdict.scope, victims(verdict)) == ("rank", [2, 3])


@pytest.mark.parametrize(
    ("signature", "others", "expected"),
    [
        ("peer_lost.refused", [], 2),
        ("peer_lost.errno", [], 2),
        # gloo connects ranks only, and a second complaint shows that ranks were connected.
        ("peer_lost.gloo", [], None),
        ("peer_lost.refused", [raised("peer_lost", 0, seconds=1.1, role="secondary")], None),
    ],
)
def test_the_only_failed_rank_that_lost_a_process_outside_the_job_is_named(signature, others, expected):
    ranks = [died(n, 15, per_node=4, by="wrapper", seconds=2) for n in (0, 1)] + [EXIT_1]
    refused = raised("peer_lost", 2, seconds=1, role="secondary", signature=signature, line="OSError: lost")
    verdict = diagnose(case(ranks, [refused, *others], slots=slots(1, launcher="plain"))).verdict
    assert named(verdict) == (expected, "peer_lost", "suspected")
    assert (expected in victims(verdict)) is False


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        # A plain socket or pipe may be connected to anything, a process group not.
        ("peer_lost.errno", (1, "peer_lost", "suspected")),
        ("peer_lost.eof", (1, "peer_lost", "suspected")),
        ("peer_lost.gloo", (0, "uneven_data", "likely")),
    ],
)
def test_a_rank_that_finished_is_no_cause_of_a_connection_outside_the_group(signature, expected):
    ranks = [left(0, 0, seconds=1), left(1, 1, seconds=3)]
    lost = raised("peer_lost", 1, seconds=2, role="secondary", signature=signature, line="lost")
    assert named(diagnose(case(ranks, [lost], slots=slots(1))).verdict) == expected
    # Several ranks that lost one at once were connected to it.
    ranks = [left(0, 0, seconds=1), *(left(n, 1, seconds=3) for n in (1, 2, 3))]
    lost_by_all = [
        raised("peer_lost", n, seconds=2, role="secondary", signature=signature, line="lost") for n in (1, 2, 3)
    ]
    assert named(diagnose(case(ranks, lost_by_all, slots=slots(2))).verdict) == (0, "uneven_data", "likely")


def test_a_rank_that_ended_before_the_others_joined_is_suspected():
    gone = left(2, 0, per_node=4, seconds=1)
    waits = [raised("rdzv_unreachable", n, seconds=9 + n, line="timed out") for n in (0, 1)]
    verdict = diagnose(case(ranks_of(gone, seconds=11), waits, slots=slots(1))).verdict
    assert named(verdict) == (2, "uneven_data", "suspected")
    # One that ended after the first of them gave up may have lost its work to that.
    late = left(2, 0, per_node=4, seconds=9.5)
    assert diagnose(case(ranks_of(late, seconds=11), waits, slots=slots(1))).verdict.cause.slug == "rdzv_unreachable"
    # With another trouble beside it the end is no explanation.
    full = raised("disk_full", 1, seconds=9.5)
    assert diagnose(case(ranks_of(gone, seconds=11), [*waits, full], slots=slots(1))).verdict.cause.slug == "disk_full"


def test_the_receiver_of_a_mismatch_between_two_ranks_is_not_the_odd_one():
    received = piece(
        "collective_mismatch",
        0,
        slot=0,
        source="log",
        trust="job",
        signature="collective_mismatch.gloo",
        specificity=70,
    )
    ranks = [died(0, 6, per_node=4), left(1, 1, per_node=4, seconds=1.2), rank(2, per_node=4, state="running")]
    lost = raised("peer_lost", 1, seconds=1.1, role="secondary")
    verdict = diagnose(case(ranks, [received, lost], slots=slots(1))).verdict
    assert (verdict.rank, verdict.scope, verdict.cause.slug) == (None, None, "collective_mismatch")


@pytest.mark.parametrize(
    ("started", "words"),
    [
        (at(0), "any line and the end of slot 0: it started, but its log was not readable"),
        (None, "any rank of slot 0: it never joined"),
    ],
)
def test_a_slot_that_another_one_lost_is_not_said_to_have_lost_its_peer(started, words):
    """Its log is not readable and its end not reported, as behind a pulled cable."""
    quiet = SlotFacts(
        slot=0, node="n0", state="running" if started else "expected", launcher="exec", started_at=started
    )
    spoke = SlotFacts(slot=1, node="n1", state="ended", exit_code=1, launcher="exec", started_at=at(0), ended_at=at(9))
    lost = piece(
        "peer_lost", None, role="secondary", seconds=8.9, slot=1, node="n1", source="log", line="closed by peer"
    )
    verdict = diagnose(case([], [lost], slots=(quiet, spoke), world_size=2)).verdict
    assert (verdict.slot, verdict.node, verdict.cause.slug, verdict.cause.confidence) == (
        0,
        "n0",
        "peer_lost",
        "suspected",
    )
    assert verdict.missing[0] == words
    assert first_sentence(verdict) == "Suspected: slot 0 on n0 went away without a message."


@pytest.mark.parametrize(
    ("second", "apart"),
    [
        (raised("nan_loss", 0, seconds=1.06), True),
        (raised("nan_loss", 0, seconds=1.06, lost_peer=True), False),
        (raised("nan_loss", 0, seconds=1.06, source="log", trust="job"), False),
    ],
)
def test_an_exception_that_no_killed_process_causes_is_a_separate_failure(second, apart):
    oom = piece("host_oom", 2, seconds=1.0, slot=0, source="wrapper", trust="wrapper")
    verdict = diagnose(case(ranks_of(KILLED), [oom, second], slots=slots(1))).verdict
    assert named(verdict) == (2, "host_oom", "proven")
    assert victims(verdict) == ([1] if apart else [0, 1])
    assert [one.rank for one in verdict.independent or ()] == ([0] if apart else [])


def said(slug, number, *, seconds, **fields):
    return piece(slug, number, role="secondary", seconds=seconds, slot=0, **fields)


@pytest.mark.parametrize("stopped", [(), (1,)])
def test_a_rank_whose_handler_left_with_0_after_a_signal_had_no_less_data(stopped):
    """Rank 1 may have the same handler and be stopped by Rankfall only after the others complained."""
    ranks = [
        left(0, 1, per_node=4, seconds=1.2),
        left(1, 0 if stopped else 1, per_node=4, seconds=1.5),
        left(2, 0, per_node=4, seconds=1.0),
    ]
    evidence = [said("external_signal", 2, seconds=0.9, source="log", trust="job", stream="2.out", order=9)]
    evidence += [said("peer_lost", n, seconds=1.1) for n in (0, 1) if n not in stopped]
    printed = {"source": "log", "trust": "job", "signature": "external_signal.text"}
    evidence += [said("external_signal", n, seconds=1.4, stream="1.out", **printed) for n in stopped]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.retry) == (2, "external_signal", "yes")


def test_a_handler_that_left_after_another_rank_had_lost_a_peer_was_not_signalled_from_outside():
    ranks = [left(0, 1, per_node=4, seconds=1.2), left(1, 0, per_node=4, seconds=1.5)]
    evidence = [
        said("peer_lost", 0, seconds=1.1),
        said("external_signal", 1, seconds=1.4, source="log", trust="job", signature="external_signal.text"),
    ]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert verdict.cause.slug == "peer_lost"


@pytest.mark.parametrize(
    ("worked", "others", "expected"),
    [
        (9.9, 1.0, "slow_rank_timeout"),
        # As long ago as the work of the ranks that then waited.
        (1.1, 1.0, "rank_stuck"),
        # Only this rank prints: its progress counts after the time-out alone.
        (9.9, None, "rank_stuck"),
        (10.5, None, "slow_rank_timeout"),
        (None, 1.0, "rank_stuck"),
    ],
)
def test_the_silent_rank_that_printed_progress_while_the_others_waited_was_slow_and_not_stuck(worked, others, expected):
    def ends(seconds):
        return None if seconds is None else at(seconds)

    ranks = [left(n, 1, per_node=4, seconds=10.3, worked_at=ends(others)) for n in (0, 1)]
    ranks.append(died(2, 15, by="wrapper", per_node=4, seconds=12.0, worked_at=ends(worked)))
    evidence = [said("collective_timeout", n, seconds=10.0) for n in (0, 1)]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert named(verdict) == (2, expected, "suspected")
    assert verdict.retry == "once"


@pytest.mark.parametrize("others", ["peer_teardown", "external_signal", None])
def test_the_only_slot_with_an_error_is_named_if_its_lines_may_not_be_read(others):
    """The job's controller deleted the other slots' pods; without that, their ends may have come first."""
    gone = [
        piece("peer_teardown", None, role="secondary", slot=n, source="pod", trust="platform", fingerprint=DELETED_POD)
        for n in (0, 2)
    ]
    gone = [msgspec.structs.replace(one, slug=others, node=f"node{one.slot}") for one in gone] if others else []
    places = [SlotFacts(slot=n, node=f"node{n}", state="lost", launcher="exec", started_at=at(0)) for n in (0, 2)]
    failed = SlotFacts(slot=1, node="node1", state="ended", exit_code=1, launcher="exec", ended_at=at(2))
    verdict = diagnose(case([], gone, slots=(places[0], failed, places[1]), world_size=None)).verdict
    assert (verdict.slot == 1) == (others == "peer_teardown")
    if verdict.slot == 1:
        assert (verdict.node, verdict.cause.slug, verdict.cause.confidence) == ("node1", "user_exit", "suspected")
        assert first_sentence(verdict).startswith("Slot 1 on node1 exited with code 1")


def test_the_only_slot_with_an_error_that_reports_a_lost_peer_is_not_the_first():
    gone = piece(
        "peer_teardown", None, role="secondary", slot=0, source="pod", trust="platform", fingerprint=DELETED_POD
    )
    lost = piece("peer_lost", None, role="secondary", slot=1, source="log", trust="job", line="closed by peer")
    places = SlotFacts(slot=0, node="node0", state="lost", launcher="exec", started_at=at(0))
    failed = SlotFacts(slot=1, node="node1", state="ended", exit_code=1, launcher="exec", ended_at=at(2))
    verdict = diagnose(case([], [gone, lost], slots=(places, failed), world_size=None)).verdict
    assert (verdict.cause.slug, verdict.cause.confidence) == ("peer_lost", "suspected")
    assert verdict.slot is None


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 2.0])
@pytest.mark.parametrize("signal", [9, 15])
def test_i19_a_slot_that_its_jobs_controller_killed_is_never_the_root(signal, seconds):
    """Somebody deleted slot 0's pod, and its end was not recorded."""
    gone = [
        piece(slug, None, role="secondary", slot=n, source="pod", trust="platform", fingerprint=DELETED_POD)
        for n, slug in enumerate(["external_signal", "peer_teardown"])
    ]
    gone = [msgspec.structs.replace(one, node=f"node{one.slot}", at=at(0), uncertainty=1.0) for one in gone]
    first = SlotFacts(slot=0, node="node0", state="lost", launcher="exec", started_at=at(-9))
    second = msgspec.structs.replace(
        first, slot=1, node="node1", state="ended", signal=signal, killed_by="foreign", ended_at=at(seconds)
    )
    verdict = diagnose(case([], gone, slots=(first, second), world_size=None)).verdict
    # A second's accuracy cannot place the end before the deletion.
    assert (verdict.cause.slug, verdict.slot, verdict.node) == ("external_signal", 0, "node0")


@pytest.mark.parametrize(
    ("number", "slug", "words", "advice"),
    [
        (25, "disk_full", "wrote a file larger than its limit", "ulimit -f"),
        (24, "deadline_exceeded", "reached its limit of CPU time", "ulimit -t"),
    ],
)
def test_a_limit_of_the_process_is_no_signal_from_outside(number, slug, words, advice):
    """The other ranks lose their peer, one of them with an exception of its own code."""
    ranks = ranks_of(died(2, number, per_node=4, seconds=1.0))
    evidence = [end for facts in ranks if (end := of_rank_end(facts, attempt=1)) is not None]
    evidence += [said("peer_lost", 0, seconds=1.1), raised("user_code_exception", 1, seconds=1.2, lost_peer=True)]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert (*named(verdict), verdict.retry) == (2, slug, "likely", "no")
    assert "sender not known" not in verdict.decisive.line
    assert words in summary(verdict)
    assert advice in advice_text(verdict)


@pytest.mark.parametrize(("code", "slug"), [(126, "permission_denied"), (127, "command_not_found")])
@pytest.mark.parametrize(("other", "named_rank", "scope"), [(None, None, "all"), (1, 0, "rank")])
def test_a_command_that_no_rank_can_start_is_no_failure_of_the_first_one(code, slug, other, named_rank, scope):
    """Another code of one rank shows that this did not happen to all."""
    ranks = [left(n, code, per_node=4, seconds=1.0 + n / 100, hook="absent") for n in range(2)]
    ranks.append(left(2, other or code, per_node=4, seconds=1.02, hook="absent"))
    verdict = diagnose(case(ranks, [], slots=slots(1, launcher="plain"))).verdict
    assert (verdict.cause.slug, verdict.rank, verdict.scope) == (slug, named_rank, scope)


@pytest.mark.parametrize(("code", "retry"), [(143, "yes"), (137, "yes"), (130, "yes"), (3, "no"), (139, "no")])
def test_the_verdict_advises_what_the_table_of_exit_codes_decides(code, retry):
    """The others lose that rank and raise."""
    ranks = ranks_of(left(2, code, per_node=4, seconds=1.0))
    evidence = [said("peer_lost", 0, seconds=1.1), raised("user_code_exception", 1, seconds=1.2, lost_peer=True)]
    found = diagnose(case(ranks, evidence, slots=slots(1)))
    assert (found.verdict.rank, found.verdict.cause.slug, found.verdict.retry) == (2, "user_exit", retry)
    decided = decide(found, spec=JobSpec(command=("train.py",)), history=(), facts=RootFacts(code=found.exit_code))
    assert decided.action == ("retry" if retry == "yes" else "stop")


def test_emergency_saves_of_ranks_that_lost_their_peer_are_not_the_failure_of_all():
    """The rank that failed by itself fails in its own emergency save, on the same full disk."""
    ranks = [left(n, 1, per_node=4, seconds=1.3) for n in range(3)]
    evidence = [
        raised("disk_full", n, seconds=1.03 - n / 100, lost_peer=n != 2, fingerprint="disk_full") for n in range(3)
    ]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert named(verdict) == (2, "disk_full", "proven")
    assert victims(verdict) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # It worked on without that thread until it was killed.
        ({"worked_at": at(30.0)}, "killed_unknown"),
        # The last work before the exception; a step that it reported later.
        ({"worked_at": at(5.5)}, "user_code_exception"),
        ({"worked_at": at(5.5), "step_at": at(29.0), "step": 8}, "killed_unknown"),
    ],
)
def test_an_exception_of_a_thread_that_its_rank_outlived_is_no_cause(fields, expected):
    ranks = ranks_of(died(2, 9, per_node=4, seconds=30.1, **fields), seconds=30.3)
    evidence = [raised("user_code_exception", 2, seconds=5.0, thread=True), said("peer_lost", 0, seconds=30.2)]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert named(verdict)[:2] == (2, expected)


@pytest.mark.parametrize(("worked", "expected"), [(30.0, "user_code_exception"), (29.0, "user_exit")])
def test_buffered_lines_that_arrive_at_an_exit_show_no_work_after_the_exception_of_a_thread(worked, expected):
    ranks = ranks_of(left(2, 3, per_node=4, seconds=30.1, worked_at=at(worked)), seconds=30.3)
    evidence = [raised("user_code_exception", 2, seconds=5.0, thread=True), said("peer_lost", 0, seconds=30.2)]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert named(verdict)[:2] == (2, expected)


@pytest.mark.parametrize("raising", [0, 300])
def test_the_ends_of_many_ranks_are_not_compared_each_with_each_anew(monkeypatch, raising):
    """Half a job killed, half of it raised: the times of the ends are made once a rank, not once a pair."""
    made = 0
    inner = Subject.moment

    def counted(self, *arguments):
        nonlocal made
        made += 1
        return inner(self, *arguments)

    monkeypatch.setattr(Subject, "moment", counted)
    ends = [died(n, 9, per_node=8, seconds=1.0) for n in range(raising, 600)]
    ends += [left(n, 1, per_node=8, seconds=1.3) for n in range(raising)]
    evidence = [raised("user_code_exception", n, seconds=1.2) for n in range(raising)]
    evidence += [raised("peer_lost", n, seconds=1.1) for n in range(raising)]
    diagnose(case(ends, evidence, slots=slots(75)))
    assert made < 100 * 600


def test_a_printed_abort_of_another_rank_hides_no_crash_that_the_wrapper_saw():
    """Text of a job may claim anything; the wait status is a fact."""
    crashed = died(2, 11, per_node=4, seconds=1.0)
    abort = piece("user_exit", 1, seconds=0.1, source="log", slot=0, signature="user_exit.mpi_abort")
    end = of_rank_end(crashed, attempt=1)
    assert end is not None
    ranks = [rank(0), left(1, 1, per_node=4, seconds=2.0), crashed]
    verdict = diagnose(case(ranks, [abort, end], slots=slots(1))).verdict
    assert named(verdict)[:2] == (2, "segfault")
