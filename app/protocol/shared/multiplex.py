"""Multiplex: keeps the sessions of one shared process apart. No await, no clock.

Below each session's Exchange the ids and progress tokens are made anew, once for the process, so that an
answer finds the session that asked. Changes of lists and resources reach everybody whom they concern. What else
names no call reaches nobody, or everybody where the administrator says so; a question of the process is refused, for
there is nobody to whom it could be put. A task is its principal's.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import msgspec

from app.errors import BackendBusy, GatewayError, InvalidMessage, InvalidResponse, ParseError, ResponseTooLarge
from app.protocol import tolerant
from app.protocol.calls.stream_choice import SUBSCRIPTION_KEY
from app.protocol.commands import Dropped
from app.protocol.eras.modern import LEVELS
from app.protocol.exchange import PING
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
    several,
    string_of,
)
from app.protocol.running_tasks import task_made
from app.protocol.shared.cached_handshake import CachedHandshake, hello
from app.protocol.shared.log_levels import LogLevels
from app.protocol.shared.process_calls import ProcessCalls
from app.protocol.shared.shared_call import FailCall, Member, Out, SharedCall, ToAll, ToMember, ToProcess
from app.protocol.shared.subscriptions import Subscriptions
from app.protocol.shared.task_owners import NotYours, TaskOwners, task_named

MAX_URIS = 256  # that one session may subscribe to
BROADCAST_BYTES = 16 << 20  # written to all sessions between two ticks; what comes beyond is dropped
LEAST_BYTES = 512  # what a line counts at least

_HELLO_ID = b"0"
_LIST_CHANGES = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
})  # fmt: skip
_REFUSAL = "several sessions share this server (isolation: shared): what it asks cannot be put to any one's client"


class Multiplex:
    """One process and its sessions. Feed it lines from either side; carry out what it returns, in order.

    `broadcast`: what names no call goes to all sessions instead of none.
    """

    def __init__(self, *, broadcast: bool = False) -> None:
        self._broadcast, self._broadcast_left = broadcast, BROADCAST_BYTES
        self.greeting: CachedHandshake | None = None
        self.members: dict[Member, None] = {}
        self._calls = ProcessCalls()
        self._subscriptions: Subscriptions[Member] = Subscriptions()
        self._tasks: TaskOwners[Member] = TaskOwners()
        self._levels: LogLevels[Member] = LogLevels()

    @property
    def busyness(self) -> tuple[int, int]:
        """Calls that run or wait, and sessions."""
        turns = self._calls.turns
        return turns.running + turns.waiting, len(self.members)

    # --- sessions come and go

    def hello(self) -> bytes:
        """The first line for the process; `greeting` is there once it has answered."""
        return hello(_HELLO_ID)

    def join(self, owner: Any, principal: Hashable) -> Member:
        """One session more, of this principal."""
        member = Member(owner, principal)
        self.members[member] = None
        return member

    def leave(self, member: Member) -> list[Out]:
        """The session is over: the process need not work for it any more. Idempotent."""
        if member not in self.members:
            return []
        del self.members[member]
        outs = self._calls.cancel_all(member)
        outs += [self._unsubscribe_for_nobody(uri) for uri in self._subscriptions.discard_all(member)]
        self._tasks.left(member.principal, member)
        self._levels.left(member)
        outs += self._tell_level()
        return outs + self._calls.leave(member)

    def pause(self, member: Member) -> None:
        """The session cannot take more: its calls wait, and what it can do without is dropped."""
        self._calls.turns.pause(member)

    def resume(self, member: Member) -> list[Out]:
        """Undoes `pause`."""
        return self._calls.resume(member)

    # --- from a session

    def from_session(self, member: Member, line: bytes) -> list[Out]:
        """One line of a session, as its Exchange wrote it."""
        message = parse_backend(line)
        if type(message) is Request:
            return self._request(member, message)
        if type(message) is Notification and message.method == "notifications/cancelled":
            return self._calls.cancelled(member, message.params or {})
        return []  # the process has heard `initialized`, was promised no roots, and was let ask nothing

    def abandon(self, call: SharedCall) -> list[Out]:
        """Forgets a call whose line could not be written; its session is told `error` by the caller."""
        return self._calls.abandon(call)

    def _request(self, member: Member, message: Request) -> list[Out]:
        assert self.greeting is not None
        if message.method == "initialize":
            member.has_opened = True
            self._levels.joined(member)
            return [ToMember(member, self.greeting.answer_to(message)), *self._tell_level()]
        if message.method == "logging/setLevel" and not self.greeting.is_modern:
            return self._set_level(member, message)
        if message.method in ("resources/subscribe", "resources/unsubscribe"):
            return self._subscription(member, message)
        answer = self.greeting.answer_ourselves(message)
        if answer is not None:
            return [ToMember(member, answer)]
        try:
            message.params = self._tasks.admit(member.principal, member.cursors, message)
        except NotYours as error:
            return [ToMember(member, error_response(message.id, INVALID_PARAMS, str(error)))]
        outs = self._calls.offer(member, self._calls.make(member, message))
        if outs is None:
            return [FailCall(member, message.id, BackendBusy("too much of this session waits for the backend"))]
        return outs

    def tick(self) -> None:
        """Gives up on the answers to calls that had been cancelled at the last tick; lets broadcasts go on."""
        self._broadcast_left = BROADCAST_BYTES
        self._calls.tick()

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
        call = self._calls.make(member, message)
        call.uri = uri
        return [self._calls.write(call)]

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
        params: Params = {"uri": msgspec.Raw(encode(uri))}
        return ToProcess(dump_request(self._calls.next_id(), "resources/unsubscribe", params))

    # --- log levels: the process has one, each session its own

    def _set_level(self, member: Member, message: Request) -> list[Out]:
        level = string_of((message.params or {}).get("level"))
        if level not in LEVELS:
            return [ToMember(member, error_response(message.id, INVALID_PARAMS, "unknown log level"))]
        self._levels.wants(member, level)
        return [*self._tell_level(), ToMember(member, result_response(message.id, {}))]

    def _tell_level(self) -> list[Out]:
        has_levels = self.greeting is not None and self.greeting.has_log_levels
        level = self._levels.to_tell() if has_levels else None
        if level is None:
            return []
        params: Params = {"level": msgspec.Raw(encode(level))}
        return [ToProcess(dump_request(self._calls.next_id(), "logging/setLevel", params))]

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
        """A line over the limit: the call that its ends name fails; when it has ended without a name that can be read,
        the only one that it can be the answer to.

        Raises:
            InvalidResponse: that is our `initialize`.
        """
        name = tolerant.answered(beginning, end)
        self._require_greeting(answered_id(name or b""), "it is too long")
        call = self._calls.running.get(answered_id(name or b""))
        if name is None and end and tolerant.is_answer(beginning):
            self._require_greeting(_HELLO_ID, "it is too long")
            call = self._calls.only()
        if call is None or call.member is None:
            return [Dropped("oversized")]
        return self._failed(call, ResponseTooLarge())

    def call_of(self, member: Member, answered: bytes) -> bytes | None:
        """The session's own id of the call that this answer is for; None where that is another session's."""
        call = self._calls.running.get(answered_id(answered))
        return call.id if call is not None and call.member is member else None

    def _require_greeting(self, answered: bytes, problem: str) -> None:
        """Whoever waits for the process hears at once that its first answer is none."""
        if answered == _HELLO_ID and self.greeting is None:
            raise InvalidResponse(f"the backend's answer to `initialize` cannot be used: {problem}")

    def _invalid(self, line: bytes, error: InvalidMessage) -> list[Out]:
        """Several messages, a broken answer, a broken question, or noise."""
        messages = several(line)
        if messages:
            return [out for each in messages for out in self.from_process(each)]
        broken = tolerant.broken(line)
        answered = answered_id(broken.answers or b"")
        self._require_greeting(answered, str(error))
        call = self._calls.running.get(answered)
        if call is not None and call.member is not None:
            return self._failed(call, InvalidResponse(f"the backend's answer is no JSON-RPC response: {error}"))
        refused = refusal(broken.asks or b"", error)
        if refused is not None:
            return [ToProcess(refused)]
        return [Dropped("noise" if isinstance(error, ParseError) else "invalid")]

    def _failed(self, call: SharedCall, error: GatewayError) -> list[Out]:
        member = call.member
        assert member is not None
        return [FailCall(member, call.id, error), *self._calls.abandon(call)]

    def _answer(self, response: Response) -> list[Out]:
        call = self._calls.running.pop(response.id, None) or self._calls.late.pop(response.id, None)
        if call is None and response.id == b"null" and response.member == "error":  # it could not read whose it is
            self._require_greeting(_HELLO_ID, "it is an error without an id")
            call = self._calls.only()
            if call is not None:
                del self._calls.running[call.our_id]
        if call is None:
            if response.id == _HELLO_ID and self.greeting is None:
                self.greeting = CachedHandshake(response)
                return []
            return [Dropped("unknown_answer")]
        outs = self._subscribed(call, response)
        if call.member is not None:
            if response.member == "result":
                response = self._with_owned_tasks(call.method, call.member, response)
            outs.append(ToMember(call.member, dump_response(call.id, response)))
        return outs + self._calls.finish(call)

    def _with_owned_tasks(self, method: str, member: Member, response: Response) -> Response:
        """Takes note of the task that a call has become; lists nobody else's."""
        if method == "tasks/list":
            value = self._tasks.own_list(member.principal, member.cursors, response.value)
            return Response(response.id, "result", value)
        task = None if method.startswith("tasks/") else task_made(response.value)
        if task is not None:
            self._tasks.add(task, member.principal, member)
        return response

    def _told(self, message: Notification, line: bytes) -> list[Out]:
        method, params = message.method, message.params or {}
        if method == "notifications/progress":
            return self._progress(params)
        if method == "notifications/cancelled":
            return self._redirected(method, params, "requestId", self._calls.running.get(_bytes(params, "requestId")))
        meta = members_of(params["_meta"]) if "_meta" in params else {}
        if SUBSCRIPTION_KEY in meta:
            call = self._calls.running.get(_bytes(meta, SUBSCRIPTION_KEY))
            if call is not None:
                meta[SUBSCRIPTION_KEY] = msgspec.Raw(call.id)
                params["_meta"] = msgspec.Raw(encode(meta))
            return self._redirected(method, params, None, call)
        if method in _LIST_CHANGES:
            return [ToAll([member for member in self.members if member.has_opened], line, method.encode())]
        if method == "notifications/resources/updated":
            uri = string_of(params.get("uri")) or ""
            return [ToAll(self._subscriptions.concerned(uri), line, method.encode() + _bytes(params, "uri"))]
        task = task_named(method, params, meta)
        if task is not None and self._tasks.is_known(task):
            maker = self._tasks.maker_of(task)
            return self._told_to([] if maker is None else [maker], message, line)
        return self._told_to_all(message, line)

    def _told_to_all(self, message: Notification, line: bytes) -> list[Out]:
        """What names no call and no task: it may be about anybody."""
        if not self._broadcast:
            return [Dropped("unattributed")]
        is_modern = self._is_modern()  # then sessions are open from the beginning
        members = [member for member in self.members if member.has_opened or is_modern]
        cost = len(members) * max(len(line), LEAST_BYTES)
        if cost > self._broadcast_left:
            return [Dropped("broadcast_limit")]
        self._broadcast_left -= cost
        return self._told_to(members, message, line)

    def _told_to(self, members: Iterable[Member], message: Notification, line: bytes) -> list[Out]:
        """Whoever of these takes it at the moment, and wants its level."""
        if message.method == "notifications/message" and not self._is_modern():
            level = string_of((message.params or {}).get("level"))
            members = [member for member in members if self._levels.hears(member, level)]
        outs: list[Out] = [ToMember(member, line) for member in members if not member.is_paused]
        return outs or [Dropped("unattributed")]

    def _progress(self, params: Params) -> list[Out]:
        call = self._calls.running.get(_bytes(params, "progressToken"))
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

    def _is_modern(self) -> bool:
        """Whether log levels come with each request, and are the sessions' own affair."""
        return self.greeting is not None and self.greeting.is_modern

    def __repr__(self) -> str:
        return f"<Multiplex [{len(self.members)} sessions, {self._calls.turns!r}]>"


def _bytes(params: Params, key: str) -> bytes:
    return bytes(params.get(key, ABSENT))
