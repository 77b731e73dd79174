"""The reducer against the scenarios of the facts (errors.md section 7) that need no real process."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from rankfall.model import SlotFacts
from rankfall.verdict.diagnose import diagnose
from support.cases import at, case, died, left, piece, rank, slots


def victims(verdict):
    return sorted(c.rank for c in verdict.consequences)


def test_errors_s1_the_one_that_raised_is_named_though_others_fail_too():
    ranks = [left(0, 1, seconds=3), left(1, 1, seconds=3), left(2, 1, seconds=1), left(3, 1, seconds=2)]
    evidence = [
        piece("user_code_exception", 2, seconds=1),
        *(piece("peer_lost", n, role="secondary", seconds=2) for n in (0, 1, 3)),
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.node, verdict.cause.slug) == (2, "node1", "user_code_exception")
    assert verdict.cause.confidence == "proven"
    assert victims(verdict) == [0, 1, 3]


def test_errors_s13_a_record_without_time_does_not_win_as_earliest():
    ranks = [left(0, 1), left(1, 1)]
    evidence = [
        piece("peer_lost", 0, role="secondary", seconds=None),
        piece("user_code_exception", 1, seconds=5),
    ]
    assert diagnose(case(ranks, evidence)).verdict.rank == 1


def test_errors_s13_an_unknown_time_never_beats_a_known_one_by_time():
    ranks = [left(0, 1), left(1, 1)]
    evidence = [
        piece("user_code_exception", 0, seconds=None, line="A"),
        piece("user_code_exception", 1, seconds=5, line="B"),
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert verdict.cause.confidence == "likely"
    assert [a.rank for a in verdict.alternatives] == [1]


def test_errors_s16_equal_times_in_any_order_give_one_verdict():
    ranks = [left(n, 1) for n in range(4)]
    evidence = [piece("user_code_exception", n, seconds=1, line=f"line {n}") for n in range(4)]
    rng = random.Random(7)
    answers = set()
    for _ in range(50):
        rng.shuffle(evidence)
        answers.add(msgspec.json.encode(diagnose(case(ranks, evidence)).verdict))
    assert len(answers) == 1


def test_errors_s21_a_rendezvous_shutdown_error_does_not_mask_the_worker():
    evidence = [
        piece("user_code_exception", 1, seconds=1),
        piece("rdzv_closed", None, role="secondary", seconds=2, slot=0),
    ]
    assert diagnose(case([left(0, 1), left(1, 1)], evidence)).verdict.rank == 1


def test_errors_s22_siblings_stopped_by_the_agent_are_victims():
    ranks = [left(0, 1), *(died(n, 15, by="agent", seconds=2) for n in range(1, 8))]
    verdict = diagnose(case(ranks, [piece("user_code_exception", 0)])).verdict
    assert verdict.rank == 0
    assert {c.slug for c in verdict.consequences} == {"peer_teardown"}
    assert victims(verdict) == list(range(1, 8))
    assert verdict.alternatives == ()


def test_errors_s23_nothing_of_another_attempt_counts():
    evidence = [
        piece("host_oom", 0, attempt=1, trust="kernel", source="kernel"),
        piece("user_code_exception", 1, attempt=3),
    ]
    verdict = diagnose(case([left(0, 1), left(1, 1)], evidence, attempt=3)).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "user_code_exception")


def test_errors_s25_a_controllers_words_are_never_the_cause():
    evidence = [
        piece("controller_verdict", None, role="primary", slot=0, source="event", trust="platform"),
        piece("peer_lost", 1, role="secondary", seconds=2),
    ]
    verdict = diagnose(case([left(0, 1), left(1, 1)], evidence)).verdict
    assert verdict.cause.slug != "controller_verdict"


@pytest.mark.parametrize("slug", ["controller_verdict", "peer_teardown"])
def test_errors_s25_where_only_stops_and_controllers_speak_the_cause_is_unknown_and_they_are_shown(slug):
    verdict = diagnose(case([], [piece(slug, None, role="secondary", source="log", trust="launcher")])).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("unknown", "unknown", None)
    assert [one.slug for one in verdict.evidence] == [slug]
    assert verdict.missing[0].startswith("a message of the part that failed first")
    # Beside the word of a rank that lost its partner it changes nothing.
    both = [
        piece(slug, None, role="secondary", source="log", trust="launcher"),
        piece("peer_lost", 1, role="secondary"),
    ]
    assert diagnose(case([], both)).verdict.cause.slug == "peer_lost"


def test_errors_s27_a_killed_rank_beats_the_earlier_word_of_its_victim():
    ranks = [left(0, 1, seconds=1.2), left(1, 1, seconds=1.2), left(2, 1, seconds=1.2), died(3, 9, seconds=1.02)]
    evidence = [piece("peer_lost", n, role="secondary", seconds=1.0) for n in (0, 1, 2)]
    diagnosis = diagnose(case(ranks, evidence))
    assert (diagnosis.verdict.rank, diagnosis.verdict.cause.slug) == (3, "killed_unknown")
    assert diagnosis.exit_code == 137
    assert victims(diagnosis.verdict) == [0, 1, 2]
    assert diagnosis.verdict.node_action == "none"


def test_errors_s28_the_counter_makes_it_out_of_memory_and_its_absence_does_not():
    ranks = [left(0, 1), died(1, 9)]
    lost = piece("peer_lost", 0, role="secondary", seconds=1)
    assert diagnose(case(ranks, [lost])).verdict.cause.slug == "killed_unknown"
    counter = piece("host_oom", 1, source="kernel", trust="wrapper", specificity=85)
    verdict = diagnose(case(ranks, [lost, counter])).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (1, "host_oom", "proven")
    assert verdict.retry == "no"


def test_errors_s29_of_a_hang_the_odd_one_out_is_named_not_the_first_to_complain():
    ranks = [rank(n, state="running") for n in range(6)]
    evidence = [
        piece("collective_timeout", 2, role="secondary", seconds=1),
        *(piece("collective_timeout", n, role="secondary", seconds=2) for n in (0, 1, 3, 4)),
        piece("rank_stuck", 5, source="recorder", seconds=3),
    ]
    verdict = diagnose(
        case(ranks, evidence, ended=False, hung=True, slots=slots(3, state="running", exit_code=None))
    ).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (5, "rank_stuck", "suspected")


def test_errors_s31_the_same_error_everywhere_is_one_cause_of_nobodys_node():
    ranks = [left(n, 1, seconds=1 + n / 20) for n in range(16)]
    evidence = [piece("user_code_exception", n, seconds=1 + n / 20, line="ValueError: x") for n in range(16)]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.scope, verdict.node_action, verdict.retry) == (None, "all", "none", "no")
    assert verdict.consequences == ()


def test_errors_s31_ranks_stopped_before_they_could_raise_do_not_hide_that_it_was_everywhere():
    ranks = [left(0, 1), died(1, 15, by="agent"), left(2, 1), died(3, 15, by="agent")]
    evidence = [piece("import_error", n, line="ModuleNotFoundError") for n in (0, 2)]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.scope) == (None, "all")


def test_errors_s32_an_informational_xid_does_not_beat_a_users_error():
    evidence = [
        piece("gpu_app_xid", 0, role="context", source="kernel", trust="kernel", seconds=0.5),
        piece("user_code_exception", 1, seconds=1),
    ]
    assert diagnose(case([left(0, 1), left(1, 1)], evidence)).verdict.cause.slug == "user_code_exception"


def test_errors_s33_a_kernel_fact_wins_and_its_gpu_is_named():
    evidence = [
        piece("gpu_ecc", 1, source="kernel", trust="kernel", gpu="0000:4e:00", seconds=1),
        piece("gpu_ecc", 1, seconds=2),
        piece("peer_lost", 0, role="secondary", seconds=2),
    ]
    verdict = diagnose(case([left(0, 1), left(1, 1)], evidence)).verdict
    assert (verdict.rank, verdict.gpu, verdict.retry, verdict.node_action) == (1, "0000:4e:00", "elsewhere", "taint")


def test_text_of_a_job_alone_never_taints():
    evidence = [piece("gpu_ecc", 1, source="log", trust="job")]
    assert diagnose(case([left(0, 1), left(1, 1)], evidence)).verdict.node_action == "suspect"


def test_errors_s34_no_evidence_is_unknown_with_what_is_missing():
    verdict = diagnose(case([], [], world_size=4)).verdict
    assert (verdict.cause.slug, verdict.cause.confidence) == ("unknown", "unknown")
    assert any("ranks 0, 1, 2, 3" in text for text in verdict.missing)
    assert (verdict.node_action, verdict.retry) == ("none", "once")


def test_errors_s38_the_lower_cause_of_a_dead_data_worker_wins():
    evidence = [
        piece("dataloader_died", 0, role="secondary", specificity=60, seconds=1),
        piece("shm_exhausted", 0, source="log", trust="job", specificity=80, seconds=0.9),
    ]
    assert diagnose(case([left(0, 1), left(1, 1)], evidence)).verdict.cause.slug == "shm_exhausted"


def test_errors_s39_one_pod_without_room_is_the_cause_and_not_the_time_out_of_the_others():
    words = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."
    place = {"source": "pod", "trust": "platform", "slot": 1, "line": words}
    evidence = [
        *(piece("rdzv_closed", number, role="secondary", seconds=600) for number in (0, 1)),
        piece("unschedulable", None, seconds=1, **place),
    ]
    # Slot 1 never began, so its ranks 2 and 3 were never seen.
    verdict = diagnose(case([left(0, 1, seconds=601), left(1, 1, seconds=601)], evidence, world_size=4)).verdict
    assert (verdict.cause.slug, verdict.slot, verdict.rank) == ("unschedulable", 1, None)
    assert verdict.decisive.line == words
    assert (verdict.cause.family, verdict.node_action) == ("platform", "none")
    assert victims(verdict) == [0, 1]


def test_errors_s40_a_cancelled_run_is_cancelled_whatever_the_ranks_say():
    verdict = diagnose(case([died(0, 15)], [], cancelled="cancelled by the user")).verdict
    assert (verdict.state, verdict.cause.slug, verdict.retry) == ("cancelled", "cancelled", "no")


def test_uneven_data_names_the_rank_that_left_with_success():
    ranks = [left(0, 1, seconds=3), left(1, 0, seconds=1), left(2, 1, seconds=3), left(3, 1, seconds=3)]
    evidence = [piece("peer_lost", n, role="secondary", seconds=2) for n in (0, 2, 3)]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "uneven_data")


@pytest.mark.parametrize(
    ("ended", "complain", "slug"),
    [
        # A busy wrapper sees the end after the partners did.
        (2.6, (0, 2, 3), "uneven_data"),
        # Long after: it went on without them.
        (9, (0, 2, 3), "peer_lost"),
        # Rank 3 was stopped before it could say whether it had lost anybody.
        (2.6, (0, 2), "peer_lost"),
    ],
)
def test_uneven_data_is_suspected_where_the_end_was_seen_a_moment_late(ended, complain, slug):
    last = left(3, 1, seconds=3) if 3 in complain else died(3, 15, by="wrapper", seconds=3)
    ranks = [left(0, 1, seconds=3), left(1, 0, seconds=ended), left(2, 1, seconds=3), last]
    evidence = [piece("peer_lost", n, role="secondary", seconds=2) for n in complain]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.cause.slug, verdict.cause.confidence) == (slug, "suspected")
    assert verdict.rank in {1, None}


def test_a_watchdogs_abort_is_a_victims_end():
    ranks = [died(0, 6), died(1, 6)]
    evidence = [piece("collective_timeout", n, role="secondary", peers=(1,)) for n in (0,)]
    ranks = [died(0, 6), rank(1, state="running")]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert verdict.cause.slug == "collective_timeout"
    assert verdict.rank == 1
    assert verdict.cause.confidence == "suspected"


def test_a_killed_agent_is_a_fault_of_its_slot():
    ranks = [left(0, 1), left(1, 1), died(2, 9, by="wrapper", seconds=2), died(3, 9, by="wrapper", seconds=2)]
    agents = (
        SlotFacts(slot=0, node="node0", launcher="torchrun", state="ended", exit_code=1),
        SlotFacts(
            slot=1, node="node1", launcher="torchrun", state="ended", signal=9, killed_by="foreign", ended_at=at(1)
        ),
    )
    evidence = [piece("peer_lost", n, role="secondary", seconds=1.5) for n in (0, 1)]
    verdict = diagnose(case(ranks, evidence, slots=agents)).verdict
    assert (verdict.scope, verdict.slot, verdict.node, verdict.rank) == ("slot", 1, "node1", None)
    assert verdict.cause.slug == "killed_unknown"


def test_a_signal_to_one_agent_is_named_at_its_slot():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="agent"), died(3, 15, by="agent")]
    evidence = [
        piece("external_signal", None, role="secondary", slot=1, source="log", trust="job", seconds=1),
        *(piece("peer_lost", n, role="secondary", seconds=1.5) for n in (0, 1)),
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.cause.slug, verdict.slot, verdict.rank, verdict.retry) == ("external_signal", 1, None, "yes")


def test_a_line_that_was_lived_through_is_no_cause():
    ranks = [left(0, 1, seconds=100), left(1, 1, seconds=101)]
    evidence = [
        piece("hub_unreachable", 0, source="log", trust="job", seconds=10),
        piece("user_code_exception", 0, seconds=100),
        piece("peer_lost", 1, role="secondary", seconds=100.5),
    ]
    assert diagnose(case(ranks, evidence)).verdict.cause.slug == "user_code_exception"


def test_a_nameless_exception_after_a_death_is_its_echo():
    ranks = [died(0, 9, seconds=1), left(1, 1, seconds=4)]
    evidence = [piece("user_code_exception", 1, seconds=3, line="StepFailed: partner gone")]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.cause.slug) == (0, "killed_unknown")


def test_a_crash_signal_is_an_explicit_fault():
    ranks = [left(0, 1), died(1, 11)]
    verdict = diagnose(case(ranks, [piece("peer_lost", 0, role="secondary")])).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "segfault")


def test_a_bare_code_beside_a_victims_word_says_nothing():
    ranks = [left(0, 3, seconds=1), left(1, 1, seconds=2)]
    verdict = diagnose(case(ranks, [piece("peer_lost", 1, role="secondary", seconds=1.5)])).verdict
    assert (verdict.rank, verdict.cause.slug) == (0, "user_exit")
    assert diagnose(case(ranks, [piece("peer_lost", 1, role="secondary")])).exit_code == 3


def test_port_taken_beats_the_others_that_never_reached_it():
    evidence = [
        piece("address_in_use", None, slot=0, source="log", trust="job", seconds=1),
        piece("rdzv_unreachable", None, slot=1, source="log", trust="job", seconds=0.5),
    ]
    verdict = diagnose(case([], evidence, world_size=4, slots=slots(2))).verdict
    assert (verdict.cause.slug, verdict.slot) == ("address_in_use", 0)


def test_an_earlier_round_is_history():
    ranks = [left(0, 1, round=0), left(0, 0, round=1, pid=7), left(1, 1, round=1)]
    evidence = [
        piece("user_code_exception", 0, round=0, line="old"),
        piece("bad_sample", 1, round=1),
    ]
    assert diagnose(case(ranks, evidence, world_size=2)).verdict.cause.slug == "bad_sample"


def test_a_running_job_without_failure_has_none():
    verdict = diagnose(
        case([rank(0, state="running")], [], ended=False, slots=slots(1, state="running", exit_code=None))
    ).verdict
    assert verdict.state == "running"


@pytest.mark.parametrize("signal", [15, 2, 1, 10])
def test_a_foreign_stop_signal_to_one_rank_is_external(signal):
    ranks = [left(0, 1), died(1, signal)]
    verdict = diagnose(case(ranks, [piece("peer_lost", 0, role="secondary")])).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "external_signal")


def test_every_permutation_of_a_small_case_gives_one_verdict():
    ranks = [left(0, 1), died(1, 9), left(2, 0), left(3, 1)]
    evidence = [
        piece("peer_lost", 0, role="secondary", seconds=1),
        piece("user_code_exception", 3, seconds=1),
        piece("host_oom", 1, source="kernel", trust="wrapper"),
        piece("rdzv_closed", None, role="secondary", slot=0),
    ]
    answers = {
        msgspec.json.encode(diagnose(case(list(r), list(e))).verdict)
        for r in itertools.permutations(ranks)
        for e in itertools.permutations(evidence)
    }
    assert len(answers) == 1


def test_who_ended_well_after_a_complaint_did_not_leave_early():
    """Rank 1 lost a partner outside of the job; the others went on and finished later."""
    ranks = [left(0, 0, seconds=5), left(1, 1, seconds=2), left(2, 0, seconds=6), left(3, 0, seconds=7)]
    evidence = [piece("peer_lost", 1, role="secondary", seconds=1.9)]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (1, "peer_lost", "suspected")


def test_ranks_that_all_stand_in_one_place_are_one_standstill():
    ranks = [rank(n, state="running") for n in range(4)]
    evidence = [piece("rank_stuck", n, source="recorder", fingerprint="rank_stuck:t.py:load:3") for n in range(4)]
    standing = slots(2, state="running", exit_code=None)
    verdict = diagnose(case(ranks, evidence, ended=False, hung=True, slots=standing)).verdict
    assert (verdict.rank, verdict.scope, verdict.cause.slug) == (None, "all", "rank_stuck")


def test_without_the_hook_a_bare_one_beside_complaints_of_nobody_is_no_cause():
    """Ranks without the hook exit 1; the slots' streams hold time-outs, and who spoke them is not known."""
    ranks = [left(n, 1, hook="absent") for n in range(4)]
    words = [
        piece("collective_timeout", None, role="secondary", slot=n, source="log", trust="job", stream=f"s{n}")
        for n in (0, 1)
    ]
    verdict = diagnose(case(ranks, words)).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry) == ("collective_timeout", "suspected", "once")


def test_a_launchers_own_crash_is_not_given_to_a_rank_that_has_streams_of_its_own():
    ranks = [left(0, 1), left(1, 1), left(2, 1), died(3, 15, by="agent")]
    evidence = [
        piece("user_code_exception", 2, seconds=1),
        piece("native_abort", None, slot=1, source="log", trust="job", stream="slot", seconds=3),
        *(piece("peer_lost", n, role="secondary", seconds=1.5) for n in (0, 1)),
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.cause.slug) == (2, "user_code_exception")


def test_ranks_of_a_slot_that_was_struck_are_no_victims_of_it():
    ranks = [left(n, 1, hook="absent") for n in range(4)]
    evidence = [
        piece("import_error", None, slot=n, source="log", trust="job", stream=f"s{n}", line="x") for n in (0, 1)
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.scope, verdict.rank, verdict.consequences) == ("all", None, ())


def test_a_rendezvous_that_a_signal_took_away_is_a_consequence_of_the_signal():
    ranks = [died(n, 15, by="agent", seconds=1.2) for n in range(2)] + [left(n, 1, seconds=3) for n in (2, 3)]
    evidence = [
        piece("external_signal", None, role="secondary", slot=0, source="log", trust="job", seconds=1),
        piece("rdzv_unreachable", None, slot=1, source="log", trust="job", seconds=2),
        *(piece("peer_lost", n, role="secondary", seconds=1.5) for n in (2, 3)),
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.cause.slug, verdict.slot, verdict.retry) == ("external_signal", 0, "yes")


def test_a_rendezvous_that_was_never_there_is_not_explained_by_a_later_signal():
    evidence = [
        piece("rdzv_unreachable", None, slot=1, source="log", trust="job", seconds=1),
        piece("external_signal", None, role="secondary", slot=0, source="log", trust="job", seconds=60),
    ]
    assert diagnose(case([], evidence, world_size=4, slots=slots(2))).verdict.cause.slug == "rdzv_unreachable"


def test_a_loader_child_that_was_killed_says_more_than_its_parents_exit_code():
    ranks = [left(0, 1, seconds=1, hook="absent"), left(1, 1, seconds=2)]
    word = piece("dataloader_died", 0, source="log", trust="job", specificity=46, signature="dataloader_died.sigkill")
    lost = piece("peer_lost", 1, role="secondary", seconds=2)
    verdict = diagnose(case(ranks, [word, lost])).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (0, "dataloader_died", "likely")
    assert victims(verdict) == [1]


def test_a_loader_child_that_fell_when_we_stopped_its_parent_is_no_cause():
    ranks = [died(0, 9, by="wrapper", seconds=3), left(1, 3, seconds=1)]
    word = piece("dataloader_died", 0, source="log", trust="job", seconds=3, signature="dataloader_died.sigkill")
    verdict = diagnose(case(ranks, [word])).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "user_exit")


def test_those_who_wait_for_the_stuck_one_are_its_victims():
    ranks = [rank(n, state="running") for n in range(3)]
    evidence = [
        piece("rank_stuck", 1, source="recorder", fingerprint="rank_stuck:t.py:load:3"),
        *(piece("rank_stuck", n, role="context", source="recorder", line=f"rank {n} waits") for n in (0, 2)),
    ]
    verdict = diagnose(case(ranks, evidence, ended=False, hung=True)).verdict
    assert (verdict.rank, victims(verdict)) == (1, [0, 2])
    assert {c.because for c in verdict.consequences} == {"rank 0 waits", "rank 2 waits"}


def test_a_complaint_that_a_launcher_repeats_is_not_the_silent_ranks():
    ranks = [left(0, 1, seconds=1, hook="absent"), died(1, 15, seconds=2, by="agent", hook="absent")]
    said = {"role": "secondary", "source": "log", "trust": "job", "seconds": 1.5, "slot": 0}
    own = piece("peer_lost", 1, line="[rank1]: RuntimeError: Connection closed by peer [10.0.0.1]:23470", **said)
    repeated = piece("peer_lost", None, line="  RuntimeError: Connection closed by peer [10.0.0.1]:23470", **said)
    verdict = diagnose(case(ranks, [own, repeated])).verdict
    assert (verdict.rank, verdict.cause.slug) == (0, "user_exit")
    other = piece("peer_lost", None, line="  RuntimeError: Connection closed by peer [10.0.0.2]:1", **said)
    assert diagnose(case(ranks, [own, other])).verdict.cause.slug != "user_exit"


def test_a_rank_that_left_with_the_others_code_before_its_agents_signal_came_is_struck_too():
    ranks = [left(n, 5, seconds=1 + n / 100, hook="absent") for n in range(4)]
    stop = piece("peer_teardown", 3, role="secondary", source="log", trust="launcher", seconds=1.02)
    verdict = diagnose(case(ranks, [stop])).verdict
    assert (verdict.rank, verdict.scope, verdict.cause.slug, victims(verdict)) == (None, "all", "user_exit", [])
    other = [*ranks[:3], left(3, 1, seconds=1.03, hook="absent")]
    assert diagnose(case(other, [stop])).verdict.scope == "rank"


@pytest.mark.parametrize(("ended", "blamed"), [(False, None), (True, 2)])
def test_a_plain_slot_that_was_killed_whole_is_the_cause_and_one_whose_rank_fell_only_repeats_its_code(ended, blamed):
    own = [died(2, 9, seconds=0.9), rank(3, state="running")] if ended else [rank(n, state="running") for n in (2, 3)]
    wrappers = (
        SlotFacts(slot=0, node="node0", launcher="plain", state="ended", exit_code=1),
        SlotFacts(slot=1, node="node1", launcher="plain", state="ended", signal=9, killed_by="foreign", ended_at=at(1)),
    )
    words = [piece("peer_lost", number, role="secondary", seconds=1.1) for number in (0, 1)]
    verdict = diagnose(case([left(0, 1), left(1, 1), *own], words, slots=wrappers)).verdict
    assert (verdict.cause.slug, verdict.slot, verdict.rank) == ("killed_unknown", 1, blamed)
    assert victims(verdict)[:2] == [0, 1]


@pytest.mark.parametrize(("seconds", "slug", "rank"), [(20.0, "user_code_exception", 1), (0.5, "preempted", None)])
def test_a_pod_that_is_taken_away_after_a_rank_failed_is_not_the_cause_and_before_it_is(seconds, slug, rank):
    taken = piece(
        "preempted", None, seconds=seconds, slot=1, source="pod", trust="platform", specificity=85, uncertainty=1.0
    )
    own = piece("user_code_exception", 1, seconds=5)
    verdict = diagnose(case([left(0, 1, seconds=6), left(1, 1, seconds=5)], [taken, own], slots=slots(2))).verdict
    assert (verdict.cause.slug, verdict.rank) == (slug, rank)


def test_an_image_that_one_node_lacks_is_tried_elsewhere_and_one_that_all_lack_is_not():
    def lacks(slot: int):
        return piece(
            "image_pull", None, slot=slot, node=f"node{slot}", source="pod", trust="platform", fingerprint="image"
        )

    begun = (*slots(1, state="running", exit_code=None), SlotFacts(slot=1, node="node1", state="expected"))
    one = diagnose(case([], [lacks(1)], slots=begun, hung=True, nnodes=2)).verdict
    assert (one.cause.slug, one.slot, one.node, one.retry) == ("image_pull", 1, "node1", "elsewhere")
    waits = tuple(SlotFacts(slot=n, node=f"node{n}", state="expected") for n in range(2))
    both = diagnose(case([], [lacks(0), lacks(1)], slots=waits, hung=True, nnodes=2)).verdict
    assert (both.scope, both.retry) == ("all", "no")
    later = msgspec.structs.replace(lacks(1), retry="yes")
    assert diagnose(case([], [later], slots=begun, hung=True, nnodes=2)).verdict.retry == "yes"


def test_several_ranks_that_ended_with_code_1_and_without_a_word_blame_none_of_them():
    ranks = [left(0, 1), left(1, 1), left(2, 0, seconds=0.5), left(3, 1)]
    verdict = diagnose(case(ranks, [])).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("user_exit", "suspected", None)
    # Nor the first of them: it may have lost a partner that left with 0, or that hangs.
    order = [left(0, 1, seconds=4), left(1, 1, seconds=4), left(2, 0, seconds=0.5), left(3, 1, seconds=2)]
    assert diagnose(case(order, [])).verdict.rank is None
    # A code of the program's own is a word.
    assert diagnose(case([left(0, 3), left(1, 0), left(2, 0), left(3, 0)], [])).verdict.rank == 0


def test_a_rank_that_ended_with_code_1_and_without_a_word_is_a_victim_of_a_lost_slot():
    wrappers = (
        SlotFacts(slot=0, node="node0", launcher="plain", state="ended", exit_code=1),
        SlotFacts(slot=1, node="node1", launcher="plain", state="lost"),
    )
    ranks = [left(0, 1), left(1, 1), rank(2, state="running"), rank(3, state="running")]
    verdict = diagnose(case(ranks, [], slots=wrappers)).verdict
    assert (verdict.cause.slug, verdict.slot, verdict.rank) == ("killed_unknown", 1, None)
    assert victims(verdict)[:2] == [0, 1]
    assert any("without a message, as a rank does that loses its peer" in one.rejected for one in verdict.alternatives)


@pytest.mark.parametrize(
    ("stamps", "uncertainty", "sure"),
    [
        # A kubelet cuts off what is less than a second: the first may have ended half a second after the second one.
        ((10.0, 10.5), 1.0, False),
        ((10.0, 12.0), 1.0, False),
        ((10.0, 13.0), 1.0, True),
        ((10.0, 10.5), 0.05, True),
    ],
)
def test_ends_of_slots_in_whole_seconds_are_in_order_only_where_their_second_leaves_no_doubt(stamps, uncertainty, sure):
    ends = tuple(
        SlotFacts(
            slot=n,
            node="node0",
            launcher="exec",
            state="ended",
            signal=(9, 15)[n],
            killed_by="foreign",
            ended_at=at(seconds),
            ended_uncertainty=uncertainty,
        )
        for n, seconds in enumerate(stamps)
    )
    verdict = diagnose(case([], [], slots=ends)).verdict
    assert ("failed later, by more than the clocks' uncertainty" in [a.rejected for a in verdict.alternatives]) is sure
    assert verdict.time.uncertainty_s == uncertainty


@pytest.mark.parametrize(
    ("signal", "died_at", "launcher", "blamed"),
    [
        # torchrun stops the rank beside one that has ended: by TERM at once, by KILL half a minute later.
        (15, 1.05, "torchrun", None),
        (15, 2.0, "torchrun", None),
        (9, 31.0, "torchrun", None),
        # Surely before it, at the very moment by a signal that torchrun does not begin with, or where nobody stops a neighbour.
        (15, 0.5, "torchrun", 3),
        (9, 1.05, "torchrun", 3),
        (15, 1.05, "plain", 3),
    ],
)
def test_errors_s22_without_torchruns_lines_a_rank_that_it_stopped_is_not_blamed(signal, died_at, launcher, blamed):
    ranks = [left(0, 1, seconds=1.3), left(1, 1, seconds=1.3), left(2, 1), died(3, signal, seconds=died_at)]
    verdict = diagnose(case(ranks, [], slots=slots(2, launcher=launcher))).verdict
    assert verdict.rank == blamed
    if blamed is None:
        assert verdict.cause.confidence in {"suspected", "unknown"}
        assert any("torchrun ends a rank like this" in one.rejected for one in verdict.alternatives)


def test_errors_s22_without_torchruns_lines_nobody_is_blamed_whose_neighbour_ended_as_a_rank_elsewhere_did():
    ranks = [died(0, 15, seconds=1.1), left(1, 1), left(2, 1), died(3, 15, seconds=1.1)]
    verdict = diagnose(case(ranks, [], slots=slots(2, launcher="torchrun"))).verdict
    assert verdict.rank is None
    assert verdict.cause.confidence in {"suspected", "unknown"}
    stopped = [one.rank for one in verdict.alternatives if "torchrun ends a rank like this" in one.rejected]
    assert sorted(stopped) == [0, 3]


@pytest.mark.parametrize(
    ("before", "role", "blamed"),
    [
        ("user_code_exception", "primary", (2, "user_code_exception")),
        # A rank that only complained before it left is no cause, whatever its threads said on its way out.
        ("peer_lost", "secondary", (3, "user_code_exception")),
    ],
)
def test_errors_s1_an_abort_while_leaving_says_nothing_of_a_rank_that_had_spoken(before, role, blamed):
    evidence = [
        piece(before, 2, role=role, seconds=1.0, line="first"),
        piece("native_abort", 2, seconds=1.1, signature="native_abort.thread_left", source="log", trust="job"),
        piece("native_abort", 2, seconds=1.3, signature="native_abort.exit", source="log", trust="launcher"),
    ]
    if blamed[0] != 2:
        evidence.append(piece("user_code_exception", 3, seconds=1.2))
    verdict = diagnose(case([died(2, 6, seconds=1.2), left(3, 1, seconds=1.2)], evidence)).verdict
    assert (verdict.rank, verdict.cause.slug) == blamed


def test_an_abort_while_leaving_is_the_cause_where_nothing_else_is_said():
    abort = piece("native_abort", 2, seconds=1.1, signature="native_abort.thread_left", source="log", trust="job")
    verdict = diagnose(case([died(2, 6, seconds=1.2)], [abort])).verdict
    assert (verdict.rank, verdict.cause.slug) == (2, "native_abort")
