"""Faults in the reading of what peers write otherwise than everybody else."""

from tests.mutations.fault import Fault

FAULTS_OF_ODD_MESSAGES = (
    Fault(
        "a notification with an id of null is refused",
        "app/protocol/jsonrpc.py",
        "if not raw_id or (raw_id == _NULL and envelope.method.startswith(_NOTIFICATIONS)):",
        "if not raw_id:",
        ("tests/protocol/test_jsonrpc.py",),
    ),
    Fault(
        "a byte order mark before a client's body is an error",
        "app/protocol/jsonrpc.py",
        "body = body.removeprefix(tolerant.BYTE_ORDER_MARK)",
        "pass",
        ("tests/protocol/test_jsonrpc.py",),
    ),
    Fault(
        "a byte order mark before a server's answer is an error",
        "app/upstreams/calls.py",
        "data = data.removeprefix(BYTE_ORDER_MARK)",
        "pass",
        ("tests/upstreams/test_link.py::test_a_byte_order_mark_before_an_answer_is_ignored",),
    ),
    Fault(
        "a byte order mark stays before a process's first line",
        "app/protocol/framing.py",
        "line.removeprefix(BYTE_ORDER_MARK) for line",
        "line for line",
        ("tests/protocol/test_framing.py",),
    ),
    Fault(
        "a progress token that comes back as a string is unknown",
        "app/protocol/exchange.py",
        'self.calls.get(answered_id(bytes(params.get("progressToken", ABSENT))))',
        'self.calls.get(bytes(params.get("progressToken", ABSENT)))',
        ("tests/protocol/test_exchange.py",),
    ),
    Fault(
        "a progress token of null is one",
        "app/protocol/exchange.py",
        'if bytes(token) == b"null":',
        "if False:",
        ("tests/protocol/test_exchange.py",),
    ),
    Fault(
        "an error about a notification ends the call before it",
        "app/protocol/exchange.py",
        "if call is None or int(call.gateway_id) <= self._last_before or",
        "if call is None or",
        ("tests/protocol/test_exchange.py",),
    ),
    Fault(
        "a member's error about a notification ends its call",
        "app/protocol/toolset/member_calls.py",
        "if call is None or call.was_followed or",
        "if call is None or",
        ("tests/protocol/toolset/test_fan_out.py",),
    ),
    Fault(
        "any error without an id ends the call that runs",
        "app/protocol/without_id.py",
        "(method in _FIRST or code_of(response) in _UNREADABLE)",
        "(method in _FIRST or code_of(response) != -32601)",
        ("tests/protocol/test_without_id.py",),
    ),
    Fault(
        "a list whose cursor leads back is read until it is too long",
        "app/protocol/toolset/pages.py",
        "if not has_news:",
        "if False:",
        ("tests/links/test_toolset_member_lists.py",),
    ),
    Fault(
        "an entry that is no object takes its list away",
        "app/protocol/toolset/pages.py",
        'string_of(members_of(item).get(self._key)) if bytes(item)[:1] == b"{" else None',
        "string_of(msgspec.json.decode(item, type=Params)[self._key])",
        ("tests/links/test_toolset_member_lists.py",),
    ),
    Fault(
        "a list that is null takes its server away",
        "app/protocol/toolset/pages.py",
        'found = [] if bytes(raw) in (b"", b"null") else _decode_items(raw)',
        "found = _decode_items(raw)",
        ("tests/links/test_toolset_member_lists.py",),
    ),
    Fault(
        "tools that are refused for a moment are taken for none",
        "app/protocol/toolset/pages.py",
        "if self._is_needed and not is_odd:",
        "if False:",
        ("tests/links/test_toolset_member_lists.py",),
    ),
    Fault(
        "nobody is told what a member has left out",
        "app/admin/resources/tools/toolsets.py",
        "*listing.odd, ",
        "",
        ("tests/admin/resources/tools/test_toolsets.py",),
    ),
)
