"""Tests without a test bed that run with everything only (``make test-all``), by the test of the gate that covers the same way through the product.

The gate is for every change and has minutes: of tests that take seconds because they start runs, one of each kind stays in it. No test that is ``steady``
stands here. The bed has its own table, of what the gate does run: ``cluster/covering.py``.
"""

from __future__ import annotations

from collections.abc import Collection

FURTHER = {
    "of the same command with another compression or another form of the archive": (
        "test_a_pipe_and_a_file_of_the_same_bytes_have_one_answer[2-compress1]",
        "test_a_pipe_and_a_file_of_the_same_bytes_have_one_answer[2-compress2]",
        "test_a_pipe_and_a_file_of_the_same_bytes_have_one_answer[3-bytes]",
        "test_a_pipe_and_a_file_of_the_same_bytes_have_one_answer[3-compress1]",
        "test_a_pipe_and_a_file_of_the_same_bytes_have_one_answer[3-compress2]",
        "test_compressed_text_is_read_from_a_pipe_and_under_any_name[compress1]",
        "test_compressed_text_is_read_from_a_pipe_and_under_any_name[compress2]",
        "test_an_archive_of_logs_is_read_as_its_folder[logs.tar]",
        "test_an_archive_of_logs_is_read_as_its_folder[logs.tar.xz]",
        "test_an_archive_of_logs_is_read_as_its_folder[logs.tbz2]",
        "test_i24_p3_another_format_is_refused[r.tar.gz]",
    ),
    "of the same command with another shell, terminal, signal or answer": (
        "test_ids_of_runs_are_completed[fish]",
        "test_ids_of_runs_are_completed[zsh]",
        "test_i18_p7_at_a_viewers_terminal_only_an_answer_cancels[b'SIGTERM']",
        "test_i18_p7_at_a_viewers_terminal_only_an_answer_cancels[b'\\\\x03']",
        "test_i18_p7_a_viewer_that_gets_a_signal_lets_go_and_the_run_goes_on[attach-SIGHUP]",
        "test_i18_p7_a_viewer_that_gets_a_signal_lets_go_and_the_run_goes_on[logs -f-SIGHUP]",
        "test_i18_p7_a_viewer_that_gets_a_signal_lets_go_and_the_run_goes_on[wait-SIGINT]",
        "test_i18_p7_a_viewer_that_gets_a_signal_lets_go_and_the_run_goes_on[wait-SIGTERM]",
        "test_i18_p7_a_run_command_that_found_another_supervisor_only_watches[2]",
        "test_i18_p7_a_signal_to_all_viewers_and_then_to_the_supervisor_cancels_once",
        "test_i18_p7_a_signal_that_came_before_a_viewer_could_take_over_cancels_nothing",
        "test_i18_p7_a_cancelled_wait_of_the_client_ends_nothing",
        "test_an_area_below_the_lines_shows_bars_and_ranks_and_gives_way_to_the_verdict_after_a_resize[200-60-False]",
        "test_an_area_appears_where_a_person_sees_it_and_wants_it[()-{'TERM': 'dumb'}-False]",
        "test_an_area_appears_where_a_person_sees_it_and_wants_it[()-{'CI': 'true'}-False]",
        "test_an_area_appears_where_a_person_sees_it_and_wants_it[('--no-live',)-{}-False]",
        "test_an_area_appears_where_a_person_sees_it_and_wants_it[('--live',)-{'TERM': 'dumb'}-False]",
        "test_ctrl_c_twice_detaches",
        "test_leaving_attach_leaves_the_other_supervisor_alone",
        "test_a_signal_to_a_detached_supervisor_cancels[2]",
        "test_a_quiet_run_still_reports_that_its_message_was_not_delivered",
        "test_a_run_is_tried_again_with_another_variable_beside_its_secrets",
    ),
    "the conformance suite's case on this machine": (
        "test_i24_p10_a_case_as_steps_of_a_stand_in_for_slurm[a_rank_is_killed]",
        "test_jobapi_s09_a_run_begun_suspended_starts_with_resume",
        "test_resume_of_a_run_that_is_not_suspended_says_so",
        "test_jobapi_s09_suspended_from_the_start_begins_nothing_and_the_clock_starts_with_resume",
        "test_the_python_client_suspends_and_resumes_whoever_supervises",
        "test_jobapi_s07_resize_says_what_is_done_and_waits_for_it",
        "test_the_python_client_asks_waits_and_says_what_is_over",
        "test_an_attempts_deadline_may_be_worth_another_attempt_by_rule",
        "test_a_retried_attempt_is_explained_and_the_run_goes_on",
        "test_only_a_fall_is_shown_and_only_where_that_is_wished[True-0]",
        "test_only_a_fall_is_shown_and_only_where_that_is_wished[False-3]",
    ),
    "the total deadline of test_jobapi.py": ("test_jobapi_s28_a_case_on_this_machine[the_attempt_takes_too_long]",),
    "a rank that left the collective, a slow step that is reported, waiting for a slot: the alarm's other ways": (
        "test_i32_p7_a_checkpoint_pause_beside_a_silent_rank_delays_the_alarm_and_names_the_silent_one",
        "test_a_rank_whose_import_takes_longer_than_the_time_is_no_hang",
        "test_an_import_that_stands_still_is_a_hang_and_is_said_to_be_one",
        "test_i32_p7_nccl_names_the_rank_whose_stack_is_like_all_others[mute-True-stands at]",
        "test_i32_p7_a_slow_step_is_no_hang[printed]",
        "test_a_lone_rank_that_stands_still_is_explained_as_one_among_many_records",
        "test_i32_p7_a_service_that_gives_no_report_costs_only_the_report[stops]",
    ),
    "another moment, place or kind of the same fault": (
        "test_a_supervisor_killed_at_a_restart_neither_repeats_nor_forgets_it[start-5]",
        "test_a_supervisor_killed_at_a_restart_neither_repeats_nor_forgets_it[decision_done-1]",
        "test_a_supervisor_killed_at_a_restart_neither_repeats_nor_forgets_it[add_decision-2]",
        *(f"test_killed_after_a_moment_and_resumed[{number}]" for number in (3, 9, 13, 14, 15, 16, 19, 24, 29)),
        "test_killed_before_a_moment_and_resumed[15]",
        "test_a_supervisor_killed_while_it_resizes_neither_repeats_nor_forgets[after-begin_attempt]",
        "test_a_supervisor_killed_while_it_resizes_neither_repeats_nor_forgets[after-tell]",
        "test_attach_goes_on_with_an_attempt_that_the_database_lost[older_copy]",
        "test_i18_p1_p2_a_run_ends_with_its_own_verdict[deep progress]",
        "test_i18_p1_p2_a_run_ends_with_its_own_verdict[number in a report of torchrun]",
        "test_i18_p1_p2_a_run_ends_with_its_own_verdict[numbers in records]",
        "test_i18_p1_p2_a_viewer_sees_a_run_to_its_end[deep record]",
        "test_i18_live_hostile_trees_among_the_streams_leave_the_true_end",
        "test_i18_live_hostile_files_leave_the_true_end[0]",
        "test_a_traceback_that_its_rank_caught_long_before_its_silent_end_is_not_the_cause[os.kill(os.getpid(), signal.SIGKILL)-killed_unknown]",
        "test_i18_p8_a_line_that_another_rank_survived_takes_no_blame[text1-user_exit-3]",
        "test_i18_p8_what_fails_after_the_work_is_not_started_again[text1-dataloader_died]",
        "test_i19_p10_another_gang_is_another_attempt_whose_restarts_count_from_0[undated]",
        "test_errors_s17_an_error_file_beats_a_workload_that_says_complete[shared, of a pod]",
        "test_errors_s17_an_error_file_beats_a_workload_that_says_complete[shared]",
        "test_a_code_stands_in_the_sentence_and_the_last_lines_in_the_proof[hard]",
        "test_i19_p8_a_data_worker_that_outlives_its_rank_is_no_rank[seen-with-its-child]",
        "test_jobapi_s01_a_real_rank_is_treated_as_the_table_says[138]",
        "test_i18_p9_nothing_is_started_where_the_values_are_gone",
        "test_i18_p9_a_suspended_run_has_the_value_when_it_goes_on",
        "test_errors_s11_a_package_brings_its_own",
    ),
    "an end after a request to delete, the other stories of pods that nobody watches": (
        "test_a_pod_that_a_job_replaces_by_itself_is_the_next_start_of_its_slot",
        "test_a_failure_before_the_deletion_remains_the_cause",
    ),
    "the receivers that hang and refuse of test_notify.py": (
        "test_a_hang_is_sent_before_its_verdict_and_the_reason_of_a_cancel_at_the_end",
        "test_a_client_that_loads_slowly_delays_no_other_target_and_costs_no_try",
        "test_marks_without_room_repeat_nothing_while_the_supervisor_lives",
        "test_late_and_repeated_messages_are_those_of_the_events",
        "test_a_cancel_during_the_back_off_changes_no_message_that_is_late",
        "test_a_takeover_sends_what_a_killed_supervisor_owed[True]",
        "test_a_receiver_or_command_that_hangs_is_left",
        "test_receivers_of_the_file_hear_of_runs_whose_job_names_none",
    ),
    "the retention and the live run of test_prune.py": (
        "test_a_run_that_begins_while_old_ones_are_removed_is_whole",
        "test_a_run_whose_end_is_incomplete_stays_and_names_a_way_out_of_a_full_disk",
        "test_a_terminal_is_asked",
        "test_an_empty_run_keeps_at_most_100_kb",
    ),
    "a metric and a check that are asked for in the gate": (
        "test_each_query_of_the_dashboard_asks_for_metrics_and_labels_that_exist",
        "test_i32_p4_what_a_cluster_does_not_have_is_said_once",
        "test_i32_p4_a_server_that_fails_in_between_leaves_what_was_found",
        "test_i32_p4_a_version_that_was_never_run_is_untried_and_no_failure",
    ),
    "the same lines of fewer ranks, or of another writer": (
        "test_logs_s40_of_sixteen_by_eight_ranks_all_are_kept_and_two_are_shown",
        "test_launch_s13_the_first_and_the_true_last_rank_are_shown_wherever_they_run[16-8]",
        "test_a_reader_that_goes_away_does_not_end_the_job",
        "test_a_stdout_on_a_full_disk_does_not_end_the_job",
        "test_all_and_rank_choose_whose_lines_are_shown",
        "test_launch_s15_processes_that_are_no_ranks_are_shown_with_their_slot_and_no_rank_is_made_up",
        "test_a_line_of_the_channel_is_never_longer_than_its_bound",
        "test_what_is_waited_for_is_said_on_stderr_and_on_the_channel",
    ),
    "one worker or one stream of the gate's own tools": (
        "test_what_passes_alone_is_unsteady_and_its_first_failure_is_kept[two workers]",
        "test_hundreds_of_streams_at_once_each_with_its_own_bytes",
        "test_a_slow_client_holds_the_server_back",
    ),
    "the demo and the static gang": (
        "test_an_elastic_gang_goes_on_without_a_node_that_was_killed",
        "test_two_torchrun_roles_share_one_rendezvous_with_ranks_of_their_own",
        "test_fault[error-file-empty-static-2x2]",
        "test_fault[exception-key-static-2x2-hook-absent]",
        "test_fault[agent-term-c10d-2x2]",
        "test_fault[mismatch-size-static-2x2]",
        "test_i19_pairs_of_faults_here[local-hang-clock]",
        "test_fault[shm-too-small-c10d-2x2]",
        "test_fault[signal-outside-kill-c10d-2x2]",
    ),
    "another store or another end of the same reader": (
        "test_errors_s15_a_record_of_200_mb_is_named_and_costs_no_memory[folder]",
        "test_errors_s15_a_record_of_200_mb_is_named_and_costs_no_memory[store]",
        "test_a_feed_follows_when_each_log_of_a_running_container_was_opened",
        "test_a_device_that_breaks_is_opened_again_where_it_was",
        "test_the_python_example_works_when_a_run_succeeds_and_when_it_fails[print(1)-1]",
        "test_i18_p5_what_is_referred_to_again_and_again_takes_its_memory_once[shared_fields]",
    ),
}

_NAMES = frozenset(name for names in FURTHER.values() for name in names)


def further(name: str) -> bool:
    """Whether a test of this name, cases in brackets included, runs with everything only."""
    return listed(name, _NAMES)


def listed(name: str, names: Collection[str]) -> bool:
    """Whether a list has a test of this name, or the test without its case, which means all of its cases."""
    return name in names or name.partition("[")[0] in names
