"""Multiplex: keeps the sessions of one shared process apart. No await, no clock.

Below each session's Exchange the ids and progress tokens are made anew, once for the process, so that an
answer finds the session that asked. What stdio does not attribute reaches everybody whom it may concern, or
nobody; a question of the process is refused, for there is nobody to whom it could be put.
"""

from typing import Any

import msgspec

from app.errors import BackendBusy, GatewayError, InvalidMessage, InvalidResponse, ParseError, ResponseTooLarge
from app.protocol import tolerant
from app.protocol.commands import Dropped
from app.protocol.exchange import PING, SUBSCRIPTION_KEY
from app.protocol.greeting import Greeting, hello
from app.protocol.jsonrpc import (
    ABSENT,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Params,
    Request,
    Response,
    answered_id,
    dump_notification,
    dump_request,
    dump_response,
    encode,
    error_response,
    members_of,
    parse_backend,
    refusal,
    result_response,
    string_of,
)
from app.protocol.shared_call import FailCall, Member, Out, SharedCall, ToAll, ToMember, ToProcess
from app.protocol.subscriptions import Subscriptions
from app.protocol.turns import Turns, Verdict

MAX_RUNNING = 128  # calls of one process; above it only a session that has none running gets another
MAX_WAITING_BYTES = 4 << 20  # of one session's calls that wait for their turn
MAX_LATE = 256  # cancelled calls whose answer, should it come, still finds its session
MAX_URIS = 256  # that one session may subscribe to

_HELLO_ID = b"0"
_LIST_CHANGES = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
})  # fmt: skip
_REFUSAL = "several sessions share this server (isolation: shared): what it asks cannot be put to any one's client"


class Multiplex:
    """One process and its sessions. Feed it lines from either side; carry out what it returns, in order."""

    def __init__(self) -> None:
        self.greeting: Greeting | None = None
        self.members: dict[Member, None] = {}
        self._turns: Turns[SharedCall] = Turns(MAX_RUNNING, MAX_WAITING_BYTES)
        self._calls: dict[bytes, SharedCall] = {}  # what the process works on, by our id
        self._late: dict[bytes, SharedCall] = {}  # what was cancelled
        self._late_before: list[bytes] = []
        self._subscriptions: Subscriptions[Member] = Subscriptions()
        self._last_id = 0

    @property
    def busyness(self) -> tuple[int, int]:
        """Calls that run or wait, and sessions."""
        return self._turns.running + self._turns.waiting, len(self.members)

    # --- sessions come and go

    def hello(self) -> bytes:
        """The first line for the process; `greeting` is there once it has answered."""
        return hello(_HELLO_ID)

    def join(self, owner: Any) -> Member:
        """One session more."""
        member = Member(owner)
        self.members[member] = None
        return member

    def leave(self, member: Member) -> list[Out]:
        """The session is over: the process need not work for it any more. Idempotent."""
        if member not in self.members:
            return []
        del self.members[member]
        outs: list[Out] = []
        for call in member.calls.values():
            call.member = None
            call.has_place = False
            if call.our_id in self._calls:
                outs.append(self._cancel(call, {}))
        member.calls.clear()
        outs += [self._unsubscribe_for_nobody(uri) for uri in self._subscriptions.discard_all(member)]
        return outs + self._send(self._turns.leave(member))

    def pause(self, member: Member) -> None:
        """The session cannot take more: its calls wait, and what it can do without is dropped."""
        self._turns.pause(member)

    def resume(self, member: Member) -> list[Out]:
        """Undoes `pause`."""
        return self._send(self._turns.resume(member))

    # --- from a session

    def from_session(self, member: Member, line: bytes) -> list[Out]:
        """One line of a session, as its Exchange wrote it."""
        message = parse_backend(line)
        if type(message) is Request:
            return self._request(member, message)
        if type(message) is Notification and message.method == "notifications/cancelled":
            return self._cancelled(member, message.params or {})
        return []  # the process has heard `initialized`, was promised no roots, and was let ask nothing

    def abandon(self, call: SharedCall) -> list[Out]:
        """Forgets a call whose line could not be written; its session is told `error` by the caller."""
        self._calls.pop(call.our_id, None)
        return self._finish(call)

    def _request(self, member: Member, message: Request) -> list[Out]:
        assert self.greeting is not None
        if message.method == "initialize":
            member.has_opened = True
            return [ToMember(member, self.greeting.answer_to(message))]
        if message.method in ("resources/subscribe", "resources/unsubscribe"):
            return self._subscription(member, message)
        answer = self.greeting.answer_ourselves(message)
        if answer is not None:
            return [ToMember(member, answer)]
        call = self._call(member, message)
        verdict = self._turns.offer(member, call, len(call.line))
        if verdict is Verdict.RUN:
            return self._send([call])
        if verdict is Verdict.REFUSE:
            del member.calls[call.id]
            return [FailCall(member, call.id, BackendBusy("too much of this session waits for the backend"))]
        return []

    def _call(self, member: Member, message: Request) -> SharedCall:
        self._last_id += 1
        our_id = b"%d" % self._last_id
        params, token = message.params, None
        if params is not None and "_meta" in params:
            meta = members_of(params["_meta"])
            if "progressToken" in meta:
                token = bytes(meta["progressToken"])
                meta["progressToken"] = msgspec.Raw(our_id)
                params = {**params, "_meta": msgspec.Raw(encode(meta))}
        line = dump_request(our_id, message.method, params)
        call = member.calls[message.id] = SharedCall(message.id, our_id, message.method, member, token, line)
        return call

    def _send(self, calls: list[SharedCall]) -> list[Out]:
        """The turn of these calls has come."""
        for call in calls:
            call.has_place = True
        return [self._written(call) for call in calls]

    def _written(self, call: SharedCall) -> ToProcess:
        self._calls[call.our_id] = call
        line, call.line = call.line, b""
        return ToProcess(line, call)

    def _finish(self, call: SharedCall) -> list[Out]:
        """The call is over: its place is free for another."""
        member = call.member
        if member is None:
            return []
        member.calls.pop(call.id, None)
        return self._free(call, member)

    def _free(self, call: SharedCall, member: Member) -> list[Out]:
        if not call.has_place:
            return []
        call.has_place = False
        return self._send(self._turns.finish(member))

    def _cancelled(self, member: Member, params: Params) -> list[Out]:
        call = member.calls.get(bytes(params.get("requestId", ABSENT)))
        if call is None or call.our_id in self._late:
            return []
        if call.our_id in self._calls:
            return [self._cancel(call, params), *self._free(call, member)]
        self._turns.withdraw(member, call)
        del member.calls[call.id]
        return []

    def _cancel(self, call: SharedCall, params: Params) -> ToProcess:
        self._late[call.our_id] = self._calls.pop(call.our_id)
        if len(self._late) > MAX_LATE:
            self._forget_late(next(iter(self._late)))
        params = {**params, "requestId": msgspec.Raw(call.our_id)}
        return ToProcess(dump_notification("notifications/cancelled", params))

    def tick(self) -> None:
        """Gives up on the answers to calls that had been cancelled at the last tick."""
        for our_id in self._late_before:
            self._forget_late(our_id)
        self._late_before = list(self._late)

    def _forget_late(self, our_id: bytes) -> None:
        call = self._late.pop(our_id, None)
        if call is not None and call.member is not None:
            call.member.calls.pop(call.id, None)

    # --- subscriptions: the process has one for all who want it

    def _subscription(self, member: Member, message: Request) -> list[Out]:
        """Asks the process on behalf of the first who wants a resource, and of the last; it needs no turn."""
        uri = string_of((message.params or {}).get("uri"))
        is_new = message.method == "resources/subscribe"
        if uri is None or (is_new and self._subscriptions.count(member) >= MAX_URIS):
            return [ToMember(member, error_response(message.id, INVALID_PARAMS, "no uri, or too many subscriptions"))]
        if is_new:
            must_ask = not self._subscriptions.has(uri)
            if not must_ask:
                self._subscriptions.add(member, uri)
        else:
            must_ask = self._subscriptions.discard(member, uri)
        if not must_ask:
            return [ToMember(member, result_response(message.id, {}))]
        call = self._call(member, message)
        call.uri = uri
        return [self._written(call)]

    def _subscribed(self, call: SharedCall, response: Response) -> list[Out]:
        """The process has agreed; the session may have left meanwhile."""
        if call.method != "resources/subscribe" or call.uri is None or response.member == "error":
            return []
        if call.member is not None:
            self._subscriptions.add(call.member, call.uri)
        elif not self._subscriptions.has(call.uri):
            return [self._unsubscribe_for_nobody(call.uri)]
        return []

    def _unsubscribe_for_nobody(self, uri: str) -> ToProcess:
        self._last_id += 1
        params: Params = {"uri": msgspec.Raw(encode(uri))}
        return ToProcess(dump_request(b"%d" % self._last_id, "resources/unsubscribe", params))

    # --- from the process

    def from_process(self, line: bytes) -> list[Out]:
        """One line of the process.

        Raises:
            InvalidResponse: it has refused our `initialize`.
        """
        try:
            message = parse_backend(line)
        except InvalidMessage as error:
            return self._invalid(line, error)
        if type(message) is Response:
            return self._answer(message)
        if type(message) is Request:
            if message.method == PING:
                return [ToProcess(result_response(message.id, {}))]
            return [ToProcess(error_response(message.id, METHOD_NOT_FOUND, _REFUSAL)), Dropped("shared_question")]
        assert type(message) is Notification
        return self._told(message, line)

    def oversized(self, beginning: bytes, end: bytes = b"") -> list[Out]:
        """A line over the limit: the call that its ends name fails, or the only one that it can be the answer to."""
        call = self._calls.get(answered_id(tolerant.answered(beginning, end) or b""))
        if call is None and not end and tolerant.is_answer(beginning):
            call = self._only_call()
        if call is None or call.member is None:
            return [Dropped("oversized")]
        return self._failed(call, ResponseTooLarge())

    def _invalid(self, line: bytes, error: InvalidMessage) -> list[Out]:
        """Several messages, a broken answer, a broken question, or noise."""
        several = tolerant.messages(line)
        if several:
            return [out for each in several for out in self.from_process(each)]
        broken = tolerant.broken(line)
        call = self._calls.get(answered_id(broken.answers or b""))
        if call is not None and call.member is not None:
            return self._failed(call, InvalidResponse(f"the backend's answer is no JSON-RPC response: {error}"))
        refused = refusal(broken.asks or b"", error)
        if refused is not None:
            return [ToProcess(refused)]
        return [Dropped("noise" if isinstance(error, ParseError) else "invalid")]

    def _failed(self, call: SharedCall, error: GatewayError) -> list[Out]:
        member = call.member
        assert member is not None
        return [FailCall(member, call.id, error), *self.abandon(call)]

    def _answer(self, response: Response) -> list[Out]:
        call = self._calls.pop(response.id, None) or self._late.pop(response.id, None)
        if call is None and response.id == b"null" and response.member == "error":  # it could not read whose it is
            call = self._only_call()
            if call is not None:
                del self._calls[call.our_id]
        if call is None:
            if response.id == _HELLO_ID and self.greeting is None:
                self.greeting = Greeting(response)
                return []
            return [Dropped("unknown_answer")]
        outs = self._subscribed(call, response)
        if call.member is not None:
            outs.append(ToMember(call.member, dump_response(call.id, response)))
        return outs + self._finish(call)

    def _told(self, message: Notification, line: bytes) -> list[Out]:
        method, params = message.method, message.params or {}
        if method == "notifications/progress":
            return self._progress(params)
        if method == "notifications/cancelled":
            return self._redirected(method, params, "requestId", self._calls.get(_bytes(params, "requestId")))
        if "_meta" in params and SUBSCRIPTION_KEY in (meta := members_of(params["_meta"])):
            call = self._calls.get(_bytes(meta, SUBSCRIPTION_KEY))
            if call is not None:
                meta[SUBSCRIPTION_KEY] = msgspec.Raw(call.id)
                params["_meta"] = msgspec.Raw(encode(meta))
            return self._redirected(method, params, None, call)
        if method in _LIST_CHANGES:
            return [ToAll([member for member in self.members if member.has_opened], line, method.encode())]
        if method == "notifications/resources/updated":
            uri = string_of(params.get("uri")) or ""
            return [ToAll(self._subscriptions.concerned(uri), line, method.encode() + _bytes(params, "uri"))]
        only = self._only_call()
        if only is None or only.member is None or only.member.is_paused:
            return [Dropped("unattributed")]
        return [ToMember(only.member, line)]

    def _progress(self, params: Params) -> list[Out]:
        call = self._calls.get(_bytes(params, "progressToken"))
        if call is None or call.token is None or call.member is None:
            return [Dropped("unknown_progress")]
        if call.member.is_paused:
            return [Dropped("session_slow")]
        params["progressToken"] = msgspec.Raw(call.token)
        return [ToMember(call.member, dump_notification("notifications/progress", params))]

    def _redirected(self, method: str, params: Params, key: str | None, call: SharedCall | None) -> list[Out]:
        """A notification that names a call of ours, for the session whose call it is."""
        if call is None or call.member is None:
            return [Dropped("unknown_cancel" if key else "unattributed")]
        if key is not None:
            params[key] = msgspec.Raw(call.id)
        return [ToMember(call.member, dump_notification(method, params))]

    def _only_call(self) -> SharedCall | None:
        """The call to which everything belongs: the only one the process works on, so far as we know."""
        return next(iter(self._calls.values())) if len(self._calls) == 1 and not self._late else None

    def __repr__(self) -> str:
        return f"<Multiplex [{len(self.members)} sessions, {self._turns!r}]>"


def _bytes(params: Params, key: str) -> bytes:
    return bytes(params.get(key, ABSENT))
