"""Faults of the one process that a client of 2026-07-28 has in front of a server with state."""

from tests.mutations.fault import Fault

HOME = ("tests/sessions/sessionless/test_pooled_session_home.py",)

FAULTS_OF_THE_HOME = (
    Fault(
        "a busy home is joined by another process though it keeps state",
        "app/sessions/sessionless/pooled_session.py",
        "return self.is_sessionless or not self.session.spec.is_respawned",
        "return self.is_sessionless",
        HOME,
    ),
    Fault(
        "calls that come at once open a home each",
        "app/sessions/sessionless/pooled_session.py",
        "return need is Need.ALONE and bool(self.sessions) and not self.sessions[0].is_home",
        "return need is Need.ALONE",
        HOME,
    ),
    Fault(
        "a cursor goes to any process",
        "app/sessions/sessionless/pooled_session.py",
        "if self.is_home or need is Need.HOME:",
        "if self.is_home:",
        HOME,
    ),
    Fault(
        "a question goes to the oldest call though nobody is there to hear it",
        "app/sessions/sessionless/_unsolicited.py",
        "return (not asked.is_waited_for, is_slow,",
        "return (False, is_slow,",
        HOME,
    ),
    Fault(
        "a question goes to a call that the process has passed over",
        "app/sessions/sessionless/_unsolicited.py",
        "return (not asked.is_waited_for, is_slow,",
        "return (not asked.is_waited_for, False,",
        HOME,
    ),
    Fault(
        "a process that is only late is home no more",
        "app/sessions/sessionless/pooled_sessions.py",
        "is_silent = pooled.session.heard_at < asked_at and not pooled.session.streams.back_pressure.is_on",
        "is_silent = True",
        HOME,
    ),
    Fault(
        "a call that ends takes the questions of others along",
        "app/sessions/sessionless/call.py",
        "                self.session.streams.listen.push(question.as_command())",
        "                self.session.refuse_question(question.id, given_up, INVALID_PARAMS)",
        HOME,
    ),
    Fault(
        "what nobody answers is asked of no other call",
        "app/sessions/sessionless/suspended_calls.py",
        "                call.ask_elsewhere(now)",
        "                pass",
        HOME,
    ),
    Fault(
        "a log message goes to the oldest call, whether or not it wants it",
        "app/sessions/sessionless/_unsolicited.py",
        "if call.stream.wants(message.params or {})",
        "if call",
        HOME,
    ),
    Fault(
        "what the gateway asks itself waits behind the calls that wait for it",
        "app/protocol/exchange.py",
        "limit = waiting.max_running if is_own else waiting.max_running - waiting.reserved",
        "limit = waiting.max_running - waiting.reserved",
        ("tests/protocol/test_exchange.py", *HOME),
    ),
    Fault(
        "a call that waited at home hears that a session is not found",
        "app/sessions/session.py",
        "refusal or endings.too_late(reason, is_pooled=self.is_pooled)",
        "refusal or endings.too_late(reason, is_pooled=False)",
        HOME,
    ),
)
