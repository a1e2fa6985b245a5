"""Multiplex: keeps the sessions of one shared process apart.

Below each session's Exchange, ids and progress tokens are replaced once more, so that an answer finds its session.
Changes of lists and resources go to all sessions concerned; other messages that name no call go to nobody, or to all
with `broadcast`. Questions of the process are refused, because it is unknown whom to ask. A task is its principal's.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import msgspec

from app.errors import BackendBusy, GatewayError, InvalidMessage, InvalidResponse, ParseError, ResponseTooLarge
from app.protocol import tolerant
from app.protocol._running_tasks import task_made
from app.protocol.commands import NOISE, Dropped
from app.protocol.eras.sessionless_envelope import LEVELS
from app.protocol.exchange import PING, SUBSCRIPTION_KEY
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
    encoded,
    error_response,
    is_without_id,
    members_of,
    parse_backend,
    refusal,
    result_response,
    several,
    string_of,
)
from app.protocol.shared._log_levels import LogLevels
from app.protocol.shared._process_calls import ProcessCalls
from app.protocol.shared._task_owners import NotYours, TaskOwners, task_named
from app.protocol.shared.cached_handshake import CachedHandshake, hello
from app.protocol.shared.shared_call import FailCall, Member, Out, SharedCall, ToAll, ToMember, ToProcess
from app.protocol.shared.subscriptions import Subscriptions

MAX_URIS = 256  # that one session may subscribe to
BROADCAST_BYTES = 16 << 20  # to all sessions together between two ticks; more is dropped
LEAST_BYTES = 512  # that a line counts at least

_HELLO_ID = b"0"
_LIST_CHANGES = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed",
})  # fmt: skip
_REFUSAL = "several sessions share this server (isolation: shared): it cannot ask a client"


class Multiplex:
    """One process and its sessions. Pass it lines from either side; carry out what it returns, in order.

    `broadcast`: messages that name no call go to all sessions instead of none.
    """

    def __init__(self, *, broadcast: bool = False) -> None:
        self._broadcast, self._broadcast_left = broadcast, BROADCAST_BYTES
        self.greeting: CachedHandshake | None = None
        self.members: dict[Member, None] = {}
        self._calls = ProcessCalls()
        self._subscriptions, self._tasks, self._levels = Subscriptions(), TaskOwners(), LogLevels()

    @property
    def busyness(self) -> tuple[int, int]:
        """Numbers of calls that run or wait, and of sessions."""
        turns = self._calls.turns
        return turns.running + turns.waiting, len(self.members)

    # --- sessions come and go

    def hello(self) -> bytes:
        """The first line for the process; its answer sets `greeting`."""
        return hello(_HELLO_ID)

    def join(self, owner: Any, principal: Hashable) -> Member:
        """A new session of this principal."""
        member = Member(owner, principal)
        self.members[member] = None
        return member

    def leave(self, member: Member) -> list[Out]:
        """The session has ended: cancels its calls and subscriptions. Idempotent."""
        if member not in self.members:
            return []
        del self.members[member]
        outs = self._calls.cancel_all(member)
        outs += [self._unsubscribe_for_nobody(uri) for uri in self._subscriptions.discard_all(member)]
        self._tasks.left(member)
        self._levels.left(member)
        outs += self._tell_level()
        return outs + self._calls.leave(member)

    def pause(self, member: Member) -> None:
        """The session does not read: its calls wait, and progress and broadcasts for it are dropped."""
        self._calls.turns.pause(member)

    def resume(self, member: Member) -> list[Out]:
        """Undoes `pause`."""
        return self._calls.resume(member)

    # --- from a session

    def from_session(self, member: Member, line: bytes) -> list[Out]:
        """One line of a session's Exchange."""
        message = parse_backend(line)
        if type(message) is Request:
            return self._request(member, message)
        if type(message) is Notification and message.method == "notifications/cancelled":
            return self._calls.cancelled(member, message.params or {})
        return []  # the process has got `initialized`, was promised no roots, and could ask nothing

    def abandon(self, call: SharedCall) -> list[Out]:
        """Forgets a call whose line could not be written; the caller tells its session."""
        return self._calls.abandon(call)

    def _request(self, member: Member, message: Request) -> list[Out]:
        assert self.greeting is not None
        if message.method == "initialize":
            member.opened()
            self._levels.joined(member)
            return [ToMember(member, self.greeting.answer_to(message)), *self._tell_level()]
        if message.method == "logging/setLevel" and not self.greeting.is_sessionless:
            return self._set_level(member, message)
        if message.method in ("resources/subscribe", "resources/unsubscribe"):
            return self._subscription(member, message)
        answer = self.greeting.answer_ourselves(message)
        if answer is not None:
            return [ToMember(member, answer)]
        try:
            params = self._tasks.admit(member, message)
        except NotYours as error:
            return [ToMember(member, error_response(message.id, INVALID_PARAMS, str(error)))]
        outs = self._calls.offer(member, self._calls.make(member, message, params))
        if outs is None:
            return [FailCall(member, message.id, BackendBusy("too many bytes of this session wait for the backend"))]
        return outs

    def tick(self) -> None:
        """Renews the broadcast budget; forgets calls that had been cancelled at the last tick already."""
        self._broadcast_left = BROADCAST_BYTES
        self._calls.tick()

    # --- subscriptions: the process has one per resource

    def _subscription(self, member: Member, message: Request) -> list[Out]:
        """Asks the process for the first subscriber and the last one; this needs no turn."""
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
        call = self._calls.make(member, message, message.params, uri)
        return [self._calls.write(call)]

    def _subscribed(self, call: SharedCall, response: Response) -> list[Out]:
        """The process has answered; the session may have left meanwhile."""
        if call.method != "resources/subscribe" or call.uri is None or response.member == "error":
            return []
        if call.member is not None:
            self._subscriptions.add(call.member, call.uri)
        elif not self._subscriptions.has(call.uri):
            return [self._unsubscribe_for_nobody(call.uri)]
        return []

    def _unsubscribe_for_nobody(self, uri: str) -> ToProcess:
        return ToProcess(dump_request(self._calls.next_id(), "resources/unsubscribe", {"uri": encoded(uri)}))

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
        return [ToProcess(dump_request(self._calls.next_id(), "logging/setLevel", {"level": encoded(level)}))]

    # --- from the process

    def from_process(self, line: bytes) -> list[Out]:
        """One line of the process. Raises InvalidResponse if it is a useless answer to our `initialize`."""
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
        """A line over the limit fails the call that its ends name; or the only call, if the complete line is an answer
        without an id that can be read. Raises InvalidResponse if it answers our `initialize`."""
        name = tolerant.answered(beginning, end)
        answered = answered_id(name or b"")
        self._require_greeting(answered, "it is too long")
        call = self._calls.running.get(answered)
        if name is None and end and tolerant.is_answer(beginning):
            self._require_greeting(_HELLO_ID, "it is too long")
            call = self._calls.only()
        if call is None or call.member is None:
            return [Dropped("oversized")]
        return self._failed(call, ResponseTooLarge())

    def call_of(self, member: Member, answered: bytes) -> bytes | None:
        """The session's id of the call that this id of ours belongs to; None if it is not this session's."""
        call = self._calls.running.get(answered_id(answered))
        return call.id if call is not None and call.member is member else None

    def _require_greeting(self, answered: bytes, problem: str) -> None:
        """Fails the start of the process at once if its answer to `initialize` cannot be used."""
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
        return [Dropped(NOISE if isinstance(error, ParseError) else "invalid")]

    def _failed(self, call: SharedCall, error: GatewayError) -> list[Out]:
        member = call.member
        assert member is not None
        return [FailCall(member, call.id, error), *self._calls.abandon(call)]

    def _answer(self, response: Response) -> list[Out]:
        call = self._calls.running.pop(response.id, None) or self._calls.late.pop(response.id, None)
        if call is None and is_without_id(response):
            self._require_greeting(_HELLO_ID, "it is an error without an id")
            call = self._calls.unread(response)
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
        """Notes the task that a call has become; removes others' tasks from a list."""
        if method == "tasks/list":
            return Response(response.id, "result", self._tasks.own_list(member, response.value))
        task = None if method.startswith("tasks/") else task_made(response.value)
        if task is not None:
            self._tasks.add(task, member)
        return response

    def _told(self, message: Notification, line: bytes) -> list[Out]:
        method, params = message.method, message.params or {}
        if method == "notifications/progress":
            return self._progress(params)
        if method == "notifications/cancelled":
            return self._redirected(
                method, params, "requestId", self._calls.running.get(answered_id(_bytes(params, "requestId")))
            )
        meta = members_of(params["_meta"]) if "_meta" in params else {}
        if SUBSCRIPTION_KEY in meta:
            call = self._calls.running.get(answered_id(_bytes(meta, SUBSCRIPTION_KEY)))
            if call is not None:
                meta[SUBSCRIPTION_KEY] = msgspec.Raw(call.id)
                params["_meta"] = encoded(meta)
            return self._redirected(method, params, None, call)
        if method in _LIST_CHANGES:
            return [ToAll([member for member in self.members if member.has_opened], line, method.encode())]
        if method == "notifications/resources/updated":
            uri = string_of(params.get("uri")) or ""
            return [ToAll(self._subscriptions.concerned(uri), line, method.encode() + _bytes(params, "uri"))]
        task = task_named(method, params, meta)
        members = None if task is None else self._tasks.told(task)
        return self._told_to_all(message, line) if members is None else self._told_to(members, message, line)

    def _told_to_all(self, message: Notification, line: bytes) -> list[Out]:
        """A message that names no call and no task, and may be about any session."""
        if not self._broadcast:
            return [Dropped("unattributed")]
        is_sessionless = self._is_sessionless()  # then there is no `initialize` to wait for
        members = [member for member in self.members if member.has_opened or is_sessionless]
        cost = len(members) * max(len(line), LEAST_BYTES)
        if cost > self._broadcast_left:
            return [Dropped("broadcast_limit")]
        self._broadcast_left -= cost
        return self._told_to(members, message, line)

    def _told_to(self, members: Iterable[Member], message: Notification, line: bytes) -> list[Out]:
        """For those of these who read at the moment, and want its log level."""
        if message.method == "notifications/message" and not self._is_sessionless():
            level = string_of((message.params or {}).get("level"))
            members = [member for member in members if self._levels.hears(member, level)]
        outs: list[Out] = [ToMember(member, line) for member in members if not member.is_paused]
        return outs or [Dropped("unattributed")]

    def _progress(self, params: Params) -> list[Out]:
        call = self._calls.running.get(answered_id(_bytes(params, "progressToken")))
        if call is None or call.token is None or call.member is None:
            return [Dropped("unknown_progress")]
        if call.member.is_paused:
            return [Dropped("session_slow")]
        params["progressToken"] = msgspec.Raw(call.token)
        return [ToMember(call.member, dump_notification("notifications/progress", params))]

    def _redirected(self, method: str, params: Params, key: str | None, call: SharedCall | None) -> list[Out]:
        """A notification that names a call, for the call's session."""
        if call is None or call.member is None:
            return [Dropped("unknown_cancel" if key else "unattributed")]
        if key is not None:
            params[key] = msgspec.Raw(call.id)
        return [ToMember(call.member, dump_notification(method, params))]

    def _is_sessionless(self) -> bool:
        """Then each request has its own log level."""
        return self.greeting is not None and self.greeting.is_sessionless


def _bytes(params: Params, key: str) -> bytes:
    return bytes(params.get(key, ABSENT))
