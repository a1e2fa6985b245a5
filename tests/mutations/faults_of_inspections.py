"""Faults of inspections: who may look, what is masked, and what ends."""

from tests.mutations.fault import Fault

REST = "tests/admin/resources/now/test_inspections.py"
OBJECT = "tests/cluster/node_status/test_inspecting.py"
MEMORY = "tests/telemetry/capture/test_inspection.py"

FAULTS_OF_INSPECTIONS = (
    Fault(
        "a key that was revoked while it opened an inspection goes on looking",
        "app/admin/resources/now/inspections.py",
        "        await access.require_still(Scope.TENANT_ADMIN)\n        confirmed",
        "        confirmed",
        (f"{REST}::test_a_key_that_is_revoked_while_it_opens_one_leaves_nothing_open",),
    ),
    Fault(
        "an inspection that could not be opened stays open",
        "app/admin/resources/now/inspections.py",
        "await access.admin.node.ask(CLOSE_INSPECTION, access.tenant, about.id)",
        "pass",
        (f"{REST}::test_a_key_that_is_revoked_while_it_opens_one_leaves_nothing_open",),
    ),
    Fault(
        "an inspection that nobody has confirmed goes on",
        "app/cluster/node_status/inspecting.py",
        'self._inspections.end(each, now, "not_confirmed")',
        "pass",
        (f"{OBJECT}::test_one_that_nobody_confirms_ends_and_what_it_saw_is_gone",),
    ),
    Fault(
        "the secrets of a later version of the backend are shown",
        "app/cluster/node_status/inspecting.py",
        "inspection.learn(self._secrets(session.spec))",
        "pass",
        (f"{OBJECT}::test_the_secrets_of_each_version_of_the_backend_are_masked",),
    ),
    Fault(
        "an inspection that has ended goes on recording",
        "app/cluster/node_status/inspecting.py",
        "session.observe(None)",
        "pass",
        (f"{OBJECT}::test_it_ends_with_its_opener_its_tenant_s_word_and_the_tenant",),
    ),
    Fault(
        "a node that stood still goes on looking, although others have said that it is over",
        "app/cluster/node_status/inspecting.py",
        'self.end_where(lambda inspection: True, "standstill")',
        "pass",
        (f"{OBJECT}::test_after_a_standstill_all_end_since_others_have_said_that_they_are_over",),
    ),
    Fault(
        "who reads sees payloads",
        "app/admin/resources/now/inspections.py",
        "in_full = has_scope(access.principal, access.tenant, Scope.TENANT_ADMIN)",
        "in_full = True",
        (f"{REST}::test_who_may_read_sees_that_it_is_there_and_no_payload",),
    ),
    Fault(
        "tenants that have filled the memory leave nothing to others",
        "app/telemetry/capture/_memory.py",
        "return self._largest(tenant if with_it >= self._bytes_of[most] and self._bytes_of.get(tenant) else most)",
        "return holder if holder.bytes else self._largest(most)",
        (f"{MEMORY}::test_tenants_that_have_filled_the_memory_leave_others_an_equal_share",),
    ),
    Fault(
        "an inspection of next sessions sees older ones that move to its node",
        "app/cluster/node_status/inspecting.py",
        "if session.state is SessionState.OPEN and",
        "if False and",
        (
            "tests/integration/test_inspections_of_nodes.py::test_of_sessions_that_move_only_those_that_were_opened_after_it_are_seen",
        ),
    ),
    Fault(
        "what a message names is kept with its secrets",
        "app/telemetry/capture/inspection.py",
        "return self._mask.text(word)[:MAX_SHOWN]",
        "return word[:MAX_SHOWN]",
        ("tests/cluster/node_status/test_inspecting.py::test_secrets_are_masked_in_what_a_message_names_too",),
    ),
    Fault(
        "of a member that an object has twice only the last one is masked",
        "app/telemetry/capture/masking.py",
        "return all_of_it if repeated else found",
        "return found",
        ("tests/telemetry/capture/test_masking.py",),
    ),
    Fault(
        "masking one message takes as long as it takes",
        "app/telemetry/capture/masking.py",
        "if self._until is not math.inf and",
        "if False and",
        ("tests/telemetry/capture/test_masking.py::test_a_message_that_takes_long_to_look_through_is_given_up",),
    ),
    Fault(
        "many small values are looked through for as long as it takes",
        "app/telemetry/capture/masking.py",
        "            self._look_at_time()\n            if depth > MAX_DEPTH:",
        "            if depth > MAX_DEPTH:",
        ("tests/telemetry/capture/test_masking.py::test_many_small_values_are_given_up_too",),
    ),
    Fault(
        "a text with one form of a credential is taken for one that has none",
        "app/telemetry/capture/masking.py",
        '"key", "sig")',
        '"key")',
        ("tests/telemetry/capture/test_masking.py::test_each_form_of_a_credential_is_looked_for_by_itself",),
    ),
    Fault(
        "letters that stand for ours where case is ignored hide a credential",
        "app/telemetry/capture/masking.py",
        "cleaned.lower() if cleaned.isascii() else None",
        "cleaned.lower()",
        ("tests/telemetry/capture/test_masking.py::test_each_form_of_a_credential_is_looked_for_by_itself",),
    ),
    Fault(
        "masking is nobody's share of the loop",
        "app/telemetry/capture/_looking_time.py",
        "        self._charge(seconds)\n",
        "",
        ("tests/telemetry/capture/test_inspection.py::test_masking_is_charged_to_the_tenant",),
    ),
    Fault(
        "what is being started when the spawner dies counts as dead",
        "app/processes/supervisor.py",
        'if start.kind != "exec":',
        "if True:",
        (
            "tests/processes/test_supervisor.py::test_what_is_being_started_when_the_spawner_dies_is_started_by_the_next_one",
        ),
    ),
    Fault(
        "a later process is told that it belongs to the trace of the first",
        "app/protocol/handshake_record.py",
        "kept = {name: value for name, value in meta.items() if name not in _PLACE}",
        "kept = dict(meta)",
        ("tests/protocol/test_handshake_record.py::test_a_handshake_is_repeated_without_its_place_in_a_trace",),
    ),
)
