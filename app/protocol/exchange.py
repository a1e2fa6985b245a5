"""Exchange: matches answers to requests, and messages to streams, for one session.

The gateway makes its own ids and progress tokens on both sides, and gives back the bytes that it was given. So an
answer can only reach the request it belongs to, whatever ids a backend guesses or repeats.
"""

import math
from collections.abc import Collection, Iterator

import msgspec

from app.errors import (
    BackendBusy,
    BackendTimeout,
    GatewayError,
    InvalidMessage,
    InvalidResponse,
    ParseError,
    QuotaExceeded,
    RequestCancelled,
    ResponseTooLarge,
)
from app.protocol import tolerant
from app.protocol._notification_rate import NotificationRate
from app.protocol._running_tasks import RunningTasks, task_id_of
from app.protocol.commands import (
    NOISE,
    Answer,
    Call,
    Command,
    Dropped,
    Failed,
    LargeResult,
    Listen,
    Several,
    Stream,
    ToBackend,
    ToStream,
)
from app.protocol.jsonrpc import (
    ABSENT,
    MAX_ID_CHARACTERS,
    Notification,
    Params,
    Request,
    Response,
    answered_id,
    dump_notification,
    dump_request,
    encode,
    encoded,
    may_be_of_a_call,
    members_of,
    object_in,
    parse_backend,
    refusal,
    result_response,
    several,
    string_of,
)
from app.protocol.questions import Questions

MAX_KEPT = {"initialize": 64 << 10, "logging/setLevel": 2048, "resources/subscribe": 4096}
MAX_TOKEN_BYTES = MAX_ID_CHARACTERS + 2  # of a progress token, quotes included

PING = "ping"
_COALESCED = frozenset({
    "notifications/tools/list_changed", "notifications/prompts/list_changed",
    "notifications/resources/list_changed", "notifications/resources/updated",
})  # fmt: skip


class Exchange:
    """The core of one session, without I/O and clock.

    The owner passes what the client sent (`request`, `notification`, `questions.answer`) and gets the line for the
    backend; it passes what the backend sent (`receive`) and gets a command. A call fails after `call_s` without
    progress. At most `max_calls` are sent at once; others wait: after each call that has ended, call `next_turn`.
    """

    def __init__(self, call_s: float, *, initialize_s: float = 30.0, max_calls: int = 128) -> None:
        self.calls: dict[bytes, Call] = {}  # sent to the backend: by our id, oldest first
        self.waiting = WaitingCalls(self.calls, max_calls)  # not sent yet
        self._by_client_id: dict[bytes, Call] = {}
        # Made with the first question, notification and task: most sessions never have one.
        self._questions: Questions | None = None
        self._rate: NotificationRate | None = None
        self._running_tasks: RunningTasks | None = None
        self._last_id = 0
        self._last_before = 0  # of the calls before the last other message that the backend got
        self._call_s, self._initialize_s = call_s, initialize_s
        self.listening = False  # whether somebody reads the Listen stream
        self.may_make_tasks = False  # whether any call may

    def number_from(self, number: int) -> None:
        """Ids begin after this one: another node has used smaller ones, and late answers to them must not match."""
        self._last_id = number

    def any_call_may_make_task(self) -> None:
        """The backend is a server of 2026-07-28 with the extension for tasks."""
        self.may_make_tasks = True

    def note_listener(self, *, is_there: bool) -> None:
        """Whether somebody reads the Listen stream from now on."""
        self.listening = is_there

    @property
    def questions(self) -> Questions:
        """The backend's."""
        self._questions = self._questions or Questions()
        return self._questions

    @property
    def has_questions(self) -> bool:
        """Whether the backend waits for the client."""
        return self._questions is not None and bool(self._questions.open)

    def has_running_task(self, now: float) -> bool:
        return self._running_tasks is not None and self._running_tasks.is_any(now)

    @property
    def holds_back(self) -> bool:
        """Whether changes wait for the next second, to come out of `expire`."""
        return self._rate is not None and self._rate.holds_back

    @property
    def in_flight(self) -> int:
        """Number of calls without an outcome, sent or waiting."""
        return len(self.calls) + len(self.waiting.calls)

    def every_call(self) -> list[Call]:
        """Calls without an outcome, oldest first."""
        return [*self.calls.values(), *(each.call for each in self.waiting.calls.values())]

    # --- from the client

    def request(
        self, message: Request, stream: Stream, now: float, *, may_stream: bool = True, is_own: bool = False
    ) -> tuple[Call, bytes | None]:
        """Registers a call; its outcome comes out of `receive`, `expire` or `fail_all`, exactly once.

        Returns the call, and the line for the backend; None if it waits for its turn.

        Raises:
            InvalidMessage: a call with this id is in flight, or what is kept of its params is too long.
            QuotaExceeded: no more calls may wait.
        """
        if message.id in self._by_client_id:
            raise InvalidMessage("a request with this id is already in flight")
        if message.method in MAX_KEPT:
            _require_short(message)
        self._last_id += 1
        gateway_id = b"%d" % self._last_id
        params, token = message.params, None
        if params is not None and "_meta" in params:
            params, token = replace_token(params, gateway_id)
        deadline = now + patience_s(message.method, self._call_s, self._initialize_s)
        line = dump_request(gateway_id, message.method, params)
        call = Call(message.id, gateway_id, message.method, stream, may_stream, now, deadline, token, size=len(line))
        if params is not None:
            call.note(params, may_make_task=self.may_make_tasks)
        waiting = self.waiting
        limit = waiting.max_running if is_own else waiting.max_running - waiting.reserved
        if len(self.calls) >= limit and message.method != "initialize":  # which everything else waits for
            waiting.add(call, line, is_own=is_own)
            self._by_client_id[message.id] = call
            return call, None
        self.calls[gateway_id] = self._by_client_id[message.id] = call
        return call, line

    def next_turn(self, now: float) -> tuple[Call, bytes] | None:
        """The call that has waited longest, and its line, if it may run now; it counts as sent."""
        turn = self.waiting.next()
        if turn is not None:
            call = turn[0]
            call.sent(now, patience_s(call.method, self._call_s, self._initialize_s))
            self.calls[call.gateway_id] = call
        return turn

    def withdraw(self, message: Notification) -> Failed | None:
        """The outcome of a waiting call that this cancels; None if it cancels none."""
        if message.method != "notifications/cancelled":
            return None
        call = self._by_client_id.get(bytes((message.params or {}).get("requestId", ABSENT)))
        if call is None or call.gateway_id not in self.waiting.calls:
            return None
        self.waiting.take(call.gateway_id)
        del self._by_client_id[call.id]
        return Failed(call, RequestCancelled(), was_sent=False)

    def cancels(self, message: Notification) -> bool:
        """Whether it cancels a call that has no outcome yet."""
        is_cancelled = message.method == "notifications/cancelled"
        return is_cancelled and bytes((message.params or {}).get("requestId", ABSENT)) in self._by_client_id

    def abandon(self, call: Call) -> None:
        """Forgets a call that was sent, or could not be sent."""
        self.calls.pop(call.gateway_id, None)
        self._by_client_id.pop(call.id, None)

    def notification(self, message: Notification, now: float) -> bytes | None:
        """The line for the backend, if it has to be told."""
        self._last_before = self._last_id
        if message.method == "notifications/cancelled":
            return self._cancel(message.params or {}, now)
        return dump_notification(message.method, message.params)

    def _cancel(self, params: Params, now: float) -> bytes | None:
        call = self._by_client_id.get(bytes(params.get("requestId", ABSENT)))
        if call is None or call.method == "initialize":  # must not be cancelled (basic/utilities/cancellation)
            return None
        call.cancel(now)
        return dump_notification("notifications/cancelled", {**params, "requestId": msgspec.Raw(call.gateway_id)})

    # --- from the backend

    def receive(self, line: bytes, now: float) -> Command:
        """What to do about one line of the backend."""
        try:
            message = parse_backend(line)
        except InvalidMessage as error:
            return self._receive_invalid(line, error)
        if type(message) is Response:
            call = self.calls.pop(message.id, None) or self._answered_without_id(message)
            if call is None:
                return Dropped("unknown_answer")
            del self._by_client_id[call.id]
            if call.about_task and message.member == "result":
                self._running_tasks = self._running_tasks or RunningTasks()
                self._running_tasks.answered(call.method, call.task, message.value, now)
            return Answer(call, message)
        if type(message) is Request:
            return self._receive_question(message, now)
        assert type(message) is Notification
        return self._receive_notification(message, now)

    def answered(self, gateway_id: bytes, result: bytes) -> Command:
        """As `receive`, where the result of a call is at hand as JSON on one line."""
        call = self.calls.pop(gateway_id, None)
        if call is None:
            return Dropped("unknown_answer")
        del self._by_client_id[call.id]
        return Answer(call, Response(gateway_id, "result", msgspec.Raw(result)), LargeResult(result))

    def _answered_without_id(self, response: Response) -> Call | None:
        """The only call gets an error with the id null: the backend could not read the request's id. But not if
        something else was sent since, which it may refuse."""
        call = next(iter(self.calls.values())) if len(self.calls) == 1 else None
        if call is None or int(call.gateway_id) <= self._last_before or not may_be_of_a_call(response, call.method):
            return None
        return self.calls.pop(call.gateway_id)

    def receive_oversized(self, beginning: bytes, end: bytes = b"") -> Command:
        """A line over the limit fails the call that its ends name; or the only call, if the complete line is an answer
        without an id that can be read."""
        name = tolerant.answered(beginning, end)
        call = named = self.calls.get(answered_id(name or b""))
        if name is None and end and tolerant.is_answer(beginning) and len(self.calls) == 1:
            call = next(iter(self.calls.values()))
        if call is None:
            return Dropped("oversized")
        self.abandon(call)
        return Failed(call, ResponseTooLarge(), may_go_on=named is None)

    def _receive_invalid(self, line: bytes, error: InvalidMessage) -> Command:
        """Several messages, a broken answer to one of our calls, a broken question, or noise."""
        messages = several(line)
        if messages:
            return Several(messages)
        broken = tolerant.broken(line)
        call = self.calls.get(answered_id(broken.answers or b""))
        if call is not None:
            self.abandon(call)
            return Failed(call, InvalidResponse(f"the backend's answer is no JSON-RPC response: {error}"))
        refused = refusal(broken.asks or b"", error)
        if refused is not None:
            return ToBackend(refused)
        return Dropped(NOISE if isinstance(error, ParseError) else "invalid")

    def receive_question(self, line: bytes, among: tuple[bytes, ...], now: float) -> Command:
        """A question that belongs to one of the calls with these ids of ours."""
        message = parse_backend(line)
        assert isinstance(message, Request)
        return self._receive_question(message, now, among)

    def _receive_question(self, message: Request, now: float, among: tuple[bytes, ...] = ()) -> Command:
        self._last_before = self._last_id
        if message.method == PING:
            return ToBackend(result_response(message.id, {}))
        refused = self.questions.refusal(message)
        if refused is not None:
            return ToBackend(refused)
        self._last_id += 1
        our_id = b"%d" % self._last_id
        calls = {each: self.calls[each] for each in among if each in self.calls} or self.calls
        stream = stream_for_feedback(calls, message.params, listening=self.listening)
        self.questions.add(our_id, message.id, stream, now, among)
        return ToStream(stream, dump_request(our_id, message.method, message.params), question=our_id)

    def _receive_notification(self, message: Notification, now: float) -> Command:
        method, params = message.method, message.params or {}
        if method == "notifications/progress":
            return self._progress(params, now)
        if method == "notifications/cancelled":
            return self._question_withdrawn(params)
        payload = dump_notification(method, message.params)
        change = method.encode() + bytes(params.get("uri", ABSENT)) if method in _COALESCED else None
        if "_meta" in params and (call := subscription_of(self.calls, params)) is not None:
            told = ToStream(call.stream, payload)
            return self._admit(told, now, call.gateway_id + change if change else b"", call)
        if method.startswith("notifications/tasks"):
            self._running_tasks = self._running_tasks or RunningTasks()
            self._running_tasks.seen(params, now)
        stream: Stream = Listen.STREAM
        if method == "notifications/message":
            stream = stream_for_feedback(self.calls, message.params, listening=self.listening)
        return self._admit(ToStream(stream, payload, change), now, change or b"")

    def _admit(self, message: ToStream, now: float, change: bytes = b"", call: Call | None = None) -> Command:
        self._rate = self._rate or NotificationRate()
        return self._rate.admit(message, now, change, call)

    def _progress(self, params: Params, now: float) -> Command:
        call = self.calls.get(answered_id(bytes(params.get("progressToken", ABSENT))))
        if call is None or call.progress_token is None or call.cancelled:
            return Dropped("unknown_progress")
        if call.method != "initialize":  # until it is answered no limit on a session's age applies
            call.may_take_until(now + self._call_s)
        if not call.may_stream:
            return Dropped("no_stream")
        params["progressToken"] = msgspec.Raw(call.progress_token)
        return self._admit(ToStream(call.stream, dump_notification("notifications/progress", params)), now)

    def _question_withdrawn(self, params: Params) -> Command:
        request_id = bytes(params.get("requestId", ABSENT))
        withdrawn = self.questions.withdraw(request_id)
        if withdrawn is None:
            call = self.calls.get(answered_id(request_id))
            if call is None or call.method != "subscriptions/listen":
                return Dropped("unknown_cancel")
            self.abandon(call)  # 2026-07-28: a server may end a subscription so; its client gets a result
            meta = encoded({SUBSCRIPTION_KEY: msgspec.Raw(request_id)})
            return Answer(call, Response(request_id, "result", encoded({"resultType": "complete", "_meta": meta})))
        our_id, stream = withdrawn
        params["requestId"] = msgspec.Raw(our_id)
        return ToStream(stream, dump_notification("notifications/cancelled", params))

    # --- deadlines, and the end

    def expire(self, now: float, unsent: Collection[bytes] = ()) -> Iterator[Command]:
        """Fails what is overdue at `now`, and tells the backend; tells the client what the rate has held back. Calls
        that `unsent` names wait for a process, and can be tried again."""
        if self._rate is not None:
            yield from self._rate.due(now, self.calls)
        if self._questions is not None:
            yield from map(ToBackend, self._questions.expire(now))
        for call in overdue(self.calls, now, may_wait_for_client=self.has_questions):
            self.abandon(call)
            yield from ended(call, now, was_sent=call.gateway_id not in unsent)

    def fail_all(self, error: GatewayError, *, waiting: GatewayError, unsent: Collection[bytes] = ()) -> list[Failed]:
        """Fails every call with `error`; those that were not sent, and those that `unsent` names, with `waiting`."""
        failed = [Failed(each.call, waiting, was_sent=False) for each in self.waiting.calls.values()]
        for name, call in self.calls.items():
            failed.append(Failed(call, waiting, was_sent=False) if name in unsent else Failed(call, error))
        self.calls.clear()
        self.waiting.clear()
        self._by_client_id.clear()
        self._questions = None
        return failed


def _require_short(message: Request) -> None:
    limit = MAX_KEPT[message.method]
    if len(encode(message.params)) > limit:
        raise InvalidMessage(f"the params of `{message.method}` have at most {limit} bytes")


def readable_members_of(raw: msgspec.Raw) -> Params:
    """Like `members_of`, but raises InvalidMessage for an object that cannot be read."""
    members = members_of(raw)
    if not members and bytes(raw)[:1] == b"{" and bytes(raw)[1:].strip() != b"}":
        raise InvalidMessage("an object in the message cannot be read")
    return members


def replace_token(params: Params, ours: bytes) -> tuple[Params, bytes | None]:
    """Replaces the progress token in `_meta`, which must be there; returns the params and the old token, if any."""
    meta = readable_members_of(params["_meta"])
    token = meta.get("progressToken")
    if token is None:
        return params, None
    if bytes(token) == b"null":  # some serialisers write what is not there so
        del meta["progressToken"]
        return {**params, "_meta": encoded(meta)}, None
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidMessage(f'a "progressToken" has at most {MAX_ID_CHARACTERS} characters')
    meta["progressToken"] = msgspec.Raw(ours)
    return {**params, "_meta": msgspec.Raw(encode(meta))}, bytes(token)


def asked_version(initialize: bytes) -> str | None:
    """The protocolVersion that an `initialize` asks for."""
    return string_of(object_in(members_of(msgspec.Raw(initialize)), "params").get("protocolVersion"))


def negotiated_version(result: msgspec.Raw) -> str | None:
    """The protocolVersion of an `initialize` result."""
    return string_of(members_of(result).get("protocolVersion"))


# --- when a call is overdue, and what happens then

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


# --- which calls wait because as many run as may

MIN_WAITING = 8  # calls that may wait, even if fewer may run
MAX_WAITING_BYTES = 4 << 20  # of the lines of waiting calls; a single one may be longer
LINE_OVERHEAD = 64  # a line for the backend may be longer than the client's message


class WaitingCall(msgspec.Struct, gc=True):
    call: Call
    line: bytes
    is_own: bool


class WaitingCalls:
    """At most `max_running` calls run; `reserved` of these places are kept for the gateway's own calls."""

    __slots__ = ("_bytes", "_running", "calls", "max_running", "max_waiting", "reserved")

    def __init__(self, running: dict[bytes, Call], max_running: int) -> None:
        self.calls: dict[bytes, WaitingCall] = {}  # by our id, oldest first
        self._running = running  # the Exchange's
        self.max_running, self.max_waiting = max_running, max(max_running, MIN_WAITING)
        self.reserved = 0
        self._bytes = 0

    def reserve(self, places: int, min_waiting: int) -> None:
        """Keeps places for the gateway's own calls, and lets at least `min_waiting` calls wait."""
        self.reserved, self.max_waiting = places, max(self.max_waiting, min_waiting)

    def require_room(self, calls: int, size: int) -> None:
        """Raises QuotaExceeded unless so many calls, of `size` bytes together, could all run or wait."""
        would_wait = len(self._running) + len(self.calls) + calls - self.max_running
        if would_wait > 0:
            self._require_places(would_wait, size + calls * LINE_OVERHEAD, is_one=calls == 1)

    def _require_places(self, would_wait: int, size: int, *, is_one: bool) -> None:
        is_alone = is_one and not self.calls
        if would_wait > self.max_waiting or (self._bytes + size > MAX_WAITING_BYTES and not is_alone):
            places = f"{self.max_running} calls with its backend, {self.max_waiting} waiting, with 4 MiB"
            in_flight = len(self._running) + len(self.calls)
            raise QuotaExceeded("calls_per_session", f"a session has at most {places}; this one has {in_flight}")

    def add(self, call: Call, line: bytes, *, is_own: bool) -> None:
        """Raises QuotaExceeded if no more calls may wait."""
        self._require_places(len(self.calls) + 1, len(line), is_one=True)
        self.calls[call.gateway_id] = WaitingCall(call, line, is_own)
        self._bytes += len(line)

    def next(self) -> tuple[Call, bytes] | None:
        """Takes out the call that has waited longest, with its line, if it may run now."""
        if not self.calls or len(self._running) >= self.max_running:
            return None
        is_for_all = len(self._running) < self.max_running - self.reserved
        first = next((gateway_id for gateway_id, each in self.calls.items() if is_for_all or each.is_own), None)
        return None if first is None else self.take(first)

    def take(self, gateway_id: bytes) -> tuple[Call, bytes]:
        """Removes this call, and returns it with its line."""
        waiting = self.calls.pop(gateway_id)
        self._bytes -= len(waiting.line)
        return waiting.call, waiting.line

    def clear(self) -> None:
        self.calls.clear()
        self._bytes = 0


# --- which stream gets a message of the backend that names no call, or only in its `_meta`
#
# For other messages (progress, cancelled questions, changes of lists and resources) the Exchange decides.

RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
FEEDBACK = frozenset({"tools/call", "prompts/get", "resources/read"})  # may ask and log while they run


def stream_for_feedback(running: dict[bytes, Call], params: Params | None, *, listening: bool) -> Stream:
    """The stream for a question or a log message; stdio does not say to which call it belongs.

    0. It names a task: the stream of the `tasks/result` that waits for it, else the Listen stream.
    1. Exactly one call is in flight: its stream.
    2. Several are, or one that cannot stream, and somebody listens: the Listen stream.
    3. Nobody listens: the stream of the oldest call that may ask.
    4. Else the Listen stream, where it waits for a reader.
    """
    if params is not None and "_meta" in params:
        related = members_of(params["_meta"]).get(RELATED_TASK_KEY)
        task = None if related is None else task_id_of(related)
        if task is not None:
            waiting = (call.stream for call in running.values() if call.task == task and call.may_stream)
            return next(waiting, Listen.STREAM)
    candidates = [call for call in running.values() if call.may_stream and not call.cancelled]
    if len(running) == 1 and candidates:
        return candidates[0].stream
    if not listening:
        for call in candidates:
            if call.method in FEEDBACK:
                return call.stream
    return Listen.STREAM


def subscription_of(running: dict[bytes, Call], params: Params) -> Call | None:
    """The `subscriptions/listen` (2026-07-28) that a notification is sent for; the subscription has its id."""
    return running.get(answered_id(bytes(members_of(params["_meta"]).get(SUBSCRIPTION_KEY, ABSENT))))


# Bytes of params that are kept as long as the session.
