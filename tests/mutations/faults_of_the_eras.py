"""Faults between a client of one era and a server of the other."""

from tests.mutations.fault import Fault

FAULTS_OF_THE_ERAS = (
    Fault(
        "tasks of one era are offered to the other",
        "app/protocol/eras/sessionless_envelope.py",
        "if extensions.pop(TASKS, None) is not None:",
        "if False:",
        ("tests/integration/test_between_eras.py",),
    ),
    Fault(
        "forms are sent to clients that have declared only URLs",
        "app/protocol/eras/sessionless_envelope.py",
        'return mode in declared or (mode == "form" and "url" not in declared)',
        'return mode in declared or mode == "form"',
        ("tests/sessionless/test_call.py",),
    ),
    Fault(
        "a state is good for a request with another number",
        "app/sessionless/suspended_calls.py",
        'if text.lstrip("-").isdigit() and len(text) <= EXACT_DIGITS:',
        "if False:",
        ("tests/sessionless/test_suspended_calls_canonical.py",),
    ),
    Fault(
        "a call that repeats arguments is passed on while the tools are unknown",
        "app/transports/sessionless_http.py",
        "if mirrored is None and headers and not goes_on:",
        "if False:",
        ("tests/transports/test_sessionless_http.py",),
    ),
    Fault(
        "a list of tools that does not come is waited for without end",
        "app/sessionless/mirrored_headers.py",
        "if self._look is not None and (is_leaving or self._asked_at + LOOK_S < now):",
        "if False:",
        ("tests/sessionless/test_mirrored_headers.py",),
    ),
    Fault(
        "a round that is over already is cancelled in the pause after it",
        "app/protocol/eras/bridge.py",
        "                if call.is_paused:\n",
        "                if False:\n",
        ("tests/protocol/eras/test_bridge_calls.py",),
    ),
    Fault(
        "a pause outlives its session",
        "app/links/session_link.py",
        "            self._link.end()\n",
        "            pass\n",
        ("tests/links/test_bridged.py",),
    ),
    Fault(
        "what a session leaves behind is anybody's who knows its id",
        "app/sessions/registry.py",
        "if session is None or session.principal.identity != principal.identity:",
        "if session is None:",
        ("tests/sessions/test_ended.py",),
    ),
    Fault(
        "a revoked credential still fetches what a session has left behind",
        "app/sessions/registry.py",
        "        self._ended.drop(matches)\n",
        "",
        ("tests/sessions/test_ended.py",),
    ),
    Fault(
        "any unknown revision is good within a session",
        "app/transports/streamable_http.py",
        "if version is not None and version != session.version and not is_handshake(version):",
        "if False:",
        ("tests/integration/test_between_eras.py",),
    ),
    Fault(
        "a failed tool is looked for in short results only",
        "app/protocol/tool_results.py",
        "return _decode(result).is_error",
        "return len(result) < 256 and _decode(result).is_error",
        ("tests/protocol/test_tool_results.py", "tests/sessions/test_calls.py"),
    ),
    Fault(
        "a task whose tool has failed counts as a success",
        "app/sessions/calls.py",
        'if method == "tools/call" or method == "tasks/result":',
        'if method == "tools/call":',
        ("tests/sessions/test_calls.py",),
    ),
    Fault(
        "a result that is no object becomes an empty one",
        "app/protocol/eras/answers.py",
        'if not members and bytes(result).strip(b"{} \\t\\r\\n"):',
        "if False:",
        ("tests/sessionless/test_call.py",),
    ),
    Fault(
        "a vendor's notification does not reach the call that it belongs to",
        "app/sessionless/unsolicited.py",
        "return next((call for call in self._calls() if call.stream.message.method in MAY_ASK), None)",
        "return None",
        ("tests/sessionless/test_call.py",),
    ),
)
