"""The scenarios of node health that need no cluster: what is tainted, what is not, what comes back, and who may say so."""

from __future__ import annotations

import msgspec
import pytest

from nodes.cluster import SECOND, Cluster
from rankfall.nodes.config import parse_config
from rankfall.nodes.rules.node_state import CheckRound, Clear, Remedy, condition
from rankfall.nodes.rules.policy import Budget, Policy, Taint

pytestmark = pytest.mark.steady

XID = "xid/79"


def rounds(cluster: Cluster, node: str, count: int = 2, *, outcome: str = "passed", step_s: float = 60) -> None:
    for _ in range(count):
        cluster.later(step_s)
        cluster.see(CheckRound(node=node, at=cluster.now, outcome=outcome, check="nvidia-smi"))  # type: ignore[arg-type]


def test_health_s01_a_fatal_line_taints_its_node_and_no_other():
    cluster = Cluster(20)
    plan = cluster.see(cluster.fault("n1", XID))
    assert cluster.tainted == {"n1"}
    assert cluster.taints("n1") == (Taint("rankfall.dev/faulty", "NoSchedule", "true"),)
    assert [patch.node for patch in plan.patches] == ["n1"]
    told = plan.patches[0].condition
    assert (told.status, told.reason) == ("False", "Quarantined")
    assert "xid/79 gpu 0000:4e:00" in told.message
    assert "Quarantined" in cluster.reasons("n1")
    assert cluster.see().patches == ()
    seed = Cluster(4, policy=Policy(key="trainy.konduktor.ai/faulty"))
    seed.see(seed.fault("n1", XID))
    assert seed.taints("n1") == (Taint("trainy.konduktor.ai/faulty", "NoSchedule", "true"),)


@pytest.mark.parametrize(
    ("code", "acts"),
    [("sxid/20034/fatal", True), ("sxid/19049/nonfatal", False), ("xid/149/fatal", True), ("xid/145/nonfatal", False)],
)
def test_health_s03_s04_s28_the_line_says_whether_the_node_is_tainted(code, acts):
    cluster = Cluster()
    cluster.see(cluster.fault("n1", code))
    assert cluster.tainted == ({"n1"} if acts else set())


def test_health_s07_text_of_a_pod_taints_nothing_unless_an_operator_says_so():
    cluster = Cluster()
    printed = cluster.fault("n2", XID, trust="pod_text", source="pod_log")
    plan = cluster.see(printed)
    assert plan.outcomes == ((printed.id, "untrusted"),)
    assert cluster.tainted == set()
    assert cluster.writes == 0
    believing = Cluster(policy=Policy(pod_codes=frozenset({XID})))
    believing.see(believing.fault("n2", XID, trust="pod_text", source="pod_log"))
    assert believing.tainted == {"n2"}


def test_what_a_process_wrote_into_the_kernels_log_counts_in_the_test_mode_only():
    for accept, tainted in ((False, set()), (True, {"n1"})):
        cluster = Cluster(policy=Policy(accept_injected=accept))
        cluster.see(cluster.fault("n1", XID, trust="injected"))
        assert cluster.tainted == tainted


def test_health_s09_all_checks_pass_and_the_taint_goes_a_failing_one_keeps_it_and_is_named():
    cluster = Cluster(policy=Policy(clean_rounds=2, clean_s=60, validate_after_s=300))
    cluster.see(cluster.fault("n1", XID))
    rounds(cluster, "n1")  # nobody asked for them yet
    assert cluster.tainted == {"n1"}
    cluster.later(301)
    cluster.see()
    assert cluster.record("n1").state == "validating"
    rounds(cluster, "n1", 1, outcome="failed")
    assert (cluster.record("n1").state, cluster.record("n1").failed_check) == ("quarantined", "nvidia-smi")
    assert "nvidia-smi" in condition(cluster.record("n1"), cluster.rules).message
    cluster.later(301)
    cluster.see()
    rounds(cluster, "n1", 1)
    assert cluster.tainted == {"n1"}
    rounds(cluster, "n1", 1)
    assert cluster.tainted == set()
    assert "Returned" in cluster.reasons("n1")
    assert condition(cluster.record("n1"), cluster.rules).status == "True"


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_health_s11_an_application_xid_taints_nothing(number):
    cluster = Cluster()
    for _ in range(5):
        cluster.later(1)
        cluster.see(cluster.fault("n1", f"xid/{number}", job="one"))
    assert cluster.tainted == set()


def test_health_s12_a_contained_error_acts_when_it_strikes_a_second_job_on_the_same_gpu():
    cluster = Cluster()
    for job, device in (("one", "gpu a"), ("one", "gpu a"), ("two", "gpu b"), (None, "gpu c"), (None, "gpu c")):
        cluster.later(1)
        cluster.see(cluster.fault("n1", "xid/94", job=job, device=device))
    assert cluster.tainted == set()
    cluster.see(cluster.fault("n1", "xid/94", job="two", device="gpu a"))
    assert cluster.tainted == {"n1"}


def test_health_s13_a_storm_of_one_node_hides_no_other():
    cluster = Cluster()
    storm = [cluster.fault("n1", "xid/31", job="one") for _ in range(5_000)]
    plan = cluster.see(*storm, cluster.fault("n2", XID))
    assert cluster.tainted == {"n2"}
    assert len(plan.outcomes) == 5_001
    assert cluster.record("n1").causes[0].count >= 4


def test_health_s16_killed_between_decision_and_write_the_end_is_the_same():
    cluster = Cluster()
    fault = cluster.fault("n1", XID)
    cluster.see(fault, apply=False)  # killed before the request
    cluster.see(fault)
    assert cluster.tainted == {"n1"}
    writes = cluster.writes
    plan = cluster.see(fault, fault)
    assert plan.outcomes == ((fault.id, "seen"), (fault.id, "seen"))
    assert (cluster.writes, len(cluster.taints("n1")), plan.happenings) == (writes, 1, ())


def test_health_s17_a_line_that_came_four_minutes_late_acts_once():
    cluster = Cluster()
    late = cluster.fault(
        "n1", XID, source="loki", trust="collector", boot=None, seq=None, at=cluster.now - 240 * SECOND
    )
    cluster.see(late)
    cluster.see(late)
    assert cluster.tainted == {"n1"}
    assert cluster.record("n1").causes[0].count == 1


def test_health_s18_s20_foreign_taints_and_cordons_stay_and_a_stale_patch_is_refused():
    cluster = Cluster()
    foreign = {"key": "example.com/broken", "effect": "NoExecute", "timeAdded": "2026-11-21T09:00:00Z"}
    cluster.nodes["n1"]["spec"] = {"unschedulable": True, "taints": [foreign]}
    cluster.see(cluster.fault("n1", XID))
    assert [each.key for each in cluster.taints("n1")] == ["example.com/broken", "rankfall.dev/faulty"]
    cluster.see(Clear(node="n1", at=cluster.now, by="someone"))
    assert cluster.nodes["n1"]["spec"] == {"unschedulable": True, "taints": [foreign]}


def test_health_s19_a_node_that_is_gone_hinders_no_other():
    cluster = Cluster()
    gone = cluster.fault("n9", XID)
    plan = cluster.see(gone, CheckRound(node="n9", at=cluster.now, outcome="passed"), cluster.fault("n1", XID))
    assert plan.outcomes[0] == (gone.id, "no_node")
    assert cluster.tainted == {"n1"}


def test_health_s22_over_budget_is_said_and_acted_on_when_there_is_room():
    cluster = Cluster(4, policy=Policy(budget=Budget(nodes=1, percent=100)))
    cluster.see(*(cluster.fault(f"n{n}", XID) for n in (1, 2, 3)))
    assert cluster.tainted == {"n1"}
    for name in ("n2", "n3"):
        assert (cluster.record(name).state, cluster.record(name).held) == ("suspect", "budget")
        assert condition(cluster.record(name), cluster.rules).reason == "HeldBudget"
        assert "QuarantineHeld" in cluster.reasons(name)
    assert cluster.see().happenings == ()
    cluster.policy = msgspec.structs.replace(cluster.policy, budget=Budget(nodes=2, percent=100))
    cluster.see()
    assert cluster.tainted == {"n1", "n2"}
    cluster.see(Clear(node="n1", at=cluster.now, by="someone"))
    cluster.see()
    assert cluster.tainted == {"n2", "n3"}


def test_health_s23_a_part_of_a_small_pool_is_at_least_one_node():
    cluster = Cluster(3, policy=Policy(budget=Budget(nodes=100, percent=20)))
    cluster.nodes["n2"]["ready"] = cluster.nodes["n3"]["ready"] = False
    cluster.see(cluster.fault("n1", XID), cluster.fault("n2", XID))
    assert len(cluster.tainted) == 1
    pools = Cluster(4, policy=Policy(pools={"small": Budget(nodes=2, percent=100)}))
    for name in ("n1", "n2", "n3"):
        pools.nodes[name]["pool"] = "small"
    pools.see(*(pools.fault(f"n{n}", XID) for n in (1, 2, 3, 4)))
    assert pools.tainted == {"n1", "n2", "n4"}


def test_health_s24_a_dry_run_decides_and_writes_nothing():
    cluster = Cluster(policy=Policy(dry_run=True))
    fault = cluster.fault("n1", XID)
    plan = cluster.see(fault)
    assert (plan.patches, cluster.writes, plan.safety) == ((), 0, cluster.safety)
    assert "QuarantineHeld" in cluster.reasons("n1")
    assert plan.records["n1"].held == "dry_run"
    assert cluster.see(fault).happenings == ()


def test_health_s25_what_was_seen_under_the_kill_switch_counts_when_it_is_off():
    cluster = Cluster(policy=Policy(kill_switch=True))
    cluster.see(cluster.fault("n1", XID))
    assert (cluster.tainted, cluster.record("n1").held) == (set(), "kill_switch")
    cluster.policy = Policy()
    cluster.see()
    assert cluster.tainted == {"n1"}


def test_i32_p5_a_node_that_nvsentinel_holds_gets_no_taint_until_it_is_released():
    # A taint with NoExecute would evict what NVSentinel drains at its own pace.
    cluster = Cluster(40, policy=Policy(effect="NoExecute"))
    cluster.nodes["n1"]["holder"] = "NVSentinel: draining"
    # Two troubles: one on the held node, one on another, which is taken at once.
    cluster.see(cluster.fault("n1", XID), cluster.fault("n2", XID))
    assert (cluster.tainted, cluster.record("n1").held) == ({"n2"}, "other_holder")
    cluster.nodes["n1"]["holder"] = None
    cluster.see()
    assert cluster.tainted == {"n1", "n2"}
    # What Rankfall tainted before stays tainted when NVSentinel takes the node, too.
    cluster.nodes["n2"]["holder"] = "NVSentinel: quarantined"
    cluster.see(cluster.fault("n2", XID))
    assert cluster.tainted == {"n1", "n2"}


def test_i32_p5_conditions_of_nvsentinel_are_watched_and_taint_nothing():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "condition/GpuXidError", source="condition", trust="condition"))
    assert (cluster.tainted, cluster.record("n1").state) == (set(), "healthy")
    rule = cluster.rules.find("condition/GpuXidError")
    assert rule is not None
    assert (rule.action, rule.note.split(":")[0]) == ("watch", "NVSentinel")


def test_a_node_that_an_operator_took_out_is_left_alone_in_both_directions():
    cluster = Cluster(policy=Policy(clean_rounds=1, clean_s=0, validate_after_s=0))
    cluster.nodes["n1"]["opted_out"] = True
    cluster.see(cluster.fault("n1", XID))
    assert (cluster.tainted, cluster.record("n1").held) == (set(), "opt_out")
    cluster.nodes["n1"]["opted_out"] = False
    cluster.see()
    cluster.nodes["n1"]["opted_out"] = True
    cluster.later(1)
    cluster.see()
    rounds(cluster, "n1", 2)
    assert cluster.tainted == {"n1"}


def test_health_s27_an_action_that_is_withdrawn_begins_validation_and_frees_nothing_at_once():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "xid/154/drain_and_reset"))
    assert cluster.tainted == {"n1"}
    cluster.later(10)
    other = cluster.fault("n1", "xid/154/none", device="gpu b")
    cluster.see(other)
    assert cluster.record("n1").state == "quarantined"
    cluster.later(10)
    cluster.see(cluster.fault("n1", "xid/154/none"))
    assert (cluster.record("n1").state, cluster.tainted) == ("validating", {"n1"})
    rounds(cluster, "n1", 3)
    assert cluster.tainted == set()


def test_health_s30_a_remapped_row_is_written_down_and_drains_nothing():
    cluster = Cluster(4)
    for _ in range(3):
        plan = cluster.see(cluster.fault("n1", "xid/63"))
        assert cluster.tainted == set()
        assert all(patch.taint == "keep" for patch in plan.patches)
        cluster.later(60)
    record = cluster.record("n1")
    assert [(each.code, each.count, each.due_at is not None) for each in record.causes] == [("xid/63", 3, True)]
    assert record.state == "healthy"
    # What does act keeps new pods away and leaves those that run: no pod is evicted by our taint.
    assert cluster.policy.effect == "NoSchedule"


def test_health_s30_after_the_job_has_ended_a_remapped_row_takes_the_node_out_until_it_was_reset_and_checked():
    cluster = Cluster(4, policy=Policy(after_job=True, clean_rounds=2, clean_s=60))
    looked = cluster.now  # before the fault: it says nothing of the job that it struck
    cluster.later(1)
    cluster.see(cluster.fault("n1", "xid/63"), cluster.fault("n2", "xid/31"))
    cluster.nodes["n1"]["idle_at"] = looked
    cluster.nodes["n2"]["idle_at"] = looked
    cluster.later(8 * 86_400)  # the job goes on for days, longer than any suspicion is remembered
    cluster.see()
    assert cluster.tainted == set()
    assert [each.code for each in cluster.record("n1").causes] == ["xid/63"]
    assert cluster.record("n2").causes == ()
    cluster.nodes["n1"]["idle_at"] = cluster.now
    cluster.see()
    assert cluster.tainted == {"n1"}
    assert "Quarantined" in cluster.reasons("n1")
    # Another job's end changes nothing about what is under way.
    before = cluster.record("n1")
    cluster.later(5)
    cluster.nodes["n1"]["idle_at"] = cluster.now
    cluster.see()
    assert cluster.record("n1") == before
    cluster.see(Remedy(node="n1", at=cluster.now, step="reset_gpu", outcome="started"))
    cluster.later(5)
    cluster.see(Remedy(node="n1", at=cluster.now, step="reset_gpu", outcome="ended", ok=True))
    assert cluster.record("n1").state == "validating"
    rounds(cluster, "n1")
    assert cluster.tainted == set()


def test_health_s30_without_the_policy_nothing_waits_for_the_end_of_a_job():
    cluster = Cluster(4)
    cluster.see(cluster.fault("n1", "xid/63"))
    cluster.later(5)
    cluster.nodes["n1"]["idle_at"] = cluster.now
    cluster.see()
    assert cluster.tainted == set()


def test_health_s32_a_jobs_own_memory_limit_is_no_matter_of_the_node():
    cluster = Cluster()
    plan = cluster.see(cluster.fault("n1", "kernel/host_oom.kernel_memcg"))
    assert plan.outcomes[0][1] == "harmless"
    assert cluster.writes == 0


def test_health_s33_s34_an_unknown_code_is_shown_and_acts_when_an_operator_says_so():
    cluster = Cluster()
    fault = cluster.fault("n1", "xid/999")
    assert cluster.see(fault).outcomes == ((fault.id, "unknown"),)
    assert cluster.reasons("n1") == ["FaultUnknown"]
    assert cluster.writes == 0
    cluster.rules = parse_config('[[rule]]\ncode = "xid/999"\naction = "quarantine"', origin="own").rules
    cluster.see(fault)
    assert cluster.tainted == {"n1"}


def test_health_s40_the_taint_stays_until_the_last_cause_is_cured():
    cluster = Cluster()
    for device in ("gpu a", "gpu b"):
        cluster.see(cluster.fault("n1", "xid/154/gpu_reset", device=device))
    cluster.later(5)
    cluster.see(cluster.fault("n1", "xid/154/none", device="gpu a"))
    assert cluster.record("n1").state == "quarantined"
    cluster.later(5)
    cluster.see(cluster.fault("n1", "xid/154/none", device="gpu b"))
    assert cluster.record("n1").state == "validating"


def test_health_s41_a_check_that_could_not_be_made_is_no_pass():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "xid/154/gpu_reset"))
    cluster.later(5)
    cluster.see(cluster.fault("n1", "xid/154/none"))
    rounds(cluster, "n1", 5, outcome="unable")
    assert cluster.tainted == {"n1"}
    assert "cannot validate" in condition(cluster.record("n1"), cluster.rules).message


def test_health_s42_a_flapping_link_acts_once_and_comes_back_on_probation():
    cluster = Cluster(policy=Policy(clean_rounds=2, clean_s=60, validate_after_s=600))
    writes = []
    for _ in range(30):
        cluster.later(20)
        cluster.see(cluster.fault("n1", "kernel/nic_down.kernel", device="pci a"))
        writes.append("Quarantined" in cluster.reasons("n1"))
    assert writes.count(True) == 1
    assert writes.index(True) == 4
    cluster.later(600)
    cluster.see()
    rounds(cluster, "n1")
    assert cluster.tainted == set()
    cluster.later(60)
    cluster.see(cluster.fault("n1", "kernel/nic_down.kernel", device="pci a"))
    assert cluster.tainted == {"n1"}


def test_health_s43_a_reboot_is_proven_by_another_boot_id_only():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", XID))
    cluster.later(1)
    cluster.see(Remedy(node="n1", at=cluster.now, step="reboot", outcome="started"))
    assert cluster.record("n1").state == "remediating"
    cluster.later(1)
    cluster.see(Remedy(node="n1", at=cluster.now, step="reboot", outcome="ended", ok=True))
    assert cluster.record("n1").state == "quarantined"
    cluster.later(1)
    cluster.see(Remedy(node="n1", at=cluster.now, step="reboot", outcome="started"))
    cluster.reboot("n1")
    cluster.later(1)
    cluster.see(Remedy(node="n1", at=cluster.now, step="reboot", outcome="ended", ok=True))
    assert (cluster.record("n1").state, cluster.tainted) == ("validating", {"n1"})


def test_health_s44_163_acts_on_nothing_and_162_withdraws_it_without_checks():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "xid/163"))
    assert cluster.tainted == set()
    cluster.rules = parse_config('[[rule]]\ncode = "xid/163"\naction = "quarantine"', origin="own").rules
    cluster.see()
    assert cluster.tainted == {"n1"}
    cluster.later(5)
    cluster.see(cluster.fault("n1", "xid/162"))
    assert cluster.tainted == set()


def test_a_persons_untaint_is_respected_until_newer_evidence():
    cluster = Cluster()
    old = cluster.fault("n1", XID)
    cluster.see(old)
    unseen = cluster.fault("n1", XID)
    cluster.later(60)
    cluster.untaint("n1")
    cluster.see(old)
    assert "TaintRemovedByOthers" in cluster.reasons("n1")
    cluster.see(old, unseen)
    assert cluster.tainted == set()
    cluster.later(60)
    cluster.see(cluster.fault("n1", XID))
    assert cluster.tainted == {"n1"}


def test_lines_of_an_earlier_boot_never_taint_and_those_of_the_next_one_wait_for_it():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "xid/31", job="one"))  # there is a record, so the boot is known
    old = cluster.fault("n1", XID)
    new = cluster.reboot("n1")
    cluster.later(1)
    assert cluster.see(old).outcomes[0][1] == "stale"
    early = cluster.fault("n2", XID, boot="boot-2-1")
    plan = cluster.see(early)
    assert (plan.deferred, cluster.tainted) == ((early,), set())
    cluster.reboot("n2")
    cluster.see(early)
    assert cluster.tainted == {"n2"}
    waited = cluster.fault("n3", XID, boot="boot-3-9")
    cluster.later(601)
    assert cluster.see(waited).outcomes[0][1] == "stale"
    collected = cluster.fault(
        "n1", XID, boot=None, seq=None, at=cluster.now - 700 * SECOND, trust="collector", source="loki"
    )
    assert cluster.see(collected).outcomes[0][1] == "stale"
    assert cluster.record("n1").boot == new


def test_a_node_that_comes_back_too_often_stays_until_a_person_gives_it_back():
    cluster = Cluster(policy=Policy(clean_rounds=1, clean_s=0, validate_after_s=60, probation_s=0))
    for number in range(3):
        cluster.later(3_600)
        cluster.see(cluster.fault("n1", XID))
        assert cluster.record("n1").repeat_offender is (number == 2)
        cluster.later(61)
        cluster.see()
        rounds(cluster, "n1", 1)
        assert cluster.tainted == (set() if number < 2 else {"n1"})
    cluster.see(Clear(node="n1", at=cluster.now, by="someone\x1b[31m"))
    assert cluster.tainted == set()
    assert not cluster.record("n1").repeat_offender


def test_one_code_on_many_nodes_at_once_opens_the_breaker_until_a_person_resets_it():
    cluster = Cluster(40, policy=Policy(budget=Budget(nodes=40, percent=100), breaker_nodes=5, rate_nodes=40))
    cluster.see(*(cluster.fault(f"n{n}", XID) for n in range(1, 6)))
    assert len(cluster.tainted) == 5
    cluster.later(10)
    cluster.see(*(cluster.fault(f"n{n}", XID) for n in range(6, 9)))
    assert len(cluster.tainted) == 5
    assert "BreakerOpen" in cluster.reasons()
    cluster.later(100_000)
    cluster.see(cluster.fault("n20", "xid/48"))
    assert (len(cluster.tainted), cluster.record("n20").held) == (5, "breaker")
    cluster.safety = msgspec.structs.replace(cluster.safety, trip=None, reset_at=cluster.now)
    cluster.see()
    assert cluster.tainted >= {"n6", "n7", "n8", "n20"}


def test_no_more_than_the_rate_in_its_window():
    cluster = Cluster(40, policy=Policy(budget=Budget(percent=100), rate_nodes=2, rate_s=600))
    cluster.see(*(cluster.fault(f"n{n}", code) for n, code in ((1, XID), (2, "xid/48"), (3, "xid/95"))))
    assert len(cluster.tainted) == 2
    assert cluster.record("n3").held == "rate"
    cluster.later(601)
    cluster.see()
    assert "n3" in cluster.tainted


def test_a_suspicion_that_is_not_repeated_is_forgotten():
    cluster = Cluster()
    cluster.see(cluster.fault("n1", "kernel/nic_down.mlx5_module"), cluster.fault("n1", "kernel/disk_fault.fs_error"))
    assert cluster.record("n1").state == "suspect"
    assert condition(cluster.record("n1"), cluster.rules).status == "Unknown"
    cluster.later(3_700)
    cluster.see()
    assert (cluster.record("n1").state, cluster.record("n1").causes) == ("healthy", ())


def test_a_time_that_is_not_known_acts_on_nothing():
    cluster = Cluster()
    assert cluster.see(cluster.fault("n1", XID, at=None)).outcomes[0][1] == "untimed"
    assert cluster.tainted == set()


def test_more_causes_than_fit_keep_the_gravest_and_count_the_others():
    cluster = Cluster()
    many = [cluster.fault("n1", "xid/163", device=f"gpu {n}") for n in range(20)]
    cluster.see(*many, cluster.fault("n1", XID))
    record = cluster.record("n1")
    assert (len(record.causes), record.more, record.causes[0].code) == (16, 5, XID)
    assert cluster.tainted == {"n1"}


def test_a_taint_that_others_placed_with_our_key_is_neither_doubled_nor_taken_away():
    cluster = Cluster()
    cluster.nodes["n1"]["spec"]["taints"] = [{"key": cluster.policy.key, "effect": "NoSchedule", "value": "by-hand"}]
    cluster.see()
    assert cluster.writes == 0
    cluster.see(cluster.fault("n1", XID))
    assert len(cluster.taints("n1")) == 1


@pytest.mark.parametrize("more", [{"key": "trainy.konduktor.ai/faulty"}, {"effect": "NoExecute"}])
def test_a_taint_from_before_it_got_another_key_or_effect_is_still_ours_until_the_node_is_given_back(more):
    cluster = Cluster(20, policy=Policy(clean_rounds=2, clean_s=60, validate_after_s=60))
    cluster.see(cluster.fault("n1", XID))
    before, writes = cluster.taints("n1"), cluster.writes
    cluster.policy = msgspec.structs.replace(cluster.policy, **more)
    cluster.see()
    assert (cluster.record("n1").state, cluster.taints("n1"), cluster.writes) == ("quarantined", before, writes)
    cluster.see(cluster.fault("n2", XID))
    (new,) = cluster.taints("n2")
    assert (new.key, new.effect) == (cluster.policy.key, cluster.policy.effect)
    cluster.later(61)
    cluster.see()
    for name in ("n1", "n2"):
        rounds(cluster, name, 3)
        assert cluster.taints(name) == ()
        assert cluster.record(name).state == "healthy"


def test_healthy_nodes_cost_no_request():
    cluster = Cluster(50)
    assert cluster.see().patches == ()
    cluster.reboot("n1")
    assert cluster.see(cluster.fault("n2", "xid/43")).patches == ()
