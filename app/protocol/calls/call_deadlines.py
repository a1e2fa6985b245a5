"""When a call is overdue, and what is told about one that is."""

from collections.abc import Iterator

from app.errors import BackendTimeout, RequestCancelled
from app.protocol.commands import Call, Command, Failed, ToBackend

CANCEL_GRACE_S = 2.0  # a cancelled request may still be answered; after that its response is ended for it
_FOR_EVER = frozenset({"subscriptions/listen", "tasks/result"})  # answered when what they wait for ends


class CallDeadlines:
    """How long the calls of one session may take; with each sign of life `call_s` begins anew."""

    __slots__ = ("_initialize_s", "call_s")

    def __init__(self, call_s: float, initialize_s: float) -> None:
        self.call_s, self._initialize_s = call_s, initialize_s

    def patience(self, method: str) -> float:
        """For so long, from when it is sent, a call of this method may be without an answer."""
        if method in _FOR_EVER:
            return float("inf")
        return self._initialize_s if method == "initialize" else self.call_s


def cut_short(call: Call, now: float) -> None:
    """The client has cancelled it."""
    call.cancelled = True
    call.deadline = min(call.deadline, now + CANCEL_GRACE_S)


def overdue(running: dict[bytes, Call], now: float, *, may_wait_for_client: bool) -> list[Call]:
    """Those whose time is over. While the backend waits for the client, a call may take as long as people think."""
    return [
        call for call in running.values()
        if call.deadline <= now and (not may_wait_for_client or call.cancelled or call.method == "initialize")
    ]  # fmt: skip


def ended(call: Call, now: float) -> Iterator[Command]:
    """Its error for the client; and the backend hears that nobody waits any more."""
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
