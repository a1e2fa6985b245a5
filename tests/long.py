"""What only `--long` runs, which CI does every night and before a release; and what of it every run has all the same.

Chosen by what a test costs against what nothing else shows. A test that a named fault of `mutations/` names is in every
run. Single cases of a parametrised test have the mark `long` where they stand.
"""

# Folders and files of tests/.
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
    "integration/test_everything.py",
    "integration/test_who_eats.py",
    # Attacks. What resists them is tested beside the modules that do.
    "integration/test_misbehaviour_calls.py",
    "integration/test_parking_attacks.py",
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
    "integration/test_credentials_end.py",
    "integration/test_database.py",
    "integration/test_forking.py",
    "integration/test_freezing.py",
    "integration/test_homes.py",
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
)

# Tests of those files.
ALWAYS = {
    "integration/test_credentials_end.py": ("test_whoever_waits_for_a_process_when_the_key_is_revoked_gets_none",),
    "integration/test_drain.py": ("test_whoever_has_connected_before_the_listener_closes_is_answered",),
    "integration/test_freezing.py": (
        "test_an_idle_session_stands_still_until_its_next_call_and_has_lost_nothing",
        "test_nothing_stands_still_for_ever_when_its_node_is_gone",
    ),
    "integration/test_homes.py": ("test_each_tenant_has_its_own_and_its_backends_share_it",),
    "integration/test_inspections_of_nodes.py": (
        "test_of_sessions_that_move_only_those_that_were_opened_after_it_are_seen",
    ),
    "integration/test_kept_calls.py": ("test_they_outlive_the_node_and_go_with_their_tenant",),
    "integration/test_misbehaviour_calls.py": (
        "test_who_waits_for_a_call_hears_of_the_death_at_once",
        "test_what_cannot_be_started_is_an_answer",
    ),
    "integration/test_nodes_agree.py": (
        "test_streams_of_a_revoked_key_end_at_every_node_within_a_second",
        "test_a_changed_backend_is_the_new_one_at_every_node_within_a_second",
        "test_a_tenants_rate_is_one_rate_over_all_nodes",
    ),
    "integration/test_nodes_command.py": (
        "test_nodes_share_the_port_and_each_has_an_address_of_its_own",
        "test_connections_are_spread_over_the_nodes",
        "test_what_does_not_go_together_is_one_line_and_exit_code_2",
    ),
    "integration/test_parking.py": (
        "test_an_idle_session_has_no_process_until_its_next_call",
        "test_calls_and_parking_at_the_same_moment_lose_nothing_and_run_nothing_twice",
    ),
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
    return (file in LONG or file.partition("/")[0] in LONG) and function not in ALWAYS.get(file, ())
