"""When a call is overdue, and what happens then."""

import math
from collections.abc import Iterator

from app.errors import BackendBusy, BackendTimeout, RequestCancelled
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


def ended(call: Call, now: float, *, was_sent: bool = True) -> Iterator[Command]:
    """The error for the client, and the cancellation for the backend; or for what still keeps the call for one."""
    if call.cancelled:
        yield Failed(call, RequestCancelled(), may_go_on=True)
        return
    seconds = now - call.started - call.waited_s
    if was_sent:
        yield Failed(call, BackendTimeout(f"the backend did not answer within {seconds:.0f} s"), may_go_on=True)
    else:
        yield Failed(call, BackendBusy(f"no process of the backend came free within {seconds:.0f} s"), was_sent=False)
    if call.method != "initialize":
        yield ToBackend(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":'
            b'{"requestId":%b,"reason":"timeout"}}' % call.gateway_id
        )
