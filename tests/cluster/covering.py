"""The bed's tests that the gate runs, by what they cover; all others of this folder are ``full`` (``make test-all``).

One test of each way through the product is enough here: a row of cases, faults or backends that shares its code with one below runs with everything.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from support.further import listed

COVERING = {
    "each backend: run, failure, verdict, restart, cancel": (
        "test_a_run_trains_over_two_nodes_and_keeps_every_line[job]",
        "test_jobapi_s28_a_case_is_the_same_on_every_backend[jobset-a_rank_is_killed]",
        "test_jobapi_s28_a_case_is_the_same_on_every_backend[jobset-an_image_does_not_exist]",
        "test_jobapi_s28_a_case_is_the_same_on_every_backend[trainjob-a_rank_is_killed]",
        "test_launch_s13_s16_s17_s18_s19_a_trainjob_under_c10d_whose_ranks_do_not_follow_the_index",
        "test_jobapi_s26_the_next_attempt_keeps_off_the_node_that_fell",
        "test_a_cancelled_run_leaves_nothing_in_the_cluster",
        "test_launch_s42_launched_again_and_removed_on_every_backend[job]",
        "test_launch_s42_launched_again_and_removed_on_every_backend[trainjob]",
    ),
    "unattended runs": (
        "test_unattended_a_run_that_is_watched_succeeds_with_every_line[trainjob]",
        "test_unattended_nobody_is_attached_at_all_and_why_knows_all_the_same[job]",
    ),
    "a supervisor that ends, a server in trouble": (
        "test_launch_s12_a_killed_supervisor_is_followed_by_another_without_loss_or_repeat",
        "test_launch_s32_ranks_that_end_while_the_api_server_is_away_lose_no_line",
        "test_jobapi_s23_a_refusal_by_the_server_or_a_webhook_is_told_and_leaves_nothing",
        "test_launch_s9_an_image_that_does_not_exist_is_named_with_its_pod",
    ),
    "logs without loss under cuts": (
        "test_logs_s20_s32_every_number_once_while_all_breaks[25]",
        "test_logs_s22_s26_s27_ends_at_the_moment_of_a_cut_lose_nothing",
        "test_each_line_of_each_rank_comes_once_over_the_volume_and_none_through_the_api",
        "test_each_line_of_many_pages_and_of_equal_stamps_comes_once_and_late_ones_too",
    ),
    "a job that Rankfall did not start": ("test_a_pod_that_was_deleted_before_the_first_look_is_named_with_its_node",),
    "what a platform takes": ("test_errors_s41_a_fault_on_the_cluster[job-kueue-preempts]",),
    "two faults at once": (
        "test_i19_pairs_of_faults[exception-sidecar]",
        "test_i19_pairs_of_faults[oom-survived]",
        "test_i19_p1_the_pod_that_failed_first_is_named_by_lines_read_later[afterwards]",
        "test_i19_p5_a_fault_of_a_healthy_node_is_not_the_cause_of_an_exception_elsewhere",
        "test_i19_p6_no_attempt_follows_a_deletion_of_what_has_a_time_to_live[jobset]",
    ),
    "a kernel line to a taint": (
        "test_health_s07_what_a_pod_prints_is_a_hint_and_taints_only_where_an_operator_names_it",
        "test_health_s40_the_taint_stays_until_the_last_cause_is_cured_on_a_real_server",
    ),
    "the product's image": ("test_health_what_the_dockerfile_builds_runs_controller_and_agents_by_digest",),
    "copies and secrets": (
        "test_launch_s13_small_code_travels_by_config_map_and_the_command_runs_in_it[job]",
        "test_i18_p9_the_pod_sees_the_values_and_the_job_object_refers_to_a_secret[success]",
    ),
    "the client": (
        "test_an_object_is_made_read_changed_and_deleted",
        "test_a_create_whose_answer_was_lost_makes_one_object",
        "test_launch_s50_a_401_is_answered_with_renewed_credentials_at_once",
        "test_passing_trouble_is_waited_out_when_reading",
        "test_a_watch_that_is_cut_loses_no_change_and_repeats_none",
        "test_launch_s32_a_watch_survives_a_restart_of_the_api_server",
        "test_a_log_is_followed_to_its_end_and_read_again",
        "test_exit_codes",
        "test_megabytes_that_nobody_reads_hold_us_no_longer_than_the_time_out",
        "test_an_exec_that_is_cut_is_of_unknown_end",
        "test_a_launch_takes_so_many_requests_however_many_slots",
        "test_an_account_can_do_what_its_rules_say_and_no_more",
    ),
    "manifests that the server takes": (
        "test_the_server_takes_every_field_of_every_manifest",
        "test_launch_s04_the_longest_name_of_a_backend_is_taken",
        "test_a_field_that_the_server_would_drop_is_refused_before_anything_is_created[job]",
        "test_pods_keep_away_from_excluded_nodes[trainjob]",
    ),
    "the README": ("test_every_command_of_the_kubernetes_section_works",),
}


# What runs on each set of other versions (testbed/components.toml), by id: whatever rests on fields, defaults and conditions of the server or a controller.
ON_OTHER_VERSIONS = (
    "*/test_run_job.py::*",
    "*/test_unattended.py::*",
    "*/test_manifests.py::*",
    "*/test_resize.py::*",
    "*/test_doctor.py::*",
    "*/test_foreign.py::*",
    "*/test_i19_gangs.py::*",
    "*/test_kubernetes_facts.py::*",
    "*/test_no_webhooks.py::*",
    "*/test_logs_identity.py::*",
    *(
        f"*/test_conformance.py::*-{case}]"
        for case in ("a_rank_is_killed", "cancel", "suspend_and_resume", "another_size", "several_roles", "a_queue")
    ),
    *(
        f"*/test_fault_matrix.py::*-{case}]"
        for case in ("kueue-preempts", "evicted", "preempted", "container-oom", "quota", "job-deleted-by-hand")
    ),
)


def on_other_versions(test: str) -> bool:
    """Whether a test of this id runs on each set of other versions too."""
    return any(fnmatchcase(test, pattern) for pattern in ON_OTHER_VERSIONS)


def covers(name: str) -> bool:
    """Whether the gate runs a test of this name, cases in brackets included."""
    return listed(name, _NAMES)


_NAMES = frozenset(name for names in COVERING.values() for name in names)
