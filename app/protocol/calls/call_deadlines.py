"""When a call is overdue, and what happens then."""

import math
from collections.abc import Iterator

from app.errors import BackendTimeout, RequestCancelled
from app.protocol.commands import Call, Command, Failed, ToBackend

_FOR_EVER = frozenset({"subscriptions/listen", "tasks/result"})  # answered when the subscription or the task ends


def patience_s(method: str, call_s: float, initialize_s: float) -> float:
    """How long a call of this method may take, from when it is sent."""
    if method in _FOR_EVER:
        return math.inf
    return initialize_s if method == "initialize" else call_s


def overdue(running: dict[bytes, Call], now: float, *, may_wait_for_client: bool) -> list[Call]:
    """Calls past their deadline; while the backend waits for an answer of the client only `initialize` and cancelled
    ones."""
    return [
        call for call in running.values()
        if call.deadline <= now and (not may_wait_for_client or call.cancelled or call.method == "initialize")
    ]  # fmt: skip


def ended(call: Call, now: float) -> Iterator[Command]:
    """The error for the client, and the cancellation for the backend."""
    if call.cancelled:
        yield Failed(call, RequestCancelled(), may_go_on=True)
        return
    timeout = BackendTimeout(f"the backend did not answer within {now - call.started - call.waited_s:.0f} s")
    yield Failed(call, timeout, may_go_on=True)
    if call.method != "initialize":
        yield ToBackend(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":'
            b'{"requestId":%b,"reason":"timeout"}}' % call.gateway_id
        )
