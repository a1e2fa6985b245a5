"""What only `--long` runs, which CI does every night and before a release; and what of it every run has all the same.

Chosen by what a test costs against what nothing else shows. A test that a named fault of `mutations/` names is in every
run. Single cases of a parametrised test have the mark `long` where they stand.
"""

# Folders and files of tests/, and single tests as FILE::NAME.
LONG = (
    # What is installed and released, and the pages that a newcomer follows: minutes, and changed by few commits.
    "packaging",
    "documents/test_quickstart.py",
    "documents/test_toolsets.py",
    "documents/test_wire.py",
    "integration/test_document_commands.py",
    "integration/test_sign_in_page.py",
    "integration/test_call_cost.py",
    "integration/test_capacity.py",
    # Whole stories: incidents, alerts that are really brought about, servers of others.
    "incidents",
    "integration/test_alerts.py",
    "integration/test_alerts_of_nodes.py",
    "integration/test_credential_uses.py",
    "integration/test_dashboards.py",
    "integration/test_everything.py",
    "integration/test_images.py",
    "integration/test_package_updates.py",
    "integration/test_packages_of_nodes.py",
    "integration/test_postgres_server.py",
    "integration/test_who_eats.py",
    # Attacks. What resists them is tested beside the modules that do.
    "integration/test_misbehaviour_calls.py",
    "integration/test_pin_attacks.py",
    "integration/test_sandbox_attacks.py",
    "integration/test_strangers.py",
    "integration/test_toolset_attacks.py",
    "integration/test_trees.py",
    "integration/test_tries.py",
    "integration/test_unread_answers.py",
    "integration/test_unread_streams.py",
    # Nodes that die, stand still, drain or lose Redis. The quick chaos has all of it at once, with a history checker.
    "integration/test_behind_the_balancer.py",
    "integration/test_drain.py",
    "integration/test_inspections_of_nodes.py",
    "integration/test_lost_records.py",
    "integration/test_node_failures.py",
    "integration/test_node_that_leaves.py",
    "integration/test_nodes_command.py",
    "integration/test_overload.py",
    "integration/test_overview.py",
    "integration/test_parking_nodes.py",
    "integration/test_paused_node.py",
    "integration/test_pins_of_nodes.py",
    "integration/test_platform_issuers.py",
    "integration/test_questions_across_nodes.py",
    "integration/test_redis_faults.py",
    "integration/test_remote_upstreams_nodes.py",
    "integration/test_secret_key.py",
    "integration/test_sessionless_node_failures.py",
    "integration/test_sessionless_nodes.py",
    "integration/test_toolsets_at_once.py",
    # One feature in every way that it can go. Each has units of its own, and one or two tests of these below.
    "integration/test_allowed_network.py",
    "integration/test_check_proposals.py",
    "integration/test_credentials_end.py",
    "integration/test_database.py",
    "integration/test_forking.py",
    "integration/test_freezing.py",
    "integration/test_homes.py",
    "integration/test_interpreters.py",
    "integration/test_kept_calls.py",
    "integration/test_kept_homes.py",
    "integration/test_last_words.py",
    "integration/test_log_output.py",
    "integration/test_nodes_agree.py",
    "integration/test_parking.py",
    "integration/test_process_limits.py",
    "integration/test_progress.py",
    "integration/test_reclaim.py",
    "integration/test_registry.py",
    "integration/test_silent_calls.py",
    "integration/test_tls.py",
    "integration/test_tracing.py",
    # Single tests that cost more than the rest of their file, or that start nodes of their own.
    "cli/top/test_top.py::test_in_a_terminal_a_gateway_that_is_away_is_said_and_waited_for",
    "integration/test_calls.py::test_a_busy_tenant_pushes_out_its_own_only",
    "integration/test_calls.py::test_they_are_those_of_all_nodes",
    "integration/test_cli_rest.py::test_connect_writes_the_address_that_the_console_shows",
    "integration/test_console.py::test_a_session_is_one_on_every_node",
    "integration/test_console_renewals.py::test_a_node_that_does_not_answer_is_named_where_it_is_missing",
    "integration/test_console_sign_in.py::test_the_session_ends_with_the_token",
    "integration/test_ended_sessions.py::test_any_node_knows_why_a_session_has_ended",
    "integration/test_failures.py::test_sessions_dropped_without_a_word_leave_no_process",
    "integration/test_files_as_truth.py::test_a_change_between_plan_and_apply_is_noticed_and_not_overwritten",
    "integration/test_files_as_truth.py::test_an_export_applied_to_an_empty_gateway_exports_the_same",
    "integration/test_gateway_command.py::test_sessions_open_where_another_package_has_brought_sniffio",
    "integration/test_gateway_command.py::test_the_demo_prints_a_working_address_and_key",
    "integration/test_inspections.py::test_a_flood_in_one_session_holds_up_nobody_else",
    "integration/test_inspections.py::test_a_small_memory_keeps_the_newest",
    "integration/test_isolation.py::test_the_same_check_finds_the_flaw_in_a_server_with_one_shared_transport",
    "integration/test_recipes.py::test_runs_on_two_nodes",
    "integration/test_remote_upstreams.py::test_a_node_that_stops_ends_its_sessions_at_the_server",
    "integration/test_remote_upstreams.py::test_a_server_that_stalls_floods_or_sends_elsewhere",
    "integration/test_remote_upstreams.py::test_many_sessions_stay_apart",
    "integration/test_sessionless.py::test_a_call_that_waits_for_its_client_does_not_hold_up_the_drain",
    "integration/test_sessionless.py::test_many_calls_that_are_asked_twice_get_their_own_results_and_abandoned_ones_give_their_process_back",
    "integration/test_sign_in_nodes.py::test_a_day_of_refreshes_at_the_pace_of_a_provider",
    "integration/test_sign_in_nodes.py::test_each_refresh_of_many_succeeds_at_any_node",
    "integration/test_switched_off.py::test_a_client_of_the_old_transport_hears_it_on_its_stream",
    "integration/test_switched_off.py::test_a_node_that_starts_keeps_nothing_warm_of_a_tenant_that_is_off",
    "integration/test_switched_off.py::test_processes_without_state_stop_too",
    "integration/test_switched_off.py::test_without_redis_it_takes_two_seconds",
    "node/test_hangup.py::test_a_node_whose_terminal_is_closed_stops_unless_it_was_started_for_that",
    "processes/forking/test_forking.py::test_a_real_server_does_the_same_when_it_is_forked",
    "processes/forking/test_forking.py::test_imports_that_never_end_keep_no_other_tenant_from_its_template",
    "jail/spawner/test_cgroups.py::test_a_thousand_short_processes_leave_no_group_and_no_descriptor",
)

# Tests of those files.
ALWAYS = {
    "integration/test_credentials_end.py": ("test_whoever_waits_for_a_process_when_the_key_is_revoked_gets_none",),
    "integration/test_freezing.py": ("test_an_idle_session_stands_still_until_its_next_call_and_has_lost_nothing",),
    "integration/test_homes.py": ("test_each_tenant_has_its_own_and_its_backends_share_it",),
    "integration/test_inspections_of_nodes.py": (
        "test_of_sessions_that_move_only_those_that_were_opened_after_it_are_seen",
    ),
    "integration/test_misbehaviour_calls.py": (
        "test_who_waits_for_a_call_hears_of_the_death_at_once",
        "test_what_cannot_be_started_is_an_answer",
    ),
    "integration/test_nodes_agree.py": (
        "test_streams_of_a_revoked_key_end_at_every_node_within_a_second",
        "test_a_changed_backend_is_the_new_one_at_every_node_within_a_second",
    ),
    "integration/test_nodes_command.py": (
        "test_nodes_share_the_port_and_each_has_an_address_of_its_own",
        "test_connections_are_spread_over_the_nodes",
        "test_what_does_not_go_together_is_one_line_and_exit_code_2",
    ),
    "integration/test_parking.py": ("test_an_idle_session_has_no_process_until_its_next_call",),
    "integration/test_process_limits.py": (
        "test_the_rate_is_one_over_all_nodes",
        "test_the_kernel_holds_a_tenant_to_its_memory_also_when_the_limit_has_changed",
    ),
    "integration/test_progress.py": ("test_apply_says_which_step_it_is_at_and_a_script_reads_the_same_lines",),
    "integration/test_reclaim.py": ("test_ten_abandoned_sessions_do_not_block_an_eleventh_client",),
    "integration/test_registry.py": (
        "test_everybody_reads_a_public_registry_and_nothing_private",
        "test_what_the_registry_says_is_how_a_client_gets_in",
        "test_pages_and_filters",
    ),
    "integration/test_sessionless_nodes.py": (
        "test_calls_of_every_kind_at_every_node_are_answered_by_one_process",
        "test_discover_lists_and_mirrored_headers_work_at_every_node",
    ),
    "integration/test_silent_calls.py": ("test_progress_makes_a_stream_at_once",),
    "integration/test_tls.py": (
        "test_the_official_client_calls_over_https",
        "test_what_the_gateway_says_of_itself_is_https",
        "test_the_cookie_of_the_console_is_for_https_only",
    ),
    "integration/test_tracing.py": (
        "test_one_trace_goes_through_both_nodes_to_the_backend",
        "test_what_the_spans_say",
    ),
}


def is_long(file: str, function: str) -> bool:
    """Whether this test of a file of tests/ waits for `--long`."""
    is_named = not {file.partition("/")[0], file, f"{file}::{function}"}.isdisjoint(LONG)
    return is_named and function not in ALWAYS.get(file, ())
