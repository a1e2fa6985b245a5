"""Faults of what whoever is called at night goes by: ids, lines, what is left out."""

from tests.mutations.fault import Fault

DENIED = ("tests/integration/test_denials.py",)

IDS = ("tests/http/test_request_ids.py",)
LINES = ("tests/telemetry/test_logs.py",)
FOLLOWED = ("tests/integration/test_followed_requests.py",)
WRITTEN = ("tests/http/edge/test_http_protocol_answers.py",)
FRONT = ("tests/http/transports/test_front.py",)

FAULTS_OF_THE_LOG = (
    Fault(
        "a client's request id is taken over whatever it is",
        "app/http/request_ids.py",
        "request = given if _is_request_id(given) else made",
        "request = given or made",
        IDS,
    ),
    Fault(
        "a process that was forked makes the ids of the one that it was forked from",
        "app/http/request_ids.py",
        "os.register_at_fork(after_in_child=_source.forget)",
        "assert os",
        IDS,
    ),
    Fault(
        "a trace is broken off at the front",
        "app/http/request_ids.py",
        "        trace, flags = found.trace, found.flags",
        "        assert trace, flags",
        IDS,
    ),
    Fault(
        "the ids are not passed on to the node that has the session",
        "app/http/remote/forwarding.py",
        "        headers += request.ids.headers\n        request.sent_on_to(node.id)",
        "        request.sent_on_to(node.id)",
        FOLLOWED,
    ),
    Fault(
        "answers have no ids",
        "app/http/edge/http_protocol.py",
        "data if scope is None else data[:-2] + named(scope).lines + _CRLF",
        "data",
        FOLLOWED,
    ),
    Fault(
        "a piece of a body that looks like a head gets ids",
        "app/http/edge/http_protocol.py",
        "            scope, self._scope = self._scope, None  # what",
        "            scope = self._scope  # what",
        WRITTEN,
    ),
    Fault(
        "an answer is written at once behind one that has begun",
        "app/http/edge/http_protocol.py",
        "            or cycle.response_started\n",
        "",
        WRITTEN,
    ),
    Fault(
        "an answer that is written at once leaves a connection open that was to end with it",
        "app/http/edge/http_protocol.py",
        "            or not cycle.keep_alive\n",
        "",
        WRITTEN,
    ),
    Fault(
        "a task that outlives its request logs in its name",
        "app/telemetry/logs.py",
        "        self._fields = self.ids = None",
        "        assert self._fields or self.ids",
        LINES,
    ),
    Fault(
        "what a flood leaves out is not counted",
        "app/telemetry/logs.py",
        "            self._left_out[kind] = message, count - self.PER_S",
        "            assert message",
        LINES,
    ),
    Fault(
        "kinds of lines are not bounded",
        "app/telemetry/logs.py",
        "        if kind not in self._lines and len(self._lines) >= self.MAX_KINDS:",
        "        if False:",
        LINES,
    ),
    Fault(
        "a field that is called like a member of every record breaks the line",
        "app/telemetry/logs.py",
        'return f"{name}_" if name in _OF_EVERY_RECORD else name',
        "return name",
        LINES,
    ),
    Fault(
        "what is missing and what is another's are told apart by the id in the body",
        "app/http/errors.py",
        "ALIKE = frozenset({401, 403, 404, 421})",
        "ALIKE = frozenset({401, 403, 421})",
        FRONT,
    ),
    # --- what is denied in a call
    Fault(
        "a call that fails is not looked at for what was denied",
        "app/sessions/call_observers.py",
        "if error_type and isinstance(outcome, Answer):",
        "if not error_type:",
        DENIED,
    ),
    Fault(
        "refused forks are known only when all processes are measured",
        "app/processes/process.py",
        "self._count_denials(*self._group.denials())",
        "pass",
        DENIED,
    ),
    Fault(
        "what the egress proxy refuses is not counted for the process",
        "app/jail/egress/egress.py",
        "self._on_denied(outgoing.destination)",
        "pass",
        DENIED,
    ),
    Fault(
        "each failed call writes a line of the log",
        "app/processes/process.py",
        "if now - self._denied_at < _DENIED_EVERY_S:",
        "if False:",
        ("tests/processes/test_process.py",),
    ),
    Fault(
        "readers see which paths were denied",
        "app/admin/_backend_state.py",
        '"affected": [], "stderr": [], "denials": []}',
        '"affected": [], "stderr": []}',
        DENIED,
    ),
)
