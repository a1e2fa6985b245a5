"""Faults that show in what an official client and a server say to each other: the comparison must notice each by itself."""

from tests.mutations.fault import Fault

SAID = "tests/differential/test_dialogues.py::test_what_client_and_server_say_is_the_same_through_the_gateway"
SESSIONLESS = (f"{SAID}[conformance-sessionless]",)

FAULTS_OF_DIALOGUES = (
    Fault(
        "log messages reach nobody",
        "app/protocol/exchange.py",
        '        return self._admit(ToStream(stream, payload, change), now, change or b"")\n',
        '        return Dropped("unknown_progress")\n',
        SESSIONLESS,
    ),
    Fault(
        "a notification loses its parameters",
        "app/protocol/exchange.py",
        "payload = dump_notification(method, message.params)",
        "payload = dump_notification(method, None)",
        SESSIONLESS,
    ),
    Fault(
        "a result loses its content on its way from one revision to the other",
        "app/protocol/eras/answers.py",
        '_SESSIONLESS_ONLY = ("resultType", "ttlMs", "cacheScope")',
        '_SESSIONLESS_ONLY = ("resultType", "ttlMs", "cacheScope", "content")',
        SESSIONLESS,
    ),
    Fault(
        "a cancellation loses its reason",
        "app/protocol/exchange.py",
        'return dump_notification("notifications/cancelled", {**params, "requestId": msgspec.Raw(call.gateway_id)})',
        'return dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(call.gateway_id)})',
        SESSIONLESS,
    ),
)
